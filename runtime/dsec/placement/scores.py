"""What a placement costs: one list of small named parts, summed; the smallest sum wins.

The unit is milli GPU: a cost of 1000 is worth one stranded card. Parts that follow from a node's
description (`STATIC`) are summed once per class of requests, with the order term: position in the
fixed order x `Weights.order`, which keeps the nodes at its end empty for what needs whole ones.
Parts that follow from the present state exist twice, for arrays of candidates and for one node in
plain numbers, and give the same bits: a batch decides exactly as single requests would.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dsec.placement.asked import Asked
from dsec.placement.filters import small
from dsec.placement.request import LEVELS, Node, PoolKind, Request

FULL_ORDER = 256
"""Nodes below which one position costs the same as in a cluster of so many: in a small cluster
the order must not outweigh every wish."""


@dataclass(frozen=True, slots=True)
class Weights:
    """What each part costs at its worst, in milli GPU; 0 switches a part off."""

    stranding: float = 1.0
    """Of the expected stranded capacity, which is in milli itself."""
    order: float = 1000.0
    data: float = 2000.0
    """None of the data sets is on the node."""
    image: float = 500.0
    """The image's layers are not on the node."""
    segment: float = 2000.0
    """Another network segment than the preferred one."""
    homogeneous: float = 2000.0
    """Several cards on a node of mixed models (SCHED-11)."""
    mixed_pool: float = 1000.0
    """A part of a card outside the mixed pool (SCHED-12)."""
    colocation: float = 500.0
    """Work without GPU on a node that has some (SCHED-15): last resort, not forbidden."""
    price: float = 100.0
    """Per unit of currency and hour."""
    simulated: float = 100_000.0
    """A simulated node for work that did not ask for one."""
    stage: float = 10.0
    """A node with nothing but the same stage (SCHED-14). Small: it mixes neighbours in the order,
    and does not spread a stage over the cluster."""
    spread: float = 2000.0
    """For each member of the spread group that is there (SCHED-08, SCHED-26)."""
    near: float = 4000.0
    """For each level of the topology that the next member of the near group is away (SCHED-07)."""
    slicing: float = 1000.0
    """A card that is cut for the first slice on it."""
    balance: float = 0.0
    """CPU and memory used to different parts of the node, at the most different."""


def data(here: Mapping[str, int], datasets: tuple[str, ...]) -> float:
    """Return the part of the data sets that is not on a node with those percents (SCHED-05)."""
    got = sum([min(100, max(0, here.get(name, 0))) for name in datasets])
    return 1.0 - got / (100 * len(datasets)) if datasets else 0.0


def segment(node: Node, request: Request, _asked: Asked) -> float:
    """Return 1 outside the preferred segment (SCHED-06)."""
    return 1.0 if request.segment and request.segment != node.segment else 0.0


def homogeneous(node: Node, _request: Request, asked: Asked) -> float:
    """Return 1 where several cards would come from a node of mixed models."""
    return 1.0 if asked.gpus > 1 and len({card.model for card in node.devices}) > 1 else 0.0


def mixed_pool(node: Node, _request: Request, asked: Asked) -> float:
    """Return 1 for a part of a card outside the mixed pool."""
    return 1.0 if small(asked) and node.kind is not PoolKind.MIXED else 0.0


def colocation(node: Node, _request: Request, asked: Asked) -> float:
    """Return 1 for work without GPU on a node that has some."""
    return 1.0 if node.devices and not asked.gpus else 0.0


def price(node: Node, _request: Request, _asked: Asked) -> float:
    """Return the price of the node, per hour."""
    return node.price_micro / 1_000_000


def simulated(node: Node, request: Request, _asked: Asked) -> float:
    """Return 1 on a simulated node for work that does not care."""
    return 1.0 if node.simulated and request.simulated is None else 0.0


Part = Callable[[Node, Request, Asked], float]
STATIC: tuple[tuple[str, Part], ...] = (
    ("homogeneous", homogeneous),
    ("mixed_pool", mixed_pool),
    ("colocation", colocation),
    ("price", price),
    ("simulated", simulated),
    ("segment", segment),
)
"""Parts that follow from what `ClusterView.profiles` tells apart; names are those of `Weights`."""


def static_cost(node: Node, request: Request, asked: Asked, weights: Weights) -> float:
    """Return the sum of the static parts."""
    return sum(
        (float(getattr(weights, name)) * part(node, request, asked) for name, part in STATIC), 0.0
    )


def local_parts(node: Node, request: Request, weights: Weights) -> list[tuple[str, float]]:
    """Return the parts that follow from what one node holds: data (SCHED-05), image (SCHED-22).

    `derived.Derived` sums the same over all nodes at once.
    """
    lacking = data(dict(node.datasets), request.datasets)
    absent = 1.0 if request.image and request.image not in node.images else 0.0
    return [("data", weights.data * lacking), ("image", weights.image * absent)]


def distance(node: Node, others: list[Node]) -> int:
    """Return the levels between a node and the nearest of others: 0 the same host, 4 no level.

    Domains are compared as (level, name), wide to narrow: equal names of different levels or of
    racks in different zones are not the same place.
    """
    mine = domains(node)
    return min((_apart(mine, domains(other)) for other in others), default=0)


def domains(node: Node) -> tuple[tuple[str, ...], ...]:
    """Return the places that a node lies in, one per level of `LEVELS`, as paths from the top."""
    path = (node.region, node.zone, node.rack, node.name)
    return tuple(path[: len(LEVELS) - level] for level in range(len(LEVELS)))


def _apart(mine: tuple[tuple[str, ...], ...], theirs: tuple[tuple[str, ...], ...]) -> int:
    for level, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        if one == other and one[-1]:
            return level
    return len(LEVELS)
