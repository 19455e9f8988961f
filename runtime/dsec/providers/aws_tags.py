"""The tags that everything we buy on AWS carries, and what is read back from them.

The tags are the only memory: a process that starts knows from them what exists and who wanted it.
"""

import hashlib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from dsec.providers.provider import Offered, OrphanVolume, Phase, ProviderNode, Wanted

PREFIX = "dsec.dev/"
INSTALLATION = PREFIX + "installation"
TOKEN = PREFIX + "token"
POOL = PREFIX + "pool"
OFFERING = PREFIX + "offering"
MARKET = PREFIX + "market"
RUN_UNTIL = PREFIX + "run-until"
EPOCH = PREFIX + "epoch"
NAME = "Name"
LONGEST_VALUE = 256
"""Of a tag's value, by the API."""
GIB = 1 << 30

_PHASES = {
    "pending": Phase.STARTING,
    "running": Phase.RUNNING,
    "stopping": Phase.STOPPED,
    "stopped": Phase.STOPPED,
    "shutting-down": Phase.ENDING,
    "terminated": Phase.GONE,
}

Tags = list[dict[str, str]]


def utc_text(seconds: float) -> str:
    """Return a time as tags and user data carry it, to the second, rounded down."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def utc_seconds(text: str) -> float | None:
    """Read such a time; None where it is none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo is not None else None


def client_token(installation: str, token: str) -> str:
    """Return the API's idempotency token of a purchase: 64 characters, the most it takes."""
    return hashlib.sha256(f"{installation}\n{token}".encode()).hexdigest()


def bought(
    installation: str, purchase: Wanted, *, epoch: int, run_until: float, extra: Mapping[str, str]
) -> Tags:
    """Return the tags of everything that a purchase makes."""
    offering: Offered = purchase.offering
    own = {
        NAME: f"dsec-{installation}-{offering.pool}",
        INSTALLATION: installation,
        TOKEN: purchase.token,
        POOL: offering.pool,
        OFFERING: offering.key,
        MARKET: str(offering.market),
        **lease(run_until, epoch),
    }
    return as_list({**extra, **own})


def lease(run_until: float, epoch: int) -> dict[str, str]:
    """Return the tags that an extension writes."""
    return {RUN_UNTIL: utc_text(run_until), EPOCH: str(epoch)}


def as_list(tags: Mapping[str, str]) -> Tags:
    """Return tags as the API takes them."""
    return [{"Key": key, "Value": value[:LONGEST_VALUE]} for key, value in sorted(tags.items())]


def specifications(tags: Tags, *, spot: bool) -> list[dict[str, Any]]:
    """Return the tags of a launch for everything that it makes and that costs."""
    kinds = ["instance", "volume", "network-interface", *(["spot-instances-request"] * spot)]
    return [{"ResourceType": kind, "Tags": tags} for kind in kinds]


def filters(installation: str, **more: Iterable[str]) -> list[dict[str, Any]]:
    """Return filters of the API for what is ours; `more` has names with `_` for `-`."""
    found = [{"Name": f"tag:{INSTALLATION}", "Values": [installation]}]
    for name, values in more.items():
        key = f"tag:{TOKEN}" if name == "token" else name.replace("_", "-")
        found.append({"Name": key, "Values": list(values)})
    return found


def tags_of(item: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags of an answer's item."""
    return {tag["Key"]: tag["Value"] for tag in item.get("Tags", [])}


def node_of(item: Mapping[str, Any]) -> ProviderNode:
    """Return an instance as a node; its name is its identifier, which its agent reads as well."""
    tags = tags_of(item)
    epoch = tags.get(EPOCH, "")
    return ProviderNode(
        id=item["InstanceId"],
        name=item["InstanceId"],
        offering=tags.get(OFFERING, ""),
        pool=tags.get(POOL, ""),
        token=tags.get(TOKEN, ""),
        phase=_PHASES.get(item["State"]["Name"], Phase.RUNNING),
        launched_at=item["LaunchTime"].timestamp(),
        run_until=utc_seconds(tags.get(RUN_UNTIL, "")),
        epoch=int(epoch) if epoch.isdecimal() else 0,
        market=tags.get(MARKET, ""),
        zone=item.get("Placement", {}).get("AvailabilityZone", ""),
        address=item.get("PrivateIpAddress", ""),
        volumes=tuple(
            mapping["Ebs"]["VolumeId"]
            for mapping in item.get("BlockDeviceMappings", [])
            if "Ebs" in mapping
        ),
    )


def volume_of(item: Mapping[str, Any]) -> OrphanVolume:
    """Return an unattached volume."""
    return OrphanVolume(
        id=item["VolumeId"],
        token=tags_of(item).get(TOKEN, ""),
        created_at=item["CreateTime"].timestamp(),
        bytes=int(item["Size"]) * GIB,
    )
