"""The signals of a role as a controller can read them: its task queue, its ends, and Prometheus.

Soft state only: readers of queues are read again by a new leader. A signal that cannot be read is a
reading without a value, with the reason in words; it never fails a look.
"""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from dsec.api.elastic_status import Reading
from dsec.api.experiment import Role
from dsec.api.names import dns_name
from dsec.api.reasons import EndReason
from dsec.api.records import Experiment
from dsec.journal.bindings import Binding
from dsec.journal.queuelog import QueueReader, folder, keep, names
from dsec.scaling.metrics import query_of
from dsec.scaling.replicas.rules import Rule, needs
from dsec.scaling.signals import Signal
from dsec.world.clock import Clock
from dsec.world.metrics import MetricsError, MetricSource
from dsec.world.objects import ObjectStore, ObjectStoreError

RETRY_WINDOW = timedelta(minutes=2)
"""Failures this recent make the retry rate: long enough to count, short enough to see a rise."""
_NO_FAILURE = frozenset(
    {
        EndReason.COMPLETED,
        EndReason.STOPPED,
        EndReason.FROZEN,
        EndReason.PREEMPTED,
        EndReason.OVER_BUDGET,
    }
)


class ScalingSignals:
    """Of one term. Without a `metrics` source there are the queue's depth and the retry rate."""

    def __init__(self, objects: ObjectStore, clock: Clock, metrics: MetricSource | None) -> None:
        self._objects = objects
        self._clock = clock
        self._metrics = metrics
        self._queues: dict[str, QueueReader] = {}

    async def read(
        self, experiment: Experiment, role: Role, rule: Rule, bindings: Sequence[Binding]
    ) -> list[Reading]:
        """Return what can be read for a role now, its own metric first."""
        own = [one for one in bindings if one.spec.identity.role == role.name]
        read = [self._one(signal, experiment, role, own) for signal in needs(rule)]
        found = await asyncio.gather(*read)
        # signals that nobody needs and nobody has would only fill the record
        return [one for one in found if one.name == rule.metric or one.value is not None]

    async def _one(
        self, signal: str, experiment: Experiment, role: Role, own: Sequence[Binding]
    ) -> Reading:
        elastic = role.elastic
        query = elastic.query if elastic is not None and signal == elastic.metric else None
        if signal == Signal.RETRY_RATE:
            return Reading(name=signal, value=self._retries(own))
        if signal == Signal.QUEUE_DEPTH and query is None:
            depth = await self._depth(experiment, role)
            if depth is not None:
                return depth
        return await self._asked(signal, experiment, role, query)

    def _retries(self, own: Sequence[Binding]) -> float:
        """Return failed replicas per replica and minute. Each of them is started again, or was."""
        since = self._clock.now() - RETRY_WINDOW
        failed = sum(
            1
            for one in own
            if one.reason is not None
            and one.reason not in _NO_FAILURE
            and one.ended_at is not None
            and one.ended_at >= since
        )
        live = sum(1 for one in own if one.live)
        return failed / max(1, live) / (RETRY_WINDOW / timedelta(minutes=1))

    async def _depth(self, experiment: Experiment, role: Role) -> Reading | None:
        """Return how much waits in the queue of the role's name, else in all of the experiment's.

        None: it has no queue. What a worker took and did not finish in time waits, too.
        """
        project, uid = experiment.metadata.namespace, experiment.metadata.uid
        try:
            known = await names(self._objects, project, uid)
            if not known:
                return None
            own = dns_name(role.name)
            chosen = [own] if own in known else known
            now, depth = self._clock.now().timestamp(), 0
            for name in chosen:
                reader = self._reader(folder(project, uid, name))
                await reader.refresh()
                late = reader.state.overdue(now, lambda _worker: False)
                depth += reader.state.depth + len(late)
        except ObjectStoreError as problem:
            return Reading(name=Signal.QUEUE_DEPTH, problem=f"the object store is away: {problem}")
        return Reading(name=Signal.QUEUE_DEPTH, value=float(depth))

    def _reader(self, prefix: str) -> QueueReader:
        found = self._queues.pop(prefix, None)
        if found is None:
            found = QueueReader(self._objects, prefix, self._clock, bodies=False)
        keep(self._queues, prefix, found)
        return found

    async def _asked(
        self, signal: str, experiment: Experiment, role: Role, query: str | None
    ) -> Reading:
        if self._metrics is None:
            return Reading(name=signal, problem="this installation names no Prometheus server")
        meta = experiment.metadata
        text = query_of(
            signal, project=meta.namespace, experiment=meta.name, role=role.name, query=query
        )
        if text is None:
            return Reading(name=signal, problem=f"{signal} is no name of a metric; give a query")
        try:
            found = await self._metrics.read(text)
        except MetricsError as problem:
            return Reading(name=signal, problem=str(problem)[:1000])
        if found is None:
            return Reading(name=signal, problem=f"{text} has no value")
        return Reading(name=signal, value=found.value, age_seconds=max(0.0, found.age_seconds))
