"""One snapshot of one sandbox, from the first look to the reference that makes it exist.

A first pass reads and sends nearly everything while the program works. Then a point is found at
which its files belong together: its own mark, else a notice and a freeze. The second pass, over
what has changed since, keeps its bytes on disk: the program stands still for no upload. Without a
gateway the whole waits on disk (`snapshot_shelf.py`), and the program never notices.
"""

import asyncio
import contextlib
import hashlib
import math
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import structlog

from dsec.agent.core import Core
from dsec.agent.entry import Entry
from dsec.agent.snapshot_marks import Marks, Stop
from dsec.agent.snapshot_plan import Change, Pressure, interval, patience
from dsec.agent.snapshot_shelf import LateError, Shelf, ShelfAwayError, Shelves
from dsec.agent.snapshot_store import DoomedError
from dsec.agent.state import StateError
from dsec.agent.uplink import FencedError, RefusedError
from dsec.api.snapshot import Consistency, SnapshotKind, SnapshotPlan, SnapshotRef
from dsec.api.snapshot_store import PublishCall
from dsec.snapshots.confiding import confide
from dsec.snapshots.leases import Working, working
from dsec.snapshots.limits import Limits, Moved
from dsec.snapshots.saving import Saved, save
from dsec.snapshots.scanning import SaveError, Source
from dsec.snapshots.sealing import SnapshotDamagedError
from dsec.snapshots.statcache import StatCache
from dsec.world.clock import Clock, Randomness
from dsec.world.objects import ObjectStoreError
from dsec.world.substrate import Captured, Substrate, SubstrateError

WORKSPACE = "/workspace"
"""The state of a plan that names no paths."""
NOTICE_SECONDS = 2.0
"""What a program that reads notices gets to hold its writes, or to mark, before it is frozen."""
FINAL, FINAL_MARK_SECONDS = "final", 30.0
"""The reason of the last snapshot, and how long an end is put off for the program's mark."""
FIRST_PASS_BYTES = 32 << 20
"""A state of fewer bytes is read in less time than a first pass would save."""
ERASE_BYTES = 1 << 20
PROGRESS_SECONDS = 10.0
_log = structlog.get_logger(__name__)


class SnapshotFailedError(Exception):
    """No snapshot was taken; `code` is a stable word: fenced, away, invalid, unmarked, failed."""

    def __init__(self, code: str, message: str) -> None:
        """Keep the code beside the message."""
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Bench:
    """What snapshots of a node work with."""

    core: Core
    substrate: Substrate
    clock: Clock
    randomness: Randomness
    shelves: Shelves
    directory: Path
    """Of the node; what is remembered of files lies in `seen` below it."""
    note: Callable[[Entry, str, dict[str, Any]], None]
    """Write a row of the journal about a sandbox."""
    pause: Callable[[str, str], Awaitable[None]]
    resume: Callable[[str], Awaitable[None]]
    pressure: Callable[[], Pressure]
    limits: Limits
    first_passes: asyncio.Semaphore
    second_passes: asyncio.Semaphore
    """Who stands still waits for nobody's first pass."""

    def models(self, entry: Entry) -> list[str]:
        """Return the models of a sandbox's devices, in order."""
        known = {one.uuid: one.model for one in self.core.inventory.devices}
        return [known.get(uuid, "") for uuid in entry.spec.devices]


@dataclass(slots=True)
class Own:
    """What is known of one sandbox."""

    marks: Marks
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    missed: int = 0
    """Marks that were waited for in vain, in a row."""
    change: Change | None = None
    begun: float | None = None
    """When the last one was begun (monotonic)."""
    bytes: float = math.inf
    """Of the last one; before there is any nobody knows how long it would have to stand still."""
    held: bool = False
    """It was frozen for a move, and has not run since."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A snapshot that is to be taken. `ended`: its program has left already."""

    entry: Entry
    kind: SnapshotKind
    reason: str
    hold: bool = False
    ended: bool = False

    @property
    def plan(self) -> SnapshotPlan:
        """The sandbox's plan, or what holds without one."""
        return self.entry.spec.snapshot or SnapshotPlan(kinds=[self.kind])

    @property
    def id(self) -> str:
        """The sandbox."""
        return self.entry.spec.identity.id

    @property
    def running(self) -> bool:
        """Whether its program may be writing now."""
        return not self.ended and not self.entry.resting


@dataclass(slots=True)
class _Point:
    """A point at which files belong together, and what the program said there."""

    consistency: str
    stop: Stop | None = None
    held_seconds: float = 0.0
    image_digest: str = ""

    @property
    def meta(self) -> dict[str, Any]:
        return self.stop.meta if self.stop is not None else {}


async def take(bench: Bench, own: Own, wanted: Wanted) -> SnapshotRef | None:
    """Take a snapshot; None: it waits on disk for a gateway. Raises SnapshotFailedError.

    With `hold` the program stays frozen, unless it fails.
    """
    async with own.lock:
        try:
            return await _twice(bench, own, wanted)
        except (LateError, FencedError) as error:
            raise SnapshotFailedError("fenced", str(error)) from error
        except (ShelfAwayError, ObjectStoreError) as error:
            raise SnapshotFailedError("away", str(error)) from error
        except (
            RefusedError, SaveError, SnapshotDamagedError, SubstrateError, StateError, DoomedError,
            OSError,
        ) as error:  # fmt: skip
            raise SnapshotFailedError("failed", str(error)) from error
        finally:
            own.marks.withdraw()


async def _twice(bench: Bench, own: Own, wanted: Wanted) -> SnapshotRef | None:
    try:
        return await _once(bench, own, wanted)
    except DoomedError as error:
        # what is remembered of the store is not true any more
        _log.info("a snapshot is taken again", sandbox=wanted.id, why=str(error))
        erase(_seen(bench, wanted))
        return await _once(bench, own, wanted)


async def _once(bench: Bench, own: Own, wanted: Wanted) -> SnapshotRef | None:
    begun, created = bench.clock.monotonic(), bench.clock.now()
    shelf = await bench.shelves.open(wanted.id)
    async with working(
        shelf.store,
        shelf.access.prefix,
        what="saving",
        clock=bench.clock,
        randomness=bench.randomness,
    ) as lease:
        one = _Taking(bench, own, wanted, shelf, lease)
        if wanted.running and own.bytes >= FIRST_PASS_BYTES:
            await one.first_pass()
        paused = False
        point = await one.point()
        try:
            if wanted.hold and wanted.running:
                await bench.pause(wanted.id, "held for a move")
                paused = True
            saved = await one.second_pass(point)
            ref = _ref(one, saved, point, created, bench.clock.monotonic() - begun)
            call = PublishCall(
                ref=ref, collector_epoch=lease.lease.epoch, packs=sorted(saved.packs)
            )
            if point.stop is not None:
                # its files are copied: it need not wait for what is sent
                point.stop.let_go({"taken": True, "utc": created.isoformat()})
            stored = await bench.shelves.publish(shelf, call, wait=not wanted.hold)
        except BaseException:
            if paused:
                await bench.resume(wanted.id)
            raise
        finally:
            if point.stop is not None:
                point.stop.let_go({"taken": False})
    own.held = own.held or wanted.hold
    _learn(own, saved, begun)
    return stored


@dataclass(slots=True)
class _Taking:
    """The parts of one snapshot."""

    bench: Bench
    own: Own
    wanted: Wanted
    shelf: Shelf
    lease: Working
    told: float | None = None
    """When its progress was a line of the log (monotonic)."""

    async def first_pass(self) -> None:
        """Send what there is while the program works; what is torn here is read again later."""
        async with self.bench.first_passes:
            await self._save(still=False)

    async def point(self) -> _Point:
        """Find a point at which the files belong together."""
        wanted, marks = self.wanted, self.own.marks
        if not wanted.running:
            return _Point("stopped" if wanted.ended else "freeze")
        plan = wanted.plan
        marks.announce()
        seconds = NOTICE_SECONDS if marks.listens else 0.0
        if plan.consistency is Consistency.MARKS:
            period = interval(plan, self.own.change)
            seconds = max(seconds, patience(period, marks=marks.made, missed=self.own.missed))
        if wanted.reason == FINAL:
            seconds = min(seconds, FINAL_MARK_SECONDS)
        stop = await marks.next(seconds) if seconds else None
        if stop is not None:
            self.own.missed = 0
            return _Point("marks", stop)
        self.own.missed += 1
        if wanted.reason == FINAL and marks.made and plan.consistency is Consistency.MARKS:
            why = f"no mark in {seconds:g} s: what it was writing may be cut, the last one stands"
            raise SnapshotFailedError("unmarked", why)
        return _Point("freeze")

    async def second_pass(self, point: _Point) -> Saved:
        """Copy what has changed while nothing moves."""
        async with self.bench.second_passes:
            begun = self.bench.clock.monotonic()
            with self.shelf.store.behind():
                saved, captured = await self._save(still=not self.wanted.ended)
            if self.wanted.running:
                point.held_seconds = self.bench.clock.monotonic() - begun
            point.image_digest = captured.image_digest
            return saved

    async def _save(self, *, still: bool) -> tuple[Saved, Captured]:
        wanted, bench = self.wanted, self.bench
        paths = wanted.plan.paths or [WORKSPACE]
        async with bench.substrate.capture(wanted.id, wanted.kind, paths, still=still) as captured:
            sources = [
                Source(tree.root, tree.at.lstrip("/"), tree.upper) for tree in captured.trees
            ]
            saved = await save(
                self.shelf.repository,
                sources,
                avoid=self.lease.avoid,
                cache=StatCache(_seen(bench, wanted)) if captured.dated else None,
                limits=bench.limits,
                progress=self._tell,
            )
            return saved, captured

    def _tell(self, moved: Moved) -> None:
        """Say now and then how far a long one has come."""
        now = self.bench.clock.monotonic()
        if self.told is None or now - self.told >= PROGRESS_SECONDS:
            if self.told is not None:
                _log.info(
                    "snapshot goes on",
                    sandbox=self.wanted.id,
                    files=moved.files,
                    bytes=moved.bytes,
                    stored=moved.stored_bytes,
                )
            self.told = now


def _ref(
    one: _Taking, saved: Saved, point: _Point, created: datetime, seconds: float
) -> SnapshotRef:
    wanted, access = one.wanted, one.shelf.access
    spec = wanted.entry.spec
    identity = spec.identity
    _, at, digest = spec.image.partition("@")
    said, sealed = confide(one.shelf.repository.keys, one.bench.randomness, spec)
    return SnapshotRef(
        tenant=identity.tenant,
        project=identity.project,
        lineage=access.lineage,
        seq=1,
        kind=wanted.kind,
        sandbox=identity.id,
        incarnation=identity.incarnation,
        experiment=identity.experiment,
        node=one.bench.core.node,
        created=created,
        manifest=saved.manifest,
        files=saved.files,
        bytes=saved.bytes,
        stored_bytes=saved.stored_bytes,
        seconds=seconds,
        held_seconds=point.held_seconds,
        consistency=point.consistency,
        reason=wanted.reason,
        image=spec.image,
        image_digest=digest if at else point.image_digest,
        devices=one.bench.models(wanted.entry),
        region=access.region,
        home_epoch=access.home_epoch,
        spec=said,
        sealed=sealed,
        meta=point.meta,
    )


def _learn(own: Own, saved: Saved, begun: float) -> None:
    """Remember how fast the state changes."""
    if own.begun is not None:
        own.change = Change(saved.bytes, saved.changed_bytes, begun - own.begun)
    own.begun, own.bytes = begun, saved.bytes


def _seen(bench: Bench, wanted: Wanted) -> Path:
    """Return the file that remembers what was read of a sandbox, for one kind and its paths."""
    paths = "\0".join(wanted.plan.paths) if wanted.kind is not SnapshotKind.DISK else ""
    name = hashlib.sha256(f"{wanted.kind}\0{paths}".encode()).hexdigest()[:16]
    return bench.directory / "seen" / f"{wanted.id}-{name}"


def erase(path: Path) -> None:
    """Overwrite a file and remove it: names and hashes of a tenant's files do not stay."""
    with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
        left = os.fstat(file.fileno()).st_size
        zeros = bytes(ERASE_BYTES)
        while left > 0:
            left -= file.write(zeros[:left])
        file.flush()
        os.fsync(file.fileno())
    path.unlink(missing_ok=True)
