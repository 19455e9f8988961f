"""A removed node is out: over real TLS, its valid certificate opens nothing until it joins anew."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from agent_world import eventually
from dsec.agent.config import AgentConfig
from dsec.agent.serving import Host
from dsec.agent.substrates.simulated import PROFILES, SimulatedSubstrate
from dsec.agent.tls import CertificateStore
from dsec.journal.history import AUDIT, Question, read
from dsec.local.control import Control, ControlConfig, build_control
from dsec.world.clock import SystemClock, system_randomness
from dsec.world.http import NetworkPlain
from dsec.world.memory import MemoryObjects, MemoryRecords
from dsec.world.records import RecordNotFoundError
from dsec.world.serve import Listener
from dsec.world.tls import client_context, server_context

NODE = "n1"


@dataclass
class Served:
    """A gateway that listens with TLS, over stores in memory."""

    control: Control
    records: MemoryRecords
    objects: MemoryObjects
    url: str
    ca: Path

    def token(self, number: str) -> str:
        """Return a join token."""
        until = datetime.now(UTC) + timedelta(hours=1)
        return self.control.gateway.ca.join_token(number=number, pool="", until=until)

    async def uid(self) -> str:
        """Return the uid of the node's record, or nothing."""
        try:
            return str((await self.records.get("SandboxNode", NODE))["metadata"]["uid"])
        except RecordNotFoundError:
            return ""


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    """Run a gateway; client certificates are asked for, and needed by agents only."""
    clock, records, objects = SystemClock(), MemoryRecords(), MemoryObjects()
    control = await build_control(
        records, objects, NetworkPlain(), clock, system_randomness(), ControlConfig()
    )
    authority = control.gateway.ca
    ca = tmp_path / "gateway-ca.crt"
    ca.write_text(authority.ca_pem)
    store = CertificateStore(tmp_path / "gateway", "gw", ["127.0.0.1"])
    signed, _ = authority.sign(
        store.request_pem(), "gw", clock.now(), record="", address="127.0.0.1"
    )
    store.store(signed, authority.ca_pem)
    listener = Listener("127.0.0.1", 0)
    context = server_context(store.certificate_path, store.key_path, ca, required=False)
    await listener.start(control.gateway_app, context)
    running = asyncio.create_task(control.gateway.run())
    yield Served(control, records, objects, f"https://{listener.address}", ca)
    await listener.close()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.fixture
async def host(served: Served, tmp_path: Path) -> AsyncIterator[Host]:
    """Run the node's agent, joined by a token."""
    (tmp_path / "token").write_text(served.token("first"))
    clock, randomness = SystemClock(), system_randomness()
    made = Host("127.0.0.1:0", "", clock, randomness)
    config = AgentConfig(
        state_dir=tmp_path / NODE,
        gateway=served.url,
        node_name=NODE,
        ca=served.ca,
        token_file=tmp_path / "token",
        uid="machine-1",
        heartbeat_seconds=0.3,
        durable=False,
    )
    await made.add(config, SimulatedSubstrate(PROFILES["cpu"], clock, randomness, node=NODE))
    yield made
    await made.close()


def registration(host: Host) -> dict[str, Any]:
    """Return what the node registers with."""
    return {
        "name": NODE,
        "uid": "machine-1",
        "bootId": "b",
        "incarnation": 1 << 40,
        "endpoint": host.endpoint(NODE),
        "inventory": {"cpuMilli": 1, "memoryBytes": 1 << 30, "diskBytes": 0, "simulated": True},
        "utc": datetime.now(UTC).isoformat(),
    }


ROW = {"node": NODE, "bootId": "b", "seq": 1, "utc": "2026-01-01T00:00:00Z", "kind": "k"}
PUSH = {"node": NODE, "bootId": "b", "rows": [ROW]}
Calls = dict[str, Callable[[httpx2.AsyncClient], Any]]


async def test_a_removed_node_is_out_until_it_joins_anew(
    served: Served, host: Host, tmp_path: Path
) -> None:
    """Its certificate is refused for every call, its spent token too; a new token admits it.

    The thief has key and certificate, and a connection that was open before the removal.
    """
    tls = tmp_path / NODE / "tls"
    await eventually(lambda: host.registered(NODE) and (tls / "node.crt").exists())
    first, old_token = await served.uid(), (tmp_path / "token").read_text()
    context = client_context(served.ca)
    context.load_cert_chain(tls / "node.crt", tls / "node.key")
    calls: Calls = {
        "journal": lambda c: c.post("/agent/v1/journal", json=PUSH),
        "artifact": lambda c: c.put("/agent/v1/artifacts/lab/-/sb-x/a", content=b"x"),
        "input": lambda c: c.get(f"/agent/v1/inputs/lab/{'0' * 64}"),
        "register": lambda c: c.post("/agent/v1/register", json=registration(host)),
    }
    async with (
        httpx2.AsyncClient(base_url=served.url, verify=context, trust_env=False) as thief,
        httpx2.AsyncClient(
            base_url=served.url,
            verify=client_context(served.ca),
            trust_env=False,
            headers={"Authorization": f"Bearer {old_token}"},
        ) as keeper,
    ):
        assert (await calls["journal"](thief)).status_code == 200
        await served.records.delete("SandboxNode", NODE)
        async with asyncio.timeout(30):
            # the gateway hears of it by its watch
            while (await calls["journal"](thief)).status_code == 200:  # noqa: ASYNC110 - another's
                await asyncio.sleep(0.05)
        for name, call in calls.items():
            answer = await call(thief)
            assert (answer.status_code, answer.json()["code"]) == (403, "revoked"), name
        answer = await calls["register"](keeper)
        assert (answer.status_code, answer.json()["code"]) == (403, "denied"), "a spent token"
        assert not await served.uid(), "nothing has brought the record back"

        await eventually(lambda: not (tls / "node.crt").exists())
        (tmp_path / "token").write_text(served.token("second"))
        await eventually((tls / "node.crt").exists)
        second = await served.uid()
        assert second not in ("", first)
        spool = host.nodes[NODE].agent.spool
        await eventually(lambda: not spool.unshipped(10))

        for name, call in calls.items():
            answer = await call(thief)
            assert (answer.status_code, answer.json()["code"]) == (403, "revoked"), name
    denied = [row.body async for row in read(served.objects, Question(kind="denied"), AUDIT)]
    told = [row for row in denied if "was removed" in str(row["why"])]
    assert told
    assert {row["user"] for row in told} == {NODE}
