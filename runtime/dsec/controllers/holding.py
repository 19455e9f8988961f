"""Sandboxes that gateways have bound and are about to start: the leader leaves them alone."""

from collections.abc import Iterable
from dataclasses import dataclass

from dsec.controllers.dispatch import Dispatcher
from dsec.controllers.lanes import Lane
from dsec.journal.bindings import Binding, Bindings
from dsec.world.clock import Clock

HOLD_SECONDS = 8.0
"""Longer than a gateway takes over one create: 6 s from its first row to its last call's end."""


@dataclass(frozen=True, slots=True)
class _Held:
    """One sandbox. `since` in monotonic seconds."""

    lane: Lane
    node: str
    since: float


class Holding:
    """Of one term."""

    def __init__(self, state: Bindings, clock: Clock) -> None:
        self._state = state
        self._clock = clock
        self._held: dict[str, _Held] = {}

    def take(self, lane: Lane, placed: Iterable[Binding]) -> None:
        """Leave what has a node now to the gateway of a lane."""
        now = self._clock.monotonic()
        self._held |= {one.id: _Held(lane, one.node, now) for one in placed}

    def holds(self, sandbox: str, dispatcher: Dispatcher) -> bool:
        """Return whether a sandbox is its gateway's still: no agent has said that it has it."""
        one = self._held.get(sandbox)
        return one is not None and not dispatcher.confirmed(sandbox, one.node)

    def late(self, dispatcher: Dispatcher) -> set[str]:
        """Forget those that run or went elsewhere; return the lanes of those left for too long."""
        now, late = self._clock.monotonic(), set[str]()
        for sandbox, one in list(self._held.items()):
            binding = self._state.by_id.get(sandbox)
            moved = binding is None or not binding.live or binding.node != one.node
            if moved or dispatcher.confirmed(sandbox, one.node):
                del self._held[sandbox]
            elif now - one.since > HOLD_SECONDS:
                late.add(one.lane.name)
        return late

    def give_up(self) -> list[str]:
        """Hold those that were left for too long no more; return their nodes."""
        now = self._clock.monotonic()
        over = [id_ for id_, one in self._held.items() if now - one.since > HOLD_SECONDS]
        return [self._held.pop(id_).node for id_ in over]
