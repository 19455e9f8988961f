"""What AWS tells of nodes that it takes away: states of spot requests, instances that have ended.

The two minutes' notice and the rebalance recommendation come to the node itself first (see
`dsec.agent.spotwatch`); here the same is seen by whoever polls, and the end of every node.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from dsec.providers.aws_calls import Calls
from dsec.providers.aws_tags import filters
from dsec.providers.provider import EventKind, ProviderEvent

NOTICE_SECONDS = 120.0
"""From the notice to the end, by AWS."""
MARKED = frozenset({"marked-for-termination", "marked-for-stop"})
_AT = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")
"""When an instance changed its state, as the API tells it: within a text for people."""


async def events(calls: Calls, installation: str, now: float) -> tuple[ProviderEvent, ...]:
    """Return notices and ends that can be seen now (UTC seconds). Raises CloudError."""
    requests = await calls.pages(
        "ec2",
        "describe_spot_instance_requests",
        "SpotInstanceRequests",
        Filters=filters(installation),
    )
    ended = await calls.pages(
        "ec2",
        "describe_instances",
        "Reservations",
        Filters=filters(installation, instance_state_name=["shutting-down", "terminated"]),
    )
    notices = [notice for request in requests if (notice := _notice(request)) is not None]
    return (
        *notices,
        *(_gone(one, now) for reservation in ended for one in reservation["Instances"]),
    )


def _notice(request: Mapping[str, Any]) -> ProviderEvent | None:
    status = request.get("Status", {})
    if status.get("Code") not in MARKED or not request.get("InstanceId"):
        return None
    at = status["UpdateTime"].timestamp()
    return ProviderEvent(
        EventKind.SPOT_NOTICE,
        request["InstanceId"],
        at,
        at + NOTICE_SECONDS,
        f"AWS takes this spot machine away ({status.get('Message') or status['Code']})",
    )


def _gone(instance: Mapping[str, Any], now: float) -> ProviderEvent:
    transition = instance.get("StateTransitionReason", "")
    words = instance.get("StateReason", {}).get("Message", "") or transition or "no reason given"
    told = _AT.search(transition)
    # where the time is not told, the machine has ended by now at the latest
    at = now
    if told is not None:
        at = datetime.strptime(told[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
    return ProviderEvent(
        EventKind.GONE, instance["InstanceId"], at, words=f"the machine has ended: {words}"
    )
