"""Hard limits of nodes, CPU, GPUs and money per hour: counted in one place, reserved before buying.

Every node counts with its whole size from the moment that it is reserved until it is gone, also
while it is only asked for: what a node is for may be small, what comes is not.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from dsec.scaling.nodes.offerings import FleetNode, NodePhase, Offering
from dsec.scaling.nodes.plans import Purchase
from dsec.scaling.nodes.rules import NodeRules
from dsec.scaling.nodes.state import FleetState, Limit

UNBOUNDED = 1 << 40


@dataclass(slots=True)
class _Counted:
    nodes: int = 0
    cpu_milli: int = 0
    gpus: int = 0
    cost: Decimal = Decimal(0)


class Room:
    """What limits leave, while a plan takes of it."""

    def __init__(self, state: FleetState, rules: NodeRules) -> None:
        self.limits: list[Limit] = list(state.limits)
        for pool in state.pools:
            self.limits += rules.of(pool).limits(state.now)
        self._counted = [_Counted() for _ in self.limits]
        self._offered: dict[str, int] = {}
        for node in state.nodes:
            self.take(node.offering, 1)

    def take(self, offering: Offering, count: int) -> None:
        """Count nodes, whether limits allow them or not."""
        self._offered[offering.key] = self._offered.get(offering.key, 0) + count
        for limit, counted in zip(self.limits, self._counted, strict=True):
            if limit.covers(offering):
                counted.nodes += count
                counted.cpu_milli += count * offering.node.cpu_milli
                counted.gpus += count * len(offering.node.devices)
                if offering.currency == limit.currency:
                    counted.cost += count * offering.price_per_hour

    def left(self, offering: Offering) -> tuple[int, str]:
        """Return how many more nodes of an offering may be had, and the limit that says so."""
        least, name = UNBOUNDED, ""
        if offering.limit is not None:
            least = offering.limit - self._offered.get(offering.key, 0)
            name = f"{offering.key}: {offering.limit} nodes"
        for limit, counted in zip(self.limits, self._counted, strict=True):
            if not limit.covers(offering):
                continue
            for fits, words in _parts(limit, counted, offering):
                if fits < least:
                    least, name = fits, f"{limit.name}: {words}"
        return max(0, least), name


def _parts(limit: Limit, counted: _Counted, offering: Offering) -> Iterable[tuple[int, str]]:
    cpu, gpus = offering.node.cpu_milli, len(offering.node.devices)
    if limit.nodes is not None:
        yield limit.nodes - counted.nodes, f"{limit.nodes} nodes"
    if limit.cpu_milli is not None and cpu:
        yield (limit.cpu_milli - counted.cpu_milli) // cpu, f"{limit.cpu_milli / 1000:g} cores"
    if limit.gpus is not None and gpus:
        yield (limit.gpus - counted.gpus) // gpus, f"{limit.gpus} GPUs"
    if limit.cost_per_hour is not None and offering.price_per_hour > 0:
        words = f"{limit.cost_per_hour} {limit.currency} per hour"
        if offering.currency != limit.currency:
            # nobody here knows how much of the one the other is
            yield 0, f"{words}, and {offering.key} is priced in {offering.currency}"
        else:
            left = limit.cost_per_hour - counted.cost
            yield int(left // offering.price_per_hour), words


def reserve(
    state: FleetState, rules: NodeRules, buys: Sequence[Purchase]
) -> tuple[FleetState, tuple[Purchase, ...]]:
    """Enter purchases into the state before the provider is called; return what limits still allow.

    Whoever carries plans out does this under one lock with the newest state, and persists the
    result: two plans that were made from the same state then never pass a limit together.
    """
    room = Room(state, rules)
    known = Counter(node.token for node in state.nodes if node.token)
    nodes, allowed = list(state.nodes), []
    for buy in buys:
        if buy.token in known:
            # what was reserved of it then, which may be less than was planned
            allowed.append(_cut(buy, min(buy.count, known[buy.token])))
            continue
        left, _ = room.left(buy.offering)
        count = min(buy.count, left)
        if not count:
            continue
        room.take(buy.offering, count)
        cut = _cut(buy, count)
        allowed.append(cut)
        nodes += [
            FleetNode(
                name,
                buy.offering,
                NodePhase.REQUESTED,
                state.now,
                token=buy.token,
                since=state.now,
                covers=cut.places[at] if cut.places else (),
            )
            for at, name in enumerate(cut.names)
        ]
    return replace(state, nodes=tuple(nodes), serial=state.serial + 1), tuple(allowed)


def _cut(buy: Purchase, count: int) -> Purchase:
    """Return the first so many nodes of a purchase."""
    if count == buy.count:
        return buy
    return replace(buy, count=count, names=buy.names[:count], places=buy.places[:count])
