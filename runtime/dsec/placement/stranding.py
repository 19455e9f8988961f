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

How a scorer uses it (`Tables` are immutable; take them once per batch):

* per node keep `codes` (each card: group * `CARD` + free milli; 0 free for a card that is missing
  or in a mode that gives no shares), free `cpu` in milli, `usable` and `stranded` from
  `Tables.state`; recompute all of it when `Tables.version` changes;
* for candidates (`Nodes`): `share_costs`, `whole_costs` or `cpu_costs`; for the node that was
  touched (`OneNode`): the same in plain numbers, `share_cost`, `whole_cost`, `cpu_cost`, after
  `state_of`. The caller adds the order term.

Values of V are multiples of 2^-10, so sums of them are exact: scalar and vector functions return
the same bits, and figures kept by adding and subtracting never drift from those made anew.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

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
_CHUNK = 8
"""Sequences poured at once: what the processor's cache holds."""


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
    total: Floats = np.zeros((len(cpu), len(usable)))
    for first in range(0, samples, _CHUNK):
        total += _poured(drawn[first : first + _CHUNK], cores, asked, cpu, usable)
    return NodeTable(cpu_step, usable_step, total / samples)


def _steps(most: int, step: float) -> Floats:
    """Return 0, step, 2 step, ... until `most` is covered; at least two."""
    return np.asarray(np.arange(max(2, math.ceil(most / step) + 1)) * step)


def _poured(drawn: Ints, cores: Singles, asked: Singles, cpu: Floats, usable: Floats) -> Floats:
    """Return what is left of every start on the grid, summed over some sequences."""
    shape = (len(drawn), len(cpu), len(usable))
    free_cpu = np.empty(shape, dtype=np.float32)
    left = np.empty(shape, dtype=np.float32)
    free_cpu[:] = cpu[None, :, None]
    left[:] = usable[None, None, :]
    for classes in drawn.T:
        need_cpu, need = cores[classes][:, None, None], asked[classes][:, None, None]
        taken = np.minimum(need, left)
        taken *= free_cpu >= need_cpu
        left -= taken
        taken *= need_cpu / need
        free_cpu -= taken
    return np.asarray(left.sum(axis=0, dtype=np.float64))


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
    node_values: Floats
    """H of all groups end to end."""
    node_list: list[float]
    offset: Ints
    width: Ints
    last_row: Ints
    last_column: Ints
    cpu_scale: Floats
    usable_scale: Floats
    plain: list[tuple[int, int, int, int, float, float]]
    kept: tuple[Floats, ...] = ()
    """By group: `turnover.kept_table`; empty without turnover."""
    order_scale: float = 1.0
    """Part of the order's weight that counts."""
    _deltas: dict[int, Floats] = field(default_factory=dict)
    _delta_lists: dict[int, list[float]] = field(default_factory=dict)

    # -- the state of nodes ---------------------------------------------------------------------

    def state(self, group: Ints, cpu: Ints, codes: Ints) -> tuple[Floats, Floats]:
        """Return (usable, stranded) of nodes: group[n], free CPU milli[n], codes[n, cards]."""
        free = codes - (group * CARD)[:, None]
        usable = (free - self.card_values[codes]).sum(axis=1)
        return usable, self.strand(group, cpu, usable)

    def state_of(self, group: int, cpu: int, codes: Sequence[int]) -> tuple[float, float]:
        """Return the same of one node."""
        base, table = group * CARD, self.card_list
        usable = 0.0
        for code in codes:
            usable += code - base - table[code]
        return usable, self.strand_of(group, cpu, usable)

    def potential(self, group: Ints, cpu: Ints, codes: Ints) -> Floats:
        """Return P of nodes, in milli: what is expected to be stranded on them."""
        _, stranded = self.state(group, cpu, codes)
        return np.asarray(self.card_values[codes].sum(axis=1) + stranded)

    def strand(self, group: Ints, cpu: Ints | Floats, usable: Floats) -> Floats:
        """Return H, by bilinear interpolation; beyond the grid its edge holds."""
        base, width = self.offset[group], self.width[group]
        last_row, last_column = self.last_row[group], self.last_column[group]
        x = np.minimum(cpu * self.cpu_scale[group], last_row)
        y = np.minimum(usable * self.usable_scale[group], last_column)
        row = np.clip(x.astype(np.int64), 0, last_row - 1)
        column = np.clip(y.astype(np.int64), 0, last_column - 1)
        at = base + row * width + column
        fx, fy, values = x - row, y - column, self.node_values
        low = values[at] + fy * (values[at + 1] - values[at])
        below = at + width
        high = values[below] + fy * (values[below + 1] - values[below])
        return np.asarray(low + fx * (high - low))

    def strand_of(self, group: int, cpu: float, usable: float) -> float:
        """Return H of one node."""
        offset, width, last_row, last_column, cpu_scale, usable_scale = self.plain[group]
        x, y = min(cpu * cpu_scale, last_row), min(usable * usable_scale, last_column)
        # a node that shrank may have less than nothing free
        row = max(0, min(int(x), last_row - 1))
        column = max(0, min(int(y), last_column - 1))
        fx, fy, values = x - row, y - column, self.node_list
        at = offset + row * width + column
        low = values[at] + fy * (values[at + 1] - values[at])
        below = at + width
        high = values[below] + fy * (values[below + 1] - values[below])
        return low + fx * (high - low)

    # -- costs, without the order term ----------------------------------------------------------

    def deltas(self, milli: int) -> Floats:
        """Return V(r - milli) - V(r) for every code; NEVER where it does not fit."""
        found = self._deltas.get(milli)
        if found is None:
            table = self.card_values.reshape(-1, CARD)
            change = np.full_like(table, NEVER)
            change[:, milli:] = table[:, : CARD - milli] - table[:, milli:]
            found = self._deltas[milli] = change.reshape(-1)
        return found

    def delta_list(self, milli: int) -> list[float]:
        """Return the same as a plain list, for `share_cost`."""
        found = self._delta_lists.get(milli)
        if found is None:
            found = self._delta_lists[milli] = self.deltas(milli).tolist()
        return found

    def share_costs(
        self,
        nodes: "Nodes",
        cpu_milli: int,
        milli: int,
        cards: int = 1,
    ) -> tuple[Floats, Ints]:
        """Return (cost[n], chosen[n, cards]) of a share of `milli` on each of that many cards.

        The best cards are chosen, the first of equals. Cost is at least NEVER / 2 where too few
        cards have room.
        """
        change = self.deltas(milli)[nodes.codes]
        if cards == 1:
            chosen = change.argmin(axis=1)[:, None]
            best = change[np.arange(len(chosen)), chosen[:, 0]]
        else:
            chosen = change.argsort(axis=1, kind="stable")[:, :cards]
            best = np.take_along_axis(change, chosen, axis=1).sum(axis=1)
            if chosen.shape[1] < cards:
                best += NEVER
        after = np.maximum(nodes.usable - cards * milli - best, 0.0)
        left = self.strand(nodes.group, nodes.cpu - cpu_milli, after)
        return best + left - nodes.stranded, chosen

    def share_cost(
        self, node: "OneNode", cpu_milli: int, milli: int, cards: int = 1
    ) -> tuple[float, tuple[int, ...]]:
        """Return (cost, chosen cards) of the same on one node."""
        table = self.delta_list(milli)
        group, cpu, codes, usable, stranded = node
        if cards == 1:
            best, card = NEVER, 0
            for index, code in enumerate(codes):
                if table[code] < best:
                    best, card = table[code], index
            chosen: tuple[int, ...] = (card,)
        else:
            order = sorted(range(len(codes)), key=lambda index: table[codes[index]])
            chosen = tuple(order[:cards])
            best = sum(table[codes[index]] for index in chosen)
            if len(chosen) < cards:
                best += NEVER
        after = max(usable - cards * milli - best, 0.0)
        return best + self.strand_of(group, cpu - cpu_milli, after) - stranded, chosen

    def whole_costs(self, nodes: "Nodes", cpu_milli: int, cards: int) -> Floats:
        """Return cost[n] of whole cards, on nodes that have them. Any full cards will do."""
        change = -cards * self.card_values[nodes.group * CARD + WHOLE]
        after = np.maximum(nodes.usable - cards * WHOLE - change, 0.0)
        left = self.strand(nodes.group, nodes.cpu - cpu_milli, after)
        return np.asarray(change + left - nodes.stranded)

    def whole_cost(self, node: "OneNode", cpu_milli: int, cards: int) -> float:
        """Return the same of one node."""
        group, cpu, _, usable, stranded = node
        change = -cards * self.card_list[group * CARD + WHOLE]
        after = max(usable - cards * WHOLE - change, 0.0)
        return change + self.strand_of(group, cpu - cpu_milli, after) - stranded

    def cpu_costs(self, nodes: "Nodes", cpu_milli: int) -> Floats:
        """Return cost[n] of a request without GPU: the GPU that lacks the CPU afterwards."""
        left = self.strand(nodes.group, nodes.cpu - cpu_milli, nodes.usable)
        return np.asarray(left - nodes.stranded)

    def cpu_cost(self, node: "OneNode", cpu_milli: int) -> float:
        """Return the same of one node."""
        group, cpu, _, usable, stranded = node
        return self.strand_of(group, cpu - cpu_milli, usable) - stranded


class Nodes(NamedTuple):
    """Candidates as arrays of n; `usable` and `stranded` as `Tables.state` returned them."""

    group: Ints
    cpu: Ints
    """Free CPU, milli."""
    codes: Ints
    """[n, cards]."""
    usable: Floats
    stranded: Floats


class OneNode(NamedTuple):
    """The same of one node, in plain numbers."""

    group: int
    cpu: int
    codes: Sequence[int]
    usable: float
    stranded: float


def stack(
    tables: Sequence[tuple[Floats, NodeTable]],
    version: int,
    kept: Sequence[Floats] = (),
    order_scale: float = 1.0,
) -> Tables:
    """Return the tables of groups 0, 1, ... as one."""
    node_values = [table.values for _, table in tables]
    sizes = np.cumsum([0, *(values.size for values in node_values)])
    plain = [
        (
            int(sizes[group]),
            values.shape[1],
            values.shape[0] - 1,
            values.shape[1] - 1,
            1 / tables[group][1].cpu_step,
            1 / tables[group][1].usable_step,
        )
        for group, values in enumerate(node_values)
    ]
    columns = list(zip(*plain, strict=True)) or [()] * 6
    offset, width, last_row, last_column = (np.array(one, dtype=np.int64) for one in columns[:4])
    cpu_scale, usable_scale = (np.array(one, dtype=np.float64) for one in columns[4:])
    card_values = np.concatenate([np.empty(0), *(cards for cards, _ in tables)])
    flat = np.concatenate([np.empty(0), *(values.reshape(-1) for values in node_values)])
    return Tables(
        version=version,
        card_values=card_values,
        card_list=card_values.tolist(),
        node_values=flat,
        node_list=flat.tolist(),
        offset=offset,
        width=width,
        last_row=last_row,
        last_column=last_column,
        cpu_scale=cpu_scale,
        usable_scale=usable_scale,
        plain=plain,
        kept=tuple(kept),
        order_scale=order_scale,
    )
