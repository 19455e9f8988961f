"""Prometheus metrics of the controller, computed at each scrape from what it knows."""

import math

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dsec.api.reaping import Finding
from dsec.controllers.controller import Controller
from dsec.controllers.displacer import HOW
from dsec.controllers.replicator import Replicator


def text(controller: Controller) -> bytes:
    """Return all metrics in the text format. Labels come from small sets."""
    registry = CollectorRegistry()

    def gauge(name: str, about: str, value: float) -> None:
        Gauge(f"dsec_controller_{name}", about, registry=registry).set(value)

    term = controller.term
    gauge("leading", "1 while this process leads.", float(controller.leading))
    gauge("epoch", "Epoch of the newest term of this process.", controller.epoch)
    if term is not None:
        state = term.bind_log.state
        gauge("sandboxes_live", "Sandboxes that hold room.", sum(1 for _ in state.live()))
        gauge("sandboxes_waiting", "Keyed creates that wait for room.", len(state.waiting()))
        gauge("bindlog_segments", "Segments of the bind log so far.", term.bind_log.position)
        gauge("nodes", "Registered nodes.", len(term.fleet.members))
        gauge("nodes_usable", "Nodes that may be given work.", len(term.fleet.nodes()))
        held = term.buyer.book.nodes.values()
        gauge("nodes_bought", "Nodes that were bought, or are on their way.", len(held))
        displacer = term.placer.displacer
        gauge("displacing", "Sandboxes that have been asked to leave.", len(displacer.victims))
        displaced = Counter(
            "dsec_controller_displaced",
            "Sandboxes of this term that gave way, went on, or did not go in time.",
            ["how"],
            registry=registry,
        )
        for how in HOW:
            displaced.labels(how).inc(displacer.counts[how])
        moved = Counter(
            "dsec_controller_moved",
            "Paused sandboxes of this term that left a full node.",
            registry=registry,
        )
        moved.inc(term.mover.moved)
        for name, about, counts in (
            ("warned", "Sandboxes that the reaper has warned about.", term.reaper.warned),
            ("caught", "Sandboxes that the reaper has ended.", term.reaper.caught),
            (
                "wasted_seconds",
                "Seconds that those had held their room for nothing.",
                term.reaper.wasted_seconds,
            ),
            (
                "wasted_core_seconds",
                "The same times the cores that they had booked.",
                term.reaper.wasted_core_seconds,
            ),
        ):
            counter = Counter(f"dsec_reaper_{name}", about, ["finding"], registry=registry)
            for finding in Finding:
                counter.labels(finding.value).inc(counts[finding])
        _copies(registry, term.replicator)
        experiments = term.caches["Experiment"].all()
        gauge("experiments", "Experiments.", len(experiments))
    return generate_latest(registry)


def _copies(registry: CollectorRegistry, replicator: Replicator) -> None:
    """Add how far the copies in other regions are behind, by policy and region."""
    for name, about, field in (
        ("lag_seconds", "Since when the oldest snapshot waits to be copied.", "lag_seconds"),
        (
            "recovery_point_seconds",
            "Age of the newest copy of the lineage that would lose most; NaN: one has none.",
            "recovery_point_seconds",
        ),
        ("behind", "Snapshots that wait to be copied.", "behind"),
    ):
        family = Gauge(f"dsec_replication_{name}", about, ["policy", "region"], registry=registry)
        for key, row in replicator.standing.items():
            value = getattr(row, field)
            family.labels(*key).set(math.nan if value is None else value)
    sent = Counter(
        "dsec_replication_sent_bytes",
        "Bytes of snapshots that were sent to other regions in this term.",
        ["policy", "region"],
        registry=registry,
    )
    for key, count in replicator.sent_bytes.items():
        sent.labels(*key).inc(count)


def build_metrics(controller: Controller) -> Starlette:
    """Return the scrape endpoint."""

    async def metrics(_: Request) -> Response:
        return Response(text(controller), media_type="text/plain; version=0.0.4")

    return Starlette(routes=[Route("/metrics", metrics)])
