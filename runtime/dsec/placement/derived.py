"""What the engine has derived from a view, kept on it between decisions.

Filters and static scores are asked once per class of requests and distinct description of nodes,
and kept while nodes come and go. What follows from it per row is made anew when the view's
generation has changed.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsec.placement.accelerators import EXCLUSIVE, Accelerator, Claim
from dsec.placement.asked import Asked, claim_of
from dsec.placement.dimensions import LIMIT
from dsec.placement.filters import card_suits, mismatch
from dsec.placement.mix import Mix
from dsec.placement.potential import UNLEARNED, Potential, groups_of
from dsec.placement.refusal import Refusal
from dsec.placement.request import Request
from dsec.placement.scores import FULL_ORDER, Weights, static_cost
from dsec.placement.stranding import WHOLE, Floats, Ints
from dsec.placement.view import ClusterView

MOST_CLASSES = 2048
"""Classes remembered; all are forgotten beyond, which costs one pass over the descriptions each."""
MOST_PARTS = 64
"""Shapes of clients remembered of each class."""
Key = tuple[object, ...]


@dataclass(slots=True)
class Verdicts:
    """What filters and static scores say of each profile, for one class of requests."""

    why: list[Refusal | None]
    """None: the filters let it onto such nodes."""
    cost: list[float]


class Parts(NamedTuple):
    """What a client takes of each kind of card; follows from the card and the request alone."""

    claims: dict[int, Claim]
    """By kind."""
    shapes: dict[int, tuple[int, int]]
    """(milli, bytes) by kind, never beyond what arrays hold."""
    milli: int | Ints
    """The same on every kind, or by kind."""
    memory: int | Ints


@dataclass(slots=True)
class StaticClass:
    """One class of requests on the nodes of one generation."""

    key: Key
    """All of a request that filters and static scores look at."""
    rows: Ints | None
    """Rows that may take it, the cheapest first; None: all, in their order."""
    base: Floats
    """Static cost and order term by row."""
    suits: NDArray[np.bool_] | None
    """[row, card] where only some cards of a node will do."""
    kinds: tuple[int, ...]
    """Kinds of cards on rows that may take it."""
    depth: int = 0
    """Rows that the last search had to look at: a hint for the next."""
    parts: dict[tuple[int, ...], "Parts"] = field(default_factory=dict)
    """What clients take of cards, by the figures that it follows from."""


class Derived:
    """Caches of one view under one set of weights."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.generation = self._numbering = -1
        self.watermarked = False
        self.mixed = False
        """Some node has cards of several models."""
        self.kinds: list[Accelerator] = [Accelerator("")]
        """Distinct cards; number 0 stands for no card."""
        self._kind_numbers: dict[Key, int] = {}
        self._profile_kinds: list[list[int]] = []
        self.kind: Ints = np.zeros((0, 1), dtype=np.int64)
        """[row, card] number of the card's kind."""
        self.order: Floats = np.zeros(0)
        self._verdicts: dict[Key, Verdicts] = {}
        self._classes: dict[Key, StaticClass] = {}
        self._held: dict[str, tuple[Ints, Ints]] | None = None
        """Rows that hold a data set or an image, and percents."""
        self.potential: Potential | None = None
        self._order_scale = 1.0

    def fork(self) -> "Derived":
        """Return a copy for a fork of the view."""
        other = object.__new__(Derived)
        other.__dict__.update(self.__dict__)
        other.kinds, other._kind_numbers = list(self.kinds), dict(self._kind_numbers)
        other._profile_kinds = list(self._profile_kinds)
        other._classes = dict(self._classes)
        other._verdicts = {
            key: Verdicts(list(one.why), list(one.cost)) for key, one in self._verdicts.items()
        }
        other.potential = self.potential.fork() if self.potential else None
        return other

    def refresh(self, view: ClusterView, mix: Mix | None) -> Potential:
        """Follow the view and the mix; return the potential of all rows."""
        if self.generation != view.generation:
            self._follow(view)
            self.potential = None
        groups = (
            self.potential.group_of_profile if self.potential else groups_of(view.profiles, mix)
        )
        tables = mix.tables() if mix is not None else UNLEARNED
        if self.potential is None or self.potential.tables is not tables:
            # another mix numbers its groups by itself
            groups = groups_of(view.profiles, mix)
            tables = mix.tables() if mix is not None else UNLEARNED
            self.potential = Potential(view, tables, groups)
            if tables.order_scale != self._order_scale:
                self._order_scale = tables.order_scale
                self._arrange(len(view.described))
        else:
            for row in view.touched:
                self.potential.renew(view, row)
        view.touched.clear()
        return self.potential

    def _follow(self, view: ClusterView) -> None:
        self.generation = view.generation
        self._held = None
        if self._numbering != view.numbering:
            self._numbering = view.numbering
            self._verdicts.clear()
            self._profile_kinds.clear()
        rows = len(view.described)
        self.watermarked = any(
            node.safe_percent < 100 or node.limit_percent < 100  # noqa: PLR2004  percent
            for node in view.described
        )
        self._arrange(rows)
        for node in view.profiles[len(self._profile_kinds) :]:
            self._profile_kinds.append([self._kind_of(card) for card in node.devices])
            self.mixed = self.mixed or len({card.model for card in node.devices}) > 1
        cards = view.cards.shape[2]
        table = np.zeros((max(1, len(view.profiles)), cards), dtype=np.int64)
        for number, kinds in enumerate(self._profile_kinds):
            table[number, : len(kinds)] = kinds[:cards]
        self.kind = table[view.profile]

    def _arrange(self, rows: int) -> None:
        """Weigh the order of nodes anew, and with it all classes."""
        self._classes.clear()
        positions = np.arange(rows, dtype=np.float64)
        weight = self.weights.order * self._order_scale
        self.order = np.multiply(positions, weight / max(rows, FULL_ORDER))

    def _kind_of(self, card: Accelerator) -> int:
        key = (card.model, card.memory_bytes, card.modes, card.slicing, card.clients)
        number = self._kind_numbers.get(key)
        if number is None:
            number = self._kind_numbers[key] = len(self.kinds)
            self.kinds.append(card)
        return number

    def kinds_of(self, profile: int) -> list[int]:
        """Return the kinds of the cards of nodes with a description."""
        return self._profile_kinds[profile]

    def static_class(self, view: ClusterView, request: Request, asked: Asked) -> StaticClass:
        """Return what filters and static scores say of a request's class, by row."""
        key = _key(request, asked)
        found = self._classes.get(key)
        if found is None:
            if len(self._classes) >= MOST_CLASSES:
                self._classes.clear()
                self._verdicts.clear()
            found = self._classes[key] = self._class(view, request, asked, key)
        return found

    def parts(self, static: StaticClass, asked: Asked) -> Parts:
        """Return what clients take of the cards that a class may use."""
        key = asked.milli, asked.gpu_memory, asked.gpu_shares, asked.gpu_clients
        found = static.parts.get(key)
        if found is None:
            if len(static.parts) >= MOST_PARTS:
                static.parts.clear()
            claims = {kind: claim_of(asked, self.kinds[kind]) for kind in static.kinds}
            shapes = {
                kind: (min(claim.milli, WHOLE + 1), min(claim.memory, LIMIT))
                for kind, claim in claims.items()
            }
            milli = self._by_kind([(kind, one) for kind, (one, _) in shapes.items()], WHOLE + 1)
            memory = self._by_kind([(kind, one) for kind, (_, one) in shapes.items()], 0)
            found = static.parts[key] = Parts(claims, shapes, milli, memory)
        return found

    def _by_kind(self, figures: list[tuple[int, int]], none: int) -> int | Ints:
        """Return the one figure of all kinds, or an array by kind; `none` without any kind."""
        every = {one for _, one in figures} or {none}
        if len(every) == 1:
            return every.pop()
        found = np.zeros(len(self.kinds), dtype=np.int64)
        for kind, one in figures:
            found[kind] = one
        return found

    def verdicts(self, view: ClusterView, request: Request, asked: Asked) -> Verdicts:
        """Return what filters and static scores say of each profile; new ones are asked about."""
        verdicts = self._verdicts.setdefault(_key(request, asked), Verdicts([], []))
        for node in view.profiles[len(verdicts.why) :]:
            verdicts.why.append(mismatch(node, request, asked))
            verdicts.cost.append(static_cost(node, request, asked, self.weights))
        return verdicts

    def _class(self, view: ClusterView, request: Request, asked: Asked, key: Key) -> StaticClass:
        verdicts = self.verdicts(view, request, asked)
        fits = [why is None for why in verdicts.why]
        mask = np.array(fits, dtype=bool)[view.profile]
        base = self.order
        if any(verdicts.cost):
            base = base + np.array(verdicts.cost)[view.profile]
        if request.datasets or request.image:
            base = base + self._local(view, request)
        rows: Ints | None = None
        if base is not self.order:
            rows = np.argsort(base, kind="stable")
            rows = rows[mask[rows]]
        elif not mask.all():
            rows = np.flatnonzero(mask)
        suits = self._suits(view, request, asked, fits)
        return StaticClass(key, rows, base, suits, self._kinds(fits))

    def _local(self, view: ClusterView, request: Request) -> Floats:
        """Return the cost of fetching data sets and image, by row."""
        if self._held is None:
            held: dict[str, tuple[list[int], list[int]]] = {}
            for row, node in enumerate(view.described):
                for name, percent in (*node.datasets, *((one, 100) for one in node.images)):
                    rows, percents = held.setdefault(name, ([], []))
                    rows.append(row)
                    percents.append(min(100, max(0, percent)))
            self._held = {
                name: (np.array(rows), np.array(percents))
                for name, (rows, percents) in held.items()
            }
        count = len(view.described)
        got = np.zeros(count, dtype=np.int64)
        for name in request.datasets:
            if name in self._held:
                at, percents_there = self._held[name]
                got[at] += percents_there
        cost = np.zeros(count)
        if request.datasets:
            cost += self.weights.data * (1.0 - got / (100 * len(request.datasets)))
        if request.image:
            absent = np.ones(count)
            if request.image in self._held:
                absent[self._held[request.image][0]] = 0.0
            cost += self.weights.image * absent
        return cost

    def _kinds(self, fits: list[bool]) -> tuple[int, ...]:
        found = {
            kind
            for kinds, good in zip(self._profile_kinds, fits, strict=True)
            if good
            for kind in kinds
        }
        return tuple(sorted(found))

    def _suits(
        self, view: ClusterView, request: Request, asked: Asked, fits: list[bool]
    ) -> NDArray[np.bool_] | None:
        if not asked.mode:
            return None
        per_profile = [
            [good and card_suits(card, node, request, asked) for card in node.devices]
            for node, good in zip(view.profiles, fits, strict=True)
        ]
        if all(all(cards) for cards, good in zip(per_profile, fits, strict=True) if good):
            return None
        table = np.zeros((len(per_profile), view.cards.shape[2]), dtype=bool)
        for number, cards in enumerate(per_profile):
            table[number, : len(cards)] = cards[: table.shape[1]]
        return np.asarray(table[view.profile])


def _key(request: Request, asked: Asked) -> Key:
    """Return all of a request that filters and static scores look at."""
    return (
        request.labels,
        request.tolerations,
        request.pools,
        request.isolation,
        request.features,
        request.simulated,
        request.stage,
        request.gpu_model,
        request.image,
        request.datasets,
        request.segment,
        request.gpu_slices,
        asked.mode,
        min(2, asked.gpus),
        asked.gpu_memory if asked.mode in EXCLUSIVE else 0,
    )


def derived_of(view: ClusterView, weights: Weights) -> Derived:
    """Return the caches of a view, new ones where there are none for these weights."""
    found = view.cache
    if not isinstance(found, Derived) or (
        found.weights is not weights and found.weights != weights
    ):
        found = view.cache = Derived(weights)
    return found
