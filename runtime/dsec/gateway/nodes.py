"""Where a gateway may place: its soft view of the nodes, as the leader's but a moment late.

Nodes from their records, as long as their agents answer; what is booked on them from the bind log
and the lanes, by differences; and what this gateway has under way. It may be wrong, and nothing
breaks: the agent has the last word, and the leader's ledger is not decided here.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import structlog

from dsec.api.decisions import DecisionRecord
from dsec.api.meta import ConditionStatus
from dsec.api.records import SandboxNode
from dsec.gateway.views import SILENT_SECONDS, Views
from dsec.journal.bindings import Binding, Bindings
from dsec.placement.engine import place_class
from dsec.placement.record import records
from dsec.placement.request import Decision, Health, Node, node_of
from dsec.placement.translating import request_of
from dsec.placement.view import ClusterView, Ints
from dsec.world.cache import Cache
from dsec.world.clock import Clock, Randomness
from dsec.world.records import Record

LOOK_SECONDS = 0.5
"""How old the set of nodes may be."""
SAMPLE = 64
"""Nodes that one create is tried on first: gateways that think alike then seldom meet on one."""

log = structlog.get_logger()


class NearNodes:
    """Of one gateway; one writer."""

    def __init__(self, records: Cache, views: Views, clock: Clock, randomness: Randomness) -> None:
        self.view = ClusterView()
        self._records = records
        self._views = views
        self._clock = clock
        self._randomness = randomness
        self._described: dict[str, tuple[Record, Node | None]] = {}
        self._looked: float | None = None
        self._state: Bindings | None = None
        self._changed: set[str] | None = None

    def place(
        self, binding: Binding, epoch: int, avoid: Sequence[str] = ()
    ) -> tuple[Decision, DecisionRecord | None]:
        """Decide where a binding goes, and why; with a node it is booked there from now on.

        The same function as the leader's, on a sample of the nodes, then on all. `epoch` is that
        of the leader who lets this gateway decide.
        """
        self._follow()
        request = request_of(binding, avoid)
        self.view.settle()
        count = len(self.view.described)
        tried = [np.arange(count, dtype=np.int64)]
        if count > SAMPLE:
            sample = sorted(self._randomness.sample(list(range(count)), SAMPLE))
            tried.insert(0, np.array(sample, dtype=np.int64))
        for rows in tried:
            inputs = self._inputs(rows)
            (found,) = place_class(
                self.view, [request], rows, record=True, learn=False, explain=False
            )
            if found.node:
                made = records([request], [found], inputs=inputs, at=self._clock.now(), epoch=epoch)
                return found, made[request.id]
        return found, None

    def _inputs(self, rows: Ints) -> str:
        """Return the SHA-256 of what is decided from: the nodes that are tried, and their room."""
        content = hashlib.sha256()
        for row in rows:
            content.update(self.view.described[row].name.encode())
        content.update(self.view.columns[:, rows].tobytes())
        return content.hexdigest()

    def release(self, sandbox: str) -> None:
        """Book no more what this gateway did not bind after all. Idempotent."""
        self.view.release(sandbox)

    def _follow(self) -> None:
        """Take over what has changed since the last look."""
        state, now = self._views.bind_log.state, self._clock.monotonic()
        moved = False
        if self._looked is None or now - self._looked > LOOK_SECONDS:
            self._looked = now
            moved = self._follow_nodes()
        fresh = self._state is not state
        before = None if fresh else self._changed
        self._state, self._changed = state, state.follow(before)
        if fresh or moved or before is None:
            ids = {*state.bound, *(self.view.bookings() if fresh else ())}
        else:
            ids = before
        self._follow_bookings(state, ids)

    def _follow_nodes(self) -> bool:
        """Take the nodes over that may be given work; return whether some came or went."""
        found: dict[str, Node] = {}
        kept: dict[str, tuple[Record, Node | None]] = {}
        for record in self._records.all():
            name = record["metadata"]["name"]
            known = self._described.get(name)
            if known is None or known[0] is not record:
                known = record, _described(record)
            kept[name] = known
            watch = self._views.watch(name)
            silent = None if watch is None else watch.silent_for()
            if known[1] is not None and silent is not None and silent < SILENT_SECONDS:
                found[name] = known[1]
        self._described = kept
        gone = [name for name in self.view.nodes if name not in found]
        for name in gone:
            self.view.remove(name)
        moved = bool(gone)
        for name, node in found.items():
            moved = moved or name not in self.view.nodes
            self.view.put(node)
        return moved

    def _follow_bookings(self, state: Bindings, ids: set[str]) -> None:
        booked, nodes = self.view.bookings(), self.view.nodes
        for id_ in ids:
            binding, booking = state.bound.get(id_), booked.get(id_)
            if booking is not None and (binding is None or binding.node != booking.node):
                self.view.release(id_)
                booking = None
            if binding is None or booking is not None or binding.node not in nodes:
                continue
            decision = Decision(id_, binding.node, tuple(binding.spec.devices))
            try:
                self.view.book(request_of(binding), decision, force=True)
            except ValueError as problem:
                log.warning("cannot be booked", sandbox=id_, error=str(problem))


def _described(record: Record) -> Node | None:
    """Return what placement sees of a node; None where it may be given no work."""
    node = SandboxNode.model_validate(record)
    ready = any(
        one.type == "Ready" and one.status is ConditionStatus.TRUE for one in node.status.conditions
    )
    if not ready or node.spec.unschedulable or node.status.inventory is None:
        return None
    try:
        return node_of(
            node.metadata.name,
            node.status.inventory,
            labels=node.spec.labels,
            pool=node.spec.pool or "",
            traits=node.status.placement,
            health=Health.READY,
        )
    except ValueError:
        # the leader says so in its record
        return None
