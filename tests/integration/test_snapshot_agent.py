"""Snapshots as an agent takes them, over a simulated substrate: plans, gateways that go, ends."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from agent_world import PROFILE, eventually, spec
from dsec.agent.snapshot_taking import SnapshotFailedError
from dsec.agent.substrates.simulated import SimulatedSubstrate
from dsec.api.reasons import EndReason
from dsec.api.sandbox import SandboxSpec, SandboxState
from dsec.api.snapshot import Consistency, RestoreFrom, SnapshotKind, SnapshotPlan
from dsec.world.clock import SystemClock, system_randomness
from snapshot_nodes import PREFIX, Site, SnapshotGateway, lineage


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """One simulated node."""
    substrate = SimulatedSubstrate(PROFILE, SystemClock(), system_randomness())
    made = Site(SnapshotGateway(), substrate, tmp_path / "n")
    await made.start()
    yield made
    await made.close()


def box(number: int, *, restore: RestoreFrom | None = None, **plan: Any) -> SandboxSpec:
    """Return a sandbox that runs until it is stopped, with a plan of state."""
    usual: dict[str, Any] = {"kinds": ["state"], "consistency": Consistency.FREEZE}
    wanted = SnapshotPlan.model_validate(usual | plan)
    return spec(number, None, snapshot=wanted, restore=restore)


async def test_the_last_snapshot_comes_before_the_end(site: Site) -> None:
    """By plan while it runs, once more when it is stopped; its status has the newest."""
    sandbox = await site.create(box(1, interval_seconds=0.2))
    await eventually(lambda: len(site.gateway.published) >= 2)
    await site.stop(sandbox)
    kinds = await site.kinds(sandbox)
    assert kinds.count("snapshot-taken") >= 3
    assert kinds.index("sandbox-ended") > max(
        at for at, kind in enumerate(kinds) if kind == "snapshot-taken"
    )
    refs = await site.gateway.refs(lineage(sandbox))
    assert [ref.seq for ref in refs] == list(range(1, len(refs) + 1))
    assert refs[-1].reason == "final"
    last = site.entry(sandbox).status.snapshot
    assert last is not None
    assert last.seq == refs[-1].seq
    left = list((site.folder / "snapshots" / "seen").iterdir())
    assert left == []


async def test_a_counter_goes_on_in_another_sandbox(site: Site) -> None:
    """The simulated state is how long it ran; the journal has three steps with durations."""
    sandbox = await site.create(box(1))
    await asyncio.sleep(0.3)
    await site.snapshot(sandbox)
    await site.stop(sandbox)
    other = await site.create(box(2, restore=RestoreFrom(lineage=lineage(sandbox))))
    (row,) = await site.rows(other, "snapshot-restored")
    assert [one["step"] for one in row["steps"]] == ["unpack", "metadata", "merge"]
    assert isinstance(site.substrate, SimulatedSubstrate)
    assert site.substrate._run(other).before >= 0.3


async def test_without_a_gateway_snapshots_wait_on_disk(site: Site) -> None:
    """Also over a restart of the agent; then they exist, and the status says so."""
    sandbox = await site.create(box(1, interval_seconds=0.3))
    await eventually(lambda: len(site.gateway.published) == 1)
    site.gateway.silent = True
    pending = site.folder / "snapshots" / "pending"
    assert await site.row(sandbox, "snapshot-kept") == {"kind": "state", "reason": "period"}
    with pytest.raises(SnapshotFailedError, match="control plane unavailable"):
        await site.snapshot(sandbox, hold=True)
    await site.close()
    site.gateway.silent = False
    waited = len(list(pending.glob("*.json")))
    await site.start()
    await eventually(lambda: not any(pending.glob("*.json")))
    status = site.entry(sandbox).status
    await eventually(lambda: status.snapshot is not None and status.snapshot.seq > waited)
    refs = await site.gateway.refs(lineage(sandbox))
    assert [ref.created for ref in refs] == sorted(ref.created for ref in refs)


async def test_a_copy_that_counts_no_more_publishes_nothing(site: Site) -> None:
    """It is refused, the journal says so, and nothing of it waits for ever."""
    sandbox = await site.create(box(1))
    await site.snapshot(sandbox)
    site.gateway.late.add(sandbox)
    with pytest.raises(SnapshotFailedError, match="superseded") as failed:
        await site.snapshot(sandbox)
    assert failed.value.code == "fenced"
    assert (await site.row(sandbox, "snapshot-failed"))["code"] == "fenced"
    assert len(await site.gateway.refs(lineage(sandbox))) == 1


@pytest.mark.case("gvisor#10673")
async def test_another_image_is_refused_unless_it_is_allowed(site: Site) -> None:
    """And a snapshot that cannot be read, as of another format, gives way to the one before."""
    first = box(1)
    sandbox = await site.create(first)
    good = await site.snapshot(sandbox)
    newer = good.model_copy(update={"seq": 2, "manifest": "0" * 64, "image_digest": "sha256:a"})
    key = f"{PREFIX}refs/{good.lineage}/{2:012d}.json"
    await site.gateway.objects.put(key, newer.model_dump_json(by_alias=True).encode())
    other = box(2, restore=RestoreFrom(lineage=good.lineage))
    await site.create(other)
    (damaged,) = await site.rows(other.identity.id, "snapshot-damaged")
    (restored,) = await site.rows(other.identity.id, "snapshot-restored")
    assert (damaged["seq"], restored["seq"]) == (2, 1)
    tagged = good.model_copy(update={"seq": 2, "image_digest": "sha256:a"})
    await site.gateway.objects.put(key, tagged.model_dump_json(by_alias=True).encode())
    image = {"image": "base@sha256:b"}
    third = box(3, restore=RestoreFrom(lineage=good.lineage)).model_copy(update=image)
    end = await site.ended(await site.create(third))
    assert end.reason is EndReason.START_FAILED
    assert "taken of image sha256:a, this sandbox has sha256:b" in end.message
    allowed = RestoreFrom(lineage=good.lineage, any_image=True)
    fourth = box(4, restore=allowed).model_copy(update=image)
    await site.create(fourth)
    assert (await site.row(fourth.identity.id, "snapshot-restored"))["seq"] == 2


async def test_nothing_saved_before_is_no_failure_and_a_number_that_is_missing_is(
    site: Site,
) -> None:
    """A task that is restarted before its first snapshot starts from its image."""
    fresh = await site.create(box(1, restore=RestoreFrom(lineage="exp/u/worker/0")))
    assert (await site.kinds(fresh)).count("snapshot-none") == 1
    missing = await site.create(box(2, restore=RestoreFrom(lineage="exp/u/worker/0", seq=3)))
    end = await site.ended(missing)
    assert end.message == "restore: exp/u/worker/0@3 does not exist, nor any before it"


async def test_a_restore_waits_for_the_control_plane_over_a_restart_of_the_agent(
    site: Site,
) -> None:
    """It says so once; whatever the first agent had begun is begun anew."""
    sandbox = await site.create(box(1))
    await asyncio.sleep(0.2)
    await site.snapshot(sandbox)
    site.gateway.silent = True
    other = box(2, restore=RestoreFrom(lineage=lineage(sandbox)))
    assert site.agent is not None
    await site.agent.create([other])
    told = await site.row(other.identity.id, "snapshot-away")
    assert told["why"].startswith("the restore waits for the control plane: ")
    assert site.entry(other.identity.id).status.state is SandboxState.CREATING
    await site.close()
    await site.start()
    await site.row(other.identity.id, "snapshot-away")
    site.gateway.silent = False
    assert (await site.row(other.identity.id, "snapshot-restored"))["seq"] == 1
    entry = site.entry(other.identity.id)
    await eventually(lambda: entry.status.state is SandboxState.RUNNING)
    assert isinstance(site.substrate, SimulatedSubstrate)
    assert site.substrate._run(other.identity.id).before >= 0.2


@pytest.mark.case("gvisor#9767")
async def test_a_kind_that_cannot_be_stored_is_refused_up_front(site: Site) -> None:
    """Frozen processes rest on their node: pausing is another call."""
    sandbox = await site.create(box(1))
    with pytest.raises(SnapshotFailedError, match="nothing is stored of it") as failed:
        await site.snapshot(sandbox, SnapshotKind.FREEZE)
    assert failed.value.code == "invalid"
    assert "sandbox-paused" not in await site.kinds(sandbox)


async def test_a_node_that_ends_saves_its_sandboxes_first(tmp_path: Path) -> None:
    """At its run-until: the last snapshot, then the scene, then the machine goes."""
    substrate = SimulatedSubstrate(PROFILE, SystemClock(), system_randomness())
    site = Site(SnapshotGateway(), substrate, tmp_path / "n")
    end = datetime.now(UTC) + timedelta(seconds=22)
    await site.start(run_until=end, wind_down_seconds=18.0, shutdown=["true"])
    sandbox = await site.create(box(1))
    ended = await site.ended(sandbox)
    assert ended.reason is EndReason.PREEMPTED
    (ref,) = await site.gateway.refs(lineage(sandbox))
    assert ref.reason == "final"
    kinds = await site.kinds(sandbox)
    assert kinds.index("snapshot-taken") < kinds.index("sandbox-ended")
    assert site.agent is not None
    text = site.agent.metrics.text([]).decode()
    assert 'dsec_agent_snapshots_total{outcome="taken"} 1.0' in text
    await site.close()
