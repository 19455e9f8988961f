"""Slices of cards that can be cut: where they go, and how many still fit."""

from functools import lru_cache

import numpy as np

from dsec.placement.accelerators import (
    SLICED,
    Accelerator,
    Card,
    Claim,
    Slicing,
    place_slice,
)
from dsec.placement.asked import Asked, claim_of
from dsec.placement.cards import Chooser
from dsec.placement.derived import Derived, StaticClass
from dsec.placement.potential import Potential
from dsec.placement.spots import Course, Held, Spot
from dsec.placement.stranding import WHOLE, Floats, Ints
from dsec.placement.view import ClusterView

_SLICES = int(Card.SLICES)
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
        left = np.where(self.opened(rows), self._left[self.derived.kind[rows], masks], 0)
        enough = left.sum(axis=1) >= gpus
        if not enough.all():
            rows, cpu, masks, left = rows[enough], cpu[enough], masks[enough], left[enough]
        cut = masks != 0
        lacking = np.maximum(gpus - np.where(cut, left, 0).sum(axis=1), 0)
        new = -(-lacking // np.maximum(np.where(cut, 0, left).max(axis=1, initial=0), 1))
        p = self.potential
        change = -new * p.whole[rows]
        cost = self.cost_of(rows, cpu, change, new * WHOLE, new)
        return rows, cost + new * self.derived.weights.slicing

    def begin(self, course: Course) -> None:
        """Look at the cards of a node for the first time: done with each offer."""

    def offer(self, course: Course) -> bool:
        """Choose slices on cards that are cut already, the fullest first, else on idle ones."""
        asked, devices = self.asked, self.view.profiles[course.profile].devices
        masks = {number: course.states[number][_SLICES] for number in self.suiting(course)}
        was = dict(masks)
        chosen: list[tuple[int, int]] = []
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
                return False
            masks[best[2]] |= best[3]
            chosen.append(best[2:])
        course.at = tuple([number for number, _ in chosen])
        course.at_places = tuple([place for _, place in chosen])
        # as `candidates` counts them: the cards that are cut already are filled first
        left_on = {number: _left_on(devices[number], asked.profile, was[number]) for number in was}
        on_cut = sum(left for number, left in left_on.items() if was[number])
        most = max((left for number, left in left_on.items() if not was[number]), default=0)
        new = -(-max(asked.gpus - on_cut, 0) // max(most, 1))
        p = self.potential
        course.change = -new * p.tables.card_list[p.bases_of_profile[course.profile] + WHOLE]
        course.taken, course.broken = new * WHOLE, new
        course.extra = new * self.derived.weights.slicing
        return True

    def take(self, course: Course) -> None:
        """Give the slices that were chosen."""
        course.chosen.append(course.at)
        course.places.append(course.at_places)
        name = self.asked.profile
        claims = [Claim("", SLICED, slices=place, profile=name) for place in course.at_places]
        self.give(course, course.at, claims)

    def held(self, spot: Spot, course: Course, turn: int) -> Held:
        """Return what a request holds that comes to a node as the one with that number."""
        devices = spot.node.devices
        claims = [
            claim_of(self.asked, devices[number], place)
            for number, place in zip(course.chosen[turn], course.places[turn], strict=True)
        ]
        return tuple(claims), tuple([claim.device for claim in claims])


def _left_on(card: Accelerator, profile: str, mask: int) -> int:
    return slices_left(card.slicing, profile).item(mask) if card.slicing else 0
