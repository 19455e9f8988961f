"""Expected stranded GPU: what a placement leaves behind that the coming requests cannot use.

Two small tables per group of nodes (one pool, one device model), made from the request mix:

* card table V(r), r = 0..1000 free milli of one card: milli still free after `CARD_DRAWS` random
  requests for a share of a card, each taken where it fits;
* node table H(c, u), c = free cores, u = usable free milli: milli that stay unused when
  `NODE_DRAWS` random GPU requests are poured in as a fluid; a request flows while its CPU is there.

Potential of a node: P = sum of V(free) over its cards + H(free CPU, sum of free - V(free)).
Cost of a placement: P after - P before + `ORDER_WEIGHT` * position / nodes, in milli GPU; the
smallest is best, the first in the fixed order of nodes wins a tie. The order term keeps nodes at
its end empty for requests that need a whole one.

`turnover` says what changes where work ends as fast as it comes.

`Tables` are immutable and taken once per batch. `potential` keeps of every node the codes of its
cards (group * `CARD` + free milli; 0 free for a card that is missing or in a mode that gives no
shares), its usable milli and what is stranded; `cards` and `pricing` find what a placement costs.

Values of V are multiples of 2^-10, so sums of them are exact: scalar and vector functions return
the same bits, and figures kept by adding and subtracting never drift from those made anew.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Singles = NDArray[np.float32]

WHOLE = 1000
"""Milli of one whole card."""
CARD = WHOLE + 1
"""Entries of a card table; a card's code is group * CARD + free milli."""
CARD_DRAWS = 25
"""Draws behind V: with unlimited supply every hole would look fillable by a rare small request."""
NODE_DRAWS = 20
NODE_SAMPLES = 48
"""Sequences of draws behind H; stratified, with a fixed seed."""
ORDER_WEIGHT = 1000.0
"""Milli between the first and the last node of the order."""
CANDIDATES = 256
"""Scoring the first so many feasible nodes of the order loses nothing: later ones pay more."""
NEVER = 1e12
"""Cost of what does not fit."""
_GRAIN = 1024.0
_USABLE_STEP = 100
_MAX_CELLS = 256


@dataclass(frozen=True, slots=True)
class Shape:
    """One class of GPU requests, weighed: what the tables are made from."""

    cpu_milli: int
    gpus: int
    milli: int
    """Of each card; WHOLE for whole cards."""
    weight: float


@dataclass(frozen=True, slots=True)
class NodeTable:
    """H of one group on a grid: rows of `cpu_step` milli CPU, columns of `usable_step` milli."""

    cpu_step: float
    usable_step: float
    values: Floats


def card_table(shapes: Sequence[Shape], draws: int = CARD_DRAWS) -> Floats:
    """Return V, 1001 values in milli, by recursion over draws from the share classes.

    V_0(r) = r; V_k+1(r) = sum over classes of p * V_k(r - s where s <= r, else r). Without share
    classes a broken card is lost whole, and a whole one is not.
    """
    sizes: dict[int, float] = {}
    for shape in shapes:
        if 0 < shape.milli < WHOLE and shape.weight > 0:
            # two clients on two cards are two draws for one card each
            sizes[shape.milli] = sizes.get(shape.milli, 0.0) + shape.weight * shape.gpus
    values = np.arange(CARD, dtype=np.float64)
    if not sizes:
        values[WHOLE] = 0.0
        return values
    total = sum(sizes.values())
    for _ in range(draws):
        after = np.zeros(CARD)
        for size, weight in sorted(sizes.items()):
            after[:size] += weight / total * values[:size]
            after[size:] += weight / total * values[: CARD - size]
        values = after
    return np.round(values * _GRAIN) / _GRAIN


def node_table(
    shapes: Sequence[Shape],
    cpu_milli: int,
    gpus: int,
    draws: int = NODE_DRAWS,
    samples: int = NODE_SAMPLES,
) -> NodeTable:
    """Return H for nodes up to that size: mean milli left over the sampled sequences.

    The same random numbers serve every mix, and classes are ordered by size: mixes that are near
    to each other have tables that are near to each other. Without classes nothing is ever used.
    """
    cpu_step = 1000.0 * max(1, -(-cpu_milli // (1000 * _MAX_CELLS)))
    usable_step = float(_USABLE_STEP * max(1, -(-gpus * WHOLE // (_USABLE_STEP * _MAX_CELLS))))
    cpu = _steps(cpu_milli, cpu_step) / 1000
    usable = _steps(gpus * WHOLE, usable_step)
    ordered = sorted((one for one in shapes if one.weight > 0 and one.milli > 0), key=_size)
    if not ordered:
        return NodeTable(cpu_step, usable_step, np.repeat(usable[None, :], len(cpu), axis=0))
    cores = np.array([one.cpu_milli / 1000 for one in ordered], dtype=np.float32)
    asked = np.array([float(one.gpus * one.milli) for one in ordered], dtype=np.float32)
    bounds = np.cumsum([one.weight for one in ordered])
    drawn = np.searchsorted(bounds / bounds[-1], _uniform(samples, draws), side="right")
    drawn = np.minimum(drawn, len(ordered) - 1)
    total = _left(_poured(drawn, cores, asked, cpu), usable, usable_step)
    return NodeTable(cpu_step, usable_step, total / samples)


def _steps(most: int, step: float) -> Floats:
    """Return 0, step, 2 step, ... until `most` is covered; at least two."""
    return np.asarray(np.arange(max(2, math.ceil(most / step) + 1)) * step)


def _poured(drawn: Ints, cores: Singles, asked: Singles, cpu: Floats) -> Singles:
    """Return the milli, [sequence, row], that flow from a node whose GPU never ends.

    Where it ends the same flows until all of it has, so that `usable - poured` is left, or nothing.
    """
    free = np.empty((len(drawn), len(cpu)), dtype=np.float32)
    free[:] = cpu
    poured = np.zeros_like(free)
    for classes in drawn.T:
        need_cpu, need = cores[classes][:, None], asked[classes][:, None]
        flows = free >= need_cpu
        poured += need * flows
        free -= need * (need_cpu / need) * flows
    return poured


def _left(poured: Singles, usable: Floats, step: float) -> Floats:
    """Return the sum over sequences of max(usable - poured, 0), [row, usable].

    By the number and the sum of what is below each usable figure. All are whole milli and far from
    what floats hold exactly, so that the order of adding does not matter.
    """
    rows, columns = poured.shape[1], len(usable)
    exact = poured.astype(np.float64)
    # the first usable figure above; what is above all of them is never left
    first = np.minimum(exact // step, columns).astype(np.int64) + 1
    at = (first + np.arange(rows) * (columns + 2)).ravel()
    size, shape = rows * (columns + 2), (rows, columns + 2)
    count = np.bincount(at, minlength=size).reshape(shape).cumsum(axis=1)
    below = np.bincount(at, exact.ravel(), size).reshape(shape).cumsum(axis=1)
    return np.asarray(usable * count[:, :columns] - below[:, :columns])


def _size(shape: Shape) -> tuple[int, int]:
    return shape.gpus * shape.milli, shape.cpu_milli


def _uniform(samples: int, draws: int) -> Floats:
    """Return numbers in [0, 1): in each column one of every stratum, in an order by fixed seed."""
    random = np.random.default_rng(20)
    strata = np.stack([random.permutation(samples) for _ in range(draws)], axis=1)
    return (strata + random.random((samples, draws))) / samples


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of all groups; a group is its number. Immutable: a new mix gives new tables."""

    version: int
    card_values: Floats
    """V of all groups end to end: index = code of a card."""
    card_list: list[float]
    nodes: tuple[NodeTable, ...]
    """H by group; `potential.Surface` reads between its points."""
    kept: tuple[Floats, ...] = ()
    """By group: `turnover.kept_table`; empty without turnover."""
    order_scale: float = 1.0
    """Part of the order's weight that counts."""
    _deltas: dict[int, Floats] = field(default_factory=dict)

    def deltas(self, milli: int) -> Floats:
        """Return V(r - milli) - V(r) for every code; NEVER where it does not fit."""
        found = self._deltas.get(milli)
        if found is None:
            table = self.card_values.reshape(-1, CARD)
            change = np.full_like(table, NEVER)
            change[:, milli:] = table[:, : CARD - milli] - table[:, milli:]
            found = self._deltas[milli] = change.reshape(-1)
        return found


def stack(
    tables: Sequence[tuple[Floats, NodeTable]],
    version: int,
    kept: Sequence[Floats] = (),
    order_scale: float = 1.0,
) -> Tables:
    """Return the tables of groups 0, 1, ... as one."""
    card_values = np.concatenate([np.empty(0), *(cards for cards, _ in tables)])
    nodes = tuple(table for _, table in tables)
    return Tables(version, card_values, card_values.tolist(), nodes, tuple(kept), order_scale)
