"""The simulated provider: one purchase per token, weather that no policy changes, exact bills."""

import asyncio
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from dsec.placement.request import Node
from dsec.providers.provider import (
    EventKind,
    FailureKind,
    NodeProvider,
    Phase,
    Scope,
    StaleEpochError,
    Wanted,
)
from dsec.providers.simulated import SimulatedProvider
from dsec.providers.weather import Weather, boot_seconds, interrupted_at, is_out, spot_price
from dsec.scaling.nodes.offerings import Market, Offering
from dsec.scaling.nodes.plans import Purchase, Why
from dsec.world.memory import MemoryObjects
from hypothesis import given
from hypothesis import strategies as st
from provider_make import T0, Buy, Offer

CALM = Weather(out={}, hazard_per_hour=0.0)
SPOT = Offer(market="spot")


class Time:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.at = T0

    def now(self) -> datetime:
        """Return the time."""
        return datetime.fromtimestamp(self.at, UTC)

    def monotonic(self) -> float:
        """Return the same in seconds."""
        return self.at

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.at += seconds


@pytest.fixture
def time() -> Time:
    """A clock."""
    return Time()


@pytest.fixture
def store() -> MemoryObjects:
    """What outlives the provider."""
    return MemoryObjects()


async def test_a_node_from_purchase_to_its_own_end(time: Time, store: MemoryObjects) -> None:
    """It boots for one to three minutes, runs, and ends at its run-until without any call."""
    provider: NodeProvider = SimulatedProvider(store, time, CALM)
    answer = await provider.buy(Buy(Offer(), 2, "t"), epoch=1, run_until=T0 + 600)
    assert [node.phase for node in answer.nodes] == [Phase.STARTING] * 2
    time.at += 180
    held = await provider.list()
    assert [node.phase for node in held.nodes] == [Phase.RUNNING] * 2
    assert {node.offering for node in held.nodes} == {Offer().key}
    time.at = T0 + 600
    assert (await provider.list()).nodes == ()
    assert [event.kind for event in await provider.events()] == [EventKind.GONE] * 2


async def test_a_repeat_and_another_process_buy_nothing_more(
    time: Time, store: MemoryObjects
) -> None:
    """Also at the same moment, and also once a node has ended."""
    first, second = SimulatedProvider(store, time, CALM), SimulatedProvider(store, time, CALM)
    buy = Buy(Offer(), 3, "t")
    answers = await asyncio.gather(
        *(one.buy(buy, epoch=1, run_until=T0 + 600) for one in (first, second, first))
    )
    assert {tuple(node.id for node in one.nodes) for one in answers} == {
        tuple(node.id for node in answers[0].nodes)
    }
    gone = answers[0].nodes[0].id
    assert (await first.end([gone, "sim-never-0"], epoch=1)).ended == {gone, "sim-never-0"}
    again = await second.buy(buy, epoch=1, run_until=T0 + 900)
    assert (len(again.nodes), again.failure) == (2, None)


async def test_extend_and_epochs(time: Time, store: MemoryObjects) -> None:
    """A later end holds; one that has ended stays so; an old leader is turned away."""
    provider = SimulatedProvider(store, time, CALM)
    answer = await provider.buy(Buy(Offer(), 2, "t"), epoch=1, run_until=T0 + 600)
    one, two = (node.id for node in answer.nodes)
    await provider.end([two], epoch=1)
    done = await provider.extend([one, two], T0 + 1200, epoch=4)
    assert done.ended == {one}
    assert set(done.failed) == {two}
    fresh = SimulatedProvider(store, time, CALM)
    assert [node.run_until for node in (await fresh.list()).nodes] == [T0 + 1200]
    with pytest.raises(StaleEpochError):
        await fresh.end([one], epoch=3)


async def test_bills_are_exact(time: Time, store: MemoryObjects) -> None:
    """From launch to end by the second, a minute at least, run-until and requests alike."""
    provider = SimulatedProvider(store, time, CALM)
    a = await provider.buy(Buy(Offer(), 1, "a"), epoch=1, run_until=T0 + 600)
    await provider.buy(Buy(Offer(), 1, "b"), epoch=1, run_until=T0 + 600)
    await provider.buy(Buy(Offer(), 1, "c"), epoch=1, run_until=T0 + 900)
    time.at += 20
    await provider.end([a.nodes[0].id], epoch=1)
    time.at += 700
    billed = {row.token: (row.end - row.start, row.final) for row in await provider.bill()}
    assert billed == {"a": (60.0, True), "b": (600.0, True), "c": (720.0, False)}


async def test_outages_throttles_and_lost_replies(time: Time, store: MemoryObjects) -> None:
    """Each is a typed failure, and a lost reply has bought."""
    out = SimulatedProvider(store, time, Weather(out={"spot": 1.0}))
    answer = await out.buy(Buy(SPOT, 1, "t"), epoch=1, run_until=T0 + 600)
    assert answer.failure is not None
    assert (answer.failure.kind, answer.failure.scope) == (FailureKind.CAPACITY, Scope.OFFERING)
    busy = SimulatedProvider(store, time, Weather(throttled=1.0))
    answer = await busy.buy(Buy(Offer(), 1, "t"), epoch=1, run_until=T0 + 600)
    assert answer.failure is not None
    assert answer.failure.kind is FailureKind.THROTTLED
    assert not (await busy.list()).complete
    lossy = SimulatedProvider(store, time, Weather(out={}, lost=1.0))
    answer = await lossy.buy(Buy(Offer(), 2, "t"), epoch=1, run_until=T0 + 600)
    assert answer.failure is not None
    assert answer.failure.unsure
    assert len((await lossy.list()).nodes) == 2


async def test_a_taken_node_is_announced_and_ends(time: Time, store: MemoryObjects) -> None:
    """Two minutes of notice, then it is gone, and an extension changes nothing about it."""
    wild = Weather(out={}, hazard_per_hour=20.0)
    provider = SimulatedProvider(store, time, wild)
    answer = await provider.buy(Buy(SPOT, 1, "t"), epoch=1, run_until=T0 + 36_000)
    (node,) = answer.nodes
    taken = interrupted_at(wild, SPOT.key, "spot", launched_at=T0, index=0, until=T0 + 36_000)
    assert taken is not None
    await provider.extend([node.id], T0 + 72_000, epoch=1)
    time.at = taken - 121
    assert await provider.events() == ()
    time.at = taken - 119
    (event,) = await provider.events()
    assert (event.kind, event.deadline) == (EventKind.SPOT_NOTICE, taken)
    time.at = taken
    (event,) = await provider.events()
    assert event.kind is EventKind.GONE
    assert (await provider.list()).nodes == ()


async def test_the_planners_purchase_is_one(time: Time, store: MemoryObjects) -> None:
    """What the planner decides is bought as it is."""
    offering = Offering(
        pool="burst",
        provider="simulated",
        instance_type="m",
        region="r",
        zone="z",
        market=Market.SPOT,
        node=Node("", 1000, 1 << 30),
        price_per_hour=Decimal("0.1"),
        currency="USD",
    )
    wanted: Wanted = Purchase(offering, 1, "t", Why.PENDING)
    provider = SimulatedProvider(store, time, CALM)
    (node,) = (await provider.buy(wanted, epoch=1, run_until=T0 + 600)).nodes
    assert (node.offering, node.market) == (offering.key, "spot")


@given(seed=st.integers(0, 1000), at=st.floats(T0, T0 + 1e6), index=st.integers(0, 50))
def test_weather_depends_on_nothing_but_its_keys(seed: int, at: float, index: int) -> None:
    """The same question has the same answer, whatever was asked in between."""
    weather = Weather(seed=seed)

    def ask() -> tuple[object, ...]:
        return (
            is_out(weather, SPOT.key, "spot", at),
            boot_seconds(weather, SPOT.key, at, index),
            spot_price(weather, SPOT.key, Decimal("1.5"), at),
            interrupted_at(weather, SPOT.key, "spot", launched_at=at, index=index, until=at + 7200),
        )

    first = ask()
    is_out(weather, "other", "spot", at)
    assert ask() == first
    later = interrupted_at(
        weather, SPOT.key, "spot", launched_at=at, index=index, until=at + 20_000
    )
    taken = first[3]
    assert isinstance(taken, float | None)
    if taken is not None and taken < at + 7200:
        assert later == taken


def test_shares_are_kept() -> None:
    """Over many spans offerings are out, and spot nodes taken, about as often as they should be."""
    weather = Weather()
    spans = [is_out(weather, SPOT.key, "spot", T0 + 1200 * n) for n in range(4000)]
    assert 0.09 < sum(spans) / len(spans) < 0.15
    calm = Weather(out={})
    taken = [
        interrupted_at(
            calm, SPOT.key, "spot", launched_at=T0 + 60 * n, index=n, until=T0 + 60 * n + 3600
        )
        for n in range(2000)
    ]
    assert 0.03 < sum(one is not None for one in taken) / len(taken) < 0.07
    prices = {spot_price(weather, SPOT.key, Decimal(1), T0 + 3600 * n) for n in range(72)}
    assert Decimal("0.3") <= min(prices) < max(prices) <= Decimal("0.6")
