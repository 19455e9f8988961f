"""Offerings as they stand in one plan: which are open, which work may be on each, and why not."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from dsec.api.scaling import Market
from dsec.placement.asked import Asked
from dsec.placement.dimensions import WHOLE
from dsec.placement.request import Request
from dsec.scaling.nodes.backoff import allowance
from dsec.scaling.nodes.filling import CPU, Fill, Group, Shape, least_price
from dsec.scaling.nodes.offerings import Offering, may_be_interrupted, tolerant
from dsec.scaling.nodes.plans import Why
from dsec.scaling.nodes.regions import regions_for
from dsec.scaling.nodes.rules import NodeRules
from dsec.scaling.nodes.state import FleetState, Pending

Closed = Mapping[str, tuple[Why, str]]
"""Pools whose preset does not let them grow now, with why."""


@dataclass(slots=True, eq=False)
class Choice:
    """One offering as it stands in this plan."""

    offering: Offering
    shape: Shape
    closed: Why | None = None
    detail: str = ""
    probe: str = ""
    """Key of a backoff that lets one node be tried; empty: any number."""
    order: list[int] = field(default_factory=list)
    """Numbers of the classes that may be on it, in the order of filling."""
    light: list[int] = field(default_factory=list)
    """The same in another order: work that takes little CPU per card first."""
    riders: frozenset[int] = frozenset()
    """Those of them that fill what is left over, and are no reason to buy it."""
    fill: Fill = field(default_factory=list)
    score: float = 0.0
    stale: bool = True
    barred: set[str] = field(default_factory=set)
    """Budgets that do not cover it."""


class Choices:
    """All offerings and all classes of one plan."""

    def __init__(self, state: FleetState, rules: NodeRules, closed: Closed) -> None:
        self.state, self.rules, self.closed = state, rules, closed
        self.groups: list[Group] = []
        self.regions = sorted({one.region for one in state.offerings})
        self._shapes: dict[object, Shape] = {}
        self._spot: dict[int, bool] = {}

    @cached_property
    def every(self) -> list[Choice]:
        """All offerings whose market their pool allows; made when something is to be bought."""
        return [
            self._choice(one)
            for one in self.state.offerings
            if not (markets := self.rules.of(one.pool).markets) or one.market in markets
        ]

    @cached_property
    def per_card(self) -> float:
        """Cheapest price per card and hour."""
        priced = [
            least_price(one.offering.price_per_hour) / one.shape.cards
            for one in self.every
            if one.shape.cards
        ]
        return min(priced, default=0.0)

    def _choice(self, offering: Offering) -> Choice:
        node = offering.named("virtual")
        # filters look at neither price nor place: equal machines in many zones are one shape
        key = (
            node.labels,
            node.taints,
            node.pool,
            node.kind,
            node.size,
            node.cpu_milli,
            node.memory_bytes,
            node.disk_bytes,
            node.sandboxes,
            node.devices,
            node.isolation,
            node.features,
            node.safe_percent,
        )
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = Shape(node)
        choice = Choice(offering, shape)
        tries, held = allowance(self.state, offering)
        explicit = self.rules.of(offering.pool).preset is not None
        if self.rules.of(offering.pool).frozen:
            choice.closed = Why.FROZEN
        elif tries == 0:
            choice.closed, choice.detail = Why.BACKED_OFF, held
        elif offering.pool in self.closed and (explicit or not offering.cloud):
            choice.closed, choice.detail = self.closed[offering.pool]
        elif tries is not None:
            choice.probe = held
        return choice

    def add(self, members: Iterable[Pending], buffer: str = "") -> list[int]:
        """Enter requests of one class, split by who pays and by what they have waited for.

        Returns the numbers of the parts.
        """
        parts: dict[tuple[object, ...], list[Pending]] = {}
        now = self.state.now
        for one in members:
            waited = now - one.since
            if one.burst_wait_s is None:
                ripe = tuple(
                    waited >= self.rules.of(pool).burst_wait_s for pool in self.state.pools
                )
            else:
                ripe = (waited >= one.burst_wait_s,)
            patient = waited > self.rules.spot_patience_s
            parts.setdefault((one.budget, one.sensitive, ripe, patient), []).append(one)
        numbers = []
        for some in parts.values():
            numbers.append(len(self.groups))
            group = Group(tolerant(some[0].request), some, buffer, left=len(some))
            group.regions, group.why_there = self.regions_for(some[0])
            self.groups.append(group)
        return numbers

    def regions_for(self, pending: Pending) -> tuple[tuple[str, ...], str]:
        """Return where nodes for a request may be bought, and why there."""
        return regions_for(pending, self.regions, self.rules)

    def sorted(self, numbers: Iterable[int]) -> list[int]:
        """Return classes in the order of filling: most GPU, most CPU, oldest; buffers last."""
        return sorted(numbers, key=self._rank)

    def _rank(self, number: int) -> tuple[bool, float, int, float]:
        group = self.groups[number]
        asked = Asked.of(group.request)
        cards = asked.gpus * (asked.milli / WHOLE if asked.milli else 1.0)
        return bool(group.buffer), -cards, -asked.cpu, group.members[0].since

    def open(self, tier: Iterable[Choice], order: Sequence[int]) -> list[Choice]:
        """Set which classes may be on which offerings of a tier, and what each class is worth.

        Returns the offerings that may be bought at all.
        """
        found = []
        for choice in tier:
            may = [one for one in order if self._may(choice, one)]
            riders = [one for one in may if self._rides(choice, one)]
            choice.riders = frozenset(riders)
            drivers = [one for one in may if one not in choice.riders]
            choice.order = drivers + riders
            choice.light = sorted(drivers, key=lambda one: _cpu_per_card(choice, one)) + riders
            choice.stale = True
            if len(choice.order) > len(riders):
                found.append(choice)
        for number in order:
            self.groups[number].ref = self._worth(number, found)
        return found

    def cheapest(self, request: Request) -> float:
        """Return the least proportional price per hour of a request; 0: nothing takes it."""
        found = [
            one.shape.share(takes) * least_price(one.offering.price_per_hour)
            for one in self.every
            if (takes := one.shape.takes_of(request)) is not None
        ]
        return min(found, default=0.0)

    def able(self, group: Group, market: Market) -> list[Offering]:
        """Return the offerings of a market that could hold a class, wherever they are."""
        number = next(at for at, one in enumerate(self.groups) if one is group)
        return [
            one.offering
            for one in self.every
            if one.offering.market is market and one.shape.ask(number, group.request) is not None
        ]

    def _may(self, choice: Choice, number: int) -> bool:
        """Return whether a class may be on an offering now; where not, note why."""
        group, offering = self.groups[number], choice.offering
        if not group.left or choice.shape.ask(number, group.request) is None:
            return False
        if offering.region not in group.regions:
            if group.why_there == "residency":
                group.blocked.setdefault(Why.RESIDENCY, ", ".join(group.members[0].regions))
            return False
        if choice.closed is not None:
            group.blocked.setdefault(choice.closed, choice.detail)
            return False
        if offering.cloud and not group.buffer:
            first = group.members[0]
            wait = first.burst_wait_s
            if wait is None:
                wait = self.rules.of(offering.pool).burst_wait_s
            if self.state.now - first.since < wait:
                group.blocked.setdefault(Why.BURST_WAIT, f"{wait:g}")
                return False
        return True

    def _rides(self, choice: Choice, number: int) -> bool:
        """Return whether a class may fill an offering and is no reason to buy it.

        Work that may be interrupted waits for spot while some spot offering may give nodes, and
        `spot_patience_s` beyond that.
        """
        if choice.offering.market is not Market.ON_DEMAND:
            return False
        if number not in self._spot:
            group = self.groups[number]
            spots = [
                one
                for one in self.every
                if one.offering.market is Market.SPOT
                and one.offering.region in group.regions
                and may_be_interrupted(group.request)
                and one.shape.ask(number, group.request) is not None
            ]
            waited = self.state.now - group.members[0].since
            failing = all(one.closed is Why.BACKED_OFF for one in spots)
            patient = waited <= self.rules.spot_patience_s
            self._spot[number] = bool(spots) and (patient or not failing)
        if self._spot[number]:
            self.groups[number].blocked.setdefault(Why.SPOT_FIRST, "")
        return self._spot[number]

    def _worth(self, number: int, tier: Iterable[Choice]) -> float:
        """Return the cheapest proportional price of a class over the shapes that take it."""
        group = self.groups[number]
        found = [
            one.shape.share(takes) * least_price(one.offering.price_per_hour)
            for one in tier
            if (takes := one.shape.ask(number, group.request)) is not None
        ]
        return min(found, default=0.0)


def _cpu_per_card(choice: Choice, number: int) -> tuple[bool, float]:
    takes = choice.shape.takes[number]
    if takes is None or not takes.cards:
        # the sort is stable: without cards the order stays
        return True, 0.0
    return False, takes.amounts[CPU] / (takes.cards * (takes.part or WHOLE))
