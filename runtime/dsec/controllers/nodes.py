"""The controllers of SandboxNode and SandboxNodePool: what is registered, what answers, sums."""

from dataclasses import dataclass, field

import structlog
from pydantic import ValidationError

from dsec.api.meta import Condition, ConditionStatus, condition_of, with_condition
from dsec.api.nodes import PlacementTraits, RecordReason, SandboxNodePoolStatus
from dsec.api.records import SandboxNode, SandboxNodePool
from dsec.api.tenant import Amounts
from dsec.controllers.compactor import Compacting
from dsec.controllers.creates import Placer
from dsec.controllers.dispatch import Dispatcher
from dsec.controllers.drainer import Drainer
from dsec.controllers.fleet import Fleet
from dsec.world.cache import Cache, Key
from dsec.world.clock import Clock
from dsec.world.records import Record, Records

log = structlog.get_logger()

LOOK_SECONDS = 5.0
COMPACTED = "Compacted"
"""Condition of a node that has been at its limit with paused sandboxes."""
DRAINED = "Drained"
"""Condition of a node that somebody wants empty, or wanted."""
USAGE_SECONDS = 30.0
"""How often the use of a node is written when nothing else changed."""


@dataclass(slots=True)
class Nodes:
    """The reconciler of SandboxNode records."""

    records: Records
    nodes: Cache
    fleet: Fleet
    dispatcher: Dispatcher
    placer: Placer
    clock: Clock
    compacting: Compacting
    drainer: Drainer

    async def reconcile(self, key: Key) -> float | None:
        """Follow a node's agent and write whether it is ready."""
        name = key[1]
        record = self.nodes.get(key)
        await self.fleet.take(name, record)
        if record is None:
            self.dispatcher.forget_turns(name, f"the record of node {name} is gone")
            return None
        if name not in self.fleet.members:
            return None
        self.dispatcher.wake(name)
        node = SandboxNode.model_validate(record)
        holds, reason, message = self.fleet.verdict(name)
        memory = self.fleet.members[name].watch.memory
        now = self.clock.now().replace(microsecond=0)
        condition = Condition(
            type="Ready",
            status=holds,
            reason=reason.value,
            message=message,
            observed_generation=node.metadata.generation,
        )
        old = next((c for c in node.status.conditions if c.type == "Ready"), None)
        moved = old is None or (old.status, old.reason) != (holds, reason.value)
        reworded = reason is RecordReason.INVALID and old is not None and old.message != message
        news = [one for one in (self._compacted(node), self._drained(node)) if one is not None]
        traits = self.fleet.members[name].traits
        settled = node.status.placement == traits
        aged = node.status.live != memory.live and self._write_age(node) > USAGE_SECONDS
        if settled and not (moved or reworded or aged or news):
            return LOOK_SECONDS
        conditions = with_condition(node.status.conditions, condition, now=now)
        for one in news:
            conditions = with_condition(conditions, one, now=now)
        status = node.status.model_copy(
            update={
                "observed_generation": node.metadata.generation,
                "conditions": conditions,
                "placement": traits,
                "used": memory.used,
                "live": memory.live,
                "last_seen": now if memory.seen is not None else node.status.last_seen,
            }
        )
        body = status.model_dump(mode="json", by_alias=True, exclude_none=True)
        self.nodes.put(await self.records.replace_status({**record, "status": body}))
        if moved or not settled:
            self.placer.kick()
        return LOOK_SECONDS

    def _compacted(self, node: SandboxNode) -> Condition | None:
        """Return what is to be said of moves away from a node; None: nothing new."""
        words = self.compacting.about_node(node.metadata.name)
        old = condition_of(node.status.conditions, COMPACTED)
        if not words and (old is None or old.status is ConditionStatus.TRUE):
            return None
        if words and old is not None and old.message == words:
            return None
        moves = self.compacting.moves(node.metadata.name)
        reason = RecordReason.MOVING if moves else RecordReason.NEEDS_SNAPSHOTS
        if not words:
            reason = RecordReason.NOTHING_TO_MOVE
        return Condition(
            type=COMPACTED,
            status=ConditionStatus.FALSE if words else ConditionStatus.TRUE,
            reason=reason.value,
            message=words or "it is below its limit, or nothing that rests could leave it",
            observed_generation=node.metadata.generation,
        )

    def _drained(self, node: SandboxNode) -> Condition | None:
        """Return what is to be said of a drain of a node; None: nothing new."""
        name, old = node.metadata.name, condition_of(node.status.conditions, DRAINED)
        asked, left = self.drainer.drains(name), self.drainer.about(name)
        if not asked and (old is None or old.reason == RecordReason.NOT_ASKED.value):
            return None
        reason, holds = RecordReason.DRAINED, ConditionStatus.TRUE
        words = "it is empty, and takes no work"
        if not asked:
            reason, holds = RecordReason.NOT_ASKED, ConditionStatus.UNKNOWN
            words = "nobody wants it empty any more"
        elif left:
            reason, holds, words = RecordReason.DRAINING, ConditionStatus.FALSE, left
        if old is not None and (old.reason, old.message) == (reason.value, words):
            return None
        return Condition(
            type=DRAINED,
            status=holds,
            reason=reason.value,
            message=words,
            observed_generation=node.metadata.generation,
        )

    def _write_age(self, node: SandboxNode) -> float:
        seen = node.status.last_seen
        return USAGE_SECONDS + 1 if seen is None else (self.clock.now() - seen).total_seconds()


@dataclass(slots=True)
class Traits:
    """What pools say for placement: the same object as long as a record is the same."""

    pools: Cache
    _known: dict[str, tuple[Record, PlacementTraits | None]] = field(default_factory=dict)

    def of(self, pool: str) -> PlacementTraits | None:
        """Return what a pool says; None where there is no such record, or it cannot be read."""
        record = self.pools.get(("", pool)) if pool else None
        if record is None:
            return None
        known = self._known.get(pool)
        if known is None or known[0] is not record:
            before = known[1] if known is not None else None
            known = self._known[pool] = record, _traits(record, before)
        return known[1]


@dataclass(slots=True)
class NodePools:
    """The reconciler of SandboxNodePool records: counts and capacity of its members."""

    records: Records
    pools: Cache
    nodes: Cache
    clock: Clock

    async def reconcile(self, key: Key) -> float | None:
        """Write what a pool has."""
        record = self.pools.get(key)
        if record is None:
            return None
        pool = SandboxNodePool.model_validate(record)
        found = [SandboxNode.model_validate(node) for node in self.nodes.all()]
        members = [node for node in found if node.spec.pool == key[1]]
        ready = [node for node in members if _ready(node)]
        owned = [n.status.inventory for n in members if n.status.inventory is not None]
        condition = Condition(
            type="Ready",
            status=ConditionStatus.TRUE if ready else ConditionStatus.FALSE,
            reason=(RecordReason.READY if ready else RecordReason.NO_NODES).value,
            message=f"{len(ready)} of {len(members)} nodes are ready",
            observed_generation=pool.metadata.generation,
        )
        now = self.clock.now().replace(microsecond=0)
        status = SandboxNodePoolStatus(
            observed_generation=pool.metadata.generation,
            conditions=with_condition(pool.status.conditions, condition, now=now),
            nodes=len(members),
            ready=len(ready),
            capacity=Amounts(
                cpu_milli=sum(one.cpu_milli for one in owned),
                memory_bytes=sum(one.memory_bytes for one in owned),
                gpu_count=sum(len(one.devices) for one in owned),
                sandboxes=sum(one.max_sandboxes for one in owned),
            ),
            # the buyer of nodes writes it, and everything else of the status is made anew here
            scaling=pool.status.scaling,
        )
        if status != pool.status:
            body = status.model_dump(mode="json", by_alias=True, exclude_none=True)
            self.pools.put(await self.records.replace_status({**record, "status": body}))
        return None


def _traits(record: Record, before: PlacementTraits | None) -> PlacementTraits | None:
    """Return what a pool's record says, or what it said before where that cannot be read."""
    try:
        traits = SandboxNodePool.model_validate(record).spec.placement
    except ValidationError as problem:
        log.warning("pool cannot be read", pool=record["metadata"]["name"], error=str(problem))
        return before
    return before if traits == before else traits


def _ready(node: SandboxNode) -> bool:
    return any(
        one.type == "Ready" and one.status is ConditionStatus.TRUE for one in node.status.conditions
    )
