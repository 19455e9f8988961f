"""Plans as they are told, dumped and made again; the same from a live view; right-sized nodes."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
import yaml
from dsec.api.records import SandboxNodePool
from dsec.api.scaling import Market, PoolScaling
from dsec.placement.compaction import Move
from dsec.placement.request import Decision
from dsec.rules import POOL_RULES, check
from dsec.scaling.nodes.catalogue import offerings_of
from dsec.scaling.nodes.dumps import Asking, FleetDump, replay
from dsec.scaling.nodes.limits import Room
from dsec.scaling.nodes.need import need
from dsec.scaling.nodes.planning import plan
from dsec.scaling.nodes.plans import (
    Drain,
    GateAnswer,
    OpenGate,
    Plan,
    Purchase,
    Refused,
    RegionStage,
    Removal,
    Renewal,
)
from dsec.scaling.nodes.rules import NodeRules, pool_rules
from dsec.scaling.nodes.sizing import right_sized
from dsec.scaling.nodes.virtual import view_of
from dsec.scaling.nodes.words import plan_words, refused_words
from dsec.scaling.vertical import Use
from nodes_make import (
    NOW,
    PREEMPTIBLE,
    FleetState,
    PoolRules,
    Why,
    bought,
    fleet_node,
    offering,
    pending,
    planned,
    rules,
    running,
    waiting,
)
from placement_make import gpu, request

C16 = offering("c16", 16, 64, price="1.5")
SPOT = offering("c16", 16, 64, price="0.6", market=Market.SPOT)
MOVE = Move("w", "n", Decision("w", "m"))

SENTENCES = [
    (
        Plan(NOW, buys=(Purchase(C16, 2, "t", Why.PENDING, covers=("a", "b")),)),
        (
            "buys 2 nodes of c16 (on-demand) in east/east-1 for pool cloud at 3.0 USD per hour: "
            "2 requests wait that no node covers"
        ),
    ),
    (
        Plan(
            NOW,
            buys=(
                Purchase(
                    SPOT,
                    1,
                    "t",
                    Why.REPLACEMENT,
                    covers=("a",),
                    region=RegionStage("east", "home", (("east", "0.6 USD"),)),
                ),
            ),
        ),
        (
            "buys 1 node of c16 (spot) in east/east-1 for pool cloud at 0.6 USD per hour: the "
            "provider takes nodes back, and 1 request needs a place; region east by home (of east "
            "0.6 USD)"
        ),
    ),
    (Plan(NOW, cordons=("n",)), "gives no new work to n"),
    (
        Plan(
            NOW,
            drains=(Drain("n", Why.CONSOLIDATION, (MOVE,), saving_per_hour=C16.price_per_hour),),
        ),
        "drains n: 1 sandbox moves to other nodes; saves 1.5 per hour",
    ),
    (
        Plan(NOW, drains=(Drain("n", Why.SPOT_NOTICE, rests=("a", "b"), deadline=NOW),)),
        (
            "drains n: the provider takes it back; 2 sandboxes are paused and saved by 2027-01-15 "
            "08:00:00 UTC"
        ),
    ),
    (
        Plan(NOW, drains=(Drain("n", Why.REBALANCE, (MOVE,)),)),
        "drains n: the provider may take it back; 1 sandbox moves to nodes that are ready",
    ),
    (
        Plan(NOW, drains=(Drain("n", Why.EXPIRY, rests=("a",), deadline=NOW),)),
        (
            "drains n: it is paid for no longer; 1 sandbox is paused and saved by 2027-01-15 "
            "08:00:00 UTC"
        ),
    ),
    (
        Plan(NOW, removals=(Removal("n", "cloud", Why.EMPTY, 61.0),)),
        "removes n: idle for 61 s, and nothing that waits or is kept free needs it",
    ),
    (
        Plan(NOW, removals=(Removal("n", "cloud", Why.LATE, 601.0),)),
        "removes n: not ready 601 s after it was asked for",
    ),
    (Plan(NOW, renewals=(Renewal("n", NOW),)), "pays for n until 2027-01-15 08:00:00 UTC"),
]


@pytest.mark.parametrize(("made", "expected"), SENTENCES)
def test_decisions_are_sentences(made: Plan, expected: str) -> None:
    """What, how many, why."""
    assert plan_words(made) == [expected]


REFUSED = [
    one
    for one in Why
    if one.value
    not in {
        "pending",
        "buffer",
        "minimum",
        "load",
        "replacement",
        "empty",
        "calm",
        "surplus",
        "late",
        "consolidation",
        "spot-notice",
        "rebalance",
        "expiry",
        "drained",
        "renewed",
    }
]


@pytest.mark.parametrize("why", REFUSED)
def test_every_reason_not_to_act_has_words(why: Why) -> None:
    """Whatever figures it has; what it speaks of comes first."""
    told = refused_words(Refused(why, "4 cores, 1 GiB", 3, (("detail", "so"),)))
    assert told.startswith("4 cores, 1 GiB: ")
    assert len(told) > 30


@pytest.mark.parametrize("why", [Why.PENDING, Why.BUFFER, Why.MINIMUM, Why.LOAD, Why.REPLACEMENT])
def test_every_reason_to_buy_has_words(why: Why) -> None:
    """For all that plans buy for."""
    assert plan_words(Plan(NOW, buys=(Purchase(C16, 1, "t", why),)))[0].startswith("buys 1 node")


@pytest.mark.parametrize(
    "why", [Why.EMPTY, Why.CALM, Why.SURPLUS, Why.LATE, Why.DRAINED, Why.REBALANCE]
)
def test_every_reason_to_remove_has_words(why: Why) -> None:
    """For all that is given back."""
    assert plan_words(Plan(NOW, removals=(Removal("n", "p", why),)))[0].startswith("removes n: ")


class _Half(OpenGate):
    """Covers half of what is asked."""

    def width(self, offering: object, count: int, paths: object, taken: object) -> GateAnswer:
        """Return half."""
        del offering, paths, taken
        return GateAnswer(count // 2, words="half")


def _mixed() -> FleetState:
    """Return a state in which something of each kind happens."""
    card = offering("g4", 32, 128, 4, price="4")
    nodes = (
        fleet_node("idle", C16),
        fleet_node("low", C16, work=[running("a", 2)]),
        fleet_node("more", C16, work=[running("b", 6)]),
        fleet_node(
            "gone", SPOT, work=[running("p", 4, task_class=PREEMPTIBLE)], spot_notice_at=NOW
        ),
        fleet_node("paid", C16, work=[running("c", 15)], run_until=NOW + 600),
    )
    work = [*waiting(40, "w", cores=4), *(pending(gpu(f"g{n}")) for n in range(3))]
    return FleetState(NOW, nodes, tuple(work), (C16, SPOT, card))


def test_a_dump_is_the_same_plan_again() -> None:
    """As JSON and back, with the answers of the budget gate; another rule makes a difference."""
    state, by = _mixed(), rules(PoolRules("cloud", max_nodes=40))
    asking = Asking(_Half())
    made = plan(state, by, asking)
    assert made.buys
    assert made.drains
    assert made.renewals
    text = FleetDump.of(state, by, made, asking).model_dump_json()
    read = FleetDump.model_validate_json(text)
    assert replay(read) == []
    assert read.words == plan_words(made)
    stricter = read.model_copy(update={"rules": rules(PoolRules("cloud", max_nodes=6))})
    assert replay(stricter)[0].startswith("buys: dumped [Purchase(")
    assert replay(read.model_copy(update={"version": 2})) == [
        "version: 2: this program replays version 1 only"
    ]


def test_a_live_view_gives_the_same_plan() -> None:
    """Whether the view is made from the nodes or handed over; it is never changed."""
    state = _mixed()
    view = view_of(state)
    before = view.digest()
    assert plan(replace(state, view=view), NodeRules()) == plan(state, NodeRules())
    assert view.digest() == before
    assert need(state).count == need(replace(state, view=view)).count


def test_right_sized_nodes_take_more_and_never_pass_the_safe_bound() -> None:
    """16 sandboxes of one core that use a tenth of it: room for more before a node is bought."""
    full = fleet_node("n", C16, work=[running(f"r{n}", 1) for n in range(16)])
    state = FleetState(NOW, (full,), tuple(waiting(6)), (C16,))
    assert bought(planned(state)) == {"c16 on-demand": 1}
    uses = {f"r{n}": Use(600.0, 100.0, 20.0) for n in range(16)}
    sized = right_sized(full, uses, NOW)
    assert bought(planned(replace(state, nodes=(sized,)))) == {}
    seen = {**uses, "r3": Use(60.0, 100.0)}
    assert right_sized(full, seen, NOW).work[3].request.resources.cpu_milli == 1000
    busy = right_sized(full, {f"r{n}": Use(600.0, 700.0, 50.0) for n in range(16)}, NOW)
    assert bought(planned(replace(state, nodes=(busy,)))) == {"c16 on-demand": 1}
    assert need(replace(state, nodes=(busy,))).count == 6


def test_a_request_that_no_offering_holds_is_told_once_per_class() -> None:
    """Three alike and too large: one line, and nothing is bought."""
    state = FleetState(NOW, pending=tuple(waiting(3, cores=99)), offerings=(C16,))
    made = planned(state)
    assert made.buys == ()
    assert [refused_words(one) for one in made.refusals] == [
        (
            "99 cores, 1 GiB: 3 wait: no node that may be had can hold it; add an offering that is "
            "large enough, or ask for less"
        )
    ]


def test_tokens_differ_by_what_was_carried_out_before() -> None:
    """The same plan again is the same purchase; after it was carried out it is another."""
    state = FleetState(NOW, pending=(pending(request("a")),), offerings=(C16,))
    first, again = planned(state).buys[0], planned(state).buys[0]
    later = planned(replace(state, serial=1)).buys[0]
    assert first.token == again.token != later.token


def test_a_limit_of_money_is_in_one_currency() -> None:
    """What is priced in another is not bought under it, and says why; what runs is not added."""
    euros = replace(offering("e16", 16, 64, price="1"), currency="EUR")
    by = rules(PoolRules("cloud", max_cost_per_hour=Decimal(3)))
    refused = planned(FleetState(NOW, pending=(pending(request("a")),), offerings=(euros,)), by)
    assert not refused.buys
    told = " ".join(refused_words(one) for one in refused.refusals)
    assert "3 USD per hour, and cloud/east/east-1/e16/on-demand is priced in EUR" in told
    state = FleetState(NOW, (fleet_node("n", euros),), offerings=(C16, euros))
    room = Room(state, by)
    assert room.left(C16) == (2, "pool cloud: 3 USD per hour")
    room.take(C16, 1)
    assert room.left(C16)[0] == 1
    there = rules(PoolRules("cloud", max_cost_per_hour=Decimal(3), currency="EUR"))
    assert Room(state, there).left(euros)[0] == 2
    scaling = PoolScaling(supplier="aws", max_cost_per_hour="3", currency="EUR")
    assert pool_rules("cloud", scaling).limits(NOW)[0].currency == "EUR"


def test_the_pool_of_the_page_is_valid() -> None:
    """docs/node-scaling.md: its example is a record, breaks no rule, and becomes rules."""
    page = Path(__file__).parents[2] / "docs" / "node-scaling.md"
    (text,) = re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    record = yaml.safe_load(text)
    pool = SandboxNodePool.model_validate(record)
    assert pool.spec.scaling is not None
    assert check(record["spec"], name="burst", rules=POOL_RULES, kind=pool.kind) == []
    made = pool_rules("burst", pool.spec.scaling)
    assert (made.max_nodes, made.max_cost_per_hour, made.buffers[0].count) == (40, 60, 100)
    prices = {"burst/eu-central-1/eu-central-1a/m7i.8xlarge/spot": (Decimal("0.7"), "USD")}
    offered, lacking = offerings_of("burst", pool.spec, prices.get)
    assert [one.key for one in offered] == [*prices]
    assert len(lacking) == 7
    (one,) = offered
    assert (one.node.memory_bytes, one.provider, one.limit) == (127 << 30, "aws", None)
    seen = replace(one.node, features=frozenset({"pvc"}), memory_bytes=120 << 30)
    ((learned,), _) = offerings_of("burst", pool.spec, prices.get, {"m7i.8xlarge": seen})
    assert (learned.node.features, learned.node.memory_bytes) == (seen.features, 120 << 30)
    monday = datetime(2026, 11, 30, 7, 0, tzinfo=UTC).timestamp()
    assert (made.bounds(monday).least, made.bounds(monday - 3601).least) == (4, 1)
