"""Replication policies and failover over HTTP: who may, and what comes back."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from dsec.api.replication import REPLICATE_NOW
from dsec.gateway.auth import key_entry
from dsec.local.control import ControlConfig, build_control
from dsec.snapshots.cards import Card, write_card
from dsec.snapshots.homes import home_of
from dsec.snapshots.refs import publish
from dsec.world.clock import SystemClock, system_randomness
from dsec.world.inprocess import InProcessNetwork
from dsec.world.memory import AccessRule, AccessTable, MemoryRecords
from snapshot_world import PREFIX, Region, ref_of, region

ADMIN, OTHER = "dsec_admin_0123456789", "dsec_other_0123456789"
POLICY = {
    "apiVersion": "dsec.dev/v1alpha1",
    "kind": "ReplicationPolicy",
    "metadata": {"name": "daily"},
    "spec": {"destinations": [{"region": "b"}]},
}
TENANT = {
    "apiVersion": "dsec.dev/v1alpha1",
    "kind": "Tenant",
    "metadata": {"name": "team-a"},
    "spec": {"projects": ["p"]},
}


class Served:
    """A gateway of region b, and callers."""

    def __init__(self, records: MemoryRecords, place: Region, network: InProcessNetwork) -> None:
        self.records, self.place, self._network = records, place, network

    async def call(
        self, method: str, path: str, key: str = ADMIN, json: Any = None
    ) -> httpx2.Response:
        """Make a call."""
        async with self._network.client("http://gateway") as client:
            headers = {"Authorization": f"Bearer {key}"}
            return await client.request(method, path, headers=headers, json=json)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """Region b, with what a lost region a had copied to it."""
    place, clock = region("b"), SystemClock()
    access = AccessTable([AccessRule(("admins",))])
    records = MemoryRecords(access=access)
    for record in (TENANT, POLICY):
        await records.create(record)
    network = InProcessNetwork({})
    entries = [key_entry(ADMIN, "root", ["admins"]), key_entry(OTHER, "guest", [])]
    control = await build_control(
        records, place.objects, network, clock, system_randomness(),
        ControlConfig(region="b", api_keys=entries, snapshot_keys=place.keys),
    )  # fmt: skip
    network.routes["http://gateway"] = control.gateway_app
    await place.open()
    card = Card(
        root="exp/uid-1",
        tenant="team-a",
        project="p",
        name="ppo",
        region="a",
        record={"apiVersion": "dsec.dev/v1alpha1", "kind": "Experiment", "spec": {}},
        at=clock.now(),
    )
    await write_card(place.objects, PREFIX, card)
    await publish(place.objects, PREFIX, ref_of(1))
    gateway = control.gateway
    tasks = [
        asyncio.create_task(work)
        for work in (gateway.audit.run(), *(cache.run() for cache in gateway.caches.values()))
    ]
    for cache in gateway.caches.values():
        await cache.synced.wait()
    yield Served(records, place, network)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_cycle_of_copies_is_asked_for_by_those_who_may(served: Served) -> None:
    """The annotation that the leader follows; nobody else's call changes anything."""
    listed = (await served.call("GET", "/v1/replicationpolicies")).json()
    assert [one["name"] for one in listed["items"]] == ["daily"]
    path = "/v1/replicationpolicies/daily/replicate"
    assert (await served.call("POST", path, OTHER)).status_code == 403
    answer = await served.call("POST", path)
    assert answer.status_code == 202
    record = await served.records.get("ReplicationPolicy", "daily")
    assert record["metadata"]["annotations"] == {REPLICATE_NOW: answer.json()["asked"]}
    assert record["spec"] == POLICY["spec"]
    missing = await served.call("POST", "/v1/replicationpolicies/none/replicate")
    assert missing.status_code == 404


async def test_failover_over_http(served: Served) -> None:
    """Refused to guests and for the own region; rehearsed, then done, with its steps."""
    body: dict[str, Any] = {"lost": "a", "rehearse": True}
    assert (await served.call("POST", "/v1/failover", OTHER, body)).status_code == 403
    own = await served.call("POST", "/v1/failover", json={"lost": "b"})
    assert own.status_code == 422
    assert own.json()["details"][0]["path"] == "lost"
    rehearsed = (await served.call("POST", "/v1/failover", json=body)).json()
    assert rehearsed["rows"][0]["fate"] == "take"
    assert await home_of(served.place.objects, PREFIX, "exp/uid-1") is None
    done = (await served.call("POST", "/v1/failover", json={"lost": "a", "why": "fire"})).json()
    assert [one["name"] for one in done["steps"]] == ["observe", "isolate", "recover"]
    assert done["rows"][0]["made"]
    home = await home_of(served.place.objects, PREFIX, "exp/uid-1")
    assert home is not None
    assert (home.region, home.epoch, home.who, home.why) == ("b", 1, "root", "fire")
