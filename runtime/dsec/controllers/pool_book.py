"""What the buyer of nodes remembers, kept in the status of SandboxNodePool records.

Read at the start of a term, written before whatever it is about is done: a leader that dies at any
line leaves what the next one goes on from. Each status carries the epoch of its writer. A new
leader claims all of them first, so that a write of an older one meets another version, reads it,
and learns that it leads no more.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import structlog
from pydantic import ValidationError

from dsec.api.pool_status import HeldBackoff, HeldMemory, HeldNode, NodeDecision, PoolScalingStatus
from dsec.api.records import SandboxNodePool
from dsec.journal.bindlog import FencedError
from dsec.scaling.nodes.state import Backoff, PoolMemory
from dsec.world.cache import Cache
from dsec.world.records import RecordConflictError, RecordNotFoundError, Records

DECISIONS, REFUSALS = 16, 16
_FIGURES = re.compile(r"\d+(\.\d+)?")
ATTEMPTS = 5

log = structlog.get_logger()


@dataclass(slots=True)
class Told:
    """What people read of a pool."""

    decisions: list[NodeDecision] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    problem: str = ""

    def decide(self, at: float, text: str) -> None:
        """Add a decision; the oldest goes."""
        self.decisions = [*self.decisions, NodeDecision(at=at, text=text[:4096])][-DECISIONS:]


class PoolBook:
    """Of one term; the only writer of `status.scaling`."""

    def __init__(self, records: Records, pools: Cache, epoch: int) -> None:
        self._records = records
        self._pools = pools
        self._epoch = epoch
        self.nodes: dict[str, HeldNode] = {}
        self.memories: dict[str, PoolMemory] = {}
        self.backoffs: tuple[Backoff, ...] = ()
        self.serial = 0
        self.consolidated_at: float | None = None
        self.told: dict[str, Told] = {}
        self._known: dict[str, PoolScalingStatus] = {}

    def pools(self) -> dict[str, SandboxNodePool]:
        """Return the pools that scale, or did and still hold nodes; unreadable ones are left."""
        found = {}
        for record in self._pools.all():
            name = record["metadata"]["name"]
            spec, status = record.get("spec") or {}, record.get("status") or {}
            if spec.get("scaling") is None and not (status.get("scaling") or {}).get("nodes"):
                continue
            try:
                found[name] = SandboxNodePool.model_validate(record)
            except ValidationError as problem:
                log.warning("pool cannot be read", pool=name, error=str(problem))
        return found

    def of_pool(self, pool: str) -> list[HeldNode]:
        """Return the nodes of a pool."""
        return [one for one in self.nodes.values() if pool_of(one) == pool]

    def tell(self, pool: str) -> Told:
        """Return what is told of a pool, to be added to."""
        return self.told.setdefault(pool, Told())

    async def claim(self, pools: Iterable[str]) -> None:
        """Read the statuses of pools and mark them as this leader's. Raises FencedError."""
        for pool in pools:
            if pool not in self._known:
                await self._write(pool, reading=True)

    async def save(self, pools: Iterable[str]) -> None:
        """Write what is new. Raises FencedError, RecordsError."""
        for pool in pools:
            if pool not in self._known:
                await self._write(pool, reading=True)
            elif _news(self._status(pool)) != _news(self._known[pool]):
                await self._write(pool, reading=False)

    async def _write(self, pool: str, *, reading: bool) -> None:
        record = self._pools.get(("", pool))
        for _ in range(ATTEMPTS):
            if record is None:
                self._known.pop(pool, None)
                return
            found = (record.get("status") or {}).get("scaling")
            before = PoolScalingStatus.model_validate(found or {})
            if before.epoch > self._epoch:
                raise FencedError(f"pool {pool} is written by the leader of epoch {before.epoch}")
            if reading:
                self._read(pool, before)
            status = self._status(pool)
            body = {
                **(record.get("status") or {}),
                "scaling": status.model_dump(mode="json", by_alias=True, exclude_none=True),
            }
            try:
                self._pools.put(await self._records.replace_status({**record, "status": body}))
            except RecordConflictError:
                try:
                    record = await self._records.get("SandboxNodePool", pool)
                except RecordNotFoundError:
                    record = None
            except RecordNotFoundError:
                record = None
            else:
                self._known[pool] = status
                return
        raise RecordConflictError(f"pool {pool}: {ATTEMPTS} others wrote in between")

    def _read(self, pool: str, found: PoolScalingStatus) -> None:
        mine = [name for name, one in self.nodes.items() if pool_of(one) == pool]
        for name in mine:
            del self.nodes[name]
        self.nodes |= {one.name: one for one in found.nodes}
        memory = found.memory
        self.memories[pool] = PoolMemory(
            pool,
            busy_since=memory.busy_since,
            calm_since=memory.calm_since,
            backlog_since=memory.backlog_since,
            acted_at=memory.acted_at,
            guard=memory.guard,
        )
        known = {one.key: one for one in self.backoffs}
        for one in found.backoffs:
            old = known.get(one.key)
            if old is None or old.until < one.until:
                known[one.key] = Backoff(one.key, one.failures, one.until, one.code)
        self.backoffs = tuple(known[key] for key in sorted(known))
        self.serial = max(self.serial, found.serial)
        if found.consolidated_at is not None:
            self.consolidated_at = max(self.consolidated_at or 0.0, found.consolidated_at)
        self.told[pool] = Told(list(found.decisions), list(found.refusals), found.problem)

    def _status(self, pool: str) -> PoolScalingStatus:
        memory = self.memories.get(pool, PoolMemory(pool))
        told = self.tell(pool)
        return PoolScalingStatus(
            epoch=self._epoch,
            serial=self.serial,
            consolidated_at=self.consolidated_at,
            nodes=[one.model_copy() for one in self.of_pool(pool)],
            backoffs=[
                HeldBackoff(key=one.key, failures=one.failures, until=one.until, code=one.code)
                for one in self.backoffs
            ],
            memory=HeldMemory(
                busy_since=memory.busy_since,
                calm_since=memory.calm_since,
                backlog_since=memory.backlog_since,
                acted_at=memory.acted_at,
                guard=memory.guard,
            ),
            decisions=told.decisions,
            refusals=told.refusals[:REFUSALS],
            problem=told.problem,
        )


def steady(text: str) -> str:
    """Return a sentence without its figures: seconds that run down are no news."""
    return _FIGURES.sub("#", text)


def _news(status: PoolScalingStatus) -> PoolScalingStatus:
    """Return what of a status is worth a write of its own; the rest is written with that."""
    refusals = sorted({steady(one) for one in status.refusals})
    return status.model_copy(update={"serial": 0, "consolidated_at": None, "refusals": refusals})


def pool_of(held: HeldNode) -> str:
    """Return the pool of a node: the first part of its offering's key."""
    return held.offering.partition("/")[0]
