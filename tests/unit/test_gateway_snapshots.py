"""What a gateway lets agents do with the store of snapshots, and what it does not."""

import asyncio
import base64
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import pytest
from dsec.api.reasons import EndReason
from dsec.api.sandbox import Identity, Resources, SandboxSpec
from dsec.api.snapshot import SnapshotKind, SnapshotRef
from dsec.gateway.collecting import everywhere
from dsec.gateway.core import Gateway
from dsec.journal.bindings import Binding, Row
from dsec.journal.bindlog import BindLog
from dsec.local.control import ControlConfig, build_control
from dsec.snapshots.keys import FileKeys
from dsec.snapshots.layout import prefix_of
from dsec.snapshots.leases import GcState, Phase, state_key
from dsec.snapshots.refs import list_refs
from dsec.snapshots.repository import Repository
from dsec.world.clock import SystemClock, system_randomness
from dsec.world.inprocess import InProcessNetwork
from dsec.world.memory import MemoryObjects, MemoryRecords
from dsec.world.tls import AGENT, Peer

NOW = datetime(2026, 11, 30, tzinfo=UTC)
BASE, P = "/agent/v1/snapshots", "snapshots/research/"
BOX, OTHER = "sb-" + "0" * 26, "sb-" + "1" * 26
LINEAGE = "exp/u1/worker/0"


class Signing(MemoryObjects):
    """A store that signs URLs."""

    async def presign(self, method: str, key: str, seconds: int) -> tuple[str, dict[str, str]]:
        """Return what a URL would be."""
        return f"https://store/{key}?{method}&{seconds}", {"If-None-Match": "*"}


def binding(sandbox: str, tenant: str, node: str, **identity: Any) -> Binding:
    """Return a live binding."""
    spec = SandboxSpec(
        identity=Identity(id=sandbox, tenant=tenant, project="lab", **identity),
        image="base",
        resources=Resources(cpu_milli=100, memory_bytes=1 << 26),
    )
    return Binding(
        tenant=tenant, key=sandbox, body_hash="h", id=sandbox, spec=spec, node=node, at=NOW
    )


class Served:
    """A gateway, and nodes that call it."""

    def __init__(self, objects: MemoryObjects, log: BindLog, network: InProcessNetwork) -> None:
        self.objects, self.log, self._network = objects, log, network

    def node(self, name: str) -> httpx2.AsyncClient:
        """Return a client with a node's certificate."""
        peer = Peer(name, frozenset({AGENT}))
        return InProcessNetwork(self._network.routes, peer=peer).client("http://gateway")

    async def keys(self) -> list[str]:
        """Return all keys below the tenant's repository."""
        return [one.key.removeprefix(P) for one in await self.objects.list(P)]


@pytest.fixture(params=[MemoryObjects])
async def served(request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    """Node n1 runs a replica of tenant research, n2 something of another tenant."""
    objects, clock = request.param(), SystemClock()
    network = InProcessNetwork({})
    keys = FileKeys((("k", b"k" * 32),), system_randomness())
    control = await build_control(
        MemoryRecords(), objects, network, clock, system_randomness(),
        ControlConfig(snapshot_keys=keys),
    )  # fmt: skip
    log = BindLog(objects, clock, "test")
    await log.open()
    await log.begin(1)
    mine = binding(BOX, "research", "n1", experiment="e", experiment_uid="u1", incarnation=2)
    theirs = binding(OTHER, "other", "n2")
    rows = [Row(kind="bind", at=NOW, binding=one) for one in (mine, theirs)]
    await log.append(rows)
    network.routes["http://gateway"] = control.gateway_app
    # refusals are answered once they are written
    writing = asyncio.create_task(control.gateway.audit.run())
    yield Served(objects, log, network)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)


def ref(**more: Any) -> SnapshotRef:
    """Return the first snapshot of the replica."""
    values: dict[str, Any] = {
        "tenant": "research", "project": "lab", "lineage": LINEAGE, "seq": 1,
        "kind": SnapshotKind.STATE, "sandbox": BOX, "incarnation": 2, "node": "n1",
        "created": NOW, "manifest": "0" * 64, "files": 1, "bytes": 1, "stored_bytes": 1,
        "region": "local",
    }  # fmt: skip
    return SnapshotRef(**(values | more))


async def publish(client: httpx2.AsyncClient, packs: list[str] | None = None, **more: Any) -> str:
    """Publish and return status and code."""
    body = {"ref": ref(**more).wire(), "packs": packs or []}
    answer = await client.post(f"{BASE}/publish", json=body)
    return f"{answer.status_code} {answer.json().get('code', '')}".strip()


async def test_a_node_gets_the_key_of_whom_it_runs_and_of_nobody_else(served: Served) -> None:
    """The repository is made at the first question; the key is the same at the next."""
    async with served.node("n1") as n1, served.node("n2") as n2:
        answer = (await n1.post(f"{BASE}/access", json={"sandbox": BOX})).json()
        assert (answer["prefix"], answer["lineage"], answer["direct"]) == (P, LINEAGE, False)
        assert len(base64.b64decode(answer["key"])) == 32
        again = await n1.post(f"{BASE}/access", json={"sandbox": BOX})
        assert again.json()["key"] == answer["key"]
        assert again.headers["cache-control"] == "no-store"
        assert await served.keys() == ["repo.json"]
        for client, sandbox in ((n2, BOX), (n1, OTHER), (n1, "sb-" + "2" * 26)):
            refused = await client.post(f"{BASE}/access", json={"sandbox": sandbox})
            assert (refused.status_code, refused.json()["code"]) == (409, "fenced")


async def test_objects_are_added_and_never_replaced(served: Served) -> None:
    """Only data, and only of a tenant that the node runs something of."""
    async with served.node("n1") as n1, served.node("n2") as n2:
        url, body = f"{BASE}/objects/{P}packs/aa/a", b"0123456789"
        assert (await n1.put(url, content=body)).status_code == 200
        assert (await n1.put(url, content=b"other")).status_code == 412
        part = await n1.get(url, headers={"Range": "bytes=2-4"})
        assert (part.status_code, part.content) == (206, b"234")
        short = await n1.get(url, headers={"Range": "bytes=10-12"})
        assert (short.status_code, short.json()["code"]) == (416, "short")
        listed = await n1.get(f"{BASE}/objects", params={"prefix": f"{P}packs/"})
        assert [one["key"] for one in listed.json()["objects"]] == [f"{P}packs/aa/a"]
        lease = f"{BASE}/objects/{P}writers/w.json"
        for _ in range(2):
            assert (await n1.put(lease, content=b"{}")).status_code == 200
        assert (await n1.delete(lease)).status_code == 200
        for method, key, status in (
            ("PUT", f"{P}refs/sb/x/1.json", 403),
            ("PUT", f"{P}repo.json", 403),
            ("PUT", f"{P}packs/../repo.json", 403),
            ("DELETE", f"{P}packs/aa/a", 403),
            ("GET", "snapshots/other/repo.json", 403),
            ("GET", "snapshots/research.eu/repo.json", 403),
            ("GET", "bindlog/0", 422),
            ("GET", f"{P}packs/none", 404),
        ):
            answer = await n1.request(method, f"{BASE}/objects/{key}", content=b"x")
            assert answer.status_code == status, (method, key, answer.text)
        assert (await n2.get(url)).status_code == 403


async def test_a_snapshot_exists_only_while_its_copy_counts(served: Served) -> None:
    """Repeating is no error; a stale copy, another's name and an ended sandbox are refused."""
    async with served.node("n1") as n1, served.node("n2") as n2:
        assert [await publish(n1), await publish(n1)] == ["200", "200"]
        assert await publish(n1, manifest="1" * 64) == "409 taken"
        assert await publish(n1, seq=2, incarnation=1) == "409 fenced"
        assert await publish(n1, seq=2, lineage="exp/u1/worker/1") == "422 invalid"
        assert await publish(n1, seq=2, node="n2") == "422 invalid"
        assert await publish(n2, seq=2, node="n2") == "409 fenced"
        end = Row(kind="end", at=NOW, id=BOX, reason=EndReason.NODE_LOST)
        await served.log.append([end])
        assert await publish(n1, seq=2) == "409 fenced"
    assert [one.seq for one in (await list_refs(served.objects, P, LINEAGE)).refs] == [1]


async def test_what_is_being_collected_makes_a_snapshot_fail_and_not_break(served: Served) -> None:
    """Nobody was told of it, and its number is not given again."""
    doomed = GcState(epoch=4, phase=Phase.DELETING, doomed=["a" * 64])
    await served.objects.put(state_key(P), doomed.model_dump_json(by_alias=True).encode())
    async with served.node("n1") as n1:
        assert await publish(n1, ["a" * 64]) == "409 doomed"
        assert (await list_refs(served.objects, P, LINEAGE)).refs == ()
        assert await publish(n1, seq=1) == "409 taken"
        assert await publish(n1, seq=2) == "200"


@pytest.mark.parametrize("served", [Signing], indirect=True)
async def test_urls_are_signed_for_what_could_be_done_here(served: Served) -> None:
    """Reading anything of the repository, adding data; never references."""
    async with served.node("n1") as n1:

        async def ask(method: str, *keys: str) -> httpx2.Response:
            return await n1.post(f"{BASE}/urls", json={"method": method, "keys": list(keys)})

        signed = (await ask("PUT", f"{P}packs/aa/a", f"{P}packs/bb/b")).json()
        assert signed["urls"][f"{P}packs/aa/a"] == f"https://store/{P}packs/aa/a?PUT&900"
        assert signed["headers"] == {"If-None-Match": "*"}
        assert (await ask("GET", f"{P}refs/sb/x/1.json")).status_code == 200
        assert (await ask("PUT", f"{P}refs/sb/x/1.json")).status_code == 403
        assert (await ask("PUT", f"{P}writers/w.json")).status_code == 403
        assert (await ask("GET", "snapshots/other/packs/aa/a")).status_code == 403
        assert (await ask("DELETE", f"{P}packs/aa/a")).status_code == 422


async def test_a_store_that_signs_nothing_says_so(served: Served) -> None:
    """An agent then goes by the gateway."""
    async with served.node("n1") as n1:
        answer = await n1.post(f"{BASE}/urls", json={"method": "GET", "keys": [f"{P}packs/a"]})
        assert (answer.status_code, answer.json()["code"]) == (501, "not-implemented")


async def test_a_tenant_whose_key_is_gone_keeps_no_other_from_being_collected() -> None:
    """It is said of that tenant alone."""
    objects, clock, randomness = MemoryObjects(), SystemClock(), system_randomness()
    lost, held = (FileKeys(((name, b"k" * 32),), randomness) for name in ("lost", "held"))
    for tenant, keys in (("acme", lost), ("research", held)):
        await Repository.open(objects, prefix_of(tenant), keys, clock, randomness)
    gateway = SimpleNamespace(
        objects=objects, clock=clock, randomness=randomness,
        tenants=lambda: {"acme": None, "research": None},
        config=SimpleNamespace(snapshot_keys=held),
    )  # fmt: skip
    found = await everywhere(cast("Gateway", gateway), wait=False)
    assert [one.tenant for one in found] == ["acme", "research"]
    assert "file:lost" in found[0].problem
    assert found[1].problem == ""
