"""Two whole control planes on two S3 servers: copies by policy, failover over HTTP, and parking."""

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from copying import open_repository
from dsec.api.snapshot import SnapshotKind, SnapshotRef
from dsec.gateway.auth import key_entry
from dsec.local.control import Control, ControlConfig, build_control
from dsec.snapshots.failover import RESTORE_FROM
from dsec.snapshots.keys import FileKeys
from dsec.snapshots.refs import publish
from dsec.snapshots.saving import save
from dsec.snapshots.scanning import Source
from dsec.world.clock import SystemClock, system_randomness, until
from dsec.world.inprocess import InProcessNetwork
from dsec.world.memory import AccessRule, AccessTable, MemoryRecords
from dsec.world.objects import ObjectStoreError
from dsec.world.s3 import S3Config, S3Objects
from dsec.world.s3bytes import S3Bytes
from s3_server import s3_server

ADMIN = "dsec_admin_0123456789"
SECONDS = 90.0
EXPERIMENT = {
    "apiVersion": "dsec.dev/v1alpha1",
    "kind": "Experiment",
    "metadata": {"name": "ppo", "namespace": "p"},
    "spec": {
        "roles": [
            {
                "name": "worker",
                "image": "base",
                "replicas": 1,
                "resources": {"cpuMilli": 100, "memoryBytes": 1 << 26},
            }
        ],
        "snapshot": {"kinds": ["state"]},
    },
}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[S3Config]]:
    """Two servers that run."""
    with ExitStack() as stack:
        yield [stack.enter_context(s3_server(tmp_path_factory.mktemp(name))) for name in ("a", "b")]


@dataclass
class Plane:
    """One region that runs."""

    name: str
    records: MemoryRecords
    store: S3Objects
    control: Control
    network: InProcessNetwork
    running: "asyncio.Task[None]"

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        """Make a call as an administrator."""
        async with self.network.client("http://gateway") as client:
            headers = {"Authorization": f"Bearer {ADMIN}"}
            answer: httpx2.Response = await client.request(
                method, path, headers=headers, json=body, timeout=60
            )
            assert answer.is_success, answer.text
            return answer.json()

    async def experiment(self) -> dict[str, Any]:
        """Return the record of the one experiment."""
        return await self.records.get("Experiment", "ppo", "p")

    async def stop(self) -> None:
        """End the processes; the store stays."""
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)


async def _start(name: str, mine: S3Config, other: tuple[str, S3Config], old: Any = None) -> Plane:
    store, clock = S3Objects(mine), SystemClock()
    left = until(clock, SECONDS)
    while True:
        try:
            await store.ensure_bucket()
            break
        except ObjectStoreError:
            assert left() > 0
            await clock.sleep(0.2)
    records = old or MemoryRecords(access=AccessTable([AccessRule(("admins",))]))
    there, config = other
    secret = {"accessKey": config.access_key, "secretKey": config.secret_key}
    for record in (
        {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "p"}},
        {
            "apiVersion": "dsec.dev/v1alpha1",
            "kind": "Tenant",
            "metadata": {"name": "team-a"},
            "spec": {"projects": ["p"]},
        },
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "copies", "namespace": "dsec-system"},
            "data": {key: base64.b64encode(one.encode()).decode() for key, one in secret.items()},
        },
        {
            "apiVersion": "dsec.dev/v1alpha1",
            "kind": "ReplicationPolicy",
            "metadata": {"name": "all"},
            "spec": {
                "mode": "continuous",
                "destinations": [
                    {
                        "region": there,
                        "bucket": config.bucket,
                        "endpoint": config.endpoint,
                        "secret": "copies",
                    }
                ],
            },
        },
    ):
        if old is None:
            await records.create(record)
    network = InProcessNetwork({})
    control = await build_control(
        records, store, network, clock, system_randomness(),
        ControlConfig(
            identity=f"control-{name}",
            region=name,
            api_keys=[key_entry(ADMIN, "root", ["admins"])],
            snapshot_keys=FileKeys((("local", b"k" * 32),), system_randomness()),
        ),
    )  # fmt: skip
    network.routes["http://gateway"] = control.gateway_app
    network.routes["http://controller"] = control.internal_app
    running = asyncio.create_task(control.run())
    return Plane(name, records, store, control, network, running)


async def _until(what: str, check: Callable[[], Awaitable[Any]]) -> Any:
    """Wait until a check gives something, and return it."""
    left = until(SystemClock(), SECONDS)
    while left() > 0:
        try:
            found = await check()
        except (AssertionError, LookupError):
            found = None
        if found:
            return found
        await asyncio.sleep(0.2)
    raise AssertionError(f"never: {what}")


@pytest.fixture
async def planes(servers: list[S3Config]) -> AsyncIterator[list[Plane]]:
    """Both regions."""
    a, b = servers
    found = [await _start("a", a, ("b", b)), await _start("b", b, ("a", a))]
    yield found
    for plane in found:
        await plane.stop()
        plane.store.close()


async def _in_sync(plane: Plane) -> dict[str, Any] | None:
    (policy,) = (await plane.call("GET", "/v1/replicationpolicies"))["items"]
    said = {one["type"]: one["status"] for one in policy["status"].get("conditions", ())}
    rows = policy["status"].get("destinations") or [{}]
    copied = rows[0].get("repositories") and not rows[0].get("behind")
    return policy if copied and set(said.values()) == {"True"} else None


@pytest.mark.timeout(400)
async def test_a_region_is_lost_and_returns(
    servers: list[S3Config], planes: list[Plane], tmp_path: Path
) -> None:
    """Copied by policy, taken over by a call, parked where it was, and taken back."""
    a, b = planes
    await a.records.create(EXPERIMENT)
    uid = (await a.experiment())["metadata"]["uid"]
    (tmp_path / "step").write_text("1000")
    repo = await open_repository(S3Bytes(servers[0]))
    saved = await save(repo, [Source(tmp_path)])
    ref = SnapshotRef(
        tenant="team-a",
        project="p",
        lineage=f"exp/{uid}/worker/0",
        seq=1,
        kind=SnapshotKind.STATE,
        sandbox="sb-1",
        incarnation=1,
        created=SystemClock().now(),
        manifest=saved.manifest,
        files=saved.files,
        bytes=saved.bytes,
        stored_bytes=saved.stored_bytes,
    )
    await publish(repo.objects, "snapshots/team-a/", ref)
    policy = await _until("a's copies are in sync", lambda: _in_sync(a))
    row = policy["status"]["destinations"][0]
    assert row["recoveryPointSeconds"] < SECONDS

    async def known() -> Any:
        answer = await b.call("POST", "/v1/failover", {"lost": "a", "rehearse": True})
        return [one for one in answer["rows"] if one["fate"] == "take"]

    (rehearsed,) = await _until("b has the card of the experiment", known)
    assert rehearsed["lostSeconds"] < 2 * SECONDS
    await a.stop()
    done = await b.call("POST", "/v1/failover", {"lost": "a", "verify": True})
    assert [(one["made"], one.get("problem", "")) for one in done["rows"]] == [(True, "")]
    made = await b.experiment()
    assert made["metadata"]["annotations"][RESTORE_FROM] == f"exp/{uid}"

    async def waits() -> Any:
        return (await b.experiment()).get("status", {}).get("pending") == 1

    await _until("b wants its replica, and has no node for it", waits)

    # a's control plane starts again, with its records as they were
    again = await _start("a", servers[0], ("b", servers[1]), old=a.records)
    planes.append(again)

    async def parked() -> Any:
        return (await again.experiment()).get("status", {}).get("overrides")

    (override,) = await _until("a parks it", parked)
    assert override["by"] == "failover: home is b since epoch 1"
