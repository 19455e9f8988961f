"""A small world for node planning: a provider that fails, nodes that boot, work that ends.

Placement, planning and reserving are the real ones; only time, the provider and the mover are made
up. What each test draws (delays, failures) it puts into `World` before a step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

from dsec.placement.engine import place
from dsec.placement.request import Request
from dsec.placement.view import ClusterView
from dsec.scaling.nodes.carrying import answered, watched
from dsec.scaling.nodes.draining import drained
from dsec.scaling.nodes.dumps import FleetDump
from dsec.scaling.nodes.limits import reserve
from dsec.scaling.nodes.offerings import FleetNode, NodePhase, Offering, Running, tolerant
from dsec.scaling.nodes.planning import plan
from dsec.scaling.nodes.plans import Drain, GateAnswer, Plan, Purchase
from dsec.scaling.nodes.rules import NodeRules
from dsec.scaling.nodes.state import FleetState, Pending
from dsec.scaling.nodes.virtual import book

LEASE_S = 1800.0
"""How far ahead nodes are paid for."""


@dataclass(slots=True)
class Purse:
    """A hard budget: spent, and what nodes are paid for until their run-until times."""

    world: "World"
    limit: Decimal
    spent: Decimal = Decimal(0)

    @property
    def committed(self) -> Decimal:
        """What nodes may still cost without another word."""
        now = self.world.state.now
        return sum(
            (_cost(one, max(0.0, (one.run_until or now) - now)) for one in self.world.state.nodes),
            Decimal(0),
        )

    def width(
        self, offering: Offering, count: int, paths: Sequence[str], taken: Sequence[Purchase]
    ) -> GateAnswer:
        """Return how many more nodes fit for a whole lease."""
        del paths
        hours = Decimal(str(LEASE_S * 1.1)) / 3600
        left = self.limit - self.spent - self.committed
        left -= sum((one.price_per_hour * hours for one in taken), Decimal(0))
        fits = int(max(Decimal(0), left) // (offering.price_per_hour * hours))
        return GateAnswer(min(count, fits), words="the purse is empty")

    def extend(self, node: FleetNode, until: float) -> float:
        """Return how far what is left pays for a node; what is given counts at once."""
        now = self.world.state.now
        held = node.run_until or now
        left = self.limit - self.spent - self.committed
        left -= self.world.promised
        given = min(
            until, held + float(max(Decimal(0), left) * 3600 / node.offering.price_per_hour)
        )
        if given > held:
            self.world.promised += _cost(node, given - held)
        return given


def _cost(node: FleetNode, seconds: float) -> Decimal:
    return node.offering.price_per_hour * Decimal(str(seconds)) / 3600


def _outcome(_: Purchase) -> int | None:
    return None


@dataclass(slots=True)
class World:
    """Time, work and nodes. `outcome`: how many nodes of a purchase come; None: all of them."""

    state: FleetState
    rules: NodeRules
    purse: Purse | None = None
    outcome: Callable[[Purchase], int | None] = _outcome
    boot: Callable[[FleetNode], float] = field(default=lambda node: node.offering.boot_seconds)
    moves_work: Callable[[str], bool] = field(default=lambda _: True)
    ends: dict[str, float] = field(default_factory=dict)
    life: dict[str, float] = field(default_factory=dict)
    promised: Decimal = Decimal(0)
    bought: list[tuple[float, str]] = field(default_factory=list)
    removed: list[tuple[float, str]] = field(default_factory=list)
    drains: list[tuple[float, str]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    plans: int = 0

    def submit(self, requests: Sequence[Request], life: float) -> None:
        """Let work wait that runs for so long once it has a place."""
        self.life |= {one.id: life for one in requests}
        more = tuple(Pending(one, self.state.now) for one in requests)
        self.state = replace(self.state, pending=(*self.state.pending, *more))

    def step(self, seconds: float) -> Plan:
        """Let time pass, place what waits, plan, and carry the plan out."""
        self._pass(seconds)
        self._place()
        self.promised = Decimal(0)
        made = (
            plan(self.state, self.rules, self.purse) if self.purse else plan(self.state, self.rules)
        )
        self.plans += 1
        self.carry_out(made)
        return made

    def restart(self) -> None:
        """Forget everything but what is persisted."""
        dumped = FleetDump.of(self.state, self.rules, Plan(self.state.now))
        self.state = FleetDump.model_validate_json(dumped.model_dump_json()).state()

    def count(self, *phases: NodePhase) -> int:
        """Return how many nodes there are in some phases; none named: all."""
        return sum(not phases or one.phase in phases for one in self.state.nodes)

    # -- time and work --------------------------------------------------------------------------

    def _pass(self, seconds: float) -> None:
        before, now = self.state.now, self.state.now + seconds
        nodes = []
        for node in self.state.nodes:
            until = now if node.run_until is None else min(now, node.run_until)
            if self.purse is not None and node.phase is not NodePhase.REQUESTED:
                self.purse.spent += _cost(node, max(0.0, until - before))
            if node.run_until is not None and node.run_until <= now:
                self.lost += [one.id for one in node.work]
                continue
            work = tuple(one for one in node.work if self.ends[one.id] > now)
            up = node.phase is NodePhase.BOOTING and now - node.requested_at >= self.boot(node)
            changed = replace(
                node,
                work=work,
                phase=NodePhase.READY if up else node.phase,
                ready_at=now if up else node.ready_at,
            )
            nodes.append(watched(changed, now))
        self.state = replace(self.state, now=now, nodes=tuple(nodes))

    def _place(self) -> None:
        ready = [
            one for one in self.state.nodes if one.phase is NodePhase.READY and not one.leaving
        ]
        view = ClusterView(one.described(self.state.now) for one in ready)
        for node in ready:
            for one in node.work:
                book(view, node.name, one)
        waiting = sorted(self.state.pending, key=lambda one: one.since)
        decisions = place(view, [tolerant(one.request) for one in waiting], learn=False)
        where = {one.id: one for one in decisions if one.node}
        started: dict[str, list[Running]] = {}
        for one in waiting:
            decision = where.get(one.request.id)
            if decision is None:
                continue
            request = one.request
            self.ends[request.id] = self.state.now + self.life[request.id]
            started.setdefault(decision.node, []).append(
                Running(
                    request.id,
                    request,
                    self.state.now,
                    request.task_class,
                    movable=True,
                    devices=decision.devices,
                    budget=one.budget,
                )
            )
        nodes = tuple(
            watched(replace(one, work=(*one.work, *started.get(one.name, ()))), self.state.now)
            for one in self.state.nodes
        )
        left = tuple(one for one in self.state.pending if one.request.id not in where)
        self.state = replace(self.state, nodes=nodes, pending=left)

    # -- plans ----------------------------------------------------------------------------------

    def carry_out(self, made: Plan) -> None:
        """Reserve, buy, drain, remove and renew."""
        self.state, allowed = reserve(self.state, self.rules, made.buys)
        self.state = replace(
            self.state, memories=made.memories, consolidated_at=made.consolidated_at
        )
        for buy in allowed:
            self._buy(buy)
        for drain in made.drains:
            self._drain(drain)
        gone = {one.node for one in made.removals}
        for name in sorted(gone):
            self.removed.append((self.state.now, name))
        until = {one.node: one.run_until for one in made.renewals}
        nodes = tuple(
            replace(one, run_until=until.get(one.name, one.run_until))
            for one in self.state.nodes
            if one.name not in gone
        )
        self.state = replace(self.state, nodes=nodes)

    def _buy(self, buy: Purchase) -> None:
        came = self.outcome(buy)
        came = buy.count if came is None else min(came, buy.count)
        until = self.state.now + LEASE_S if self.purse is not None else None
        self.state = answered(self.state, buy, came, run_until=until, code="no capacity")
        self.bought += [(self.state.now, name) for name in sorted(buy.names[:came])]

    def _drain(self, drain: Drain) -> None:
        """Move what may move at once; what rests goes back to the head of the queue."""
        self.drains.append((self.state.now, drain.node))
        node = next(one for one in self.state.nodes if one.name == drain.node)
        node = replace(node, phase=NodePhase.DRAINING)
        demand = self.state.demand
        running = {one.id: one for held in self.state.nodes for one in held.work}
        outcomes: dict[str, bool] = {}
        arrived: dict[str, list[Running]] = {}
        room = True
        for move in drain.moves:
            # what makes room goes first; where it stays, nobody comes
            outcomes[move.id] = room and self.moves_work(move.id)
            room = room and (outcomes[move.id] or move.source == drain.node)
            if outcomes[move.id]:
                arrived.setdefault(move.target, []).append(
                    replace(
                        running[move.id],
                        last_moved_at=self.state.now,
                        moved_under=demand,
                        devices=move.decision.devices,
                    )
                )
        moved = {id_ for id_, rested in outcomes.items() if rested}
        rests = [one for one in node.work if one.id in drain.rests]
        for one in rests:
            self.life[one.id] = max(1.0, self.ends[one.id] - self.state.now)
        own = {one.id: outcomes[one.id] for one in node.work if one.id in outcomes}
        node = drained(node, own | dict.fromkeys(drain.rests, True), self.state.now)
        pending = tuple(Pending(one.request, one.started_at, 0.0, one.budget) for one in rests)
        nodes = tuple(
            node
            if one.name == node.name
            else watched(
                replace(
                    one,
                    work=(
                        *(some for some in one.work if some.id not in moved),
                        *arrived.get(one.name, ()),
                    ),
                ),
                self.state.now,
            )
            for one in self.state.nodes
        )
        self.state = replace(self.state, nodes=nodes, pending=(*pending, *self.state.pending))
