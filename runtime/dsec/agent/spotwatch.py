"""Asks the machine's metadata whether its owner takes it away, and tells those who follow the node.

A spot machine learns two minutes ahead that it goes (`spot/instance-action`), and sometimes earlier
that it is at risk (`events/recommendations/rebalance`). What is learned goes into the node's state
and history at once; what is done about it the control plane decides.
"""

import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import structlog

from dsec.api.wire import NodeNotice
from dsec.world.clock import Clock
from dsec.world.instance import InstanceMetadata, MetadataError

ASK_SECONDS = 5.0
"""Of the two minutes at most this much is lost; the service bears far more."""
NOTICE = timedelta(minutes=2)
SPOT_NOTICE, REBALANCE = "spot-notice", "rebalance"
_ACTION = "meta-data/spot/instance-action"
_REBALANCE = "meta-data/events/recommendations/rebalance"

_log = structlog.get_logger(__name__)


async def watch(
    metadata: InstanceMetadata, clock: Clock, tell: Callable[[NodeNotice], Awaitable[None]]
) -> None:
    """Ask for ever; `tell` hears each notice whenever it is seen, so repeats must be harmless."""
    silent = False
    while True:
        try:
            for notice in await look(metadata, clock.now()):
                await tell(notice)
            silent = False
        except MetadataError as error:
            if not silent:
                _log.warning("no word from the machine's metadata", error=str(error))
            silent = True
        await clock.sleep(ASK_SECONDS)


async def look(metadata: InstanceMetadata, now: datetime) -> list[NodeNotice]:
    """Return the notices that stand. Raises MetadataError.

    One that cannot be read stands all the same, without its deadline.
    """
    found = []
    if (text := await metadata.get(_ACTION)) is not None:
        told = _parsed(text)
        action = str(told.get("action", "terminate"))
        deadline = _time(told.get("time"))
        # AWS says when it takes the machine, and not when it said so: that was two minutes before
        at = deadline - NOTICE if deadline else now
        words = f"its owner takes this machine away ({action})"
        found.append(NodeNotice(kind=SPOT_NOTICE, at=at, deadline=deadline, message=words))
    if (text := await metadata.get(_REBALANCE)) is not None:
        at = _time(_parsed(text).get("noticeTime")) or now
        words = "its owner is more likely than usual to take this machine away"
        found.append(NodeNotice(kind=REBALANCE, at=at, message=words))
    return found


def _parsed(text: str) -> dict[str, object]:
    try:
        told = json.loads(text)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _time(value: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(value)).astimezone(UTC)
    except ValueError:
        return None
