"""Which cards of a node a request gets: for arrays of candidates, and for one node by itself.

Both give the same cost to the last bit. A share goes to the card where it strands least, slices to
cards that are cut already, whole cards are taken in their order. There is a chooser for each way in
which cards are given; `chooser_for` returns the one for a class of requests.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsec.placement.accelerators import (
    EXCLUSIVE,
    SLICED,
    Card,
    Claim,
    Slicing,
    place_slice,
)
from dsec.placement.asked import Asked, claim_of
from dsec.placement.derived import Derived, StaticClass
from dsec.placement.dimensions import LIMIT
from dsec.placement.potential import Potential
from dsec.placement.scratch import Scratch
from dsec.placement.stranding import NEVER, WHOLE, Floats, Ints
from dsec.placement.view import ClusterView

Flags = NDArray[np.bool_]
_MILLI, _MEMORY, _OPEN = int(Card.MILLI), int(Card.MEMORY), int(Card.OPEN)
_COUNT, _SLICES = int(Card.COUNT), int(Card.SLICES)
_MASKS = 256


@lru_cache(maxsize=256)
def slices_left(slicing: Slicing, name: str) -> Ints:
    """Return how many slices of a profile still fit, by mask of occupied units (8 bits)."""
    found = np.zeros(_MASKS, dtype=np.int64)
    for occupied in range(_MASKS):
        mask, count = occupied, 0
        while place := place_slice(slicing, name, mask):
            mask |= place
            count += 1
        found[occupied] = count
    return found


class Pick(NamedTuple):
    """The cards of one node for one request, and what it does to the node."""

    claims: tuple[Claim, ...]
    change: float
    """Of the sum of V over the cards."""
    taken: int
    """Milli that are no longer free."""
    extra: float = 0.0
    """Cost beyond stranding."""
    broken: int = 0
    """Cards that were idle."""


class Chooser:
    """Cards for one class of requests. Subclasses say how they are found and what V changes by."""

    def __init__(
        self,
        view: ClusterView,
        derived: Derived,
        potential: Potential,
        static: StaticClass,
        asked: Asked,
    ) -> None:
        self.view, self.potential, self.asked = view, potential, asked
        self.derived, self.static = derived, static
        self.bit = 1 << asked.mode
        self._claims: dict[tuple[int, int], Claim] = {}

    def candidates(self, rows: Ints, cpu: Ints) -> tuple[Ints, Floats]:
        """Return (rows with enough cards, their cost); `cpu` is what each row would have left."""
        raise NotImplementedError

    def pick(self, scratch: Scratch) -> Pick | None:
        """Return the cards on one node, or None where they do not suffice."""
        raise NotImplementedError

    def cost_of(
        self, rows: Ints, cpu: Ints, change: Floats, taken: Ints | int, broken: Ints | int
    ) -> Floats:
        """Return what placing strands: V and H afterwards less V and H before.

        `broken` are cards that were idle.
        """
        p = self.potential
        usable = p.usable[rows]
        usable -= taken
        usable -= change
        np.maximum(usable, 0.0, out=usable)
        cost = p.surface.read(p.group[rows], cpu, usable, p.idle[rows] - broken)
        cost += change
        cost -= p.stranded[rows]
        return cost

    def suiting(self, scratch: Scratch) -> list[int]:
        """Return the numbers of the cards of a node that are open to the mode and will do."""
        bit = self.bit
        found = [n for n, state in enumerate(scratch.cards) if state[_OPEN] & bit]
        if self.static.suits is not None:
            suits = self.static.suits[scratch.row].tolist()
            found = [number for number in found if suits[number]]
        return found

    def open(self, rows: Ints) -> Flags:
        """Return the same for rows: [row, card]."""
        ok: Flags = (self.view.cards[_OPEN][rows] & self.bit) != 0
        if self.static.suits is not None:
            ok &= self.static.suits[rows]
        return ok

    def claim(self, scratch: Scratch, number: int) -> Claim:
        """Return what a card of a node is claimed for; the same for every request of the class."""
        key = (scratch.row, number)
        found = self._claims.get(key)
        if found is None:
            found = self._claims[key] = claim_of(self.asked, scratch.node.devices[number])
        return found


class WholeChooser(Chooser):
    """Cards that are given whole or passed through."""

    def candidates(self, rows: Ints, cpu: Ints) -> tuple[Ints, Floats]:
        """Return (rows with enough cards, their cost)."""
        gpus = self.asked.gpus
        if self.static.suits is not None:
            # the column counts all idle cards; only some of them will do
            enough = self.open(rows).sum(axis=1) >= gpus
            rows, cpu = rows[enough], cpu[enough]
        p = self.potential
        change = p.tables.card_values[p.bases[rows] + WHOLE]
        change *= -gpus
        return rows, self.cost_of(rows, cpu, change, gpus * WHOLE, gpus)

    def pick(self, scratch: Scratch) -> Pick | None:
        """Return the first cards, of one model where that can be (SCHED-11)."""
        gpus = self.asked.gpus
        found = self.suiting(scratch)
        if len(found) < gpus:
            return None
        if gpus > 1 and self.derived.mixed:
            found = _of_one_model(scratch, found, gpus)
        p = self.potential
        change = -gpus * p.tables.card_list[p.bases_of_profile[scratch.profile] + WHOLE]
        claims = tuple([self.claim(scratch, number) for number in found[:gpus]])
        return Pick(claims, change, gpus * WHOLE, broken=gpus)


def _of_one_model(scratch: Scratch, found: list[int], gpus: int) -> list[int]:
    """Return the cards of the model of which fewest would be left, or all where none suffices."""
    devices = scratch.node.devices
    counts: dict[str, int] = {}
    for number in found:
        counts[devices[number].model] = counts.get(devices[number].model, 0) + 1
    enough = sorted((count, model) for model, count in counts.items() if count >= gpus)
    if len(counts) < 2 or not enough:  # noqa: PLR2004  one model is no choice
        return found
    return [number for number in found if devices[number].model == enough[0][1]]


class ClientChooser(Chooser):
    """Parts of cards: shares and clients of MPS."""

    def __init__(
        self,
        view: ClusterView,
        derived: Derived,
        potential: Potential,
        static: StaticClass,
        asked: Asked,
    ) -> None:
        super().__init__(view, derived, potential, static, asked)
        self._codes = potential.codes_for(view, self.bit)
        self._usable_of: dict[int, list[tuple[int, int, int]]] = {}
        shapes = self._shapes = {number: self._shape(number) for number in static.kinds}
        millis = {milli for milli, _ in shapes.values()} or {WHOLE + 1}
        memories = {memory for _, memory in shapes.values()} or {0}
        self._milli: int | Ints = millis.pop() if len(millis) == 1 else self._by_kind(shapes, 0)
        self._memory: int | Ints = (
            memories.pop() if len(memories) == 1 else self._by_kind(shapes, 1)
        )

    def _shape(self, kind: int) -> tuple[int, int]:
        """Return (milli, bytes) of a client on a card of a kind, never beyond what arrays hold."""
        claim = claim_of(self.asked, self.derived.kinds[kind])
        return min(claim.milli, WHOLE + 1), min(claim.memory, LIMIT)

    def _by_kind(self, shapes: dict[int, tuple[int, int]], which: int) -> Ints:
        found = np.zeros(len(self.derived.kinds), dtype=np.int64)
        for number, shape in shapes.items():
            found[number] = shape[which]
        return found

    def candidates(self, rows: Ints, cpu: Ints) -> tuple[Ints, Floats]:
        """Return (rows with enough cards, their cost)."""
        gpus, milli = self.asked.gpus, self._milli
        codes = self._codes[rows]
        if isinstance(milli, int):
            each = self._deltas(milli)[codes]
        else:
            milli = milli[self.derived.kind[rows]]
            values, base = self.potential.tables.card_values, self.potential.bases[rows][:, None]
            fits = codes - milli >= base
            each = np.where(fits, values[np.where(fits, codes - milli, 0)] - values[codes], NEVER)
        self._rule_out(rows, each)
        broken: Ints | int = 0
        if gpus == 1 and isinstance(milli, int):
            change, taken = each.min(axis=1), milli
            if self.potential.surface.keeps:
                broken = self._broken(rows, codes, each.argmin(axis=1)[:, None])
        else:
            cards = each.argsort(axis=1, kind="stable")[:, :gpus]
            change = np.take_along_axis(each, cards, axis=1).sum(axis=1)
            if isinstance(milli, int):
                taken = milli * gpus
            else:
                taken = np.take_along_axis(milli, cards, axis=1).sum(axis=1)
            broken = self._broken(rows, codes, cards)
            if cards.shape[1] < gpus:
                change[:] = NEVER
        enough = change < NEVER / 2
        if not enough.all():
            rows, cpu, change = rows[enough], cpu[enough], change[enough]
            taken = taken if isinstance(taken, int) else taken[enough]
            broken = broken if isinstance(broken, int) else broken[enough]
        return rows, self.cost_of(rows, cpu, change, taken, broken)

    def _broken(self, rows: Ints, codes: Ints, cards: Ints) -> Ints:
        """Return how many of the chosen cards, [row, chosen], are idle."""
        idle = self.potential.bases[rows][:, None] + WHOLE
        found = np.take_along_axis(codes, cards, axis=1) == idle
        return np.asarray(found.sum(axis=1, dtype=np.int64))

    def _deltas(self, milli: int) -> Floats:
        if milli > WHOLE:
            return np.full(len(self.potential.tables.card_values), NEVER)
        return self.potential.tables.deltas(milli)

    def _rule_out(self, rows: Ints, each: Floats) -> None:
        """Mark the cards that lack memory, have their most clients, or are of another make."""
        cards = self.view.cards
        if self.view.uneven or self.asked.gpu_memory or self.asked.gpu_shares:
            memory = self._memory
            if isinstance(memory, np.ndarray):
                memory = memory[self.derived.kind[rows]]
            np.copyto(each, NEVER, where=cards[_MEMORY][rows] < memory)
        if self.asked.gpu_clients:
            np.copyto(each, NEVER, where=cards[_COUNT][rows] >= self.asked.gpu_clients)
        if self.static.suits is not None:
            np.copyto(each, NEVER, where=~self.static.suits[rows])

    def pick(self, scratch: Scratch) -> Pick | None:
        """Return the cards where it strands least, the first of equals."""
        if self.asked.gpus == 1:
            return self._one_card(scratch)
        gpus = self.asked.gpus
        found = [
            (change, number, milli)
            for number, milli, memory in self._usable(scratch)
            if (change := self._change(scratch, number, milli, memory)) < NEVER
        ]
        if len(found) < gpus:
            return None
        found.sort()
        del found[gpus:]
        claims = tuple([self.claim(scratch, number) for _, number, _ in found])
        broken = len([one for one in found if scratch.cards[one[1]][_MILLI] == WHOLE])
        change, taken = sum([one[0] for one in found]), sum([one[2] for one in found])
        return Pick(claims, change, taken, broken=broken)

    def _one_card(self, scratch: Scratch) -> Pick | None:
        """Return the same for one card; only the card that was taken last is looked at anew."""
        usable, offers = self._usable(scratch), scratch.offers
        if offers is None:
            offers = scratch.offers = [self._change(scratch, *one) for one in usable]
        elif scratch.offered >= 0:
            offers[scratch.offered] = self._change(scratch, *usable[scratch.offered])
        best = min(offers, default=NEVER)
        if best >= NEVER:
            return None
        scratch.offered = at = offers.index(best)
        number, milli, _ = usable[at]
        broken = int(scratch.cards[number][_MILLI] == WHOLE)
        return Pick((self.claim(scratch, number),), best, milli, 0.0, broken)

    def _change(self, scratch: Scratch, number: int, milli: int, memory: int) -> float:
        """Return what V of a card changes by, or NEVER where it takes no such client."""
        state = scratch.cards[number]
        free = state[_MILLI]
        if free < milli or not state[_OPEN] & self.bit or state[_MEMORY] < memory:
            return NEVER
        if self.asked.gpu_clients and state[_COUNT] >= self.asked.gpu_clients:
            return NEVER
        values = self.potential.tables.card_list
        code = self.potential.bases_of_profile[scratch.profile] + free
        return values[code - milli] - values[code]

    def _usable(self, scratch: Scratch) -> list[tuple[int, int, int]]:
        """Return (card, milli, bytes of a client on it) of the cards of a node that will do."""
        known = self._usable_of.get(scratch.profile)
        if known is None:
            suits = self.static.suits
            known = self._usable_of[scratch.profile] = [
                (number, *self._shapes[kind])
                for number, kind in enumerate(self.derived.kinds_of(scratch.profile))
                if suits is None or suits.item(scratch.row, number)
            ]
        return known


class SliceChooser(Chooser):
    """Slices of cards that can be cut."""

    def __init__(
        self,
        view: ClusterView,
        derived: Derived,
        potential: Potential,
        static: StaticClass,
        asked: Asked,
    ) -> None:
        super().__init__(view, derived, potential, static, asked)
        self._left = np.zeros((len(derived.kinds), _MASKS), dtype=np.int64)
        for number in static.kinds:
            slicing = derived.kinds[number].slicing
            if slicing is not None:
                self._left[number] = slices_left(slicing, asked.profile)

    def candidates(self, rows: Ints, cpu: Ints) -> tuple[Ints, Floats]:
        """Return (rows with enough room for slices, their cost)."""
        gpus = self.asked.gpus
        masks = self.view.cards[_SLICES][rows]
        left = np.where(self.open(rows), self._left[self.derived.kind[rows], masks], 0)
        enough = left.sum(axis=1) >= gpus
        if not enough.all():
            rows, cpu, masks, left = rows[enough], cpu[enough], masks[enough], left[enough]
        cut = masks != 0
        lacking = np.maximum(gpus - np.where(cut, left, 0).sum(axis=1), 0)
        new = -(-lacking // np.maximum(np.where(cut, 0, left).max(axis=1, initial=0), 1))
        p = self.potential
        change = -new * p.tables.card_values[p.bases[rows] + WHOLE]
        cost = self.cost_of(rows, cpu, change, new * WHOLE, new)
        return rows, cost + new * self.derived.weights.slicing

    def pick(self, scratch: Scratch) -> Pick | None:
        """Return slices on cards that are cut already, the fullest first, else on idle ones."""
        asked, devices = self.asked, scratch.node.devices
        masks = {n: scratch.cards[n][_SLICES] for n in self.suiting(scratch)}
        was = dict(masks)
        claims: list[Claim] = []
        for _ in range(asked.gpus):
            best: tuple[bool, int, int, int] | None = None
            for number, mask in masks.items():
                slicing = devices[number].slicing
                place = place_slice(slicing, asked.profile, mask) if slicing else 0
                if slicing is not None and place:
                    left = slices_left(slicing, asked.profile).item(mask)
                    option = (not mask, left, number, place)
                    if best is None or option < best:
                        best = option
            if best is None:
                return None
            masks[best[2]] |= best[3]
            claims.append(claim_of(asked, devices[best[2]], best[3]))
        # as `candidates` counts them: the cards that are cut already are filled first
        on_cut = sum(self._left_on(scratch, number, was[number]) for number in was if was[number])
        most = max(
            (self._left_on(scratch, number, 0) for number in was if not was[number]), default=0
        )
        new = -(-max(asked.gpus - on_cut, 0) // max(most, 1))
        p = self.potential
        change = -new * p.tables.card_list[p.bases_of_profile[scratch.profile] + WHOLE]
        return Pick(tuple(claims), change, new * WHOLE, new * self.derived.weights.slicing, new)

    def _left_on(self, scratch: Scratch, number: int, mask: int) -> int:
        slicing = scratch.node.devices[number].slicing
        return slices_left(slicing, self.asked.profile).item(mask) if slicing else 0


def chooser_for(
    view: ClusterView, derived: Derived, potential: Potential, static: StaticClass, asked: Asked
) -> Chooser | None:
    """Return the chooser for a class of requests; None where it asks for no cards."""
    if not asked.mode:
        return None
    if asked.mode in EXCLUSIVE:
        return WholeChooser(view, derived, potential, static, asked)
    if asked.mode == SLICED:
        return SliceChooser(view, derived, potential, static, asked)
    return ClientChooser(view, derived, potential, static, asked)
