"""An object store that fails in every way that stores fail, by a seed; and that can be killed.

Wraps any store. Each call draws its fault: no answer, no answer although it was done, a late
refusal, a body that comes or is stored cut short, a wrong etag, "slow down" for a while, an old
list, a full disk. `kill_at` ends the process that holds the wrapper at one call, before or after
its effect: from then on every call raises `Killed`, its clean-up's among them, as after kill -9.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from dsec.world.clock import Clock
from dsec.world.objects import ObjectInfo, ObjectStore, ObjectStoreError


class Fault(Enum):
    """What goes wrong with one call."""

    ERROR = "no answer, nothing done"
    LOST = "no answer, done"
    TIMEOUT = "no answer after a while, done or not"
    CUT_READ = "the body comes cut short"
    CUT_WRITE = "the body is stored cut short, and nobody says so"
    WRONG_ETAG = "an etag that is none"
    SLOW_DOWN = "refused for a few calls"
    OLD_LIST = "a list of some seconds ago"
    FULL = "the disk is full for a few calls"


READS, WRITES = ("get", "get_range", "size"), ("put", "put_if_absent", "put_if_match")
APPLIES: Mapping[Fault, tuple[str, ...]] = {
    Fault.ERROR: (*READS, *WRITES, "list", "delete"),
    Fault.LOST: (*WRITES, "delete"),
    Fault.TIMEOUT: (*READS, *WRITES, "list", "delete"),
    Fault.CUT_READ: ("get", "get_range"),
    Fault.CUT_WRITE: WRITES,
    Fault.WRONG_ETAG: ("get", *WRITES),
    Fault.SLOW_DOWN: (*READS, *WRITES, "list", "delete"),
    Fault.OLD_LIST: ("list",),
    Fault.FULL: WRITES,
}
SPELL = 3
"""Calls that "slow down" and a full disk last."""
TIMEOUT_SECONDS = 5.0
OLD_SECONDS = 5.0


class Killed(BaseException):
    """The process ended here."""


@dataclass(slots=True)
class FaultyObjects:
    """One process's view of a store. `rate` is the share of calls that go wrong."""

    inner: ObjectStore
    clock: Clock
    seed: int = 0
    rate: float = 0.0
    faults: tuple[Fault, ...] = tuple(Fault)
    kill_at: int | None = None
    """Number of the call, from 1, at which the process ends; odd ones after their effect."""
    calls: int = 0
    latency: float = 0.01
    """Seconds that each call takes, so that processes come between each other."""
    counts: dict[Fault, int] = field(default_factory=dict)
    _random: random.Random = field(init=False)
    _spell: tuple[Fault, int] | None = None
    _lists: dict[str, list[tuple[float, list[ObjectInfo]]]] = field(default_factory=dict)
    _dead: bool = False

    def __post_init__(self) -> None:
        """Seed."""
        self._random = random.Random(self.seed)  # noqa: S311 - faults by a seed, no secrets

    async def get(self, key: str) -> tuple[bytes, str]:
        """Read."""
        fault, number = await self._before("get", key)
        try:
            data, etag = await self.inner.get(key)
        finally:
            self._after(number)
        return self._cut(data, fault is Fault.CUT_READ), self._etag(etag, fault)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Read a part."""
        fault, number = await self._before("get_range", key)
        try:
            data = await self.inner.get_range(key, start, length)
        finally:
            self._after(number)
        return self._cut(data, fault is Fault.CUT_READ)

    async def size(self, key: str) -> int:
        """Read the size."""
        _, number = await self._before("size", key)
        try:
            size = await self.inner.size(key)
        finally:
            self._after(number)
        return size

    async def put(self, key: str, data: bytes) -> str:
        """Write."""
        fault, number = await self._before("put", key)
        try:
            etag = await self.inner.put(key, self._cut(data, fault is Fault.CUT_WRITE))
        finally:
            self._after(number)
        return self._done(key, etag, fault)

    async def put_if_absent(self, key: str, data: bytes) -> str:
        """Create."""
        fault, number = await self._before("put_if_absent", key)
        try:
            etag = await self.inner.put_if_absent(key, self._cut(data, fault is Fault.CUT_WRITE))
        finally:
            self._after(number)
        return self._done(key, etag, fault)

    async def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """Replace."""
        fault, number = await self._before("put_if_match", key)
        try:
            fresh = await self.inner.put_if_match(
                key, self._cut(data, fault is Fault.CUT_WRITE), etag
            )
        finally:
            self._after(number)
        return self._done(key, fresh, fault)

    async def list(self, prefix: str, *, start_after: str = "") -> list[ObjectInfo]:
        """List, perhaps as it was."""
        fault, number = await self._before("list", prefix)
        try:
            found = await self.inner.list(prefix, start_after=start_after)
        finally:
            self._after(number)
        now = self.clock.monotonic()
        known = [one for one in self._lists.get(prefix, []) if now - one[0] <= OLD_SECONDS]
        self._lists[prefix] = [*known, (now, found)]
        return known[0][1] if fault is Fault.OLD_LIST and known else found

    async def delete(self, key: str) -> None:
        """Remove."""
        fault, number = await self._before("delete", key)
        try:
            await self.inner.delete(key)
        finally:
            self._after(number)
        self._done(key, "", fault)

    async def _before(self, operation: str, key: str) -> tuple[Fault | None, int]:
        if self._dead:
            raise Killed
        await self.clock.sleep(self.latency)
        self.calls += 1
        number = self.calls
        if number == self.kill_at and number % 2 == 0:
            self._dead = True
            raise Killed
        fault = self._draw(operation)
        if fault is Fault.TIMEOUT:
            await self.clock.sleep(TIMEOUT_SECONDS)
            if operation in (*WRITES, "delete") and self._random.random() < 0.5:
                return Fault.LOST, number
        if fault in {Fault.ERROR, Fault.TIMEOUT, Fault.SLOW_DOWN, Fault.FULL}:
            raise ObjectStoreError(f"{operation} {key}: {fault.value}")
        return fault, number

    def _after(self, number: int) -> None:
        if number == self.kill_at:
            self._dead = True
        if self._dead:
            raise Killed

    def _done(self, key: str, etag: str, fault: Fault | None) -> str:
        if fault is Fault.LOST:
            raise ObjectStoreError(f"{key}: {fault.value}")
        return self._etag(etag, fault)

    def _draw(self, operation: str) -> Fault | None:
        if self._spell is not None:
            fault, left = self._spell
            self._spell = (fault, left - 1) if left > 1 else None
            if operation in APPLIES[fault]:
                return fault
        if self._random.random() >= self.rate:
            return None
        able = [fault for fault in self.faults if operation in APPLIES[fault]]
        if not able:
            return None
        fault = self._random.choice(able)
        self.counts[fault] = self.counts.get(fault, 0) + 1
        if fault in {Fault.SLOW_DOWN, Fault.FULL}:
            self._spell = (fault, SPELL)
        return fault

    def _cut(self, data: bytes, cut: bool) -> bytes:
        return data[: self._random.randrange(len(data))] if cut and data else data

    def _etag(self, etag: str, fault: Fault | None) -> str:
        return f"{self._random.getrandbits(128):032x}" if fault is Fault.WRONG_ETAG else etag
