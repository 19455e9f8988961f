"""Failover between regions: isolation before recovery, residency, epochs, and the way back."""

import asyncio
from datetime import timedelta
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from dsec.api.failover import FailoverAnswer, FailoverCall
from dsec.api.records import Experiment
from dsec.api.status import OverrideKind
from dsec.controllers.specs import origin_of
from dsec.gateway.regions import _Failover
from dsec.snapshots.cards import Card
from dsec.snapshots.failover import (
    PARTITIONS,
    RESTORE_FROM,
    Fate,
    Partition,
    Stage,
    Survey,
    plan,
    stage,
)
from dsec.snapshots.homes import Home, HomeTakenError, home_of, take_home
from dsec.snapshots.refs import FencedError, list_refs, newest, publish
from dsec.snapshots.routing import Residency
from dsec.world.memory import MemoryObjects
from hypothesis import given
from hypothesis import strategies as st
from replication_make import Leader
from snapshot_world import (
    PREFIX,
    START,
    Region,
    ref_of,
    regions,
    restore,
    save,
)

EXPERIMENT = {
    "apiVersion": "dsec.dev/v1alpha1",
    "kind": "Experiment",
    "metadata": {"name": "ppo", "namespace": "p", "labels": {"owner": "ml"}},
    "spec": {"roles": [{"name": "worker", "image": "x"}], "snapshot": {"kinds": ["state"]}},
}


def _card(**changes: Any) -> Card:
    plain: dict[str, Any] = {
        "root": "exp/uid-1",
        "tenant": "team-a",
        "project": "p",
        "name": "ppo",
        "region": "a",
        "generation": 1,
        "record": {"kind": "Experiment", "spec": {}},
        "at": START,
    }
    return Card(**{**plain, **changes})


def _fates(*cards: Card, homes: tuple[Home, ...] = (), **residency: list[str]) -> list[Fate]:
    found = Survey(PREFIX, cards, {home.root: home for home in homes}, (ref_of(1), ref_of(2)))
    rules = Residency(residency or {"team-a": []}, {})
    now = START + timedelta(hours=1)
    return [one.fate for one in plan(found, lost="a", here="b", residency=rules, now=now)]


def test_each_experiment_has_one_fate() -> None:
    """By where it lives, what there is of it, and where its data may be."""
    elsewhere = Home(root="exp/uid-1", region="c", epoch=1, at=START)
    here = Home(root="exp/uid-1", region="b", epoch=1, at=START)
    assert _fates(_card()) == [Fate.TAKE]
    assert _fates(_card(root="exp/uid-2")) == [Fate.FRESH]
    assert _fates(_card(ended=True)) == [Fate.ENDED]
    assert _fates(_card(region="c")) == [Fate.ELSEWHERE]
    assert _fates(_card(), homes=(elsewhere,)) == [Fate.ELSEWHERE]
    assert _fates(_card(), homes=(here,)) == [Fate.HERE]
    again = _card(root="exp/uid-9", region="b", origin="exp/uid-1", name="ppo-2")
    assert _fates(_card(), again, homes=(here,)) == [Fate.MADE, Fate.HERE]
    assert _fates(_card(), **{"team-a": ["a"]}) == [Fate.RESIDENCY]
    assert _fates(_card(), **{"team-a": ["a", "b"]}) == [Fate.TAKE]
    assert _fates(_card(), **{"team-b": []}) == [Fate.RESIDENCY]
    own = {"kind": "Experiment", "spec": {"residency": ["a"]}}
    assert _fates(_card(record=own)) == [Fate.RESIDENCY]


@given(
    silent=st.floats(0, 1e6),
    isolated=st.none() | st.floats(0, 1e6),
    declared=st.booleans(),
    preset=st.sampled_from(sorted(PARTITIONS)),
)
def test_nothing_recovers_that_is_not_isolated(
    *, silent: float, isolated: float | None, declared: bool, preset: str
) -> None:
    """Whatever the times: observe, then isolate, then recover (HA-07, HA-09)."""
    now = stage(PARTITIONS[preset], silent, isolated_for=isolated, declared=declared)
    if now is Stage.RECOVER:
        assert isolated is not None
    if isolated is None and not declared and preset == "region":
        assert now is Stage.OBSERVE


def test_a_partition_of_90_seconds_does_nothing_and_one_of_150_isolates_first() -> None:
    """The two minutes of CONF-21, and the faster preset's thirty and sixty seconds."""
    safe, fast = PARTITIONS["partition-safe"], PARTITIONS["failover-fast"]
    assert stage(safe, 90) is Stage.OBSERVE
    assert stage(safe, 150) is Stage.ISOLATE
    assert stage(safe, 150, isolated_for=0) is Stage.RECOVER
    assert stage(fast, 30) is Stage.ISOLATE
    assert stage(fast, 60, isolated_for=30) is Stage.ISOLATE
    assert stage(fast, 90, isolated_for=60) is Stage.RECOVER
    assert stage(Partition(observe=None), 1e9) is Stage.OBSERVE


async def test_of_two_who_take_a_home_one_has_it() -> None:
    """By a conditional write of the next epoch; the other learns who."""
    objects = MemoryObjects()

    async def take(where: str) -> Home | HomeTakenError:
        wanted = Home(root="exp/u", region=where, epoch=1, at=START, who=where)
        try:
            return await take_home(objects, PREFIX, wanted)
        except HomeTakenError as problem:
            return problem

    won = [one for one in await asyncio.gather(*map(take, "bcd")) if isinstance(one, Home)]
    assert len(won) == 1
    assert await home_of(objects, PREFIX, "exp/u") == won[0]
    assert await take(won[0].region) == won[0]


async def test_a_region_that_lost_its_home_publishes_nothing() -> None:
    """The fence of the home epoch, before the number is even looked at."""
    objects = MemoryObjects()
    await publish(objects, PREFIX, ref_of(1))
    root = "exp/uid-1"
    await take_home(objects, PREFIX, Home(root=root, region="b", epoch=1, at=START))
    with pytest.raises(FencedError, match="its home is b since epoch 1"):
        await publish(objects, PREFIX, ref_of(2))
    await publish(objects, PREFIX, ref_of(2, home_epoch=1))


class Side(Leader):
    """One region's control plane: its store, its records, its leader's copies."""

    @property
    def gateway(self) -> Any:
        """What failover sees of a gateway."""
        return SimpleNamespace(
            config=SimpleNamespace(region=self.place.name, snapshot_keys=self.place.keys),
            records=self.records,
            objects=self.place.objects,
            caches=self.caches,
            clock=self.place.clock,
            randomness=self.place.randomness,
        )

    async def take_over(self, lost: str, **asked: Any) -> FailoverAnswer:
        """Run failover from a region to this one."""
        return await _Failover(self.gateway, FailoverCall(lost=lost, **asked), "ops").run()

    async def cycle(self) -> None:
        """Run a cycle of copies now."""
        self.replicator._running.clear()
        await self.look_once()

    async def seen(self, count: int) -> None:
        """Wait until the leader's view has so many experiments."""
        for _ in range(500):
            if len(self.caches["Experiment"].all()) == count:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("the cache never catches up")


async def _side(place: Region, other: Region) -> Side:
    spec = {"destinations": [{"region": other.name}], "mode": "continuous"}
    policy = {
        "apiVersion": "dsec.dev/v1alpha1",
        "kind": "ReplicationPolicy",
        "metadata": {"name": "all"},
        "spec": spec,
    }

    async def stores(_: Any) -> Any:
        return other.objects

    return await Side.begin(place, stores, policy)


@pytest.fixture
async def sides() -> Any:
    """Two regions that copy to each other."""
    a, b = regions()
    both = await _side(a, b), await _side(b, a)
    yield both
    for side in both:
        await side.end()


async def _uid(side: Side) -> str:
    return str((await side.records.get("Experiment", "ppo", "p"))["metadata"]["uid"])


async def _before_the_loss(a: Side) -> tuple[str, str]:
    """Let region a run a task with one copied snapshot and one that is not; return its lineage."""
    await a.records.create(EXPERIMENT)
    await a.seen(1)
    old = await _uid(a)
    repo = await a.place.open()
    lineage = f"exp/{old}/worker/0"
    await save(repo, [b"step 1"], lineage=lineage)
    await a.cycle()
    a.place.clock.time += 60
    await save(repo, [b"step 2"], lineage=lineage)
    a.place.clock.time += 60
    return old, lineage


async def test_a_lost_region_is_rehearsed_and_then_taken_over(sides: tuple[Side, Side]) -> None:
    """The drill W-13: recovery point shown, isolation, then recovery from the newest copy."""
    a, b = sides
    old, lineage = await _before_the_loss(a)
    before = await b.place.objects.list("")
    rehearsed = await b.take_over("a", rehearse=True)
    (row,) = rehearsed.rows
    assert (row.fate, row.epoch, row.made) == (Fate.TAKE, 1, False)
    assert 120 <= (rehearsed.recovery_point_seconds or 0) < 130
    assert [step.name for step in rehearsed.steps] == ["observe"]
    assert await b.place.objects.list("") == before

    answer = await b.take_over("a", why="fire")
    assert [step.name for step in answer.steps] == ["observe", "isolate", "recover"]
    assert answer.rows[0].made
    made = await b.records.get("Experiment", "ppo", "p")
    assert made["metadata"]["annotations"][RESTORE_FROM] == f"exp/{old}"
    assert made["metadata"]["labels"] == {"owner": "ml"}
    assert made["spec"] == EXPERIMENT["spec"]
    ref = await newest(b.place.objects, PREFIX, lineage)
    assert ref is not None
    assert await restore(await b.place.open(), ref) == [b"step 1"]
    # a repeat changes nothing
    again = await b.take_over("a")
    assert (again.rows[0].fate, again.rows[0].made) == (Fate.HERE, True)
    assert await _uid(b) == made["metadata"]["uid"]


async def test_a_region_that_returns_parks_and_can_take_back(sides: tuple[Side, Side]) -> None:
    """Nothing of it starts, what it writes is refused, and failback is the same the other way."""
    a, b = sides
    old, lineage = await _before_the_loss(a)
    await b.take_over("a")
    await b.seen(1)
    new = await _uid(b)
    forward = f"exp/{new}/worker/0"
    await save(await b.place.open(), [b"step 2, again"], lineage=forward)

    assert not a.replicator.returned.is_set()
    await a.replicator._come_back()
    parked = await a.records.get("Experiment", "ppo", "p")
    (override,) = parked["status"]["overrides"]
    assert override["kind"] == OverrideKind.FREEZE
    await b.cycle()
    with pytest.raises(FencedError):
        await save(await a.place.open(), [b"step 3"], lineage=lineage)
    # what only it had is still there for people
    lost = await newest(a.place.objects, PREFIX, lineage)
    assert lost is not None
    assert await restore(await a.place.open(), lost) == [b"step 2"]

    back = await a.take_over("b")
    rows = {row.root: row for row in back.rows}
    assert rows[f"exp/{new}"].made, rows
    home = await a.records.get("Experiment", "ppo", "p")
    assert home["metadata"]["annotations"][RESTORE_FROM] == f"exp/{new}"
    assert home["metadata"]["uid"] not in {old, new}
    ref = await newest(a.place.objects, PREFIX, forward)
    assert ref is not None
    assert await restore(await a.place.open(), ref) == [b"step 2, again"]
    # and b parks what it no longer has
    await b.replicator._come_back()
    left = await b.records.get("Experiment", "ppo", "p")
    assert left["status"]["overrides"][0]["kind"] == OverrideKind.FREEZE


def test_replicas_of_what_was_made_again_start_from_the_copies() -> None:
    """The first copy of each, from the lineage that it had; later ones from its own."""
    experiment = Experiment.model_validate(
        {**EXPERIMENT, "metadata": {"name": "ppo", "annotations": {RESTORE_FROM: "exp/old"}}}
    )
    role = experiment.spec.roles[0]
    found = origin_of(experiment, role, 3, None)
    assert found is not None
    assert (found.lineage, found.seq) == ("exp/old/worker/3", None)
    assert origin_of(Experiment.model_validate(EXPERIMENT), role, 3, None) is None


async def test_verifying_names_the_copies_that_are_damaged(sides: tuple[Side, Side]) -> None:
    """A copy that cannot be restored is said before anything is taken over."""
    a, b = sides
    await _before_the_loss(a)
    (pack,) = await b.place.objects.list(PREFIX + "packs/")
    await b.place.objects.put(pack.key, b"x" * pack.size)
    answer = await b.take_over("a", rehearse=True, verify=True)
    (copy,) = answer.rows[0].copies
    assert "all before it are damaged" in copy.problem


async def test_what_another_has_taken_is_not_taken_again(sides: tuple[Side, Side]) -> None:
    """A third region was faster: nothing is made here."""
    a, b = sides
    await a.records.create(EXPERIMENT)
    await a.seen(1)
    await save(await a.place.open(), [b"x"], lineage=f"exp/{await _uid(a)}/worker/0")
    await a.cycle()
    home = Home(root=f"exp/{await _uid(a)}", region="c", epoch=1, at=a.place.clock.now())
    await take_home(b.place.objects, PREFIX, home)
    answer = await b.take_over("a")
    assert answer.rows[0].fate == Fate.ELSEWHERE
    assert not (await b.records.list("Experiment")).items


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 6), st.integers(1, 3)), max_size=12, unique=True
    )
)
def test_two_regions_agree_on_what_counts(written: list[tuple[int, int, int]]) -> None:
    """Copied both ways in any order, both end with the same references in force."""
    from dsec.snapshots.refs import in_force
    from dsec.snapshots.standing import rank

    refs = [
        ref_of(seq, home_epoch=epoch, incarnation=number, manifest=f"{epoch}{seq}{number:062d}")
        for epoch, seq, number in written
    ]
    # of one number and epoch there is one per store; the better one stays
    best: dict[int, Any] = {}
    for ref in refs:
        known = best.get(ref.seq)
        if known is None or rank(ref) > rank(known):
            best[ref.seq] = ref
    forward = in_force(best.values())
    assert forward == in_force(reversed(list(best.values())))
    epochs = [ref.home_epoch for ref in forward]
    assert epochs == sorted(epochs, reverse=True)
    for one, other in pairwise(forward):
        assert one.seq > other.seq


async def test_both_regions_converge_after_they_wrote_the_same_number() -> None:
    """One number, two epochs: the higher stays in both, the other is parked in both."""
    from dsec.snapshots.replicating import Copier

    a, b = regions()
    repo = await a.open()
    await save(repo, [b"one"])
    await Copier(a.objects, b.objects, PREFIX, a.clock, a.randomness).run()
    await save(repo, [b"two of a"])
    await save(repo, [b"three of a"])
    there = await b.open()
    await take_home(b.objects, PREFIX, Home(root="exp/uid-1", region="b", epoch=1, at=START))
    await save(there, [b"two of b"], home_epoch=1)
    for _ in range(2):
        await Copier(a.objects, b.objects, PREFIX, a.clock, a.randomness).run()
        await Copier(b.objects, a.objects, PREFIX, b.clock, b.randomness).run()
    for place in (a, b):
        refs = (await list_refs(place.objects, PREFIX)).refs
        assert [(ref.seq, ref.home_epoch) for ref in refs] == [(1, 0), (2, 1)], place.name
        assert await restore(await place.open(), refs[-1]) == [b"two of b"]
    kept = await a.objects.list(PREFIX + "parked/")
    assert len(kept) == 2
