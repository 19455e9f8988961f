"""One sandbox as its node keeps it, and which state may follow which."""

from dataclasses import dataclass

from dsec.api.reasons import EndReason
from dsec.api.sandbox import End, SandboxSpec, SandboxState, SandboxStatus

S = SandboxState
ENDING = frozenset({S.STOPPING, S.ARCHIVING})
NEXT: dict[SandboxState, frozenset[SandboxState]] = {
    S.BOUND: ENDING | {S.PULLING},
    S.PULLING: ENDING | {S.CREATING},
    S.CREATING: ENDING | {S.STARTING},
    S.STARTING: ENDING | {S.RUNNING},
    S.RUNNING: ENDING | {S.PAUSED},
    S.PAUSED: ENDING | {S.RUNNING},
    S.STOPPING: frozenset({S.ARCHIVING}),
    S.ARCHIVING: frozenset({S.ENDED}),
    S.ENDED: frozenset(),
}


class IllegalTransitionError(Exception):
    """A bug of the shell: this state cannot follow that one."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A request to end a sandbox; its reason wins over the way the command then ends."""

    reason: EndReason
    message: str = ""
    grace: float = 5.0


@dataclass(slots=True)
class Entry:
    """One sandbox. `end` is known from ARCHIVING on, but only published with ENDED."""

    spec: SandboxSpec
    status: SandboxStatus
    stop: Stop | None = None
    end: End | None = None
    acknowledged: bool = False
    resting: bool = False
    """Its CPU is lent: from a pause until it runs again, or ends."""

    @property
    def live(self) -> bool:
        """True while its resources are booked."""
        return self.status.state is not S.ENDED

    @property
    def fenced(self) -> bool:
        """True when nothing of it may be published any more."""
        return self.stop is not None and self.stop.reason is EndReason.FENCED
