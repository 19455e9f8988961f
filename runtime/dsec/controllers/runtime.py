"""The keyed work queue under every reconciler.

`WorkQueue` runs one reconcile per key at a time, forgets nothing while it lives, and retries a key
that failed with growing delay. Soft state only: a new process looks at every record again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import structlog

from dsec.journal.bindlog import FencedError
from dsec.world.cache import Key, first_of
from dsec.world.clock import Clock
from dsec.world.objects import ObjectStoreError
from dsec.world.records import RecordConflictError, RecordsError

FIRST_BACKOFF, LAST_BACKOFF = 0.2, 60.0
RESOLUTION = 1e-6
"""Due times are sums of floats: closer than this is due, or a queue could spin at one instant."""
GATHER_SECONDS = 0.1
"""Changes seen during a run are looked at this much later: a burst becomes one more run."""

log = structlog.get_logger()

Reconcile = Callable[[Key], Awaitable[float | None]]
"""Brings one record to what it asks for; idempotent. Returns seconds until the next look, or None
when only a change needs one. Any exception is retried with backoff, but one of `FATAL`: `run` of
the queue raises that."""
FATAL = (FencedError, ObjectStoreError)
"""The bind log is another's, or a decision has an unknown outcome: this term must end."""


@dataclass(slots=True)
class _Work:
    due: float
    failures: int = 0
    running: bool = False
    again: bool = False
    queued: bool = field(default=True)


class WorkQueue:
    """Runs a reconcile for each added key; at most one at a time per key, `workers` in all."""

    def __init__(self, name: str, reconcile: Reconcile, clock: Clock, workers: int = 4) -> None:
        self.name = name
        self._reconcile = reconcile
        self._clock = clock
        self._slots = asyncio.Semaphore(workers)
        self._work: dict[Key, _Work] = {}
        self._wake = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._fatal: Exception | None = None

    def add(self, key: Key, delay: float = 0.0) -> None:
        """Ask for a look at a key after a delay; an earlier due time stands."""
        due = self._clock.monotonic() + delay
        work = self._work.get(key)
        if work is None:
            self._work[key] = _Work(due)
        elif work.running:
            # seen only half by the run under way: look again right after it
            work.again = True
        else:
            # an external change cuts a backoff short, a timer never lengthens anything
            work.due = min(work.due, due) if work.queued else due
            work.queued = True
        self._wake.set()

    async def run(self) -> None:
        """Serve the queue for ever; cancelling waits for nothing that was begun.

        Raises FencedError, ObjectStoreError of a reconcile.
        """
        try:
            while True:
                await self._slots.acquire()
                key = await self._next()
                task = asyncio.create_task(self._one(key), name=f"{self.name}-{key[1]}")
                self._running.add(task)
                task.add_done_callback(self._done)
        finally:
            for task in self._running:
                task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._slots.release()

    async def _next(self) -> Key:
        while True:
            if self._fatal is not None:
                raise self._fatal
            self._wake.clear()
            now = self._clock.monotonic()
            waiting = [(w.due, key) for key, w in self._work.items() if w.queued and not w.running]
            if waiting:
                due, key = min(waiting)
                if due <= now + RESOLUTION:
                    self._work[key].running = True
                    self._work[key].queued = False
                    return key
                await first_of(self._wake.wait(), self._clock.sleep(due - now))
            else:
                await self._wake.wait()

    async def _one(self, key: Key) -> None:
        work = self._work[key]
        delay: float | None
        try:
            delay = await self._reconcile(key)
            work.failures = 0
        except (RecordConflictError, RecordsError) as problem:
            delay = self._backoff(work)
            log.info("reconcile again", queue=self.name, key=key, why=str(problem))
        except FATAL as problem:
            self._fatal = problem
            self._wake.set()
            return
        except Exception:
            delay = self._backoff(work)
            log.exception("reconcile failed", queue=self.name, key=key)
        work.running = False
        if work.again:
            work.again, delay = False, GATHER_SECONDS
        if delay is None:
            self._work.pop(key, None)
        else:
            work.due, work.queued = self._clock.monotonic() + delay, True
        self._wake.set()

    @staticmethod
    def _backoff(work: _Work) -> float:
        work.failures += 1
        return float(min(LAST_BACKOFF, FIRST_BACKOFF * 2.0 ** min(work.failures - 1, 16)))
