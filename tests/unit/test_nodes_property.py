"""Whatever happens: bounds, limits and budgets hold, and steady demand changes nothing.

A made-up provider fails, delays and takes nodes back; the process restarts between any two steps;
moves fail. The short version runs in seconds, `make soak` runs many more.
"""

from dataclasses import replace
from decimal import Decimal
from itertools import count

import pytest
from dsec.api.scaling import Market
from dsec.scaling.nodes.need import need
from dsec.scaling.nodes.planning import plan
from dsec.scaling.nodes.plans import Why
from dsec.scaling.nodes.state import Buffer
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from nodes_make import NOW, PREEMPTIBLE, FleetState, NodePhase, PoolRules, offering, rules
from nodes_world import LEASE_S, Purse, World
from placement_make import request

SMALL = offering("c8", 8, 32, price="0.5")
LARGE = offering("c32", 32, 128, price="1.9")
SPOT = offering("c16", 16, 64, price="0.4", market=Market.SPOT)
CLOUD = (SMALL, LARGE, SPOT)
MOST, LEAST = 6, 1
COST = Decimal("4.2")
MONEY = Decimal(3)
BY = rules(
    PoolRules("cloud", min_nodes=LEAST, max_nodes=MOST, max_cost_per_hour=COST, burst_wait_s=10),
    wind_down_s=120,
)


class Fleet(RuleBasedStateMachine):
    """Random work, failures, notices, failed moves, restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = count()
        self.failing: dict[str, int] = {}
        self.delays: dict[str, float] = {}
        self.broken_moves = False

    @initialize(buffer=st.sampled_from([0, 4]))
    def begin(self, buffer: int) -> None:
        """An empty fleet, with or without a buffer."""
        buffers = (Buffer("b", request("place"), buffer),) if buffer else ()
        state = FleetState(NOW, offerings=CLOUD, buffers=buffers)
        self.world = World(state, BY)
        self.world.purse = Purse(self.world, MONEY)
        self.world.outcome = lambda buy: self.failing.get(buy.offering.key)
        self.world.boot = lambda node: self.delays.get(node.offering.key, 90.0)
        self.world.moves_work = lambda _: not self.broken_moves

    @rule(
        many=st.integers(1, 12),
        cores=st.sampled_from([0.5, 2, 7, 16]),
        soft=st.booleans(),
        life=st.sampled_from([20.0, 300.0, 3000.0]),
    )
    def work(self, many: int, cores: float, soft: bool, life: float) -> None:
        """Work comes."""
        fields = {"task_class": PREEMPTIBLE} if soft else {}
        self.world.submit(
            [request(f"w{next(self.numbers)}", cores, **fields) for _ in range(many)], life
        )

    @rule(seconds=st.sampled_from([5.0, 15.0, 60.0]), times=st.integers(1, 4))
    def time(self, seconds: float, times: int) -> None:
        """Time passes, and plans are made."""
        for _ in range(times):
            before, probing = self.world.count(*SERVING), bool(self.world.state.backoffs)
            made = self.world.step(seconds)
            shrunk = [one for one in made.removals if one.reason in (Why.EMPTY, Why.CALM)]
            if shrunk:
                assert before - len(shrunk) >= LEAST
            again = plan(self.world.state, BY, self.world.purse)  # type: ignore[arg-type]  # set
            if not (self.failing or probing or made.drains or made.removals):
                # what goes makes room under limits, and a probe that came opens its offering
                assert [one for one in again.buys if one.covers] == [], "what boots covers it"

    @rule(which=st.sampled_from(CLOUD), came=st.sampled_from([0, 1]))
    def fail(self, which: object, came: int) -> None:
        """An offering gives none or one from now on."""
        self.failing[which.key] = came  # type: ignore[attr-defined]  # an offering

    @rule()
    def recover(self) -> None:
        """All offerings give nodes again."""
        self.failing.clear()

    @rule(which=st.sampled_from(CLOUD), delay=st.sampled_from([20.0, 90.0, 900.0]))
    def slow(self, which: object, delay: float) -> None:
        """Nodes take longer or shorter to boot; 900 s is longer than anybody waits."""
        self.delays[which.key] = delay  # type: ignore[attr-defined]  # an offering

    @rule(broken=st.booleans())
    def movers(self, broken: bool) -> None:
        """Moves fail, or work again."""
        self.broken_moves = broken

    @rule()
    def restart(self) -> None:
        """The process dies; what is persisted is read again."""
        self.world.restart()

    @precondition(lambda self: any(one.offering is not None for one in self.world.state.nodes))
    @rule()
    def notice(self) -> None:
        """The provider takes the first spot node back."""
        nodes = list(self.world.state.nodes)
        for at, one in enumerate(nodes):
            spot = one.offering.market is Market.SPOT and one.phase is NodePhase.READY
            if spot and one.spot_notice_at is None:
                nodes[at] = replace(one, spot_notice_at=self.world.state.now)
                break
        self.world.state = replace(self.world.state, nodes=tuple(nodes))

    @invariant()
    def limits_hold(self) -> None:
        """Most nodes, most cost per hour, money."""
        if not hasattr(self, "world"):
            return
        world = self.world
        assert world.count() <= MOST
        assert world.state.burn <= COST
        assert world.purse is not None
        assert world.purse.spent + world.purse.committed <= MONEY

    @invariant()
    def nothing_is_lost(self) -> None:
        """No node ended with work on it: it was moved or saved before."""
        if hasattr(self, "world"):
            assert self.world.lost == []

    @invariant()
    def nothing_is_twice(self) -> None:
        """Each sandbox is in one place."""
        if hasattr(self, "world"):
            ids = [one.id for node in self.world.state.nodes for one in node.work]
            ids += [one.request.id for one in self.world.state.pending]
            assert len(ids) == len(set(ids))


SERVING = (NodePhase.READY, NodePhase.BOOTING, NodePhase.REQUESTED)
QUIET = (HealthCheck.too_slow, HealthCheck.filter_too_much)
TestFleet = Fleet.TestCase
TestFleet.settings = settings(
    max_examples=12, stateful_step_count=30, deadline=None, suppress_health_check=QUIET
)


@pytest.mark.soak
class TestFleetLong(Fleet.TestCase):
    """The same, much longer."""

    settings = settings(
        max_examples=1500, stateful_step_count=120, deadline=None, suppress_health_check=QUIET
    )


@pytest.mark.parametrize(
    ("buffer", "cores"),
    [
        (0, 1),
        (10, 3),
        (40, 11),
        pytest.param(0, 11, marks=pytest.mark.soak),
        pytest.param(40, 1, marks=pytest.mark.soak),
    ],
)
def test_constant_load_changes_nothing_once_it_is_served(buffer: int, cores: int) -> None:
    """30 min after the last change: no purchase, no removal, no drain for two hours."""
    buffers = (Buffer("b", request("place"), buffer),) if buffer else ()
    by = rules(PoolRules("cloud", max_nodes=50))
    world = World(FleetState(NOW, offerings=CLOUD, buffers=buffers), by)
    world.submit([request(f"w{n}", cores) for n in range(20)], 10**7)
    for _ in range(90):
        world.step(20.0)
    assert need(world.state).count == 0
    before = len(world.bought), len(world.removed), len(world.drains)
    for _ in range(120):
        world.step(60.0)
    assert (len(world.bought), len(world.removed), len(world.drains)) == before


@pytest.mark.parametrize("buffer", [0, 16])
def test_a_square_wave_is_followed_without_flapping(buffer: int) -> None:
    """Ten minutes of work, ten of none: inside a half no node is bought after one was removed."""
    buffers = (Buffer("b", request("place"), buffer),) if buffer else ()
    by = rules(PoolRules("cloud", max_nodes=50))
    world = World(FleetState(NOW, offerings=(SMALL,), buffers=buffers), by)
    halves: list[list[tuple[float, str]]] = []
    for wave in range(4):
        world.submit([request(f"w{wave}-{n}", 1) for n in range(40)], 500.0)
        for _ in range(2):
            first = len(world.bought), len(world.removed)
            for _ in range(40):
                world.step(15.0)
            told = [(at, "buy") for at, _ in world.bought[first[0] :]]
            told += [(at, "remove") for at, _ in world.removed[first[1] :]]
            halves.append(sorted(told))
    for half in halves:
        kinds = [kind for _, kind in half]
        assert "buy" not in kinds[kinds.index("remove") :] if "remove" in kinds else True
    per_wave = [sum(kind == "buy" for _, kind in half) for half in halves]
    assert max(per_wave) <= 5 + buffer // 8
    assert world.count() <= 5 + buffer // 8 * 2


def test_renewals_keep_what_is_used_and_let_the_rest_end() -> None:
    """Two hours of work on leases of half an hour: always paid, never beyond the purse."""
    world = World(FleetState(NOW, offerings=(SMALL,)), rules(PoolRules("cloud", max_nodes=9)))
    world.purse = Purse(world, Decimal(50))
    world.submit([request(f"w{n}", 4) for n in range(4)], 7200.0)
    for _ in range(250):
        world.step(30.0)
    assert world.lost == []
    assert world.count() == 0
    assert Decimal("1.9") < world.purse.spent < Decimal("2.4")
    assert PoolRules("x").run_until_s == LEASE_S
