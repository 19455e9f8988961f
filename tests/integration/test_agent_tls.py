"""Agents on the network: certificates, mutual TLS, capabilities, many nodes behind one port."""

import asyncio
import json
import os
import ssl
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
import jwt
import pytest
from agent_world import FakeGateway, eventually, sandbox_id, spec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import NameOID
from dsec.agent import capability, simnodes
from dsec.agent.config import AgentConfig
from dsec.agent.serving import Host
from dsec.agent.substrates.simulated import PROFILES, SimulatedSubstrate
from dsec.agent.tls import CertificateStore
from dsec.api import frames
from dsec.world.clock import SystemClock, system_randomness
from dsec.world.http import NetworkTls
from dsec.world.serve import Listener
from dsec.world.tls import AGENT, CONTROLLER, GATEWAY, client_context, server_context


@dataclass
class Authority:
    """A CA that signs what it is asked to, as the control plane does."""

    directory: Path
    life: timedelta = timedelta(hours=1)

    def __post_init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test CA")])
        self.certificate = (
            self._builder(self.name, self.key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self.key, hashes.SHA256())
        )
        self.pem = self.certificate.public_bytes(serialization.Encoding.PEM).decode()
        self.path = self.directory / "ca.crt"
        self.path.write_text(self.pem)

    def _builder(self, subject: x509.Name, key: object) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(seconds=1))
            .not_valid_after(now + self.life)
        )

    def sign(self, csr_pem: str, subject: x509.Name | None = None) -> tuple[str, str]:
        """Sign a request as it is, names included, or for another subject."""
        request = x509.load_pem_x509_csr(csr_pem.encode())
        names = request.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        certificate = (
            self._builder(subject or request.subject, request.public_key())
            .add_extension(names.value, critical=False)
            .sign(self.key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM).decode(), self.pem

    def issue(self, name: str) -> CertificateStore:
        """Return a certificate for a process on loopback; its unit is its name, or an agent's."""
        store = CertificateStore(self.directory / name, name, ["127.0.0.1"])
        unit = name if name in {CONTROLLER, GATEWAY} else AGENT
        subject = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit),
                x509.NameAttribute(NameOID.COMMON_NAME, name),
            ]
        )
        store.store(*self.sign(store.request_pem(), subject))
        return store

    def network(self, name: str) -> NetworkTls:
        """Return a network whose clients are called so."""
        context = client_context(self.path)
        self.issue(name).load_into(context)
        return NetworkTls(context)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """One CA for gateway and agents."""
    return Authority(tmp_path)


@dataclass
class Served:
    """A fake gateway that really listens."""

    gateway: FakeGateway
    url: str
    key: ed25519.Ed25519PrivateKey


@pytest.fixture
async def served(authority: Authority) -> AsyncIterator[Served]:
    """Serve a gateway over TLS; client certificates are optional, as before registration."""
    key = ed25519.Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    gateway = FakeGateway(sign=authority.sign, capability_key=public.decode())
    store = authority.issue("dsec-gateway")
    listener = Listener("127.0.0.1", 0)
    context = server_context(store.certificate_path, store.key_path, authority.path, required=False)
    await listener.start(gateway.app(), context)
    yield Served(gateway, f"https://{listener.address}", key)
    await listener.close()


def token(served: Served, sandbox: str, verbs: list[str], seconds: float = 60) -> dict[str, str]:
    """Return the header with a capability as gateways sign them."""
    claims = {
        "sandbox": sandbox,
        "project": "research-a",
        "tenant": "research",
        "verbs": verbs,
        "exp": datetime.now(UTC) + timedelta(seconds=seconds),
    }
    return {capability.HEADER: jwt.encode(claims, served.key, "EdDSA")}


async def test_simulated_nodes_join_serve_and_leave(
    authority: Authority, served: Served, tmp_path: Path
) -> None:
    """Three nodes in a process of their own: joined by token, then called by mutual TLS."""
    place = tmp_path / "sim"
    place.mkdir()
    plan = simnodes.Plan(
        gateway=served.url,
        ca=authority.path,
        nodes=[simnodes.SimulatedNode(name=f"sim-{n}", profile="8xa100") for n in range(3)],
    )
    for node in plan.nodes:
        simnodes.store_token(place, node.name, f"join-{node.name}")
    simnodes.write_plan(place, plan)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dsec.agent.simnodes", str(place), env=os.environ
    )
    try:
        await eventually(lambda: sum(r.registered for r in simnodes.read_report(place)) == 3)
        registered = {r.name: r for r in served.gateway.registrations}
        assert set(registered) == {"sim-0", "sim-1", "sim-2"}
        first = served.gateway.registrations[0]
        assert served.gateway.tokens[0] == f"Bearer join-{first.name}"
        assert registered["sim-1"].labels["gpu-type"] == "a100"
        assert len({r.uid for r in registered.values()}) == 3
        assert len(registered["sim-1"].inventory.devices) == 8

        await _drive(authority, served, registered["sim-1"].endpoint)

        plan.nodes = plan.nodes[:1]
        simnodes.write_plan(place, plan)
        await eventually(lambda: len(simnodes.read_report(place)) == 1)
        plan.nodes = []
        simnodes.write_plan(place, plan)
        assert await asyncio.wait_for(process.wait(), 30) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _drive(authority: Authority, served: Served, endpoint: str) -> None:
    """Create, exec and be refused on one node."""
    controller = authority.network(CONTROLLER).client(endpoint + "/v1")
    gateway = authority.network(GATEWAY).client(endpoint + "/v1")
    stranger = authority.network("sim-0").client(endpoint + "/v1")
    nobody = NetworkTls(client_context(authority.path)).client(endpoint + "/v1")
    body = {"epoch": 1, "specs": [spec(1, None).wire()]}
    answer = None
    for _ in range(100):
        # the first nodes' certificate may be there a moment before the listener
        try:
            answer = await controller.post("sandboxes", json=body)
            break
        except httpx2.TransportError:
            await asyncio.sleep(0.05)
    assert answer is not None
    assert answer.json()["answers"][0]["accepted"] is True
    assert (await stranger.post("sandboxes", json=body)).status_code == 403
    with pytest.raises((ssl.SSLError, httpx2.TransportError)):
        await nobody.get("state")
    state = await controller.get("state", params={"since": -1, "wait": 0})
    assert state.json()["full"] is True
    since = state.json()["seq"]
    while state.json()["sandboxes"] == [] or state.json()["sandboxes"][0]["state"] != "running":
        state = await controller.get("state", params={"since": since, "wait": 5})
        since = state.json()["seq"]

    path = f"sandboxes/{sandbox_id(1)}"
    call = frames.encode_request(frames.ExecCall(command=["echo", "hi"]), b"input")
    refused = await gateway.post(f"{path}/exec", content=call)
    assert (refused.status_code, refused.json()["code"]) == (403, "denied")
    for wrong in (
        token(served, sandbox_id(2), ["exec"]),
        token(served, sandbox_id(1), ["logs"]),
        token(served, sandbox_id(1), ["exec"], -60),
        token(served, sandbox_id(1), ["exec"], 3600),
        {capability.HEADER: "nonsense"},
    ):
        refused = await gateway.post(f"{path}/exec", content=call, headers=wrong)
        assert refused.status_code == 403, wrong
    right = token(served, sandbox_id(1), ["exec", "logs"])
    assert (await controller.post(f"{path}/exec", content=call, headers=right)).status_code == 403
    answer = await gateway.post(f"{path}/exec", content=call, headers=right)
    got = frames.Decoder().feed(answer.content)
    assert [(f.type, f.payload) for f in got[:-1]] == [
        (frames.FrameType.STDOUT, b"echo hi\n"),
        (frames.FrameType.STDOUT, b"input"),
    ]
    assert json.loads(got[-1].payload)["exitCode"] == 0
    answer = await gateway.get(f"{path}/logs", headers=right)
    assert [f.type for f in frames.Decoder().feed(answer.content)] == [
        frames.FrameType.STDOUT,
        frames.FrameType.END,
    ]
    await asyncio.gather(*(c.aclose() for c in (controller, gateway, stranger, nobody)))


async def test_the_agent_program_renews_its_certificate(
    authority: Authority, served: Served, tmp_path: Path
) -> None:
    """`python -m dsec.agent` registers, renews its certificate in time, stops on SIGTERM."""
    authority.life = timedelta(seconds=3)
    (tmp_path / "token").write_text("once")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dsec.agent", "--substrate", "simulated"),
        *("--state-dir", str(tmp_path / "agent"), "--gateway", served.url),
        *("--ca", str(authority.path), "--token-file", str(tmp_path / "token")),
        *("--node-name", "n1", "--listen", "127.0.0.1:0", "--labels", "a=b"),
        env={**os.environ, "DSEC_AGENT_HEARTBEAT_SECONDS": "0.4"},
    )
    try:
        await eventually(lambda: sum(bool(r.csr_pem) for r in served.gateway.registrations) >= 2)
        assert served.gateway.registrations[0].labels == {"a": "b"}
        assert served.gateway.tokens[0] == "Bearer once"
        await eventually(lambda: served.gateway.tokens[-1] == "")
        # away for longer than the certificate lives: the token admits the node again
        served.gateway.away = True
        await asyncio.sleep(4)
        served.gateway.away = False
        seen = len(served.gateway.tokens)
        await eventually(lambda: "Bearer once" in served.gateway.tokens[seen:])
        assert served.gateway.nobody == [], "without a certificate the agent registers, no more"
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 30) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_nothing_is_sent_before_the_gateway_can_know_who_calls(
    authority: Authority, served: Served, tmp_path: Path
) -> None:
    """However long the first registration takes, rows and scenes wait for the certificate."""
    served.gateway.away = True
    clock, randomness = SystemClock(), system_randomness()
    host = Host("127.0.0.1:0", "", clock, randomness)
    config = AgentConfig(
        state_dir=tmp_path / "n1",
        gateway=served.url,
        node_name="n1",
        ca=authority.path,
        durable=False,
    )
    substrate = SimulatedSubstrate(PROFILES["cpu"], clock, randomness, node="n1")
    try:
        agent = await host.add(config, substrate)
        await agent.create([spec(1, 0.01)])
        await asyncio.sleep(2)  # several times as long as rows and scenes gather
        served.gateway.away = False
        await eventually(lambda: "sandbox-ended" in served.gateway.history(sandbox_id(1)))
        assert served.gateway.nobody == []
        assert any(path.endswith("/result.json") for path in served.gateway.artifacts)
    finally:
        await host.close()


async def test_bad_settings_are_sentences(tmp_path: Path) -> None:
    """Each wrong setting is named; the exit code is 2; there is no traceback."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dsec.agent", "--state-dir", str(tmp_path)),
        *("--gateway", "gateway", "--node-name", "UPPER", "--listen", "nowhere"),
        stderr=asyncio.subprocess.PIPE,
    )
    _, err = await process.communicate()
    text = err.decode()
    assert process.returncode == 2
    assert "Traceback" not in text
    for field in ("gateway", "node_name", "listen"):
        assert field in text.replace("nodeName", "node_name")
