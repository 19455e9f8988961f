"""What a gateway asks to be lent: after a few single creates, as much as lately, and not idle."""

import asyncio
from typing import Any

import pytest
from dsec.api.internal import LeaseAnswer, LeaseCall, LeaseTerm
from dsec.gateway.errors import away
from dsec.gateway.leases import AGAIN_SECONDS, IDLE_SECONDS, LEAST, OFTEN, Leases
from dsec.journal.bindlog import BindLog
from dsec.journal.lanes import LanedReader
from dsec.placement.entries import Entry
from dsec.placement.leases import DURATION_S, SAFETY_S
from dsec.world.clock import system_randomness
from dsec.world.memory import MemoryObjects
from test_lanes_journal import Times


class Still(Times):
    """A clock on which nothing takes its time but what a test says."""

    async def sleep(self, _seconds: float) -> None:
        """Wait for longer than any test."""
        await asyncio.Event().wait()


ONE = {"cpu_milli": 500, "sandboxes": 1}


class Lender:
    """A leader that lends what is asked, as long as it has that much left."""

    def __init__(self, log: BindLog, free: int = 10**9) -> None:
        self.log = log
        self.free = free
        self.calls: list[LeaseCall] = []
        self.away = False

    async def lease(self, call: LeaseCall) -> LeaseAnswer:
        """Answer as the leader does."""
        self.calls.append(call)
        if self.away:
            raise away("nobody leads")
        if call.done:
            return LeaseAnswer(epoch=1, opened=False)
        if call.lane not in self.log.state.lanes:
            await self.log.append([], {call.lane: 0})
        terms = []
        for want in call.wants:
            if want.amounts["sandboxes"] <= self.free:
                self.free -= want.amounts["sandboxes"]
                terms.append(self._term(want.id, f"team/{want.project}", want.amounts))
        terms += [self._term(one, "team/lab", {}) for one in call.renew]
        return LeaseAnswer(
            epoch=1,
            opened=True,
            position=self.log.position,
            shards={"team": list(range(64))},
            leases=terms,
            pins={
                project: {image: f"{image}@x" for image in images}
                for project, images in call.images.items()
            },
        )

    def _term(self, id_: str, account: str, amounts: dict[str, int]) -> LeaseTerm:
        return LeaseTerm(id=id_, account=account, amounts=amounts, duration_s=DURATION_S)


async def begin(free: int = 10**9) -> tuple[Leases, Lender, Times]:
    """Return a gateway's leases, its leader, and the time."""
    objects, clock = MemoryObjects(), Still()
    log = BindLog(objects, clock, "c")
    await log.open()
    await log.begin(1)
    reader = LanedReader(objects)
    await reader.open()
    lender: Any = Lender(log, free)
    leases = Leases(
        lender, objects, reader, clock=clock, randomness=system_randomness(), identity="gw"
    )
    return leases, lender, clock


def entry(number: int) -> Entry:
    """Return the price of a sandbox."""
    return Entry(f"sb-{number}", "team/lab", ONE)


async def creates(leases: Leases, count: int) -> None:
    """Take so many single creates, and let the leases look."""
    for _ in range(count):
        leases.note("lab", ONE, "base")
    await leases._ask_now()


async def test_a_few_creates_are_worth_a_lease_and_idle_ones_are_given_back() -> None:
    """Nothing is asked for one or two; what nobody uses closes the lane."""
    leases, lender, clock = await begin()
    await creates(leases, OFTEN - 1)
    assert lender.calls == []
    await creates(leases, 1)
    assert [want.amounts["sandboxes"] for want in lender.calls[0].wants] == [LEAST]
    assert leases.valid() == 1
    assert leases.holds(("team", 5)) is not None
    assert await leases.image("lab", "base") == "base@x"
    for _ in range(int(IDLE_SECONDS)):
        clock.at += 1
        await leases._ask_now()
    assert lender.calls[-1].done
    assert leases.valid() == 0
    assert leases.holds(("team", 5)) is None


async def test_what_is_used_up_is_asked_for_at_once() -> None:
    """As much again as lately, twice; every payment is within what was lent."""
    leases, lender, _ = await begin()
    await creates(leases, OFTEN)
    for number in range(100):
        leases.note("lab", ONE, "base")
        assert await leases.pay("lab", entry(number))
    lent = sum(want.amounts["sandboxes"] for call in lender.calls for want in call.wants)
    assert 100 <= lent <= 500
    assert len(lender.calls) < 20, "fewer calls than creates"


async def test_without_more_to_lend_nothing_is_paid_nor_asked_again_at_once() -> None:
    """The create is then the leader's."""
    leases, lender, clock = await begin(free=LEAST)
    await creates(leases, OFTEN)
    paid = [await leases.pay("lab", entry(number)) for number in range(LEAST + 5)]
    assert [bool(one) for one in paid] == [True] * LEAST + [False] * 5
    calls = len(lender.calls)
    assert not await leases.pay("lab", entry(90))
    assert len(lender.calls) == calls
    lender.free = 10**6
    clock.at += AGAIN_SECONDS
    assert await leases.pay("lab", entry(91))


async def test_a_silent_leader_ends_leases_before_their_time() -> None:
    """By the gateway's own clock, from when it asked, with a margin."""
    leases, lender, clock = await begin()
    await creates(leases, 40)
    lender.away = True
    assert await leases.pay("lab", entry(1))
    clock.at += DURATION_S - SAFETY_S - 0.5
    await leases._ask_now()
    assert await leases.pay("lab", entry(2))
    clock.at += 0.5
    assert not await leases.pay("lab", entry(3))
    assert "no lease" in leases.words()


@pytest.mark.parametrize("seconds", [4.5, 9.0])
async def test_leases_are_renewed_at_half(seconds: float) -> None:
    """In time, with one lost answer to spare."""
    leases, lender, clock = await begin()
    await creates(leases, 40)
    clock.at += seconds / 2
    leases.note("lab", ONE, "base")
    await leases._ask_now()
    clock.at += seconds / 2
    await leases._ask_now()
    assert any(call.renew for call in lender.calls)
    clock.at += 3
    assert await leases.pay("lab", entry(1))
