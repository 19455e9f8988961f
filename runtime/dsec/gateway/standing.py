"""Whether an agent's certificate still counts: it was made for one SandboxNode record.

Removing the record revokes the certificate, everywhere and at once, though it is valid for hours.
A node that joins again under the same name has a new record, and the old certificate is not its.
No list of revoked ones is kept: what counts is what exists.
"""

from dsec.gateway.core import Gateway
from dsec.gateway.errors import ApiError
from dsec.world.records import Record, RecordNotFoundError
from dsec.world.tls import AGENT, Peer


async def calling_node(gateway: Gateway, peer: Peer | None) -> str:
    """Return the node that a call comes from. Raises ApiError 401, 403; RecordsError."""
    if peer is None:
        raise ApiError(401, "unauthenticated", "agents call with their client certificate")
    if not peer.acts_as(AGENT):
        raise ApiError(403, "denied", f"{peer.name} is no agent")
    if stands(peer, gateway.caches["SandboxNode"].get(("", peer.name))):
        return peer.name
    # a record that is a moment old has not reached this gateway's cache
    try:
        record = await gateway.records.get("SandboxNode", peer.name)
    except RecordNotFoundError:
        record = None
    if not stands(peer, record):
        raise revoked(peer.name)
    return peer.name


def stands(peer: Peer, record: Record | None) -> bool:
    """Say whether an agent's identity is that of a node's present record (None: it has none)."""
    if peer.record is None:
        # it shows no certificate because it is in this very process
        return True
    if record is None or "deletionTimestamp" in record["metadata"]:
        return False
    # certificates of the version before name no record; they live for a day
    return peer.record in ("", record["metadata"]["uid"])


def revoked(node: str) -> ApiError:
    """Return the answer to a node that was removed."""
    return ApiError(
        403,
        "revoked",
        f"node {node} was removed, and its certificate with it: a new join token, or its pod's "
        "token, admits it again",
    )
