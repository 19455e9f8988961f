"""Prometheus metrics of the gateway, on a registry of their own. Labels come from small sets."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest


class Metrics:
    """The counters of one gateway."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "dsec_gateway_requests_total",
            "Requests by route and class of answer.",
            ["route", "method", "answer"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "dsec_gateway_request_seconds",
            "Time to the head of the answer.",
            ["route"],
            registry=self.registry,
        )
        self.denied = Counter(
            "dsec_gateway_denied_total", "Calls that were refused.", registry=self.registry
        )
        self.rows = Counter(
            "dsec_gateway_journal_rows_total", "Rows taken from agents.", registry=self.registry
        )
        self.creates = Counter(
            "dsec_gateway_creates_total",
            "Creates by who bound them: this gateway, out of a lease of quota, or the leader.",
            ["by"],
            registry=self.registry,
        )
        self.unreadable = Counter(
            "dsec_gateway_unreadable_lanes_total",
            "Lanes of the bind log that ended with a segment which cannot be read.",
            registry=self.registry,
        )
        self.leases = Gauge(
            "dsec_gateway_leases", "Leases of quota that may be spent now.", registry=self.registry
        )
        self.nodes = Gauge(
            "dsec_gateway_nodes", "Agents that the gateway follows.", registry=self.registry
        )

        self.depth = Gauge(
            "dsec_queue_depth",
            "Items that wait in a task queue: put, and not taken.",
            ["project", "experiment", "queue"],
            registry=self.registry,
        )
        self.taken = Gauge(
            "dsec_queue_taken",
            "Items of a task queue that workers hold.",
            ["project", "experiment", "queue"],
            registry=self.registry,
        )

    def text(self) -> bytes:
        """Return all metrics in the text format."""
        return generate_latest(self.registry)
