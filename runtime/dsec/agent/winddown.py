"""A node's own end: owners are warned, sandboxes end and are archived, then the machine goes.

Runs beside the agent from its start to its end. A crash loses nothing: the next agent reads the
same run-until and goes on. The money of the node ends with its run-until, so at that moment the
machine goes even if a scene is still on its way.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from dsec.agent.deadline import Deadline
from dsec.agent.entry import Stop
from dsec.agent.state import StateError
from dsec.api.reasons import EndReason
from dsec.world.clock import Clock, until
from dsec.world.power import HookError, run_hook

if TYPE_CHECKING:
    from dsec.agent.agent import Agent

TICK_SECONDS = 30.0
"""How often what is left is written; a reboot can win no more than this."""
MARGIN_SECONDS = 5.0
"""At most, from the shutdown's begin to the machine's end: what is not shipped by then is lost."""
LOOK_SECONDS = 0.5
HOOK_AGAIN_SECONDS = 10.0
GRACE_SHARE = MARGIN_SHARE = 0.2
"""Parts of the wind-down: sandboxes may end by themselves in the first; most is for archives."""
ACK_SECONDS = 30.0
"""How long recorded ends are waited for once everything else is done: the leader may be away."""
CAUSE = "run-until"

_log = structlog.get_logger(__name__)


class WindDown:
    """Follows one node's run-until. `run` ends with the machine."""

    def __init__(self, agent: "Agent", deadline: Deadline) -> None:
        config = agent.config
        self._agent = agent
        self._deadline = deadline
        self._clock: Clock = agent.clock
        self._wind_down = config.wind_down_seconds
        self._warn = config.warn_seconds
        self._margin = min(MARGIN_SECONDS, MARGIN_SHARE * config.wind_down_seconds)
        self._shutdown = config.shutdown
        self._moved = asyncio.Event()
        self._warning = ""
        self.ending = False

    def moved(self) -> None:
        """Look again: the end has been moved."""
        self._moved.set()

    async def run(self) -> None:
        """Wait for the end, wind down, end the machine; where that fails, try again for ever."""
        while True:
            left = self._deadline.left()
            if left is not None and left <= self._wind_down:
                break
            if left is not None:
                await self._tell_owners(left)
            await self._wait(left)
        await self._end_sandboxes()
        while True:
            try:
                _log.warning("run-until reached, this machine ends", command=self._shutdown)
                await run_hook(self._shutdown)
            except HookError as error:
                _log.error("the machine could not be ended, will repeat", error=str(error))
            await self._clock.sleep(HOOK_AGAIN_SECONDS)

    async def _wait(self, left: float | None) -> None:
        """Wait for the next stage, a move of the end, or the next note of what is left."""
        self._moved.clear()
        if left is None:
            await self._moved.wait()
            return
        stages = [left - self._wind_down]
        if not self._warning:
            stages.append(left - self._wind_down - self._warn)
        seconds = min([TICK_SECONDS, *(max(stage, 0.0) for stage in stages)])
        moved = asyncio.create_task(self._moved.wait())
        timer = asyncio.create_task(self._clock.sleep(seconds))
        try:
            await asyncio.wait({moved, timer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            moved.cancel()
            timer.cancel()
        try:
            self._deadline.note()
        except StateError as error:
            _log.warning("what is left of run-until is not written", error=str(error))

    async def _tell_owners(self, left: float) -> None:
        """Warn owners while the end is near, and tell them where it has been moved away."""
        if left <= self._wind_down + self._warn:
            minutes = max(1, round((left - self._wind_down) / 60))
            # the words stay as they were at first: who has been told is not told again
            self._warning = self._warning or (
                f"its node ends: this sandbox is ended and archived in about {minutes} min "
                "unless the node is paid for longer"
            )
            await self._agent.warn_all(self._warning)
        elif self._warning:
            self._warning = ""
            await self._agent.warn_all("its node is paid for longer and goes on")

    async def _end_sandboxes(self) -> None:
        """Take no more work, end what runs, wait for its archives and rows until the margin."""
        agent = self._agent
        self.ending = True
        agent.core.refuse(CAUSE, "this node has reached its run-until and ends")
        agent.limit_archives(lambda: self._left() - self._margin)
        grace = max(0.0, min(self._wind_down, self._left()) * GRACE_SHARE)
        live = [entry.spec.identity.id for entry in agent.core if entry.live]
        stop = Stop(EndReason.PREEMPTED, "its node reached the end of its paid time", grace)
        await agent.stop(live, stop)
        agent.changed()
        patience: Callable[[], float] | None = None
        while self._left() > self._margin:
            if agent.core.live == 0 and agent.spool.backlog == 0:
                patience = patience or until(self._clock, ACK_SECONDS)
                if patience() <= 0 or all(entry.acknowledged for entry in agent.core):
                    return
            await self._clock.sleep(LOOK_SECONDS)
        if agent.core.live:
            _log.error("ends with sandboxes that are not archived", live=agent.core.live)

    def _left(self) -> float:
        return self._deadline.left() or 0.0
