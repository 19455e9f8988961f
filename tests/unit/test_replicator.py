"""The leader's copies: policies become copies and conditions; what lives elsewhere is parked."""

import asyncio
from dataclasses import dataclass
from typing import Any

from dsec.api.meta import condition_of
from dsec.api.records import Experiment, ReplicationPolicy
from dsec.api.replication import REPLICATE_NOW, ReplicationDestination
from dsec.api.status import OverrideKind
from dsec.snapshots.homes import Home, take_home
from dsec.snapshots.refs import list_refs
from dsec.world.memory import MemoryObjects
from dsec.world.objects import ObjectStore, ObjectStoreError
from replication_make import Leader
from snapshot_world import PREFIX, Region, regions, save

POLICY = {
    "apiVersion": "dsec.dev/v1alpha1",
    "kind": "ReplicationPolicy",
    "metadata": {"name": "daily"},
    "spec": {"destinations": [{"region": "b"}], "intervalSeconds": 3600},
}
EXPERIMENT = {
    "apiVersion": "dsec.dev/v1alpha1",
    "kind": "Experiment",
    "metadata": {"name": "ppo", "namespace": "p"},
    "spec": {"roles": [{"name": "worker", "image": "x"}], "snapshot": {"kinds": ["state"]}},
}


@dataclass(slots=True)
class World(Leader):
    """One leader's replicator between two regions."""

    b: Region
    away: list[str]

    async def policy(self) -> ReplicationPolicy:
        """Return the policy as it is stored."""
        return ReplicationPolicy.model_validate(
            await self.records.get("ReplicationPolicy", "daily")
        )

    async def look(self) -> ReplicationPolicy:
        """Look once and wait for what began."""
        await self.look_once()
        return await self.policy()


async def _world(*records: dict[str, Any]) -> World:
    a, b = regions()
    away: list[str] = []

    async def stores(to: ReplicationDestination) -> ObjectStore:
        if to.region in away:
            raise ObjectStoreError(f"{to.region} does not answer")
        objects: MemoryObjects = b.objects
        return objects

    return await World.begin(a, stores, *records, b=b, away=away)


async def test_a_policy_becomes_copies_and_conditions() -> None:
    """The first look copies; lag, recovery point and conditions are in the status."""
    world = await _world(POLICY)
    await save(await world.place.open(), [b"one", b"two"])
    world.place.clock.time += 120
    policy = await world.look()
    assert len((await list_refs(world.b.objects, PREFIX)).refs) == 1
    (row,) = policy.status.destinations
    assert (row.region, row.behind, row.sent_snapshots, row.lag_seconds) == ("b", 0, 1, 0)
    assert 120 <= (row.recovery_point_seconds or 0) < 130
    for kind in ("Ready", "InSync", "Protected"):
        said = condition_of(policy.status.conditions, kind)
        assert said is not None
        assert said.status == "True", said
    assert world.replicator.standing["daily", "b"] == row
    await world.end()


async def test_a_cycle_runs_when_it_is_due_or_asked_for() -> None:
    """Not before its hour; at once when the annotation changes; what was asked for is noted."""
    world = await _world(POLICY)
    repo = await world.place.open()
    await save(repo, [b"one"])
    await world.look()
    await save(repo, [b"two"])
    await world.look()
    assert len((await list_refs(world.b.objects, PREFIX)).refs) == 1
    record = await world.records.get("ReplicationPolicy", "daily")
    record["metadata"]["annotations"] = {REPLICATE_NOW: "please"}
    await world.records.replace(record)
    policy = await world.look()
    assert len((await list_refs(world.b.objects, PREFIX)).refs) == 2
    assert policy.status.handled == "please"
    await save(repo, [b"three"])
    world.place.clock.time += 3600
    await world.look()
    assert len((await list_refs(world.b.objects, PREFIX)).refs) == 3
    await world.end()


async def test_a_destination_that_is_away_is_said_and_what_was_known_stays() -> None:
    """Ready says who does not answer; the recovery point of before is still there."""
    world = await _world(POLICY)
    await save(await world.place.open(), [b"one"])
    before = (await world.look()).status.destinations[0]
    world.away.append("b")
    world.place.clock.time += 4000
    policy = await world.look()
    ready = condition_of(policy.status.conditions, "Ready")
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", "DestinationAway")
    row = policy.status.destinations[0]
    assert row.recovery_point_seconds == before.recovery_point_seconds
    assert "does not answer" in row.message
    await world.end()


async def test_a_fault_of_ours_is_said_and_ends_no_term() -> None:
    """What a store does that nobody thought of is in the condition; the loop goes on."""
    world = await _world(POLICY)
    await save(await world.place.open(), [b"one"])

    usual = world.b.objects.list

    async def list_wrong(prefix: str, *, start_after: str = "") -> list[Any]:
        if prefix.endswith("/packs/"):
            raise KeyError(prefix)
        found: list[Any] = await usual(prefix, start_after=start_after)
        return found

    world.b.objects.list = list_wrong
    policy = await world.look()
    ready = condition_of(policy.status.conditions, "Ready")
    assert ready is not None
    assert "b: a fault of dsec: KeyError" in ready.message
    del world.b.objects.list
    world.place.clock.time += 3600
    assert (await world.look()).status.destinations[0].sent_snapshots == 1
    await world.end()


async def test_residency_leaves_no_silent_copy() -> None:
    """A task bound to a region keeps the shared repository at home, also after it is gone."""
    bound = {**EXPERIMENT, "spec": {**EXPERIMENT["spec"], "residency": ["a"]}}  # type: ignore[dict-item]
    world = await _world(POLICY, bound)
    await save(await world.place.open(), [b"one"])
    for _ in range(2):
        policy = await world.look()
        said = condition_of(policy.status.conditions, "Protected")
        assert said is not None
        assert (said.status, said.reason) == ("False", "NoDestination")
        assert "its data may be in a" in said.message
        assert await world.b.objects.list("") == []
        # the record goes, what it kept stays where it may be
        await world.records.delete("Experiment", "ppo", "p")
        while world.replicator.homes.caches["Experiment"].all():  # noqa: ASYNC110 - a cache tells nobody
            await asyncio.sleep(0.01)
        world.place.clock.time += 4000
    await world.end()


async def test_a_policy_that_contradicts_itself_copies_nothing() -> None:
    """Plain transport and the own region are named, and no byte goes."""
    spec = {"destinations": [{"region": "a"}, {"region": "b", "endpoint": "http://10.0.0.1:80"}]}
    world = await _world({**POLICY, "spec": spec})
    await save(await world.place.open(), [b"one"])
    policy = await world.look()
    ready = condition_of(policy.status.conditions, "Ready")
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", "Invalid")
    assert "spec.destinations[0].region" in ready.message
    assert "https://" in ready.message
    assert await world.b.objects.list("") == []
    await world.end()


async def test_what_lives_elsewhere_is_parked_before_anything_starts() -> None:
    """A region that returns learns from the other store, freezes it, and only then goes on."""
    world = await _world(POLICY, EXPERIMENT)
    await save(await world.place.open(), [b"one"])
    uid = (await world.records.get("Experiment", "ppo", "p"))["metadata"]["uid"]
    home = Home(root=f"exp/{uid}", region="b", epoch=1, at=world.place.clock.now(), who="ops")
    await take_home(world.b.objects, PREFIX, home)
    assert not world.replicator.returned.is_set()
    await world.replicator._come_back()
    assert world.replicator.returned.is_set()
    experiment = Experiment.model_validate(await world.records.get("Experiment", "ppo", "p"))
    (override,) = experiment.status.overrides
    assert override.kind is OverrideKind.FREEZE
    assert override.by == "failover: home is b since epoch 1"
    await world.look()
    again = Experiment.model_validate(await world.records.get("Experiment", "ppo", "p"))
    assert len(again.status.overrides) == 1
    await world.end()


async def test_cards_go_with_the_snapshots() -> None:
    """What another region needs to make an experiment again crosses with its data."""
    world = await _world(POLICY, EXPERIMENT)
    await save(await world.place.open(), [b"one"])
    await world.look()
    keys = [info.key for info in await world.b.objects.list(PREFIX + "records/")]
    uid = (await world.records.get("Experiment", "ppo", "p"))["metadata"]["uid"]
    assert keys == [f"{PREFIX}records/exp/{uid}.json"]
    await world.end()
