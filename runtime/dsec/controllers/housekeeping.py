"""What a term does beside its work: snapshots of the bind log, and looking for what must end it."""

import structlog

from dsec.controllers.dispatch import Dispatcher
from dsec.controllers.fleet import Fleet
from dsec.journal.bindlog import BindLog
from dsec.world.clock import Clock
from dsec.world.objects import ObjectStoreError

COMPACT_SECONDS = 30.0
WATCH_SECONDS = 0.5

log = structlog.get_logger()


async def keep_house(bind_log: BindLog, clock: Clock) -> None:
    """Write snapshots of the bind log where they are due, for ever. Raises FencedError."""
    while True:
        await clock.sleep(COMPACT_SECONDS)
        try:
            await bind_log.compact()
        except ObjectStoreError as problem:
            # a missing snapshot only makes the next replay longer
            log.warning("no snapshot of the bind log", error=str(problem))


async def watch_failures(
    fleet: Fleet, dispatcher: Dispatcher, bind_log: BindLog, clock: Clock
) -> None:
    """Raise once an agent knows a later leader, or a watch or a worker has broken.

    A taken node could claim any epoch: the bind log, where each term begins, has the last word.
    """
    while True:
        for failure in fleet.failures():
            raise failure
        if dispatcher.failure is not None:
            raise dispatcher.failure
        if dispatcher.stale.is_set():
            dispatcher.stale.clear()
            await bind_log.verify()
        await clock.sleep(WATCH_SECONDS)
