"""The leader's view of the nodes: who is registered, who answers, and what agents last said.

Soft state of one term: built from SandboxNode records and long polls, lost without harm.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import structlog

from dsec.api.meta import ConditionStatus
from dsec.api.nodes import PlacementTraits, RecordReason
from dsec.api.records import SandboxNode
from dsec.api.sandbox import SandboxState, SandboxStatus
from dsec.api.wire import NodeNotice, NodeState
from dsec.controllers.specs import PATIENCE_PRESETS
from dsec.placement.request import Health, Node, node_of
from dsec.world.agents import POLL_MARGIN, POLL_WAIT, NodeMemory, NodeWatch
from dsec.world.clock import Clock
from dsec.world.network import Network
from dsec.world.records import Record

SILENT_SECONDS = 30.0
"""A node without an answer for this long takes no new work (CONF-21: unhealthy)."""
CLOCK_LIMIT = 0.5
"""Seconds by which a node's clock may be off (design: such a node gets no work)."""
CLOCK_SAMPLES = 5
"""An answer that was long under way looks like a clock that is off: the best of so many counts."""
LONGEST_PATIENCE = max(PATIENCE_PRESETS.values())
"""Seconds after which nothing is bound to a node without a record any more."""

log = structlog.get_logger()
OnState = Callable[[NodeMemory, NodeState], Awaitable[None]]


@dataclass(slots=True)
class Member:
    """One registered node."""

    record: SandboxNode
    watch: NodeWatch
    since: float
    traits: PlacementTraits | None = None
    """What its pool says for placement; what its record has is a copy of it, for gateways."""
    offsets: deque[float] = field(default_factory=lambda: deque(maxlen=CLOCK_SAMPLES))
    run_until: datetime | None = None
    """When its agent says that it ends by itself; None: never, or not heard yet."""
    ending: bool = False
    notices: Sequence[NodeNotice] = ()
    """What its owner has announced of its end."""
    _described: tuple[SandboxNode, PlacementTraits | None, Health, Node] | None = None
    _checked: tuple[SandboxNode, PlacementTraits | None] | None = None
    _problem: str = ""

    def problem(self) -> str:
        """Return why placement cannot see it, in words; empty where it can. Said when it changes.

        Labels may say nothing that placement knows: such a node waits, not all others.
        """
        known = self._checked
        if known is None or known[0] is not self.record or known[1] is not self.traits:
            before, self._problem = self._problem, ""
            try:
                self.described(Health.READY)
            except ValueError as error:
                self._problem = str(error)
            if self._problem not in {"", before}:
                name = self.record.metadata.name
                log.warning("node cannot be described", node=name, error=self._problem)
            self._checked = (self.record, self.traits)
        return self._problem

    def described(self, health: Health) -> Node | None:
        """Return what placement sees; the same object while nothing changes, None: no inventory.

        Raises ValueError; see `problem`.
        """
        known, inventory = self._described, self.record.status.inventory
        if inventory is None:
            return None
        same = known is not None and known[0] is self.record and known[1] is self.traits
        if known is None or not same or known[2] is not health:
            spec = self.record.spec
            node = node_of(
                self.record.metadata.name,
                inventory,
                labels=spec.labels,
                pool=spec.pool or "",
                traits=self.traits,
                health=health,
            )
            known = self._described = (self.record, self.traits, health, node)
        return known[3]

    @property
    def clock_offset(self) -> float:
        """Seconds by which its clock is ahead, as far as is known; 0 before enough answers."""
        enough = len(self.offsets) == CLOCK_SAMPLES
        return min(self.offsets, key=abs) if enough else 0.0


class Fleet:
    """All registered nodes. `on_state` is called after each answer of an agent."""

    def __init__(
        self,
        network: Network,
        clock: Clock,
        on_state: OnState,
        traits: Callable[[str], PlacementTraits | None] = lambda _pool: None,
    ) -> None:
        """`traits` returns what a pool says for placement, the same object while it is the same."""
        self._traits = traits
        self._network = network
        self._clock = clock
        self._on_state = on_state
        self.members: dict[str, Member] = {}
        self._gone: dict[str, float] = {}
        self.started = clock.monotonic()

    async def take(self, name: str, record: Record | None) -> None:
        """Follow a node as its record says; None: it is gone."""
        old = self.members.get(name)
        if record is None:
            if old is not None:
                del self.members[name]
                # a record removed by mistake comes back with the agent's next registration
                now = self._clock.monotonic()
                kept = self._gone.items()
                self._gone = {one: at for one, at in kept if now - at < LONGEST_PATIENCE}
                self._gone[name] = now
                await old.watch.close()
            return
        node = SandboxNode.model_validate(record)
        endpoint = node.status.endpoint
        if not endpoint:
            return
        traits = self._traits(node.spec.pool or "")
        if old is not None and old.watch.memory.endpoint == endpoint:
            old.record, old.traits = node, traits
            return
        watch = NodeWatch(name, endpoint, self._network, self._clock, self._answered)
        # a new address of a silent node does not make it younger
        since = old.since if old is not None else self._clock.monotonic()
        self.members[name] = Member(node, watch, since, traits)
        if old is not None:
            watch.memory.seen = old.watch.memory.seen
            await old.watch.close()
        watch.start()

    async def close(self) -> None:
        """Stop following all nodes."""
        members, self.members = self.members, {}
        for member in members.values():
            await member.watch.close()

    def silent_for(self, name: str) -> float:
        """Return seconds without an answer; what has no record counts from when that was seen."""
        member = self.members.get(name)
        now = self._clock.monotonic()
        if member is None:
            return now - self._gone.get(name, self.started)
        seen = member.watch.memory.seen
        return now - (member.since if seen is None else max(seen, self.started))

    def answers(self, name: str) -> bool:
        """Return whether a node has answered lately enough to be given work."""
        member = self.members.get(name)
        if member is None or member.watch.memory.seen is None:
            return False
        return self.silent_for(name) < SILENT_SECONDS

    def status(self, sandbox: str, node: str) -> SandboxStatus | None:
        """Return what the node last said about a sandbox."""
        member = self.members.get(node)
        return member.watch.memory.sandboxes.get(sandbox) if member else None

    def turned(self, effective: Callable[[str, str], bool]) -> dict[str, SandboxState]:
        """Return the states of sandboxes that hold room and do not run now, by id.

        `effective(id, node)`: whether the copy on that node is the one that counts.
        """
        return {
            sandbox: memory.sandboxes[sandbox].state
            for name, memory in ((n, one.watch.memory) for n, one in self.members.items())
            for sandbox in memory.turned
            if effective(sandbox, name)
        }

    def watch(self, name: str) -> NodeWatch | None:
        """Return the watch, and with it the client, of a node."""
        member = self.members.get(name)
        return member.watch if member else None

    def heard(self) -> bool:
        """Return whether every registered node has answered in this term."""
        return all(member.watch.memory.seen is not None for member in self.members.values())

    def failures(self) -> list[BaseException]:
        """Return what ended watches that must not end."""
        found = [member.watch.failure for member in self.members.values()]
        return [one for one in found if one is not None]

    def verdict(self, name: str) -> tuple[ConditionStatus, RecordReason, str]:
        """Return the Ready condition of a node."""
        member = self.members[name]
        if not self.answers(name):
            seconds = self.silent_for(name)
            return (
                ConditionStatus.UNKNOWN,
                RecordReason.AGENT_SILENT,
                f"no answer for {seconds:.0f} s"
                if member.watch.memory.seen is not None
                else "no answer since the controller started",
            )
        if abs(member.clock_offset) > CLOCK_LIMIT:
            return (
                ConditionStatus.FALSE,
                RecordReason.CLOCK_OFF,
                f"its clock is off by {member.clock_offset:+.1f} s; at most {CLOCK_LIMIT} s",
            )
        if problem := member.problem():
            return ConditionStatus.FALSE, RecordReason.INVALID, problem
        if member.record.spec.unschedulable:
            return ConditionStatus.FALSE, RecordReason.CORDONED, "spec.unschedulable is set"
        return ConditionStatus.TRUE, RecordReason.READY, "its agent answers"

    def nodes(self) -> list[Node]:
        """Return the nodes that may be given work, and cordoned ones: refusals tell of those."""
        found = []
        for name, member in self.members.items():
            status, reason, _ = self.verdict(name)
            ready = status is ConditionStatus.TRUE
            if ready or reason is RecordReason.CORDONED:
                node = member.described(Health.READY if ready else Health.CORDONED)
                if node is not None:
                    found.append(node)
        return found

    async def _answered(self, memory: NodeMemory, state: NodeState) -> None:
        member = self.members.get(memory.name)
        if member is not None:
            member.offsets.append((state.utc - self._clock.now()).total_seconds())
            member.run_until, member.ending = state.run_until, state.ending
            member.notices = state.notices
        await self._on_state(memory, state)


LONGEST_POLL = POLL_WAIT + POLL_MARGIN
if LONGEST_POLL > SILENT_SECONDS:
    raise AssertionError("a healthy quiet node must not look silent between two polls")
