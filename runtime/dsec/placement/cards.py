"""Which cards of a node a request gets: for arrays of candidates, and for one node by itself.

Both give the same cost to the last bit. A share goes to the card where it strands least, slices to
cards that are cut already, whole cards are taken in their order.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dsec.placement.accelerators import (
    EXCLUSIVE,
    SLICED,
    Accelerator,
    Card,
    Claim,
    Slicing,
    place_slice,
)
from dsec.placement.asked import Asked, claim_of
from dsec.placement.derived import Derived, StaticClass
from dsec.placement.dimensions import LIMIT
from dsec.placement.potential import Potential
from dsec.placement.stranding import NEVER, WHOLE, Floats, Ints
from dsec.placement.view import ClusterView, Scratch

Flags = NDArray[np.bool_]


@lru_cache(maxsize=256)
def slices_left(slicing: Slicing, name: str) -> Ints:
    """Return how many slices of a profile still fit, by mask of occupied units (8 bits)."""
    found = np.zeros(256, dtype=np.int64)
    for occupied in range(256):
        mask, count = occupied, 0
        while place := place_slice(slicing, name, mask):
            mask |= place
            count += 1
        found[occupied] = count
    return found


class CardChooser:
    """Cards for one class of requests."""

    __slots__ = (
        "_asked",
        "_bit",
        "_claims",
        "_kind",
        "_memory",
        "_milli",
        "_potential",
        "_suits",
        "_view",
        "_weight",
        "uniform",
    )

    def __init__(
        self,
        view: ClusterView,
        derived: Derived,
        potential: Potential,
        static: StaticClass,
        asked: Asked,
    ) -> None:
        self._view, self._potential, self._asked = view, potential, asked
        self._weight = derived.weights.slicing
        self._bit = 1 << asked.mode
        self._kind = derived.kind
        self._suits = static.suits
        self._claims: dict[tuple[int, int], Claim] = {}
        kinds = [derived.kinds[number] for number in static.kinds]
        self._milli: int | Ints = 0
        self._memory: int | Ints = 0
        if asked.mode not in EXCLUSIVE and asked.mode != SLICED:
            self._milli, self._memory = self._shapes(derived, static, kinds)
        elif asked.mode == SLICED:
            table = np.zeros((len(derived.kinds), 256), dtype=np.int64)
            for number, card in zip(static.kinds, kinds, strict=True):
                if card.slicing is not None:
                    table[number] = slices_left(card.slicing, asked.profile)
            self._milli = table
        self.uniform = isinstance(self._milli, int)

    def _shapes(
        self, derived: Derived, static: StaticClass, kinds: Sequence[Accelerator]
    ) -> tuple[int | Ints, int | Ints]:
        """Return milli and bytes per client: one figure, or one for each kind of card."""
        claims = [claim_of(self._asked, card) for card in kinds]
        millis = {claim.milli for claim in claims} or {WHOLE + 1}
        memories = {min(claim.memory, LIMIT) for claim in claims} or {0}
        if len(millis) == 1 and len(memories) == 1:
            return millis.pop(), memories.pop()
        milli = np.full(len(derived.kinds), WHOLE + 1, dtype=np.int64)
        memory = np.zeros(len(derived.kinds), dtype=np.int64)
        for number, claim in zip(static.kinds, claims, strict=True):
            milli[number] = min(claim.milli, WHOLE + 1)
            memory[number] = min(claim.memory, LIMIT)
        return milli, memory

    # -- arrays of candidates -------------------------------------------------------------------

    def open(self, rows: Ints) -> tuple[Flags, Ints]:
        """Return (row has enough, what each card offers) of candidates.

        Offers: for clients 1 where the card takes one; for slices how many fit; for whole cards 1.
        """
        cards = self._view.cards
        ok = (cards[Card.OPEN][rows] & self._bit) != 0
        if self._suits is not None:
            ok &= self._suits[rows]
        if self._asked.mode == SLICED:
            table = np.asarray(self._milli)
            offers = np.where(ok, table[self._kind[rows], cards[Card.SLICES][rows]], 0)
            return offers.sum(axis=1) >= self._asked.gpus, offers
        if self._asked.mode not in EXCLUSIVE:
            milli, memory = self._milli, self._memory
            if isinstance(milli, np.ndarray):
                milli = milli[self._kind[rows]]
            if isinstance(memory, np.ndarray):
                memory = memory[self._kind[rows]]
            ok &= cards[Card.MILLI][rows] >= milli
            ok &= cards[Card.MEMORY][rows] >= memory
            if self._asked.gpu_clients:
                ok &= cards[Card.COUNT][rows] < self._asked.gpu_clients
        if self._asked.gpus == 1:
            return ok.any(axis=1), ok
        return ok.sum(axis=1) >= self._asked.gpus, ok

    def costs(self, rows: Ints, offers: Ints | Flags, cpu: Ints) -> Floats:
        """Return the stranding cost of candidates; `cpu` is what they would have left."""
        p, gpus = self._potential, self._asked.gpus
        group = p.group[rows]
        usable, stranded = p.usable[rows], p.stranded[rows]
        if self._asked.mode in EXCLUSIVE:
            change = -gpus * p.tables.card_values[p.bases[rows] + WHOLE]
            after = np.maximum(usable - gpus * WHOLE - change, 0.0)
            return np.asarray(change + p.tables.strand(group, cpu, after) - stranded)
        if self._asked.mode == SLICED:
            cut = (self._view.cards[Card.SLICES][rows] != 0) & (offers > 0)
            lacking = np.maximum(gpus - np.where(cut, offers, 0).sum(axis=1), 0)
            new = -(-lacking // np.maximum(np.where(cut, 0, offers).max(axis=1), 1))
            change = -new * p.tables.card_values[p.bases[rows] + WHOLE]
            after = np.maximum(usable - new * WHOLE - change, 0.0)
            return np.asarray(
                new * self._weight + (change + p.tables.strand(group, cpu, after) - stranded)
            )
        codes = p.codes[rows]
        milli = self._milli
        if isinstance(milli, np.ndarray):
            milli = np.where(offers, milli[self._kind[rows]], 0)
            values = p.tables.card_values
            each = np.where(offers, values[codes - milli] - values[codes], NEVER)
        else:
            each = np.where(offers, p.tables.deltas(milli)[codes], NEVER)
        taken: Ints | int
        if gpus == 1 and isinstance(milli, int):
            best, taken = each.min(axis=1), milli
        else:
            card = each.argsort(axis=1, kind="stable")[:, :gpus]
            best = np.take_along_axis(each, card, axis=1).sum(axis=1)
            if isinstance(milli, int):
                taken = milli * gpus
            else:
                taken = np.take_along_axis(milli, card, axis=1).sum(axis=1)
        after = np.maximum(usable - taken - best, 0.0)
        return np.asarray(best + p.tables.strand(group, cpu, after) - stranded)

    # -- one node -------------------------------------------------------------------------------

    def one(self, scratch: Scratch, cpu: int) -> tuple[float, tuple[Claim, ...]] | None:
        """Return (stranding cost, claims) on one node, or None where its cards do not suffice."""
        asked, p = self._asked, self._potential
        group = p.plain_groups[scratch.profile]
        codes = p.codes_of(scratch)
        before = max(scratch.columns[6], 0)
        usable, stranded = p.tables.state_of(group, before, codes)
        full = p.tables.card_list[group * (WHOLE + 1) + WHOLE]
        cost = 0.0
        if asked.mode in EXCLUSIVE:
            claims = self._whole(scratch)
            if claims is None:
                return None
            change = -asked.gpus * full
            after = max(usable - asked.gpus * WHOLE - change, 0.0)
        elif asked.mode == SLICED:
            sliced = self._slices(scratch)
            if sliced is None:
                return None
            claims, new = sliced
            change = -new * full
            after = max(usable - new * WHOLE - change, 0.0)
            cost = new * self._weight
        else:
            shared = self._clients(scratch, codes)
            if shared is None:
                return None
            claims, change, taken = shared
            after = max(usable - taken - change, 0.0)
        return cost + (change + p.tables.strand_of(group, cpu, after) - stranded), claims

    def _suiting(self, scratch: Scratch) -> list[int]:
        """Return the numbers of the cards that are open to the mode and of the right kind."""
        bit = self._bit
        found = [n for n, state in enumerate(scratch.cards) if state[Card.OPEN] & bit]
        if self._suits is not None:
            suits = self._suits[scratch.row].tolist()
            found = [number for number in found if suits[number]]
        return found

    def _claim(self, scratch: Scratch, number: int, slices: int = 0) -> Claim:
        key = (scratch.row, number)
        found = self._claims.get(key)
        if found is None or slices:
            found = claim_of(self._asked, scratch.node.devices[number], slices)
            self._claims[key] = found
        return found

    def _whole(self, scratch: Scratch) -> tuple[Claim, ...] | None:
        gpus = self._asked.gpus
        found = self._suiting(scratch)
        if len(found) < gpus:
            return None
        devices = scratch.node.devices
        models = {devices[number].model for number in found}
        if gpus > 1 and len(models) > 1:
            # one model where it can be (SCHED-11): the one of which fewest would be left
            counts = {
                model: sum(devices[number].model == model for number in found) for model in models
            }
            enough = sorted((n, model) for model, n in counts.items() if n >= gpus)
            if enough:
                found = [number for number in found if devices[number].model == enough[0][1]]
        return tuple([self._claim(scratch, number) for number in found[:gpus]])

    def _clients(
        self, scratch: Scratch, codes: list[int]
    ) -> tuple[tuple[Claim, ...], float, int] | None:
        values = self._potential.tables.card_list
        limit, gpus = self._asked.gpu_clients, self._asked.gpus
        found: list[tuple[float, int]] = []
        for number in self._suiting(scratch):
            state, claim = scratch.cards[number], self._claim(scratch, number)
            if state[Card.MILLI] < claim.milli or state[Card.MEMORY] < claim.memory:
                continue
            if limit and state[Card.COUNT] >= limit:
                continue
            code = codes[number]
            found.append((values[code - claim.milli] - values[code], number))
        if len(found) < gpus:
            return None
        chosen = [min(found)] if gpus == 1 else sorted(found)[:gpus]
        claims = tuple([self._claim(scratch, number) for _, number in chosen])
        change = sum([cost for cost, _ in chosen])
        return claims, change, sum([claim.milli for claim in claims])

    def _slices(self, scratch: Scratch) -> tuple[tuple[Claim, ...], int] | None:
        asked = self._asked
        masks = {n: scratch.cards[n][Card.SLICES] for n in self._suiting(scratch)}
        was = dict(masks)
        claims: list[Claim] = []
        for _ in range(asked.gpus):
            best: tuple[bool, int, int, int] | None = None
            for number, mask in masks.items():
                slicing = scratch.node.devices[number].slicing
                place = place_slice(slicing, asked.profile, mask) if slicing else 0
                if slicing is not None and place:
                    left = int(slices_left(slicing, asked.profile)[mask])
                    option = (not mask, left, number, place)
                    if best is None or option < best:
                        best = option
            if best is None:
                return None
            masks[best[2]] |= best[3]
            claims.append(self._claim(scratch, best[2], best[3]))
        new = sum(1 for number, mask in masks.items() if mask and not was[number])
        return tuple(claims), new
