"""The life of one sandbox, from its acceptance to its published end, as one coroutine.

The order never changes: image, create, start, register, run, end, archive, upload, destroy, ended.
Resources stay booked until the last step. A life can be cancelled at any point, which is what a
clean stop of the agent does: the sandbox goes on, and a later life resumes from the stored state.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import structlog

from dsec.agent.core import Core
from dsec.agent.entry import Entry, IllegalTransitionError, Stop
from dsec.agent.snapshots import Snapshots
from dsec.agent.spool import SpoolError
from dsec.agent.uplink import FencedError, Uplink, archive_prefix, backoff
from dsec.agent.upload import RESULT_NAME, OutOfPatienceError, SceneUpload
from dsec.api.reasons import EndReason
from dsec.api.sandbox import End, SandboxState
from dsec.world.clock import Clock, Randomness, until
from dsec.world.substrate import Substrate, SubstrateError

STOP_MARGIN = 30.0
"""Seconds past the grace until a sandbox that does not die is archived as it is."""

_log = structlog.get_logger(__name__)
S = SandboxState
T = TypeVar("T")


class _StopRequestedError(Exception):
    """A stop arrived before the main command was started."""


@dataclass(slots=True)
class Ground:
    """What all lives of a node share."""

    core: Core
    substrate: Substrate
    uplink: Uplink
    clock: Clock
    randomness: Randomness
    creates: asyncio.Semaphore
    uploads: asyncio.Semaphore
    archive_patience: float
    inline_output: int
    snapshots: Snapshots
    final_snapshot_seconds: float
    record: Callable[[Entry], None]
    commit: Callable[[], Awaitable[None]]
    archive_limit: Callable[[], float] = lambda: math.inf
    """Seconds that any archive may still take: a node that ends waits for none."""


class Life:
    """Runs one sandbox. `wake` after each change that came from outside (stop, heartbeat)."""

    def __init__(self, ground: Ground, entry: Entry, *, lost: str = "") -> None:
        self._g = ground
        self._entry = entry
        self._id = entry.spec.identity.id
        # why the sandbox cannot go on, when a restart found nothing of it on the node
        self._lost = lost
        self._event = asyncio.Event()
        self._stopped_at: Callable[[], float] | None = None
        self._spans: dict[SandboxState, Callable[[], float]] = {}

    def wake(self) -> None:
        """Look at the entry again."""
        self._event.set()

    async def run(self) -> None:
        """Go on from the entry's state to ENDED. Raises SpoolError when nothing can be stored."""
        await self._g.commit()
        if self._entry.status.state is not S.ARCHIVING:
            end = await self._until_end()
            self._g.core.finish(self._id, self._trimmed(end), self._now())
            await self._recorded()
        await self._last_snapshot()
        archive, partial = await self._archive()
        await destroy(self._g, self._id)
        if self._g.snapshots.knows(self._id):
            await asyncio.to_thread(self._g.snapshots.forget, self._id)
        self._g.core.close(self._id, self._now(), archive=archive, partial=partial)
        await self._recorded()

    # ------------------------------------------------------------------ up to the end

    async def _until_end(self) -> End:
        if self._lost:
            return End(reason=EndReason.INFRASTRUCTURE, message=self._lost)
        try:
            if self._entry.status.state in {S.BOUND, S.PULLING, S.CREATING}:
                await self._bring_up()
            elif self._entry.status.state is S.STARTING:
                await self._start_again()
            return await self._watch()
        except _StopRequestedError:
            return End(reason=EndReason.STOPPED, message="stopped before its command was started")
        except SubstrateError as error:
            return End(reason=_typed(error.reason), message=str(error))
        except (IllegalTransitionError, SpoolError):
            raise
        except Exception as error:  # noqa: BLE001 - one broken sandbox must not stop the node
            _log.exception("sandbox failed inside the agent", sandbox=self._id)
            return End(reason=EndReason.INFRASTRUCTURE, message=f"{type(error).__name__}: {error}")

    async def _bring_up(self) -> None:
        entry, substrate = self._entry, self._g.substrate
        self._check_stop()
        if entry.status.state is S.CREATING and entry.spec.restore is not None:
            # an agent that died meanwhile may have left half of a snapshot in it
            await substrate.destroy(self._id)
        if entry.status.state is S.BOUND:
            # a restart begins again from either: what shows this state commits it first
            self._g.core.advance(self._id, S.PULLING, self._now())
            self._g.record(entry)
        if entry.status.state is S.PULLING:
            await self._or_stop(substrate.prepare_image(entry.spec.image))
            await self._or_stop(self._g.creates.acquire())
        else:
            await self._g.creates.acquire()
        try:
            self._check_stop()
            if entry.status.state is S.PULLING:
                await self._advance(S.CREATING)
            started = await substrate.create(entry.spec)
            self._check_stop()
            entry.status.address = started.address
        finally:
            self._g.creates.release()
        if entry.spec.restore is not None:
            await self._or_stop(self._g.snapshots.restore(entry))
        await self._advance(S.STARTING)
        await substrate.start(self._id)

    async def _start_again(self) -> None:
        """Start what an earlier agent may have died just before starting."""
        try:
            await self._g.substrate.start(self._id)
        except SubstrateError as error:
            # it may have ended long ago: `wait` knows
            _log.info("not started again", sandbox=self._id, error=str(error))

    async def _watch(self) -> End:
        """Wait for the end of the main command; keep deadlines and pass stops on."""
        waiter = asyncio.create_task(self._g.substrate.wait(self._id))
        waiter.add_done_callback(lambda _: self.wake())
        helpers: set[asyncio.Task[None]] = set()
        if self._entry.spec.snapshot is not None:
            helpers.add(asyncio.create_task(self._g.snapshots.keep(self._entry)))
        try:
            while not waiter.done():
                self._event.clear()
                if self._entry.stop is not None and self._stopped_at is None:
                    grace = self._entry.stop.grace
                    most = grace + STOP_MARGIN + self._final_seconds()
                    self._stopped_at = until(self._g.clock, most)
                    helpers.add(asyncio.create_task(self._send_stop(grace)))
                left = self._seconds_left()
                if left is not None and left <= 0:
                    if self._stopped_at is not None:
                        break
                    self._out_of_time()
                    await self._recorded()
                    continue
                alarm = asyncio.create_task(self._alarm(left)) if left is not None else None
                await self._event.wait()
                if alarm is not None:
                    alarm.cancel()
                # a registration was queued by the substrate's call, which cannot wait itself
                await self._g.commit()
            if not waiter.done():
                return End(reason=EndReason.STOPPED, message="it did not die in time; destroyed")
            return self._judged(waiter.result())
        finally:
            waiter.cancel()
            for helper in helpers:
                helper.cancel()

    def _judged(self, end: End) -> End:
        """Turn a success without registration into the failure that it is (LIFE-03)."""
        silent = self._entry.spec.entrypoint_registers and not self._entry.status.registered
        if silent and end.reason is EndReason.COMPLETED and self._entry.stop is None:
            return end.model_copy(
                update={"reason": EndReason.FAILED, "message": "it ended without registering"}
            )
        return end

    async def _alarm(self, seconds: float) -> None:
        await self._g.clock.sleep(seconds)
        self.wake()

    def _final_seconds(self) -> float:
        """Return how long an end may wait for the last snapshot before it: 0 where none is taken.

        Nobody asks for that of what counts no more, or never ran.
        """
        plan = self._entry.spec.snapshot
        if plan is None or not plan.final or self._entry.fenced:
            return 0.0
        if S.RUNNING not in self._entry.status.times:
            return 0.0
        return max(0.0, min(self._g.final_snapshot_seconds, self._g.archive_limit()))

    async def _within(self, seconds: float, work: Coroutine[Any, Any, None]) -> None:
        """Do something that must not keep an end waiting for longer."""
        task = asyncio.create_task(work)
        timer = asyncio.create_task(self._g.clock.sleep(seconds))
        try:
            await asyncio.wait({task, timer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            task.cancel()
            failed = (await asyncio.gather(task, return_exceptions=True))[0]
        if isinstance(failed, SpoolError):
            raise failed
        if isinstance(failed, Exception):
            _log.error("last snapshot failed", sandbox=self._id, error=repr(failed))

    async def _last_snapshot(self) -> None:
        """Take what an orderly end has left: its row comes before that of the end."""
        if self._lost or self._entry.end is None or not (seconds := self._final_seconds()):
            return
        await self._within(seconds, self._g.snapshots.after_end(self._entry, self._entry.end))
        await self._g.commit()

    async def _send_stop(self, grace: float) -> None:
        if seconds := self._final_seconds():
            await self._within(seconds, self._g.snapshots.before_stop(self._entry))
        try:
            await self._g.substrate.stop(self._id, grace)
        except SubstrateError as error:
            _log.warning("stop failed", sandbox=self._id, error=str(error))

    def _seconds_left(self) -> float | None:
        """Return the seconds to the deadline of the present phase, or None where it has none."""
        if self._stopped_at is not None:
            return self._stopped_at()
        state, spec = self._entry.status.state, self._entry.spec
        if state is S.STARTING:
            phase, limit = S.STARTING, spec.start_deadline_seconds
        elif state in {S.RUNNING, S.PAUSED} and spec.max_run_seconds is not None:
            phase, limit = S.RUNNING, spec.max_run_seconds
        else:
            return None
        if phase not in self._spans:
            # what survives a restart is a UTC time; it is clamped against a clock that jumped
            passed = (self._now() - self._entry.status.times[phase]).total_seconds()
            self._spans[phase] = until(self._g.clock, min(limit, max(0.0, limit - passed)))
        return self._spans[phase]()

    def _out_of_time(self) -> None:
        spec = self._entry.spec
        if self._entry.status.state is S.STARTING:
            stop = Stop(
                EndReason.START_DEADLINE,
                f"no heartbeat within {spec.start_deadline_seconds:g} s of the start",
                0.0,
            )
        else:
            stop = Stop(
                EndReason.DEADLINE,
                f"ran longer than its maximum of {spec.max_run_seconds:g} s",
                spec.grace_seconds,
            )
        self._g.core.request_stop(self._id, stop, self._now())

    # ------------------------------------------------------------------ from the end

    async def _archive(self) -> tuple[str, bool]:
        """Upload the scene and the result; return its prefix and whether something is missing.

        A fenced copy uploads nothing more from the moment it is known to be fenced.
        """
        patience = until(self._g.clock, self._g.archive_patience)
        upload = SceneUpload(
            self._g.uplink,
            self._entry.spec.identity,
            patience=lambda: min(patience(), self._g.archive_limit()),
            fenced=lambda: self._entry.fenced,
        )
        missing = False
        async with self._g.uploads:
            try:
                missing = await self._send_scene(upload)
                await upload.add(RESULT_NAME, self._result())
                await upload.flush()
            except OutOfPatienceError:
                missing = True
            except FencedError as error:
                message = "a newer incarnation of this replica exists"
                fence = Stop(EndReason.FENCED, message)
                if self._g.core.request_stop(self._id, fence, self._now()):
                    await self._recorded()
                _log.info("fenced", sandbox=self._id, error=str(error))
                return "", False
        prefix = archive_prefix(self._entry.spec.identity) if upload.stored else ""
        return prefix, missing or bool(upload.refused)

    async def _send_scene(self, upload: SceneUpload) -> bool:
        """Pass the scene on; True where reading it failed midway: half a scene is sent, too."""
        try:
            async for name, content in self._g.substrate.archive(self._id):
                await upload.add(name, content)
        except (OutOfPatienceError, FencedError, SpoolError):
            raise
        except Exception as error:  # noqa: BLE001 - half a scene must not keep the node busy
            _log.warning("archive incomplete", sandbox=self._id, error=repr(error))
            return True
        return False

    def _result(self) -> bytes:
        entry = self._entry
        return (
            entry.status.model_copy(update={"end": entry.end})
            .model_dump_json(by_alias=True, exclude_none=True)
            .encode()
        )

    # ------------------------------------------------------------------ small parts

    def _now(self) -> datetime:
        return self._g.clock.now()

    async def _advance(self, state: SandboxState) -> None:
        self._g.core.advance(self._id, state, self._now())
        await self._recorded()

    async def _recorded(self) -> None:
        self._g.record(self._entry)
        await self._g.commit()

    def _check_stop(self) -> None:
        if self._entry.stop is not None:
            raise _StopRequestedError

    async def _or_stop(self, work: Coroutine[Any, Any, T]) -> T:
        """Await a step that may be given up; raises _StopRequestedError when a stop comes first."""
        task = asyncio.create_task(work)
        task.add_done_callback(lambda _: self.wake())
        try:
            while not task.done():
                self._event.clear()
                self._check_stop()
                await self._event.wait()
        finally:
            task.cancel()
        return task.result()

    def _trimmed(self, end: End) -> End:
        """Cut the output that travels with each status; the whole of it is in the archive."""
        keep = self._g.inline_output
        if len(end.stdout) <= keep and len(end.stderr) <= keep:
            return end
        return end.model_copy(update={"stdout": end.stdout[-keep:], "stderr": end.stderr[-keep:]})


async def destroy(ground: Ground, sandbox_id: str) -> None:
    """Remove a sandbox from the node; repeats for as long as that fails.

    A process in an uninterruptible wait cannot be killed until the kernel lets go of it.
    """
    attempt = 0
    while True:
        try:
            await ground.substrate.destroy(sandbox_id)
        except (SubstrateError, OSError, RuntimeError) as error:
            _log.error("destroy failed, will repeat", sandbox=sandbox_id, error=repr(error))
            await ground.clock.sleep(backoff(attempt, ground.randomness))
            attempt += 1
        else:
            return


def _typed(reason: str) -> EndReason:
    """Return the reason that a substrate names; one that does not exist is dsec's own fault."""
    return EndReason(reason) if reason in set(EndReason) else EndReason.INFRASTRUCTURE
