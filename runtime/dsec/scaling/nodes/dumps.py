"""A plan with everything that it was made from, as JSON, and the same plan again. Pure.

`dsec explain` shows it; `replay` runs today's code on it and says whether the same comes out.
Answers of the budget gate are recorded by `Asking` while the plan is made, and given again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from pydantic import Field

from dsec.api.base import WireModel
from dsec.scaling.nodes.offerings import FleetNode, Offering
from dsec.scaling.nodes.planning import plan
from dsec.scaling.nodes.plans import (
    Drain,
    Gate,
    GateAnswer,
    Plan,
    Purchase,
    Refused,
    Removal,
    Renewal,
)
from dsec.scaling.nodes.rules import NodeRules
from dsec.scaling.nodes.state import Backoff, Buffer, FleetState, Limit, Pending, PoolMemory
from dsec.scaling.nodes.words import plan_words

VERSION = 1
"""Of the dump's form."""


class Asked(WireModel):
    """One answer of the budget gate."""

    offering: str
    count: int
    paths: list[str]
    answer: GateAnswer


class Extended(WireModel):
    """One answer about an extension."""

    node: str
    until: float
    given: float


@dataclass(slots=True)
class Asking:
    """A gate that passes questions on and keeps the answers."""

    gate: Gate
    asked: list[Asked] = field(default_factory=list)
    extended: list[Extended] = field(default_factory=list)

    def width(
        self, offering: Offering, count: int, paths: Sequence[str], taken: Sequence[Purchase]
    ) -> GateAnswer:
        """Return the gate's answer."""
        answer = self.gate.width(offering, count, paths, taken)
        one = Asked(offering=offering.key, count=count, paths=list(paths), answer=answer)
        self.asked.append(one)
        return answer

    def extend(self, node: FleetNode, until: float) -> float:
        """Return the gate's answer."""
        given = self.gate.extend(node, until)
        self.extended.append(Extended(node=node.name, until=until, given=given))
        return given


@dataclass(slots=True)
class _Again:
    """Gives recorded answers, in their order; what was never asked is not covered."""

    asked: list[Asked]
    extended: list[Extended]

    def width(
        self, offering: Offering, count: int, paths: Sequence[str], taken: Sequence[Purchase]
    ) -> GateAnswer:
        del taken
        key = (offering.key, count, list(paths))
        for at, one in enumerate(self.asked):
            if (one.offering, one.count, one.paths) == key:
                return self.asked.pop(at).answer
        return GateAnswer(0, words="this was not asked when the plan was made")

    def extend(self, node: FleetNode, until: float) -> float:
        for one in self.extended:
            if (one.node, one.until) == (node.name, until):
                return one.given
        return 0.0


class FleetDump(WireModel):
    """Everything that one plan was made from, and what came out, with its words."""

    version: int = VERSION
    at: float
    serial: int = 0
    scope: str = ""
    consolidated_at: float | None = None
    nodes: list[FleetNode]
    pending: list[Pending]
    offerings: list[Offering]
    backoffs: list[Backoff] = []
    buffers: list[Buffer] = []
    limits: list[Limit] = []
    memories: list[PoolMemory] = []
    rules: NodeRules
    asked: list[Asked] = []
    extended: list[Extended] = []
    buys: list[Purchase] = []
    cordons: list[str] = []
    drains: list[Drain] = []
    removals: list[Removal] = []
    renewals: list[Renewal] = []
    refusals: list[Refused] = []
    words: list[str] = Field(default=[], description="The plan, a sentence each.")
    burn: Decimal = Decimal(0)

    @classmethod
    def of(
        cls, state: FleetState, rules: NodeRules, made: Plan, asking: Asking | None = None
    ) -> "FleetDump":
        """Return a dump of a plan and of what it was made from."""
        return cls(
            at=state.now,
            serial=state.serial,
            scope=state.scope,
            consolidated_at=state.consolidated_at,
            nodes=list(state.nodes),
            pending=list(state.pending),
            offerings=list(state.offerings),
            backoffs=list(state.backoffs),
            buffers=list(state.buffers),
            limits=list(state.limits),
            memories=list(state.memories),
            rules=rules,
            asked=asking.asked if asking else [],
            extended=asking.extended if asking else [],
            buys=list(made.buys),
            cordons=list(made.cordons),
            drains=list(made.drains),
            removals=list(made.removals),
            renewals=list(made.renewals),
            refusals=list(made.refusals),
            words=plan_words(made),
            burn=state.burn,
        )

    def state(self) -> FleetState:
        """Return the state that the plan was made from; a view is made anew from the nodes."""
        return FleetState(
            self.at,
            tuple(self.nodes),
            tuple(self.pending),
            tuple(self.offerings),
            tuple(self.backoffs),
            tuple(self.buffers),
            tuple(self.limits),
            tuple(self.memories),
            self.serial,
            self.scope,
            self.consolidated_at,
        )


def replay(taken: FleetDump) -> list[str]:
    """Plan again with today's code; return how it differs, a line each, nothing where it is same.

    A plan that was made with a live view may choose other nodes of equal worth.
    """
    if taken.version != VERSION:
        return [f"version: {taken.version}: this program replays version {VERSION} only"]
    again = plan(taken.state(), taken.rules, _Again(list(taken.asked), list(taken.extended)))
    pairs = (
        ("buys", taken.buys, again.buys),
        ("cordons", taken.cordons, again.cordons),
        ("drains", taken.drains, again.drains),
        ("removals", taken.removals, again.removals),
        ("renewals", taken.renewals, again.renewals),
        ("refusals", taken.refusals, again.refusals),
    )
    return [
        f"{name}: dumped {list(then)}, replayed {list(now)}"
        for name, then, now in pairs
        if list(then) != list(now)
    ]
