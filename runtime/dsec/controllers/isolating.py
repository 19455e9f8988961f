"""Rounds that survive a request which makes planning fail: it is found, told of, and left out.

Planning is pure, so what fails once fails for each leader after this one as well: a single request
would end every term, and with it all placement.
"""

from collections.abc import Callable, Mapping, Sequence

import structlog

from dsec.api.reasons import PendingReason
from dsec.controllers.rounds import Rounds
from dsec.controllers.translating import unit_of
from dsec.journal.bindings import Binding
from dsec.placement.refusal import Refusal
from dsec.placement.request import Decision

log = structlog.get_logger()

Decided = list[tuple[Binding, Decision]]
Avoid = Mapping[str, Sequence[str]]


MOST_FOUND = 8
"""Requests that one round finds to be at fault, at most: with more, something else is."""


class Isolating:
    """Of one term. `begin` makes rounds with an empty memory, which the next one fills."""

    def __init__(self, begin: Callable[[], Rounds]) -> None:
        self._begin = begin
        self.rounds = begin()
        self._failing: dict[str, Refusal] = {}

    def decide(self, wanted: Sequence[Binding], avoid: Avoid, now: float) -> Decided:
        """Return a decision for all that waits, as `Rounds.decide` does.

        Raises what a round raises where no single request is at fault.
        """
        self._failing = {b.id: self._failing[b.id] for b in wanted if b.id in self._failing}
        for left in reversed(range(MOST_FOUND + 1)):
            sound = [binding for binding in wanted if binding.id not in self._failing]
            try:
                decided = self.rounds.decide(sound, avoid, now)
                break
            except Exception:
                self.rounds = self._begin()
                if not left or not self._find(sound, avoid, now):
                    raise
        return decided + [
            (b, Decision(b.id, refusals=(self._failing[b.id],)))
            for b in wanted
            if b.id in self._failing
        ]

    def _find(self, wanted: Sequence[Binding], avoid: Avoid, now: float) -> bool:
        """Try one after the other on a memory that is thrown away; note the first that fails."""
        # where what is recorded is at fault, not what waits, this raises
        trial = self._begin()
        trial.refresh()
        units: dict[str, list[Binding]] = {}
        for binding in wanted:
            units.setdefault(unit_of(binding), []).append(binding)
        for members in units.values():
            try:
                trial.decide(members, avoid, now)
            except Exception as error:
                ids = [one.id for one in members]
                log.exception("placement fails on a request, which is left out", sandboxes=ids)
                why = Refusal(PendingReason.INVALID, "request", f"what placement fails on: {error}")
                self._failing |= dict.fromkeys(ids, why)
                return True
        return False
