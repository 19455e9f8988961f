"""Putting a snapshot back into a sandbox before its program starts, in three steps (SNAP-09).

First the newest good package is fetched, checked (SNAP-11) and unpacked; then what the program had
said of itself is written where it finds it; then the increments of its experience pool are merged
by their sequence numbers. A damaged snapshot gives way to the one before, and that is said.
"""

import contextlib
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

import structlog

from dsec.agent import capture, snapshot_pool
from dsec.agent.entry import Entry
from dsec.agent.rootfs import RESTORE_FILE
from dsec.agent.snapshot_shelf import Shelf, ShelfAwayError
from dsec.agent.snapshot_spool import ShortError
from dsec.agent.snapshot_taking import WORKSPACE, Bench
from dsec.agent.uplink import FencedError, RefusedError, backoff
from dsec.api.reasons import EndReason
from dsec.api.sandbox import SandboxSpec
from dsec.api.snapshot import STORED, RestoreFrom, SnapshotKind, SnapshotRef
from dsec.snapshots.leases import working
from dsec.snapshots.refs import in_force, list_refs
from dsec.snapshots.restoring import restore
from dsec.snapshots.sealing import SnapshotDamagedError
from dsec.snapshots.target import RestoreError, remove_at
from dsec.snapshots.threads import in_thread
from dsec.snapshots.verifying import verify
from dsec.world.objects import ObjectStoreError
from dsec.world.substrate import Hollow, SubstrateError

HELD_MOST = 8
"""Snapshots that a restore keeps from the collector: the newest, and those it may fall back to."""
_log = structlog.get_logger(__name__)


class _UnfitError(Exception):
    """This snapshot is not to be used; the message says why."""


@dataclass(slots=True)
class _Restoring:
    """One sandbox that waits for its files. `written`: something has been put into it."""

    bench: Bench
    entry: Entry
    wanted: RestoreFrom
    again: Callable[[], Awaitable[None]]
    written: bool = False

    async def fresh(self) -> None:
        """Make the sandbox anew where a failed try has left something in it."""
        if self.written:
            await self.again()
            self.written = False


async def restore_into(bench: Bench, entry: Entry, again: Callable[[], Awaitable[None]]) -> None:
    """Restore what the sandbox's spec names into the sandbox, which was just created.

    `again` makes the sandbox anew, without what a failed try has left in it. Waits for the gateway
    where it is away. Raises SubstrateError where nothing can be restored that was asked for.
    """
    if entry.spec.restore is None:
        return
    one, attempt = _Restoring(bench, entry, entry.spec.restore, again), 0
    while True:
        try:
            await _restore(one)
        except (ShelfAwayError, ObjectStoreError) as error:
            if attempt == 0:
                why = "the restore waits for the control plane"
                bench.note(entry, "snapshot-away", {"why": f"{why}: {error}"})
            await bench.clock.sleep(backoff(attempt, bench.randomness))
            attempt += 1
            await one.fresh()
        except (FencedError, RefusedError) as error:
            raise SubstrateError(EndReason.INFRASTRUCTURE, f"restore: {error}") from error
        else:
            return


async def _restore(one: _Restoring) -> None:
    bench, entry, wanted = one.bench, one.entry, one.wanted
    shelf = await bench.shelves.open(entry.spec.identity.id)
    candidates = await _candidates(shelf, wanted, entry.spec.identity.project)
    if not candidates:
        if wanted.seq is not None:
            why = f"restore: {wanted.lineage}@{wanted.seq} does not exist, nor any before it"
            raise SubstrateError(EndReason.START_FAILED, why)
        why = "nothing was saved before: it starts from its image"
        bench.note(entry, "snapshot-none", {"lineage": wanted.lineage, "why": why})
        return
    async with working(
        shelf.store,
        shelf.access.prefix,
        what="restoring",
        clock=bench.clock,
        randomness=bench.randomness,
        holds=[ref.model_copy(update={"spec": {}, "sealed": ""}) for ref in candidates[:HELD_MOST]],
    ):
        await shelf.repository.refresh()
        for ref in candidates:
            try:
                await _one(one, shelf, ref)
            except (SnapshotDamagedError, ShortError, _UnfitError) as error:
                body = {"lineage": ref.lineage, "seq": ref.seq, "why": str(error)}
                bench.note(entry, "snapshot-damaged", body)
                await one.fresh()
            else:
                return
    newest, count = candidates[0], len(candidates)
    why = f"restore: none of the {count} snapshots up to {newest.lineage}@{newest.seq} is whole"
    raise SubstrateError(EndReason.INFRASTRUCTURE, why)


async def _candidates(shelf: Shelf, wanted: RestoreFrom, project: str) -> list[SnapshotRef]:
    """Return what may be restored, the best first: of its own project alone.

    Whoever creates names a lineage freely, and others of its tenant have theirs in the same
    repository. Raises ObjectStoreError.
    """
    listed = await list_refs(shelf.store, shelf.access.prefix, wanted.lineage)
    return [
        ref
        for ref in in_force(listed.refs)
        if ref.project == project
        and ref.kind in STORED
        and (wanted.seq is None or ref.seq <= wanted.seq)
    ]


async def _one(one: _Restoring, shelf: Shelf, ref: SnapshotRef) -> None:
    """Restore one snapshot. Raises SnapshotDamagedError, _UnfitError, SubstrateError."""
    bench, entry, wanted = one.bench, one.entry, one.wanted
    clock, sandbox = bench.clock, entry.spec.identity.id
    times = [clock.monotonic()]
    await _check(shelf, ref)
    async with bench.substrate.put_back(sandbox) as hollow:
        _fits(ref, hollow, entry, wanted)
        one.written = True
        await in_thread(_clear, hollow.root, ref)
        try:
            restored = await restore(
                shelf.repository, ref.manifest, hollow.root, limits=bench.limits
            )
        except RestoreError as error:
            raise SubstrateError(EndReason.START_FAILED, f"restore: {error}") from error
        if (restored.files, restored.bytes) != (ref.files, ref.bytes):
            raise _UnfitError(
                f"{restored.files} files with {restored.bytes} bytes came back, "
                f"{ref.files} with {ref.bytes} were saved"
            )
        times.append(clock.monotonic())
        # what its program finds is written anew, whatever an earlier restore had left there
        await in_thread(_tell, hollow.root, ref, wanted)
        times.append(clock.monotonic())
        merged = await in_thread(snapshot_pool.merge_pool, hollow.root, ref.meta)
        times.append(clock.monotonic())
    seconds = [round(after - before, 3) for before, after in pairwise(times)]
    body: dict[str, Any] = {
        "lineage": ref.lineage,
        "seq": ref.seq,
        "kind": ref.kind.value,
        "files": ref.files,
        "bytes": ref.bytes,
        "age": round((clock.now() - ref.created).total_seconds(), 1),
        "fork": wanted.fork,
        "steps": [
            {"step": "unpack", "seconds": seconds[0]},
            {"step": "metadata", "seconds": seconds[1], "meta": ref.meta},
            {"step": "merge", "seconds": seconds[2], **merged},
        ],
    }
    if flags := _flags(bench, entry, ref, hollow):
        body["flags"] = flags
    bench.note(entry, "snapshot-restored", body)
    _log.info("restored", sandbox=sandbox, snapshot=f"{ref.lineage}@{ref.seq}", seconds=seconds)


async def _check(shelf: Shelf, ref: SnapshotRef) -> None:
    """Check number of files, size and metadata before anything is written (SNAP-11)."""
    report = await verify(shelf.repository, ref.manifest, data=False)
    if report.problems:
        raise _UnfitError("; ".join(report.problems[:3]))
    if (report.files, report.bytes) != (ref.files, ref.bytes):
        raise _UnfitError(
            f"{report.files} files with {report.bytes} bytes are there, "
            f"{ref.files} with {ref.bytes} were saved"
        )


def _clear(root: Path, ref: SnapshotRef) -> None:
    """Take away what the image has where whole directories come back: what was removed stays so.

    A disk snapshot says itself what was removed.
    """
    if ref.kind is SnapshotKind.DISK:
        return
    plan = SandboxSpec.model_validate(ref.spec).snapshot
    top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for path in (plan.paths if plan is not None else []) or [WORKSPACE]:
            pure = PurePosixPath(path)
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                fd = capture.open_below(top, str(pure.parent))
                try:
                    if pure.name:
                        remove_at(fd, os.fsencode(pure.name))
                finally:
                    os.close(fd)
    finally:
        os.close(top)


def _fits(ref: SnapshotRef, hollow: Hollow, entry: Entry, wanted: RestoreFrom) -> None:
    """Refuse another image than the one that it was taken of. Raises SubstrateError (SNAP-24)."""
    _, at, digest = entry.spec.image.partition("@")
    now = digest if at else hollow.image_digest
    if ref.image_digest and now and ref.image_digest != now and not wanted.any_image:
        raise SubstrateError(
            EndReason.START_FAILED,
            f"restore: {ref.lineage}@{ref.seq} was taken of image {ref.image_digest}, this "
            f"sandbox has {now}; anyImage allows it",
        )


def _flags(bench: Bench, entry: Entry, ref: SnapshotRef, hollow: Hollow) -> list[str]:
    """Return what is different from when the snapshot was taken, in words."""
    flags = []
    if (models := bench.models(entry)) != ref.devices:
        flags.append(f"devices: {ref.devices or 'none'} then, {models or 'none'} now")
    if hollow.image_digest and ref.image_digest and hollow.image_digest != ref.image_digest:
        flags.append(f"image: {ref.image_digest} then, {hollow.image_digest} now")
    return flags


def _tell(root: Path, ref: SnapshotRef, wanted: RestoreFrom) -> None:
    """Write what the program finds of its restore: where it was, and what it had said."""
    told = {
        "lineage": ref.lineage,
        "seq": ref.seq,
        "kind": ref.kind.value,
        "created": ref.created.isoformat(),
        "consistency": ref.consistency,
        "fork": wanted.fork,
        "meta": ref.meta,
    }
    file = {"path": RESTORE_FILE, "mode": 0o644, "content": json.dumps(told, indent=1) + "\n"}
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        capture.write_files(fd, [file])
    finally:
        os.close(fd)
