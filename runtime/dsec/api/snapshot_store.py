"""What agents and gateways say to each other about the bytes of snapshots."""

from pydantic import Field

from dsec.api.base import WireModel
from dsec.api.snapshot import SnapshotRef

OBJECT_BYTES = 64 << 20
"""Largest object of a snapshot: a pack has about 16 MiB."""


class AccessCall(WireModel):
    """Ask for the repository of a sandbox that the calling node runs."""

    sandbox: str


class Access(WireModel):
    """A tenant's repository, as an agent may use it. The key stays in memory."""

    tenant: str
    lineage: str = Field(description="Under which the sandbox's own snapshots are published.")
    prefix: str = Field(description="What the keys of the repository begin with; ends in a slash.")
    key: str = Field(repr=False, description="The tenant's data key, base64.")
    region: str
    home_epoch: int = 0
    direct: bool = Field(default=False, description="Presigned URLs are given out.")


class UrlsCall(WireModel):
    """Ask for presigned URLs: GET of objects, or PUT of ones that do not exist yet."""

    method: str = Field(pattern="^(GET|PUT)$")
    keys: list[str] = Field(min_length=1, max_length=64)


class Urls(WireModel):
    """By key, where to send the request; `headers` belong to each."""

    urls: dict[str, str]
    headers: dict[str, str] = {}


class StoredObject(WireModel):
    """One listed object; `size` in bytes."""

    key: str
    etag: str = ""
    size: int


class StoredObjects(WireModel):
    """All objects below a prefix, in key order."""

    objects: list[StoredObject]


class PublishCall(WireModel):
    """Make a snapshot exist. Afterwards the store is asked whether what it needs is to stay."""

    ref: SnapshotRef
    collector_epoch: int = Field(default=0, ge=0, description="Of the store when the save began.")
    packs: list[str] = Field(default=[], description="Names of all packs that it needs.")


class Published(WireModel):
    """The snapshot that exists now."""

    ref: SnapshotRef
