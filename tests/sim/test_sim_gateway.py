"""The gateway's refusals: who may call what, what agents may write, what is audited."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx2
import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from dsec.api.scene import pack
from dsec.api.wire import NodeInventory, NodeRegistration
from dsec.gateway import ca
from dsec.journal.history import AUDIT, Question, read
from dsec.world.inprocess import InProcessNetwork
from dsec.world.memory import AccessRule
from dsec.world.records import User
from dsec.world.tls import AGENT, Peer
from sim_world import START, Sim, create

BROKEN = """
metadata: {name: five}
spec:
  image: base
  resources: {cpu: -1, memory: 4Gi}
  gpu: {mode: half}
  restartPolicy: sometimes
  maxRunTime: soon
  nonsense: true
"""


def client(sim: Sim, peer: Peer | None, token: str = "") -> httpx2.AsyncClient:
    """Return a client that shows a certificate, a token, both or nothing."""
    made = InProcessNetwork(sim.routes, peer=peer).client("http://gateway", timeout=30)
    if token:
        made.headers["Authorization"] = f"Bearer {token}"
    return made


def agent(sim: Sim, name: str) -> httpx2.AsyncClient:
    """Return a client with an agent's certificate."""
    return client(sim, Peer(name, frozenset({AGENT})))


def registration(name: str, *, simulated: bool = True, csr: str = "") -> dict[str, Any]:
    """Return a registration as it goes over the wire."""
    inventory = NodeInventory(
        cpu_milli=1, memory_bytes=1 << 30, disk_bytes=1 << 30, simulated=simulated
    )
    return NodeRegistration(
        name=name,
        uid=f"uid-{name}",
        boot_id="b",
        incarnation=1,
        endpoint=f"http://elsewhere/n/{name}",
        inventory=inventory,
        csr_pem=csr,
        utc=START + timedelta(seconds=3),
    ).model_dump(mode="json", by_alias=True)


def request_for(name: str) -> str:
    """Return a certificate request that also asks for what it must not get."""
    names = [x509.DNSName("dsec-gateway"), x509.DNSName(name)]
    return (
        x509.CertificateSigningRequestBuilder()
        .subject_name(
            x509.Name(
                [
                    x509.NameAttribute(NameOID.COMMON_NAME, "dsec-controller"),
                    x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "dsec-controller"),
                ]
            )
        )
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
        .public_bytes(Encoding.PEM)
        .decode()
    )


async def audited(sim: Sim) -> list[dict[str, Any]]:
    """Return the bodies of all audit rows of refusals."""
    return [r.body async for r in read(sim.objects, Question(kind="denied"), AUDIT)]


def test_users_need_rights_for_every_call(simulate: Callable[..., None]) -> None:
    """No token 401, no right 403, another project 403, each with an audit row."""

    async def scenario() -> None:
        async with Sim() as sim:
            sim.records.access.rules.append(
                AccessRule(("ann",), ("get", "list"), ("experiments",), ("lab",))
            )
            nobody, ann = client(sim, None), client(sim, None, "user-token")
            assert (await nobody.get("/v1/whoami")).status_code == 401
            assert (await ann.get("/v1/projects/lab/experiments")).status_code == 200
            for method, path in (
                ("GET", "/v1/projects/other/experiments"),
                ("POST", "/v1/projects/lab/experiments"),
                ("DELETE", "/v1/projects/lab/experiments/x"),
                ("POST", "/v1/projects/lab/sandboxes"),
                ("POST", "/v1/projects/lab/sandboxes/sb-x/exec"),
                ("GET", "/v1/projects/lab/sandboxes/sb-x/logs"),
                ("GET", "/v1/nodes"),
                ("POST", "/v1/join-tokens"),
                ("DELETE", "/v1/nodes/n1"),
            ):
                answer = await ann.request(method, path, headers={"X-Dsec-Correlation-Id": "abc-1"})
                assert answer.status_code == 403, path
                assert answer.json()["code"] == "denied"
                assert answer.json()["correlationId"] == "abc-1"
            rows = await audited(sim)
            assert len(rows) == 10
            assert {row["user"] for row in rows} == {"anonymous", "ann"}
            assert "/v1/projects/lab/sandboxes/sb-x/exec" in {row["path"] for row in rows}

    simulate(scenario)


def test_bad_input_is_answered_with_every_mistake(simulate: Callable[..., None]) -> None:
    """Five mistakes give five entries; sizes, modes, digests and ids are checked."""

    async def scenario() -> None:
        async with Sim() as sim:
            controller = sim.start_controller()
            await sim.ready()
            await sim.clock.sleep(2)
            await sim.kill(controller)
            where = "/v1/projects/lab"
            answer = await sim.client.post(f"{where}/experiments", content=BROKEN)
            assert answer.status_code == 422
            paths = {one["path"] for one in answer.json()["details"]}
            assert len(paths) == 5, paths
            assert {"spec.gpu.mode", "spec.nonsense", "spec.restartPolicy"} <= paths
            big = await sim.client.post(f"{where}/experiments", content=b"x" * (2 << 20))
            assert big.status_code == 413
            mode = await sim.client.post(f"{where}/experiments?mode=maybe", content="a: 1")
            assert mode.status_code == 422
            digest = await sim.client.put(f"{where}/inputs/{'0' * 64}", content=b"x")
            assert digest.status_code == 422
            missing = await sim.client.get(f"{where}/sandboxes/sb-none")
            assert missing.status_code == 404
            stranger = await sim.client.post(
                "/v1/projects/nowhere/sandboxes", json={"creates": [create("k")]}
            )
            assert stranger.status_code == 422
            empty = await sim.client.post(f"{where}/sandboxes", json={"creates": []})
            assert empty.status_code == 422
            away = await sim.client.post(f"{where}/sandboxes", json={"creates": [create("k")]})
            assert away.status_code == 503
            assert away.headers["Retry-After"] == "1"

    simulate(scenario)


def test_a_node_joins_by_what_vouches_for_it(simulate: Callable[..., None]) -> None:
    """Join tokens work once, pod tokens for their node, certificates for their name."""

    async def scenario() -> None:
        async with Sim() as sim:
            await sim.clock.sleep(1)
            account = "system:serviceaccount:dsec-system:dsec-agent"
            extra = {"authentication.kubernetes.io/node-name": ("n1",)}
            tokens = sim.records.access.tokens
            tokens["dsec:pod"] = User(account, extra=extra)
            tokens["dsec:loose"] = User(account)
            tokens["dsec:other"] = User("system:serviceaccount:lab:default")
            given = await sim.client.post("/v1/join-tokens", json={"count": 2, "seconds": 60})
            first, second = given.json()["tokens"]

            async def join(name: str, token: str, **about: Any) -> int:
                answer = await client(sim, None, token).post(
                    "/agent/v1/register", json=registration(name, **about)
                )
                return answer.status_code

            assert await join("a", "") == 401
            assert await join("a", "wrong") == 401
            assert await join("a", first) == 200
            assert await join("a", first) == 200, "a repeat of the same node is no second use"
            assert await join("b", first) == 403
            assert await join("n1", "pod", simulated=False) == 200
            assert await join("n2", "pod", simulated=False) == 403
            assert await join("sim", "loose") == 200
            assert await join("real", "loose", simulated=False) == 403
            assert await join("x", "other") == 403
            gone = [(await sim.client.delete("/v1/nodes/sim")).status_code for _ in range(2)]
            assert gone == [202, 202]
            listed = (await sim.client.get("/v1/nodes")).json()["items"]
            assert {one["metadata"]["name"] for one in listed} == {"a", "n1"}
            await sim.clock.sleep(120)
            assert await join("late", second) == 401
            wrong = await agent(sim, "n1").post("/agent/v1/register", json=registration("n2"))
            assert wrong.status_code == 403
            signed = await agent(sim, "n1").post(
                "/agent/v1/register", json=registration("n1", csr=request_for("n1"))
            )
            certificate = x509.load_pem_x509_certificate(signed.json()["certificatePem"].encode())
            subject = {one.value for one in certificate.subject}
            assert subject == {"n1", AGENT}, "the subject is the gateway's to say"
            alternative = certificate.extensions.get_extension_for_class(
                x509.SubjectAlternativeName
            ).value.get_values_for_type(x509.DNSName)
            assert alternative == ["n1"], "no name of the control plane"

    simulate(scenario)


def test_an_agent_writes_what_is_its_own(simulate: Callable[..., None]) -> None:
    """Rows of its node, scenes of sandboxes bound to it now; all else is denied or fenced."""

    async def scenario() -> None:
        async with Sim() as sim:
            sim.start_controller()
            await sim.add_node("n1")
            await sim.ready(nodes=1)
            made = await sim.client.post(
                "/v1/projects/lab/sandboxes", json={"creates": [create("k")]}
            )
            sandbox = made.json()["answers"][0]["id"]
            own, other = agent(sim, "n1"), agent(sim, "n2")

            async def put(who: httpx2.AsyncClient, path: str) -> tuple[int, str]:
                answer = await who.put(f"/agent/v1/artifacts/{path}", content=b"x")
                return answer.status_code, answer.json().get("code", "")

            assert await put(own, f"lab/-/{sandbox}/logs/a.txt") == (200, "")
            assert await put(other, f"lab/-/{sandbox}/logs/a.txt") == (409, "fenced")
            assert await put(own, "lab/-/sb-unknown/a") == (409, "fenced")
            assert await put(own, f"other/-/{sandbox}/a") == (403, "denied")
            assert (await put(own, f"lab/-/{sandbox}/a/%2e%2e/b"))[0] in (404, 422)

            async def post(who: httpx2.AsyncClient, scene: str, *names: str) -> tuple[int, str]:
                body = pack({name: name.encode() for name in names})
                answer = await who.post(f"/agent/v1/artifacts/{scene}", content=body)
                return answer.status_code, answer.json().get("code", "")

            assert await post(own, f"lab/-/{sandbox}", "b", "c/d", "result.json") == (200, "")
            assert await post(other, f"lab/-/{sandbox}", "b", "e") == (409, "fenced")
            assert await post(own, "lab/-/sb-unknown", "b", "e") == (409, "fenced")
            assert await post(own, f"other/-/{sandbox}", "b", "e") == (403, "denied")
            assert await post(own, f"lab/-/{sandbox}", "e", "../e") == (422, "invalid")
            unlike = await own.post(f"/agent/v1/artifacts/lab/-/{sandbox}", content=b"x\ny")
            assert unlike.status_code == 422
            prefix = f"artifacts/lab/-/{sandbox}/"
            kept = {key: data for key, data in sim.objects._data.items() if "artifacts" in key}
            assert kept == {
                f"{prefix}logs/a.txt": b"x",
                f"{prefix}b": b"b",
                f"{prefix}c/d": b"c/d",
                f"{prefix}result.json": b"result.json",
            }
            nobody = client(sim, None)
            assert (await put(nobody, f"lab/-/{sandbox}/a"))[0] == 401
            gateway = client(sim, Peer("dsec-gateway", frozenset({"dsec-gateway"})))
            assert (await put(gateway, f"lab/-/{sandbox}/a"))[0] == 403
            row = {"node": "n1", "bootId": "b", "seq": 1, "utc": START.isoformat(), "kind": "k"}
            push = {"node": "n1", "bootId": "b", "rows": [row]}
            assert (await own.post("/agent/v1/journal", json=push)).status_code == 200
            assert (await other.post("/agent/v1/journal", json=push)).status_code == 403
            mixed = {**push, "rows": [{**row, "node": "n2"}]}
            assert (await own.post("/agent/v1/journal", json=mixed)).status_code == 403
            denied = await audited(sim)
            assert len(denied) >= 5
            stopped = await sim.client.delete(f"/v1/projects/lab/sandboxes/{sandbox}")
            assert stopped.status_code == 202
            await sim.until(lambda: not sim.live(), 30)
            await sim.clock.sleep(5)
            assert await put(own, f"lab/-/{sandbox}/logs/late.txt") == (409, "fenced")

    simulate(scenario)


def test_capabilities_are_for_one_sandbox_and_a_short_time() -> None:
    """The claims are those that agents check, under the key that the admission carries."""
    authority, pem = ca.create(START)
    token = authority.capability(sandbox="s", project="p", tenant="t", verb="exec", now=START)
    claims = jwt.decode(
        token,
        authority.capability_public_pem,
        algorithms=["EdDSA"],
        options={"verify_exp": False},
    )
    assert claims["verbs"] == ["exec"]
    assert 0 < claims["exp"] - START.timestamp() <= 900
    again = ca.load(authority.ca_pem, pem)
    assert again.capability_public_pem == authority.capability_public_pem
    assert again.token_key == authority.token_key
