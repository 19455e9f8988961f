"""Which cards of a node a request gets: for arrays of candidates, and for one node by itself.

Both give the same cost to the last bit. A share goes to the card where it strands least, slices to
cards that are cut already, whole cards are taken in their order. There is a chooser for each way in
which cards are given; that for slices is in `slices`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsec.placement.accelerators import (
    Card,
    Claim,
    take,
)
from dsec.placement.asked import Asked
from dsec.placement.derived import Derived, StaticClass
from dsec.placement.dimensions import LIMIT
from dsec.placement.potential import Potential
from dsec.placement.request import Node
from dsec.placement.spots import Course, Held, Spot
from dsec.placement.stranding import NEVER, WHOLE, Floats, Ints
from dsec.placement.view import ClusterView

Flags = NDArray[np.bool_]
# all fields at once: in half the time that a call by fields takes
_claim: Callable[[tuple[Any, ...]], Claim] = partial(tuple.__new__, Claim)
_MILLI, _MEMORY, _OPEN = int(Card.MILLI), int(Card.MEMORY), int(Card.OPEN)
_COUNT = int(Card.COUNT)


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

    def candidates(self, rows: Ints, cpu: Ints) -> tuple[Ints, Floats]:
        """Return (rows with enough cards, their cost); `cpu` is what each row would have left."""
        raise NotImplementedError

    def begin(self, course: Course) -> None:
        """Look at the cards of a node for the first time."""
        raise NotImplementedError

    def offer(self, course: Course) -> bool:
        """Choose cards for one more request; False where they do not suffice."""
        raise NotImplementedError

    def take(self, course: Course) -> None:
        """Give the cards that were chosen."""
        raise NotImplementedError

    def held(self, spot: Spot, course: Course, turn: int) -> Held:
        """Return what a request holds that comes to a node as the one with that number."""
        raise NotImplementedError

    def give(self, course: Course, numbers: Sequence[int], claims: Sequence[Claim]) -> None:
        """Enter claims on the cards with those numbers."""
        states, devices = course.states, self.view.profiles[course.profile].devices
        for number, claim in zip(numbers, claims, strict=True):
            take(states[number], devices[number], claim)
        course.changes.append([(number, tuple(states[number])) for number in numbers])

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
        idle = p.idle[rows] - broken if p.surface.keeps else None
        cost = p.surface.read(p.group[rows], cpu, usable, idle)
        cost += change
        cost -= p.stranded[rows]
        return cost

    def suiting(self, course: Course) -> list[int]:
        """Return the numbers of the cards of a node that are open to the mode and will do."""
        bit = self.bit
        found = [n for n, state in enumerate(course.states) if state[_OPEN] & bit]
        if self.static.suits is not None:
            suits = self.static.suits[course.row].tolist()
            found = [number for number in found if suits[number]]
        return found

    def opened(self, rows: Ints) -> Flags:
        """Return the same for rows: [row, card]."""
        ok: Flags = (self.view.cards[_OPEN][rows] & self.bit) != 0
        if self.static.suits is not None:
            ok &= self.static.suits[rows]
        return ok


class WholeChooser(Chooser):
    """Cards that are given whole or passed through."""

    def __init__(
        self,
        view: ClusterView,
        derived: Derived,
        potential: Potential,
        static: StaticClass,
        asked: Asked,
    ) -> None:
        super().__init__(view, derived, potential, static, asked)
        self._whole = Claim("", asked.mode)
        self._part: tuple[Any, ...] = self._whole[1:]
        """What a claim says beside the card."""

    def candidates(self, rows: Ints, cpu: Ints) -> tuple[Ints, Floats]:
        """Return (rows with enough cards, their cost)."""
        gpus = self.asked.gpus
        if self.static.suits is not None:
            # the column counts all idle cards; only some of them will do
            enough = self.opened(rows).sum(axis=1) >= gpus
            rows, cpu = rows[enough], cpu[enough]
        p = self.potential
        change = p.whole[rows]
        change *= -gpus
        return rows, self.cost_of(rows, cpu, change, gpus * WHOLE, gpus)

    def begin(self, course: Course) -> None:
        """Look at the cards of a node for the first time."""
        course.free = self.suiting(course)
        p, gpus = self.potential, self.asked.gpus
        value = p.tables.card_list[p.bases_of_profile[course.profile] + WHOLE]
        course.change, course.taken, course.broken = -gpus * value, gpus * WHOLE, gpus

    def offer(self, course: Course) -> bool:
        """Choose the first cards, of one model where that can be (SCHED-11)."""
        gpus, found = self.asked.gpus, course.free
        if len(found) < gpus:
            return False
        if gpus > 1 and self.derived.mixed:
            found = _of_one_model(self.view.profiles[course.profile], found, gpus)
        course.at = tuple(found[:gpus])
        return True

    def take(self, course: Course) -> None:
        """Give the cards that were chosen."""
        chosen = course.at
        course.free = [number for number in course.free if number not in chosen]
        course.chosen.append(chosen)
        self.give(course, chosen, [self._whole] * len(chosen))

    def held(self, spot: Spot, course: Course, turn: int) -> Held:
        """Return what a request holds that comes to a node as the one with that number."""
        devices, part = spot.node.devices, self._part
        uuids = tuple([devices[number].uuid for number in course.chosen[turn]])
        return tuple([_claim((uuid, *part)) for uuid in uuids]), uuids


def _of_one_model(node: Node, found: list[int], gpus: int) -> list[int]:
    """Return the cards of the model of which fewest would be left, or all where none suffices."""
    devices = node.devices
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
        self._claims, self._shapes, self._milli, self._memory = derived.parts(static, asked)
        self._clients_of: dict[int, list[tuple[int, int, int]]] = {}

    def candidates(self, rows: Ints, cpu: Ints) -> tuple[Ints, Floats]:
        """Return (rows with enough cards, their cost)."""
        gpus, milli = self.asked.gpus, self._milli
        codes = self._codes.take(rows, axis=1)
        if isinstance(milli, int):
            each = self._deltas(milli).take(codes)
        else:
            milli = milli[self.derived.kind[rows]].T
            values, base = self.potential.tables.card_values, self.potential.bases[rows]
            fits = codes - milli >= base
            each = np.where(fits, values[np.where(fits, codes - milli, 0)] - values[codes], NEVER)
        self._rule_out(rows, each)
        broken: Ints | int = 0
        if gpus == 1 and isinstance(milli, int):
            change, taken = np.minimum.reduce(each), milli
            if self.potential.surface.keeps:
                broken = self._broken(rows, codes, each.argmin(axis=0)[None])
        else:
            cards = each.argsort(axis=0, kind="stable")[:gpus]
            change = np.take_along_axis(each, cards, axis=0).sum(axis=0)
            if isinstance(milli, int):
                taken = milli * gpus
            else:
                taken = np.take_along_axis(milli, cards, axis=0).sum(axis=0)
            broken = self._broken(rows, codes, cards)
            if len(cards) < gpus:
                change[:] = NEVER
        enough = change < NEVER / 2
        if not enough.all():
            rows, cpu, change = rows[enough], cpu[enough], change[enough]
            taken = taken if isinstance(taken, int) else taken[enough]
            broken = broken if isinstance(broken, int) else broken[enough]
        return rows, self.cost_of(rows, cpu, change, taken, broken)

    def _broken(self, rows: Ints, codes: Ints, cards: Ints) -> Ints:
        """Return how many of the chosen cards, [chosen, row], are idle."""
        idle = self.potential.bases[rows] + WHOLE
        found = np.take_along_axis(codes, cards, axis=0) == idle
        return np.asarray(found.sum(axis=0, dtype=np.int64))

    def _deltas(self, milli: int) -> Floats:
        if milli > WHOLE:
            return np.full(len(self.potential.tables.card_values), NEVER)
        return self.potential.tables.deltas(milli)

    def _rule_out(self, rows: Ints, each: Floats) -> None:
        """Mark [card, row] that lacks memory, has its most clients, or is of another make."""
        cards = self.view.cards
        if self.view.uneven or self.asked.gpu_memory or self.asked.gpu_shares:
            memory = self._memory
            if isinstance(memory, np.ndarray):
                memory = memory[self.derived.kind[rows]]
            np.copyto(each, NEVER, where=(cards[_MEMORY][rows] < memory).T)
        if self.asked.gpu_clients:
            np.copyto(each, NEVER, where=(cards[_COUNT][rows] >= self.asked.gpu_clients).T)
        if self.static.suits is not None:
            np.copyto(each, NEVER, where=~self.static.suits[rows].T)

    def begin(self, course: Course) -> None:
        """Look at the cards of a node for the first time."""
        course.clients = self._clients(course)
        course.offers = self._changes(course, course.clients)

    def offer(self, course: Course) -> bool:
        """Choose the cards where it strands least, the first of equals."""
        offers, clients, gpus = course.offers, course.clients, self.asked.gpus
        if gpus == 1:
            best = min(offers, default=NEVER)
            if best >= NEVER:
                return False
            at = offers.index(best)
            number, course.taken, _ = clients[at]
            course.at, course.change = (at,), best
            course.broken = int(course.states[number][_MILLI] == WHOLE)
            return True
        found = sorted([(change, at) for at, change in enumerate(offers) if change < NEVER])
        if len(found) < gpus:
            return False
        del found[gpus:]
        course.at = tuple([at for _, at in found])
        course.change = sum([change for change, _ in found])
        course.taken = sum([clients[at][1] for at in course.at])
        idle = [at for at in course.at if course.states[clients[at][0]][_MILLI] == WHOLE]
        course.broken = len(idle)
        return True

    def take(self, course: Course) -> None:
        """Give the cards that were chosen; only those are looked at anew."""
        states, kinds = course.states, self.derived.kinds_of(course.profile)
        devices, changed = self.view.profiles[course.profile].devices, []
        chosen = [course.clients[at] for at in course.at]
        for number, _, _ in chosen:
            state = states[number]
            take(state, devices[number], self._claims[kinds[number]])
            changed.append((number, tuple(state)))
        course.chosen.append(tuple([number for number, _, _ in chosen]))
        course.changes.append(changed)
        for at, change in zip(course.at, self._changes(course, chosen), strict=True):
            course.offers[at] = change

    def held(self, spot: Spot, course: Course, turn: int) -> Held:
        """Return what a request holds that comes to a node as the one with that number."""
        numbers = course.chosen[turn]
        known = spot.held
        if known is None:
            known = spot.held = {}
        found = known.get(numbers)
        if found is None:
            kinds, devices = self.derived.kinds_of(spot.profile), spot.node.devices
            uuids = tuple([devices[number].uuid for number in numbers])
            parts = [self._claims[kinds[number]][1:] for number in numbers]
            claims = [_claim((uuid, *part)) for uuid, part in zip(uuids, parts, strict=True)]
            found = known[numbers] = tuple(claims), uuids
        return found

    def _changes(self, course: Course, clients: Sequence[tuple[int, int, int]]) -> list[float]:
        """Return what V of each card changes by, or NEVER where it takes no such client."""
        states, bit, most = course.states, self.bit, self.asked.gpu_clients or LIMIT
        values = self.potential.tables.card_list
        base = self.potential.bases_of_profile[course.profile]
        found = []
        for number, milli, memory in clients:
            free, room, open_, count, *_ = states[number]
            if free < milli or room < memory or not open_ & bit or count >= most:
                found.append(NEVER)
            else:
                found.append(values[base + free - milli] - values[base + free])
        return found

    def _clients(self, course: Course) -> list[tuple[int, int, int]]:
        """Return (card, milli, bytes of a client on it) of the cards of a node that will do."""
        known = self._clients_of.get(course.profile)
        if known is None:
            suits = self.static.suits
            known = self._clients_of[course.profile] = [
                (number, *self._shapes[kind])
                for number, kind in enumerate(self.derived.kinds_of(course.profile))
                if suits is None or suits.item(course.row, number)
            ]
        return known
