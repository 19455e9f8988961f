"""When a node ends by itself: kept on disk, measured in time that no clock change moves.

What a node costs is committed until its run-until, so it must end then, with or without a control
plane, with or without its agent. Within one boot only BOOTTIME counts. Over a reboot the UTC time
does, and never more than what was left before. `python -m dsec.agent.deadline` is the guard that a
timer of the machine runs: it ends a node whose agent has not done so.
"""

import argparse
import asyncio
import json
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from dsec.agent.config import ConfigError, load
from dsec.agent.state import StateError, machine_boot_id, replace_durably
from dsec.world.clock import Clock, SystemClock
from dsec.world.power import HookError, run_hook

FILE = "run-until"
LONGEST_FIRST = 86_400.0
"""Seconds that a first run-until may be away: the clock of a machine at its first boot may lie."""
GUARD_SECONDS = 60.0
"""How long after run-until the guard waits for the agent, which ends the node in better order."""
EXIT_USAGE = 2


@dataclass(frozen=True, slots=True)
class _Kept:
    """The file. `boot_end` is in BOOTTIME seconds of boot `boot_id`; `left` when it was written."""

    run_until: datetime
    revision: int
    boot_id: str
    boot_end: float
    left: float

    def text(self) -> bytes:
        return json.dumps(
            {
                "runUntil": self.run_until.isoformat(),
                "revision": self.revision,
                "bootId": self.boot_id,
                "bootEnd": self.boot_end,
                "left": self.left,
            }
        ).encode()


class Deadline:
    """One node's run-until. Nothing holds before `start` or an `extend`."""

    def __init__(
        self, directory: Path, clock: Clock, boot_id: str, *, durable: bool = True
    ) -> None:
        self._path = directory / FILE
        self._clock = clock
        self._boot_id = boot_id
        self._durable = durable
        self._kept: _Kept | None = None

    def start(self, first: datetime | None) -> None:
        """Go on from the file, or begin with a first time (None: there is none).

        Raises StateError where the file is there but cannot be read: then nothing bounds the node.
        """
        known = self._read()
        if known is not None:
            if known.boot_id == self._boot_id:
                self._kept = known
                return
            by_clock = (known.run_until - self._clock.now()).total_seconds()
            # time has passed since it was written, so less is left, whatever the clock says
            self._keep(known.run_until, min(known.left, by_clock), known.revision)
        elif first is not None:
            left = (first - self._clock.now()).total_seconds()
            self._keep(first, min(left, LONGEST_FIRST), 0)

    def extend(self, run_until: datetime, left_seconds: float, revision: int) -> bool:
        """Move the end, on disk before this returns; False where a newer decision holds.

        Raises StateError: the old end then holds.
        """
        if self._kept is not None and revision < self._kept.revision:
            return False
        by_clock = (run_until - self._clock.now()).total_seconds()
        self._keep(run_until, min(left_seconds, by_clock), revision)
        return True

    def unkept(self, first: datetime | None) -> float | None:
        """Return what `start` would leave, in seconds, without writing anything.

        For a machine whose disk is full: what was kept in an earlier boot goes down with the time
        since this one began, whatever the wall clock says. Raises StateError as `start` does where
        the file cannot be read.
        """
        known, up = self._read(), self._clock.monotonic()
        if known is not None and known.boot_id == self._boot_id:
            return known.boot_end - up
        until = first if known is None else known.run_until
        if until is None:
            return None
        most = LONGEST_FIRST if known is None else known.left
        return min(most - up, (until - self._clock.now()).total_seconds())

    def note(self) -> None:
        """Write how much is left, so that a reboot cannot win time. Raises StateError."""
        if self._kept is not None:
            self._keep(self._kept.run_until, self.left() or 0.0, self._kept.revision)

    def left(self) -> float | None:
        """Return the seconds to the end, below zero after it; None where there is none."""
        return None if self._kept is None else self._kept.boot_end - self._clock.monotonic()

    @property
    def run_until(self) -> datetime | None:
        """The end in UTC, by this machine's clock; None where there is none."""
        left = self.left()
        return None if left is None else self._clock.now() + timedelta(seconds=left)

    @property
    def revision(self) -> int:
        """The newest decision that has been taken over."""
        return 0 if self._kept is None else self._kept.revision

    def _keep(self, run_until: datetime, left: float, revision: int) -> None:
        end = self._clock.monotonic() + left
        kept = _Kept(run_until, revision, self._boot_id, end, left)
        replace_durably(self._path, kept.text(), sync=self._durable)
        self._kept = kept

    def _read(self) -> _Kept | None:
        try:
            data = json.loads(self._path.read_bytes())
            return _Kept(
                datetime.fromisoformat(data["runUntil"]).astimezone(UTC),
                int(data["revision"]),
                str(data["bootId"]),
                float(data["bootEnd"]),
                float(data["left"]),
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StateError(f"{self._path}: {error}") from error


def overdue(deadline: Deadline, first: datetime | None) -> bool:
    """Say whether the guard must end the node; also where its run-until cannot be read.

    Where it can be read and not written it holds all the same: a full disk neither saves a node
    from its end nor ends it before.
    """
    try:
        deadline.start(first)
        left = deadline.left()
    except StateError:
        try:
            left = deadline.unkept(first)
        except StateError:
            return True
    return left is not None and left <= -GUARD_SECONDS


def main() -> int:
    """End this machine if its run-until has passed for a while; else do nothing."""
    flags = argparse.ArgumentParser(prog="python -m dsec.agent.deadline", description=main.__doc__)
    flags.add_argument("--config", type=Path, help="the agent's settings")
    options = flags.parse_args()
    try:
        config = load(vars(options))
        deadline = Deadline(config.state_dir, SystemClock(), machine_boot_id())
        if overdue(deadline, config.run_until):
            asyncio.run(run_hook(config.shutdown))
    except ConfigError as error:
        sys.stderr.write(f"dsec.agent.deadline: {error}\n")
        return EXIT_USAGE
    except (HookError, OSError) as error:
        sys.stderr.write(f"dsec.agent.deadline: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
