"""The gateway's soft view: what each agent last said, and how old that is.

Built from SandboxNode records and long polls; lost without harm. The bind log tells what the view
cannot: sandboxes that wait, copies that do not count, nodes that are silent, ends long gone.
"""

from dataclasses import dataclass, field

from dsec.api.reasons import EndReason
from dsec.api.records import SandboxNode
from dsec.api.sandbox import End, SandboxState, SandboxStatus
from dsec.api.wire import NodeState
from dsec.journal.bindings import Binding
from dsec.journal.lanes import LanedReader
from dsec.journal.results import ResultReader
from dsec.world.agents import NodeMemory, NodeWatch
from dsec.world.cache import Key
from dsec.world.clock import Clock
from dsec.world.network import Network
from dsec.world.records import Record

SILENT_SECONDS = 30.0
"""A sandbox whose node said nothing for this long is shown as unknown."""
LOG_SECONDS = 1.0
"""How old the bind log may be for reads; checks of fences always read to its end."""


@dataclass(slots=True)
class Views:
    """What one gateway knows of agents and sandboxes."""

    network: Network
    clock: Clock
    bind_log: LanedReader
    results: ResultReader
    watches: dict[str, NodeWatch] = field(default_factory=dict)
    _log_read: float | None = None

    async def node(self, key: Key, record: Record | None) -> None:
        """Follow a node as its record says; None: it is gone."""
        name = key[1]
        old = self.watches.get(name)
        endpoint = "" if record is None else SandboxNode.model_validate(record).status.endpoint
        if old is not None and old.memory.endpoint == endpoint:
            return
        if old is not None:
            del self.watches[name]
            await old.close()
        if endpoint:
            watch = NodeWatch(name, endpoint, self.network, self.clock, _nothing, heartbeats=True)
            self.watches[name] = watch
            watch.start()

    async def close(self) -> None:
        """Stop following all nodes."""
        watches, self.watches = list(self.watches.values()), {}
        for watch in watches:
            await watch.close()

    async def fresh_log(self, *, newest: bool = False) -> LanedReader:
        """Return the bind log, read to its end where `newest`. Raises ObjectStoreError."""
        now = self.clock.monotonic()
        if newest or self._log_read is None or now - self._log_read > LOG_SECONDS:
            await self.bind_log.refresh()
            self._log_read = now
        return self.bind_log

    def age(self) -> float:
        """Return seconds since the least recently heard agent spoke; 0 without agents."""
        now = self.clock.monotonic()
        seen = [watch.memory.seen for watch in self.watches.values()]
        return max((now - one for one in seen if one is not None), default=0.0)

    def watch(self, node: str) -> NodeWatch | None:
        """Return the watch of a node."""
        return self.watches.get(node)

    async def binding(self, sandbox: str) -> Binding | None:
        """Return what the bind log says of a sandbox. Raises ObjectStoreError."""
        binding = (await self.fresh_log()).state.by_id.get(sandbox)
        if binding is None:
            binding = (await self.fresh_log(newest=True)).state.by_id.get(sandbox)
        return binding

    async def one(self, sandbox: str) -> SandboxStatus | None:
        """Return a sandbox, ended ones with their end. Raises ObjectStoreError."""
        binding = await self.binding(sandbox)
        if binding is None:
            return None
        if binding.result:
            return await self.results.read(binding.result) or self.status(binding)
        return self.status(binding)

    async def of_project(self, project: str, experiment: str = "") -> list[SandboxStatus]:
        """Return the sandboxes of a project by experiment, role and index."""
        log = await self.fresh_log()
        found = [
            self.status(binding)
            for binding in log.state.by_id.values()
            if binding.spec.identity.project == project
            and experiment in ("", binding.spec.identity.experiment)
        ]
        return sorted(found, key=_place)

    def status(self, binding: Binding) -> SandboxStatus:
        """Return what is known of a binding without asking anyone."""
        identity = binding.spec.identity
        status = SandboxStatus(
            identity=identity,
            state=SandboxState.PENDING,
            node=binding.node,
            resources=binding.spec.resources,
            image=binding.spec.image,
            times={SandboxState.PENDING: binding.at},
        )
        if binding.bound_at is not None:
            status.times[SandboxState.BOUND] = binding.bound_at
        if not binding.live:
            status.state = SandboxState.ENDED
            status.end = End(reason=binding.reason or EndReason.INFRASTRUCTURE)
            if binding.ended_at is not None:
                status.times[SandboxState.ENDED] = binding.ended_at
        elif binding.node:
            status = self._live(binding, status)
        elif binding.asleep:
            status.state = SandboxState.PAUSED
            status.message = f"it hibernates, as {binding.asleep} asked"
        return status

    def _live(self, binding: Binding, status: SandboxStatus) -> SandboxStatus:
        watch = self.watches.get(binding.node)
        silent = None if watch is None else watch.silent_for()
        known = None if watch is None else watch.memory.sandboxes.get(binding.id)
        if silent is None or silent > SILENT_SECONDS:
            update: dict[str, object] = {
                "state": SandboxState.UNKNOWN,
                "message": f"node {binding.node} is silent",
            }
            update["identity"] = status.identity
            return (known or status).model_copy(update=update)
        if known is not None:
            # who a sandbox is was bound: an agent has no say in that
            return known.model_copy(update={"identity": status.identity, "node": status.node})
        return status.model_copy(update={"state": SandboxState.BOUND})


async def _nothing(_: NodeMemory, __: NodeState) -> None:
    """Follow only."""


def _place(status: SandboxStatus) -> tuple[str, str, int, int, str]:
    who = status.identity
    return who.experiment, who.role, who.index, who.incarnation, who.id
