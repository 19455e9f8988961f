"""Snapshots of a node's sandboxes: by their plans, when asked, and before an end.

`agent.py` makes one of these for its node; each life has `keep` run beside its sandbox, and asks
for the last snapshot itself. All state here is soft: what must outlive the process is in the status
of a sandbox, in the journal, and where snapshots wait for a gateway.
"""

import contextlib
from typing import Any

from dsec.agent.entry import Entry
from dsec.agent.snapshot_marks import Marks
from dsec.agent.snapshot_plan import deferral, ended_whole, first_wait, interval, kinds_of
from dsec.agent.snapshot_restore import restore_into
from dsec.agent.snapshot_taking import FINAL, Bench, Own, SnapshotFailedError, Wanted, erase, take
from dsec.api.sandbox import End, SandboxState
from dsec.api.snapshot import STORED, LastSnapshot, SnapshotKind, SnapshotRef

CATCH_UP_SECONDS = 10.0
"""How often what waits for a gateway is tried again."""
S = SandboxState


class Snapshots:
    """Of one node. `marks` serves programs, `keep` a plan, `take` who asks, the rest ends."""

    def __init__(self, bench: Bench) -> None:
        """Use a bench. Raises OSError."""
        self._b = bench
        self._own: dict[str, Own] = {}
        bench.shelves.late = self._late
        (bench.directory / "seen").mkdir(parents=True, exist_ok=True, mode=0o700)

    def marks(self, sandbox_id: str) -> Marks:
        """Return the marks and notices of a sandbox."""
        return self._of(sandbox_id).marks

    async def run(self) -> None:
        """Publish what waits for a gateway, for ever. Raises OSError."""
        shelves = self._b.shelves
        while True:
            await shelves.waits.wait()
            shelves.waits.clear()
            if not await shelves.catch_up():
                shelves.waits.set()
                await self._b.clock.sleep(CATCH_UP_SECONDS)

    async def keep(self, entry: Entry) -> None:
        """Take snapshots by the sandbox's plan until cancelled."""
        plan = entry.spec.snapshot
        period = interval(plan, None) if plan is not None else None
        if plan is None or period is None or not kinds_of(plan):
            return
        own, last = self._of(entry.spec.identity.id), entry.status.snapshot
        age = (self._b.clock.now() - last.at).total_seconds() if last is not None else None
        await self._b.clock.sleep(first_wait(period, age, self._b.randomness.random()))
        deferred = 0
        while True:
            begun = self._b.clock.monotonic()
            if entry.status.state is S.RUNNING:
                if (later := deferral(self._b.pressure(), deferred, period)) is not None:
                    deferred += 1
                    body = {"seconds": round(later[0], 1), "why": later[1]}
                    self._b.note(entry, "snapshot-deferred", body)
                    await self._b.clock.sleep(later[0])
                    continue
                deferred = 0
                await self._all(entry, "period")
            period = interval(plan, own.change) or period
            await self._b.clock.sleep(max(0.0, period - (self._b.clock.monotonic() - begun)))

    async def take(
        self, entry: Entry, kind: SnapshotKind | None, *, reason: str, hold: bool = False
    ) -> SnapshotRef:
        """Take a snapshot of a live sandbox now and return its reference, which exists.

        `hold`: its processes stay frozen afterwards; where it fails they go on. Raises
        SnapshotFailedError.
        """
        plan = entry.spec.snapshot
        usual = kinds_of(plan)[-1:] if plan is not None else []
        wanted = kind or next(iter(usual), SnapshotKind.STATE)
        if wanted not in STORED:
            why = f"kind: {wanted}: nothing is stored of it; pause the sandbox instead"
            raise SnapshotFailedError("invalid", why)
        ref = await self._take(Wanted(entry, wanted, reason, hold=hold))
        if ref is None:
            raise SnapshotFailedError("away", "control plane unavailable: it waits on its node")
        return ref

    async def restore(self, entry: Entry) -> None:
        """Restore what its spec names into a sandbox that was just created. Raises SubstrateError.

        Waits for the control plane where that is away.
        """

        async def again() -> None:
            await self._b.substrate.destroy(entry.spec.identity.id)
            await self._b.substrate.create(entry.spec)

        await restore_into(self._b, entry, again)

    async def before_stop(self, entry: Entry) -> None:
        """Take the last snapshot of a program that still runs: its files belong together then.

        One that was frozen for a move has it already. What fails is in the journal.
        """
        plan = entry.spec.snapshot
        if plan is not None and plan.final and not self._of(entry.spec.identity.id).held:
            await self._all(entry, FINAL)

    async def after_end(self, entry: Entry, end: End) -> None:
        """Take what an orderly end has left, before the sandbox is destroyed."""
        plan = entry.spec.snapshot
        if plan is None or not plan.final or entry.fenced:
            return
        if ended_whole(end, asked=entry.stop is not None):
            await self._all(entry, FINAL, ended=True)

    def knows(self, sandbox_id: str) -> bool:
        """Return whether there is anything to forget of a sandbox."""
        return sandbox_id in self._own or self._b.shelves.knows(sandbox_id)

    def forget(self, sandbox_id: str) -> None:
        """Drop what is known of a sandbox that is gone; overwrites what lies on disk. Blocks."""
        self._own.pop(sandbox_id, None)
        self._b.shelves.forget(sandbox_id)
        for path in (self._b.directory / "seen").glob(f"{sandbox_id}-*"):
            erase(path)

    def resumed(self, sandbox_id: str) -> None:
        """Take note that a sandbox runs again after it was held."""
        if (own := self._own.get(sandbox_id)) is not None:
            own.held = False

    async def _all(self, entry: Entry, reason: str, *, ended: bool = False) -> None:
        """Take every kind of the plan; failures are noted and end nothing."""
        plan = entry.spec.snapshot
        for kind in kinds_of(plan) if plan is not None else []:
            with contextlib.suppress(SnapshotFailedError):
                await self._take(Wanted(entry, kind, reason, ended=ended))

    async def _take(self, wanted: Wanted) -> SnapshotRef | None:
        """Take one and write its row; None: it waits for a gateway. Raises SnapshotFailedError."""
        entry, kind = wanted.entry, wanted.kind.value
        try:
            ref = await take(self._b, self._of(wanted.id), wanted)
        except SnapshotFailedError as error:
            body = {"kind": kind, "reason": wanted.reason, "code": error.code, "why": str(error)}
            self._b.note(entry, "snapshot-failed", body)
            raise
        if ref is None:
            self._b.note(entry, "snapshot-kept", {"kind": kind, "reason": wanted.reason})
        else:
            self._exists(entry, ref)
        return ref

    def _late(self, ref: SnapshotRef) -> None:
        """Tell of a snapshot that had to wait and exists now."""
        entry = self._b.core.get(ref.sandbox)
        if entry is not None:
            self._exists(entry, ref)

    def _exists(self, entry: Entry, ref: SnapshotRef) -> None:
        last = LastSnapshot(
            seq=ref.seq, kind=ref.kind, at=ref.created, bytes=ref.bytes, seconds=ref.seconds
        )
        self._b.core.saved(entry.spec.identity.id, last)
        body: dict[str, Any] = {
            "lineage": ref.lineage,
            "seq": ref.seq,
            "kind": ref.kind.value,
            "reason": ref.reason,
            "consistency": ref.consistency,
            "files": ref.files,
            "bytes": ref.bytes,
            "storedBytes": ref.stored_bytes,
            "seconds": round(ref.seconds, 3),
            "heldSeconds": round(ref.held_seconds, 3),
        }
        self._b.note(entry, "snapshot-taken", body)

    def _of(self, sandbox_id: str) -> Own:
        own = self._own.get(sandbox_id)
        if own is None:
            own = self._own[sandbox_id] = Own(Marks(self._b.clock))
        return own
