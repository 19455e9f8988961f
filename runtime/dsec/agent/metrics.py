"""Prometheus metrics of an agent process, on a registry of their own. Labels are of small sets."""

from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from dsec.agent.core import Core
from dsec.agent.entry import Entry
from dsec.agent.spool import Spool
from dsec.api.sandbox import SandboxState
from dsec.api.wire import CreateAnswer

CREATE_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
"""Bounds of the histogram: from a warm start to a slow pull."""
HELD_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
SNAPSHOT = "snapshot-"
"""How the kinds of rows about snapshots begin; what follows is what happened."""


class Metrics:
    """The figures of all nodes of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._sandboxes = Gauge(
            "dsec_agent_sandboxes", "Sandboxes by state.", ["state"], registry=self.registry
        )
        self._creates = Counter(
            "dsec_agent_creates_total", "Creates that were accepted.", registry=self.registry
        )
        self._refusals = Counter(
            "dsec_agent_refusals_total",
            "Creates that were refused, by cause.",
            ["cause"],
            registry=self.registry,
        )
        self._backlog = Gauge(
            "dsec_agent_spool_rows",
            "Journal rows in memory that are not shipped yet.",
            registry=self.registry,
        )
        self._seconds = Histogram(
            "dsec_agent_create_seconds",
            "Time from the acceptance of a sandbox to its registration.",
            buckets=CREATE_SECONDS,
            registry=self.registry,
        )

        self._snapshots = Counter(
            "dsec_agent_snapshots_total",
            "Snapshots by outcome: taken, kept (waits for a gateway), deferred, failed; restored, "
            "damaged, none, away.",
            ["outcome"],
            registry=self.registry,
        )
        self._held = Histogram(
            "dsec_agent_snapshot_held_seconds",
            "Time that programs stood still for one snapshot.",
            buckets=HELD_SECONDS,
            registry=self.registry,
        )

    def happened(self, kind: str, body: dict[str, Any]) -> None:
        """Count what a row of the journal tells about a snapshot."""
        if kind.startswith(SNAPSHOT):
            self._snapshots.labels(kind.removeprefix(SNAPSHOT)).inc()
        if "heldSeconds" in body:
            self._held.observe(body["heldSeconds"])

    def answered(self, answer: CreateAnswer) -> None:
        """Count an answer to a create that was new here."""
        if answer.accepted:
            self._creates.inc()
        else:
            self._refusals.labels(answer.reason.partition(":")[0]).inc()

    def registered(self, entry: Entry) -> None:
        """Take the time that a sandbox needed to register."""
        times = entry.status.times
        if SandboxState.BOUND in times and SandboxState.RUNNING in times:
            taken = times[SandboxState.RUNNING] - times[SandboxState.BOUND]
            self._seconds.observe(max(0.0, taken.total_seconds()))

    def text(self, nodes: Iterable[tuple[Core, Spool]]) -> bytes:
        """Return all metrics in the text format; what is now is read from the nodes."""
        counts = dict.fromkeys(SandboxState, 0)
        backlog = 0
        for core, spool in nodes:
            backlog += spool.backlog
            for entry in core:
                counts[entry.status.state] += 1
        for state, count in counts.items():
            self._sandboxes.labels(state.value).set(count)
        self._backlog.set(backlog)
        return generate_latest(self.registry)
