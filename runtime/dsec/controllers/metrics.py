"""Prometheus metrics of the controller, computed at each scrape from what it knows."""

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dsec.api.reaping import Finding
from dsec.controllers.controller import Controller
from dsec.controllers.displacer import HOW


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
        experiments = term.caches["Experiment"].all()
        gauge("experiments", "Experiments.", len(experiments))
    return generate_latest(registry)


def build_metrics(controller: Controller) -> Starlette:
    """Return the scrape endpoint."""

    async def metrics(_: Request) -> Response:
        return Response(text(controller), media_type="text/plain; version=0.0.4")

    return Starlette(routes=[Route("/metrics", metrics)])
