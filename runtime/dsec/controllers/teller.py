"""Tells of decisions: rows of history, workers of nodes, the log, and whoever follows bindings."""

from collections.abc import Callable, Collection, Mapping, Sequence

import structlog

from dsec.api.decisions import DecisionRecord
from dsec.controllers.dispatch import Dispatcher
from dsec.controllers.recorder import Recorder
from dsec.journal.bindings import Binding
from dsec.journal.decisions import PLACED, WAITS, add_decision
from dsec.journal.history import HistoryWriter
from dsec.placement.refusal import Refusal
from dsec.placement.words import explain
from dsec.world.clock import Clock

TELL_SECONDS = 60.0
"""Least time between two history rows about why one replica waits."""
NAMED = 5
"""Most correlation ids in one line of the log."""

log = structlog.get_logger()


class Teller:
    """Of one term."""

    def __init__(  # noqa: PLR0917 - what it tells with, then whom
        self,
        epoch: int,
        history: HistoryWriter,
        recorder: Recorder,
        dispatcher: Dispatcher,
        clock: Clock,
        changed: Callable[[Sequence[Binding]], None],
    ) -> None:
        """`changed` is told of what was bound."""
        self._epoch = epoch
        self._history = history
        self._recorder = recorder
        self._dispatcher = dispatcher
        self._clock = clock
        self._changed = changed
        self._told: dict[str, tuple[str, float]] = {}

    def waits(self, binding: Binding, refusals: tuple[Refusal, ...]) -> None:
        """Write the decision record of a refusal: what was asked, and why it has to wait."""
        identity = binding.spec.identity
        self._history.add(
            WAITS,
            tenant=binding.tenant,
            experiment=identity.experiment,
            sandbox=binding.id,
            key=binding.key,
            why=explain(refusals),
            decision=self._recorder.name(binding.id, binding.tenant),
            correlationId=identity.correlation_id,
        )

    def news(self, binding: Binding, refusals: tuple[Refusal, ...]) -> None:
        """Write a refusal of another kind than the last one; at most one a minute."""
        kind = "/".join(f"{one.reason.value} {one.dimension}" for one in refusals)
        now = self._clock.monotonic()
        told = self._told.get(binding.id)
        if told is None or (told[0] != kind and now - told[1] >= TELL_SECONDS):
            self._told[binding.id] = (kind, now)
            self.waits(binding, refusals)

    def forget(self, waiting: Collection[str]) -> None:
        """Drop what was told of all but these."""
        self._told = {i: told for i, told in self._told.items() if i in waiting}

    def bound(
        self, bindings: Sequence[Binding], decided: Mapping[str, DecisionRecord] | None = None
    ) -> None:
        """Tell everybody of what has a node now; `decided` has, by id, what a gateway decided."""
        if not bindings:
            return
        for binding in bindings:
            identity = binding.spec.identity
            record = decided.get(binding.id) if decided else None
            if record is not None:
                add_decision(self._history, record, tenant=binding.tenant)
                decision = record.id
            else:
                decision = self._recorder.name(binding.id, binding.tenant)
            self._history.add(
                PLACED,
                tenant=binding.tenant,
                experiment=identity.experiment,
                sandbox=binding.id,
                key=binding.key,
                node=binding.node,
                devices=binding.spec.devices,
                decision=decision,
                incarnation=identity.incarnation,
                correlationId=identity.correlation_id,
            )
        for node in dict.fromkeys(binding.node for binding in bindings):
            self._dispatcher.wake(node)
        asked_by = sorted({b.spec.identity.correlation_id for b in bindings})[:NAMED]
        log.info("bound", sandboxes=len(bindings), epoch=self._epoch, correlations=asked_by)
        self._changed(bindings)
