"""Takes what agents report: records ends, fences copies that do not count, gives up lost nodes.

Order for each end: the final status is stored, then the end is a row of the bind log, then the
agent may forget it. A copy that is not the bound one is stopped as `fenced`, and nothing of its
end is kept.
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import groupby

import structlog

from dsec.api.reasons import EndReason
from dsec.api.sandbox import End, SandboxState, SandboxStatus
from dsec.api.wire import NodeState
from dsec.controllers.dispatch import Dispatcher
from dsec.controllers.fleet import Fleet
from dsec.journal.bindings import Binding, Row
from dsec.journal.bindlog import BindLog
from dsec.journal.history import HistoryWriter
from dsec.journal.results import DIRECT, write_results
from dsec.journal.testimony import told_ends
from dsec.world.agents import NodeMemory
from dsec.world.clock import Clock
from dsec.world.objects import ObjectStore

SWEEP_SECONDS = 2.0

log = structlog.get_logger()


def closed_status(binding: Binding, reason: EndReason, message: str, clock: Clock) -> SandboxStatus:
    """Return the final status of a sandbox that its agent cannot report."""
    return SandboxStatus(
        identity=binding.spec.identity,
        state=SandboxState.ENDED,
        node=binding.node,
        resources=binding.spec.resources,
        image=binding.spec.image,
        message=message,
        times={SandboxState.BOUND: binding.bound_at or binding.at, SandboxState.ENDED: clock.now()},
        end=End(reason=reason, message=message, archive_partial=True),
    )


class Collector:
    """Of one term. `take` is called after each answer of an agent, `sweep` runs as a task."""

    def __init__(
        self,
        bind_log: BindLog,
        objects: ObjectStore,
        clock: Clock,
        history: HistoryWriter,
        *,
        changed: Callable[[Sequence[Binding]], None],
        unarrived: Callable[[SandboxStatus], bool] = lambda _status: False,
    ) -> None:
        """`changed` is told of every binding whose state moved.

        `unarrived(status)`: whether an end is that of a move, which is taken back: not recorded.
        """
        self._unarrived = unarrived
        self._log = bind_log
        self._objects = objects
        self._clock = clock
        self._history = history
        self._changed = changed
        self._batch = 0
        self._ending = asyncio.Lock()

    async def take(self, memory: NodeMemory, answer: NodeState, dispatcher: Dispatcher) -> None:
        """Act on what an agent says has changed. Raises FencedError, ObjectStoreError."""
        state, node = self._log.state, memory.name
        if answer.epoch > self._log.epoch:
            dispatcher.stale.set()
            return
        ended: list[SandboxStatus] = []
        finished: list[str] = []
        moved: list[Binding] = []
        for status in answer.sandboxes:
            sandbox = status.identity.id
            binding = state.by_id.get(sandbox)
            effective = binding is not None and binding.live and binding.node == node
            if status.state is SandboxState.ENDED:
                if effective and binding is not None and not _older(status, binding):
                    if self._unarrived(status):
                        continue
                    ended.append(_owned(status, binding))
                finished.append(sandbox)
            elif _kept(binding, status, node):
                continue
            elif effective and binding is not None:
                moved.append(binding)
            else:
                message = "the bind log has another copy, or none"
                dispatcher.stop(node, sandbox, EndReason.FENCED, message)
                log.warning("fencing a copy", sandbox=sandbox, node=node)
        dispatcher.confirm(node, [binding.id for binding in moved])
        ended += self._forgotten(memory, answer, dispatcher)
        await self.end(ended)
        if finished:
            dispatcher.acknowledge(node, finished)
        dispatcher.wake(node)
        if moved:
            self._changed(moved)

    def _forgotten(
        self, memory: NodeMemory, answer: NodeState, dispatcher: Dispatcher
    ) -> list[SandboxStatus]:
        """Return the ends of what a restarted agent does not know any more."""
        if not answer.full:
            return []
        present = (one.identity.id for one in answer.sandboxes)
        message = "the agent came back and does not know it any more"
        gone = [
            closed_status(self._log.state.by_id[sandbox], EndReason.NODE_LOST, message, self._clock)
            for sandbox in dispatcher.lost(memory.name, present, asked=memory.asked)
        ]
        return [status for status in gone if not self._unarrived(status)]

    async def end(self, statuses: Sequence[SandboxStatus]) -> None:
        """Record ends durably. Raises FencedError, ObjectStoreError."""
        async with self._ending:
            live = [s for s in statuses if self._live(s.identity.id)]
            if not live:
                return
            rows: list[Row] = []
            place = _experiment_of
            for (project, experiment), group in groupby(sorted(live, key=place), key=place):
                self._batch += 1
                name = f"{self._log.epoch:08d}-{self._batch:08d}"
                members = list(group)
                where = await write_results(self._objects, project, experiment, name, members)
                rows += [
                    Row(
                        kind="end",
                        at=self._clock.now(),
                        id=status.identity.id,
                        reason=status.end.reason if status.end else EndReason.INFRASTRUCTURE,
                        result=where[status.identity.id],
                    )
                    for status in members
                ]
            await self._log.append(rows)
        bindings = [self._log.state.by_id[row.id] for row in rows]
        for binding in bindings:
            if binding.reason is not None and binding.reason.blames_platform:
                identity = binding.spec.identity
                self._history.add(
                    "sandbox-closed",
                    tenant=binding.tenant,
                    experiment=identity.experiment,
                    sandbox=binding.id,
                    reason=binding.reason.value,
                    node=binding.node,
                    correlationId=identity.correlation_id,
                )
        self._changed(bindings)

    async def stop(
        self,
        bindings: Sequence[Binding],
        reason: EndReason,
        message: str,
        dispatcher: Dispatcher,
    ) -> None:
        """End sandboxes: what has no node at once, the others through their agents.

        A stop that waits to be taken keeps its reason. Raises FencedError, ObjectStoreError.
        """
        waiting = [b for b in bindings if b.live and not b.node]
        await self.end([closed_status(b, reason, message, self._clock) for b in waiting])
        for binding in bindings:
            if binding.live and binding.node and not dispatcher.stopping(binding.node, binding.id):
                dispatcher.stop(binding.node, binding.id, reason, message)

    async def sweep(self, fleet: Fleet, dispatcher: Dispatcher) -> None:
        """Give up, again and again, what is bound to nodes that stay silent too long.

        The copies there are stopped as `fenced` as soon as their agent can be told.
        """
        while True:
            await self._clock.sleep(SWEEP_SECONDS)
            for node in self._log.state.nodes():
                silent = fleet.silent_for(node)
                lost = [
                    b
                    for b in self._log.state.on_node(node)
                    # a move to a node that is lost is taken back
                    if silent > b.patience and b.kept is None
                ]
                if not lost:
                    continue
                log.warning("node given up", node=node, silent=round(silent), sandboxes=len(lost))
                message = (
                    f"node {node} gave no sign for {silent:.0f} s; a newer copy may run elsewhere"
                )
                await self.end(await self._last_words(node, lost, message))
                for binding in lost:
                    dispatcher.stop(node, binding.id, EndReason.FENCED, message)

    async def _last_words(
        self, node: str, lost: Sequence[Binding], message: str
    ) -> list[SandboxStatus]:
        """Return how sandboxes of a lost node ended: as it has told, else they are lost with it.

        Raises ObjectStoreError.
        """
        since = min(binding.bound_at or binding.at for binding in lost)
        ids = {binding.id for binding in lost}
        told = await told_ends(self._objects, node, ids, since, self._clock.now())
        found = []
        for binding in lost:
            incarnation, end = told.get(binding.id, (0, None))
            status = closed_status(binding, EndReason.NODE_LOST, message, self._clock)
            mine = incarnation == binding.spec.identity.incarnation
            if mine and end is not None and end.reason is not EndReason.FENCED:
                update = {"end": end, "message": end.message}
                status = _owned(status.model_copy(update=update), binding)
            found.append(status)
        return found

    def _live(self, sandbox: str) -> bool:
        binding = self._log.state.by_id.get(sandbox)
        return binding is not None and binding.live


def _owned(status: SandboxStatus, binding: Binding) -> SandboxStatus:
    """Return a final status under the identity that was bound: an agent has no say in that."""
    identity = binding.spec.identity
    end = status.end
    if end is not None and end.archive:
        # readers follow it: only ever into this sandbox's own scene
        archive = f"artifacts/{identity.project}/{identity.experiment or DIRECT}/{binding.id}/"
        end = end.model_copy(update={"archive": archive})
    update = {"identity": identity, "node": binding.node, "end": end}
    return status.model_copy(update=update)


def _kept(binding: Binding | None, status: SandboxStatus, node: str) -> bool:
    """Return whether a copy is what a move under way leaves behind until the other one runs."""
    return (
        binding is not None
        and binding.live
        and binding.kept is not None
        and binding.kept.node == node
        and binding.kept.incarnation == status.identity.incarnation
    )


def _older(status: SandboxStatus, binding: Binding) -> bool:
    """Return whether a copy was left before the one that counts came to the same node."""
    return status.identity.incarnation < binding.spec.identity.incarnation


def _experiment_of(status: SandboxStatus) -> tuple[str, str]:
    return status.identity.project, status.identity.experiment
