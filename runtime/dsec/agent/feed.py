"""What a node tells those who follow it: changes at once, heartbeats gathered.

A follower says how far it has read (a change number, and a beat number where it wants heartbeats)
and is held until there is more. A change answers at once; steps on the way to running are gathered
for a moment, so that a sandbox, or a batch of them, is one answer and not one for each step.
Heartbeats, which are no news, answer every few seconds with one time per sandbox, however many
there were.
"""

import asyncio
from dataclasses import asdict

from dsec.agent import rows
from dsec.agent.core import Core
from dsec.api.sandbox import SandboxState
from dsec.api.wire import NodeState, Usage
from dsec.world.cache import first_of
from dsec.world.clock import Clock, until

ANSWER_BYTES = 16 << 20
"""Output in one state answer; ends that do not fit come with the next."""
COALESCE_SECONDS = 0.02
"""A long poll answers this much after a change, so that a burst is one answer."""
STEP_SECONDS = 0.5
"""Steps on the way to running answer a long poll this late, if nothing else does before."""
STEPS = frozenset(
    {SandboxState.BOUND, SandboxState.PULLING, SandboxState.CREATING, SandboxState.STARTING}
)
BEAT_SECONDS = 5.0
"""Heartbeats alone answer a long poll this late: a third of their usual period."""


class Feed:
    """The followers' side of one node's core. `notify` after each change."""

    def __init__(self, core: Core, clock: Clock, boot_id: str) -> None:
        self._core = core
        self._clock = clock
        self._boot_id = boot_id
        self._changed = asyncio.Event()
        # more than a step
        self._moved = asyncio.Event()
        self._last_move = 0

    def notify(self, state: SandboxState | None = None) -> None:
        """Let followers look again; `state` is what a sandbox has entered."""
        if state not in STEPS:
            self._last_move = self._core.seq
            self._moved.set()
        self._changed.set()

    async def more(self, since: int, beat: int | None, seconds: float) -> None:
        """Wait until there is more than a follower has read, at most so many seconds."""
        left = until(self._clock, seconds)
        while self._core.seq == since and (rest := left()) > 0:
            await self._change_within(rest if beat is None else min(rest, BEAT_SECONDS))
            if beat is not None and self._core.beat != beat:
                return
        if self._last_move <= since and self._core.follows(since) and (rest := left()) > 0:
            self._moved.clear()
            await first_of(self._moved.wait(), self._clock.sleep(min(rest, STEP_SECONDS)))

    def state(self, since: int, beat: int | None) -> NodeState:
        """Return the changes after a number, and who beat after a beat number (None: not asked)."""
        core = self._core
        full, entries = core.changes(since)
        statuses, seq = rows.fit(entries, core.seq, ANSWER_BYTES)
        return NodeState(
            node=core.node,
            boot_id=self._boot_id,
            incarnation=core.incarnation,
            epoch=core.epoch,
            seq=seq,
            full=full,
            utc=self._clock.now(),
            used=Usage.model_validate(asdict(core.used)),
            live=core.live,
            sandboxes=statuses,
            beat=core.beat,
            heartbeats={} if beat is None else core.heartbeats(beat),
        )

    async def _change_within(self, seconds: float) -> None:
        self._changed.clear()
        await first_of(self._changed.wait(), self._clock.sleep(seconds))
        if self._changed.is_set():
            await self._clock.sleep(COALESCE_SECONDS)
