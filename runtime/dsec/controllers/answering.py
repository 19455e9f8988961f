"""What a caller is told of its keyed creates, once agents had their time."""

from collections.abc import Sequence
from functools import cache

from dsec.api.reasons import PendingReason
from dsec.api.sandbox import SandboxState
from dsec.api.wire import KeyedAnswer
from dsec.controllers.dispatch import Dispatcher
from dsec.controllers.fleet import Fleet
from dsec.journal.bindings import Binding
from dsec.placement.refusal import Refusal
from dsec.placement.words import explain

RETRY_AFTER = 1.0
"""Seconds after which a caller that knows no outcome should ask again."""


class Answers:
    """Of one call: what agents say is looked at once per node."""

    def __init__(self, fleet: Fleet, dispatcher: Dispatcher) -> None:
        self._fleet = fleet
        self._dispatcher = dispatcher
        self._heard = cache(fleet.answers)

    def of(self, want: Binding, known: Binding | None, why: Sequence[Refusal]) -> KeyedAnswer:
        """Return what became of a want.

        `known` is what its key names by now, `why` has the reasons for which that waits.
        """
        if known is None:
            return KeyedAnswer(key=want.key, outcome="unknown", retry_after_seconds=RETRY_AFTER)
        if known.body_hash != want.body_hash:
            message = f"the key belongs to sandbox {known.id}, which was asked for differently"
            return KeyedAnswer(key=want.key, outcome="conflict", id=known.id, message=message)
        node, outcome, message = known.node, "exists", ""
        state: SandboxState | None = None
        again: float | None = None
        if not known.live:
            state = SandboxState.ENDED
            message = f"ended: {known.reason.value if known.reason else 'unknown'}"
        elif not node:
            waits = tuple(why) or (Refusal(PendingReason.CONTROL_PLANE, "round", 1),)
            outcome, state, message = "pending", SandboxState.PENDING, explain(waits)
        elif not (self._dispatcher.confirmed(known.id, node) and self._heard(node)):
            outcome, again = "unknown", RETRY_AFTER
            message = f"node {node} is silent; ask again with the same key"
        else:
            status = self._fleet.status(known.id, node)
            state = status.state if status else SandboxState.BOUND
            if known.id == want.id:
                outcome = "bound"
        return KeyedAnswer(
            key=want.key,
            outcome=outcome,
            id=known.id,
            node=node,
            state=state,
            message=message,
            retry_after_seconds=again,
        )
