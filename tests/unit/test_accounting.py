"""Parts of the accountant: the book and its fence, prices of pools, stretches on nodes, actions."""

import asyncio
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from dsec.api.budget import BudgetAction
from dsec.api.experiment import TaskClass
from dsec.api.machinecost import MachineCost
from dsec.api.nodes import PlacementTraits, SandboxNodePoolSpec
from dsec.api.reasons import EndReason, PendingReason
from dsec.api.scaling import PoolOffering, PoolScaling
from dsec.controllers import over_budget
from dsec.controllers.budget_records import Hold
from dsec.controllers.replicas import plan
from dsec.controllers.usage import Usage
from dsec.cost.amounts import CPU_HOURS
from dsec.cost.pools import UNPRICED, price_of
from dsec.cost.prices import Shape
from dsec.journal.bindings import Bindings, Row
from dsec.journal.bindlog import FencedError
from dsec.journal.moneybook import MoneyBook, MoneyReader
from dsec.world.clock import SystemClock
from dsec.world.memory import MemoryObjects
from dsec.world.objects import ObjectStoreError
from test_replicas import NOW, copy, role

GIB = 1 << 30
SHAPE = Shape(8000, 64 * GIB)


def book(objects: Any, epoch: int) -> MoneyBook:
    """Return the hand of a leader."""
    return MoneyBook(objects, SystemClock(), epoch=epoch, writer=f"e{epoch}")


class Lossy(MemoryObjects):
    """Loses the answer of the next write, after it took effect."""

    lose = False

    async def put_if_absent(self, key: str, data: bytes) -> str:
        """Write; sometimes nobody hears of it."""
        etag = await super().put_if_absent(key, data)
        if self.lose:
            self.lose = False
            raise ObjectStoreError("the answer is lost")
        return etag


def test_of_two_leaders_the_later_one_writes_and_no_row_is_lost() -> None:
    """The slow one's rows before the other's first ones count; after them it is fenced."""

    async def scenario() -> None:
        objects = MemoryObjects()
        old, new = book(objects, 1), book(objects, 2)
        await old.open()
        await new.open()
        assert await old.append([{"id": "a"}])
        # the later leader has not read that row: it has to decide again
        assert not await new.append([{"id": "b"}])
        assert [row["id"] for row in (await new.open()).rows] == ["a"]
        assert await new.append([{"id": "b"}])
        with pytest.raises(FencedError):
            await old.append([{"id": "c"}])
        with pytest.raises(FencedError):
            await old.open()
        seen: list[dict[str, Any]] = []
        reader = MoneyReader(objects, seen.extend)
        await reader.refresh()
        await reader.refresh()
        assert [row["id"] for row in seen] == ["a", "b"]

    asyncio.run(scenario())


def test_a_lost_answer_is_no_second_segment() -> None:
    """What was stored is known again by its mark."""

    async def scenario() -> None:
        objects = Lossy()
        mine = book(objects, 1)
        await mine.open()
        objects.lose = True
        assert await mine.append([{"id": "a"}])
        assert await mine.append([{"id": "b"}])
        assert [row["id"] for row in (await book(objects, 2).open()).rows] == ["a", "b"]

    asyncio.run(scenario())


def test_a_snapshot_stands_for_the_rows_before_it() -> None:
    """A start reads it and what came after; readers of reports still read every row."""

    async def scenario() -> None:
        objects = MemoryObjects()
        mine = book(objects, 1)
        await mine.open()
        await mine.append([{"id": "a"}])
        await mine.snapshot({"rows": [{"id": "a"}]})
        await mine.append([{"id": "b"}])
        found = await book(objects, 2).open()
        assert found.state == {"rows": [{"id": "a"}]}
        assert [row["id"] for row in found.rows] == ["b"]
        await mine.say_now(5.0, [{"id": "n"}])
        assert (await book(objects, 2).said_now())["rows"] == [{"id": "n"}]

    asyncio.run(scenario())


def test_prices_of_a_pool_in_their_order() -> None:
    """COST-04: an own machine by its formula, else the pool's price, else that of its offering."""
    cost = MachineCost(currency="EUR", purchase="8766", years=1, watts=500, pue="2", per_kwh="0.5")
    scaling = PoolScaling(
        currency="EUR",
        offerings=[
            PoolOffering(
                instance_type="big", cpu_milli=8000, memory_bytes=64 * GIB, price_per_hour="3"
            )
        ],
    )
    traits = PlacementTraits(price_micro=2_000_000)
    # 8766 over the hours of a year, and a kilowatt at the meter
    own = price_of(SandboxNodePoolSpec(cost=cost, placement=traits), SHAPE)
    assert (own.per_hour, own.currency, own.source) == (Decimal("1.5"), "EUR", "owned")
    assert own.idle_parts["energy"] == Decimal("0.5")
    given = price_of(SandboxNodePoolSpec(placement=traits, scaling=scaling), SHAPE, make="big")
    assert (given.per_hour, given.currency) == (Decimal(2), "EUR")
    offered = price_of(SandboxNodePoolSpec(scaling=scaling), SHAPE, make="big")
    assert (offered.per_hour, offered.source) == (Decimal(3), "override")
    for nothing in (None, SandboxNodePoolSpec(), SandboxNodePoolSpec(scaling=scaling)):
        found = price_of(nothing, SHAPE)
        assert (found.source, found.per_hour) == (UNPRICED, 0)
        assert found.rates[CPU_HOURS] == 8


def test_what_moves_or_is_forgotten_was_there_until_then() -> None:
    """A stretch ends with its end, with a move, and when its binding is gone."""
    bindings = Bindings()
    one = copy(0, node="n0")
    one.bound_at = NOW
    one.spec.identity.experiment_uid = "u"
    bindings.apply([Row(kind="bind", at=NOW, binding=one)])
    usage = Usage(bindings, NOW)
    later = NOW + timedelta(seconds=100)
    bindings.apply([Row(kind="bind", at=later, id=one.id, node="n1")])
    usage.refresh(later)
    assert [(u.since, u.until) for u in usage.on("n0")] == [(NOW.timestamp(), later.timestamp())]
    assert [(u.since, u.until) for u in usage.on("n1")] == [(later.timestamp(), None)]
    usage.trim("n0", later.timestamp())
    assert usage.on("n0") == []
    end = later + timedelta(seconds=50)
    bindings.apply([Row(kind="end", at=end, id=one.id, reason=EndReason.STOPPED)])
    usage.note([bindings.by_id[one.id]], end)
    bindings.apply([Row(kind="forget", at=end, experiment_uid="u")])
    usage.refresh(end + timedelta(seconds=9))
    assert [u.until for u in usage.on("n1")] == [end.timestamp()]


def test_degrade_shrinks_and_lets_nothing_new_start() -> None:
    """COST-03, COST-12: the least count; a replica that failed goes on, a new one waits."""
    hold = Hold(BudgetAction.DEGRADE, "budget b: it is spent")
    one = role(6, min=2)
    assert over_budget.wanted(one, 6, hold) == 2
    assert over_budget.wanted(role(6), 6, hold) == 6
    assert over_budget.ceilings(one, 4, hold).budget == 2
    assert over_budget.ceilings(one, 4, Hold(BudgetAction.STOP_GROWING, "x")).budget == 4
    assert over_budget.ceilings(one, 4, None).budget is None
    failed, stopped = copy(0, reason=EndReason.FAILED), copy(1, reason=EndReason.STOPPED)
    plans = [plan(role(3), 3, [failed, stopped], NOW)]
    missing = [copy(index) for index in range(3)]
    found = dict(over_budget.waits(plans, missing, hold))
    assert set(found) == {missing[1].id, missing[2].id}
    (refusal,) = found[missing[1].id]
    assert (refusal.reason, refusal.asked) == (PendingReason.BUDGET, hold.words)
    paused = dict(over_budget.waits(plans, missing, Hold(BudgetAction.PAUSE, "x")))
    assert len(paused) == 3
    assert dict(over_budget.waits(plans, missing, Hold())) == {}


def test_an_end_for_money_is_final_whatever_restarts_otherwise() -> None:
    """W-18: nothing is created any more, and it is over once nothing lives."""
    ended = copy(0, reason=EndReason.OVER_BUDGET)
    found = plan(role(2), 2, [ended], NOW)
    assert [slot.index for slot in found.create] == [1]
    over_budget.end([found])
    assert (found.create, found.desired, found.over) == ([], 1, True)
    both = [copy(index, reason=EndReason.OVER_BUDGET) for index in range(2)]
    assert plan(role(2), 2, both, NOW).over
    # without a limit in force again, what never ran may start
    assert not plan(role(2), 2, both[:1], NOW).over


def test_what_can_rest_and_what_has_to_stop() -> None:
    """Only pausable work keeps its memory."""
    soft, firm = copy(0), copy(1)
    soft.needs.task_class = TaskClass.PAUSABLE
    assert over_budget.to_rest([soft, firm, copy(2, node="")]) == ([soft], [firm])
