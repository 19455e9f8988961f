"""Registration of nodes: what vouches for a name, the SandboxNode record, the certificate.

A certificate names one node and its record for a day; the next one is given to its holder while the
record is there. Before the first one a single-use join token, a pod's projected token or the role
of a machine of AWS admits it, as after the removal of its record.
"""

import contextlib
import hashlib
import hmac
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dsec.api.identity import PREFIX
from dsec.api.meta import API_VERSION
from dsec.api.records import SandboxNode
from dsec.api.wire import PROTOCOL, NodeAdmission, NodeRegistration
from dsec.gateway.ca import RequestError
from dsec.gateway.calls import read_model
from dsec.gateway.core import Gateway
from dsec.gateway.errors import ApiError, invalid
from dsec.gateway.standing import revoked, stands
from dsec.world.objects import PreconditionError
from dsec.world.records import Record, RecordConflictError, RecordNotFoundError
from dsec.world.tls import AGENT, CONTROLLER, GATEWAY, Peer, peer_of

REGISTRATION_BYTES = 1 << 20
TOKEN_AUDIENCE = "dsec"  # noqa: S105 - the audience of a token, not a token
NODE_EXTRA = "authentication.kubernetes.io/node-name"
ATTEMPTS = 4
NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
RESERVED = frozenset({CONTROLLER, GATEWAY, AGENT, "dsec-webhook", "localhost", "kubernetes"})
"""First labels of names that servers of the control plane are found under: no node has them."""

log = structlog.get_logger()


async def register(gateway: Gateway, request: Request) -> Response:
    """Admit a node: by its certificate, else by a token that vouches for its name."""
    asked = await read_model(request, NodeRegistration, REGISTRATION_BYTES)
    if abs(asked.protocol - PROTOCOL) > 1:
        raise ApiError(
            422, "protocol", f"protocol {asked.protocol}; {PROTOCOL} and its neighbours are served"
        )
    _check_names(asked)
    peer, join_token = peer_of(request.scope), ""
    if peer is None or not peer.acts_as(AGENT):
        peer = None
        voucher = await _by_token(gateway, request, asked)
        join_token = voucher.join_token
        await _check_owner(gateway, asked, vouched=voucher.names_node)
    elif peer.name != asked.name:
        raise ApiError(403, "denied", f"the certificate is {peer.name}'s, not {asked.name}'s")
    now = gateway.clock.now()
    record = await _record_node(gateway, asked, peer)
    if join_token:
        await _tie(gateway, join_token, asked.name, record)
    admission = NodeAdmission(
        epoch=await _epoch(gateway),
        ca_pem=gateway.ca.ca_pem,
        clock_offset_seconds=(asked.utc - now).total_seconds(),
        capability_public_key_pem=gateway.ca.capability_public_pem,
    )
    if asked.csr_pem:
        try:
            address = urlsplit(asked.endpoint).hostname or ""
            signed = gateway.ca.sign(asked.csr_pem, asked.name, now, record=record, address=address)
        except RequestError as problem:
            raise ApiError(422, "invalid", f"csrPem: {problem}") from problem
        admission.certificate_pem, admission.expires = signed
        log.info("certificate signed", node=asked.name, expires=str(admission.expires))
    return JSONResponse(admission.wire())


def _check_names(asked: NodeRegistration) -> None:
    """Refuse names of servers, and addresses that are another node's. Raises ApiError 403, 422.

    The name becomes the subject and a DNS name of a certificate; the endpoint is where the control
    plane sends what is meant for this node, so its path must name this node.
    """
    if not NODE_NAME.fullmatch(asked.name):
        raise invalid("name", asked.name[:200], NODE_NAME.pattern, "is no name of a node")
    if asked.name.partition(".")[0] in RESERVED:
        raise ApiError(403, "denied", f"{asked.name} is a name of the control plane, not of a node")
    try:
        place = urlsplit(asked.endpoint)
        plain = place.scheme in ("http", "https") and place.hostname and "@" not in place.netloc
    except ValueError:
        plain = False
    if not plain or asked.endpoint != f"{place.scheme}://{place.netloc}/n/{asked.name}":
        allowed = f"https://ADDRESS/n/{asked.name}"
        raise invalid("endpoint", asked.endpoint[:200], allowed, f"must be {allowed}")


async def _check_owner(gateway: Gateway, asked: NodeRegistration, *, vouched: bool) -> None:
    """Keep a token that names no node from taking the place of a known one. Raises ApiError 403."""
    if vouched:
        return
    try:
        record = await gateway.records.get("SandboxNode", asked.name)
    except RecordNotFoundError:
        return
    known = SandboxNode.model_validate(record).status
    if not known.uid:
        return
    real = known.inventory is not None and not known.inventory.simulated
    if known.uid != asked.uid or (real and asked.inventory.simulated):
        raise ApiError(
            403,
            "denied",
            f"{asked.name} is another machine: only its certificate, or the removal of its "
            "SandboxNode, gives the name away",
        )


@dataclass(frozen=True, slots=True)
class Voucher:
    """What a token says: that it is of the node of this name, or which join token it is."""

    names_node: bool = False
    join_token: str = ""


async def _by_token(gateway: Gateway, request: Request, asked: NodeRegistration) -> Voucher:
    """Check the bearer token of a node without certificate. Raises ApiError 401, 403, 503."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not token:
        raise ApiError(401, "unauthenticated", "a new node needs a join token or a pod's token")
    secret = gateway.config.join_secret
    if secret and hmac.compare_digest(token.encode(), secret.encode()):
        return Voucher()
    if token.startswith(PREFIX) and gateway.config.aws is not None:
        asked.pool = await gateway.config.aws.vouch(token, asked)
        return Voucher(names_node=True)
    joined = gateway.ca.read_join_token(token, gateway.clock.now())
    if joined is not None:
        number, pool = joined
        if pool and asked.pool not in ("", pool):
            raise ApiError(403, "denied", f"the join token is for pool {pool}, not {asked.pool}")
        asked.pool = pool or asked.pool
        await _spend(gateway, number, asked.name)
        return Voucher(join_token=number)
    user = await gateway.records.authenticate(token, TOKEN_AUDIENCE)
    if user is None:
        raise ApiError(401, "unauthenticated", "the token is not valid")
    if user.name != gateway.config.agent_account:
        raise ApiError(403, "denied", f"{user.name} may not register nodes")
    bound = user.extra.get(NODE_EXTRA, ())
    if bound and asked.name not in bound:
        raise ApiError(403, "denied", f"the token is of node {bound[0]}, not {asked.name}")
    if not bound and not asked.inventory.simulated:
        raise ApiError(403, "denied", "a token that names no node admits simulated nodes only")
    return Voucher(names_node=bool(bound))


def _token_key(number: str) -> str:
    return f"join-tokens/{hashlib.sha256(number.encode()).hexdigest()}"


async def _spend(gateway: Gateway, number: str, node: str) -> None:
    """Use up a join token; the same node may repeat its call. Raises ApiError 403.

    Once it has led to a record (`_tie`), a repeat is one for that record alone: a node that was
    removed does not come back by the token that it kept.
    """
    key = _token_key(number)
    try:
        await gateway.objects.put_if_absent(key, node.encode())
    except PreconditionError:
        owner, _, tied = (await gateway.objects.get(key))[0].decode().partition(" ")
        if owner != node or (tied and tied != await _uid_of(gateway, node)):
            raise ApiError(403, "denied", "the join token has been used") from None


async def _tie(gateway: Gateway, number: str, node: str, record: str) -> None:
    """Note in a spent join token which record (its uid) it has led to. Idempotent."""
    key = _token_key(number)
    data, etag = await gateway.objects.get(key)
    if data == node.encode():
        # where two calls of one node race, one of the same record wins
        with contextlib.suppress(PreconditionError):
            await gateway.objects.put_if_match(key, f"{node} {record}".encode(), etag)


async def _uid_of(gateway: Gateway, node: str) -> str:
    """Return the uid of a node's record, empty where it has none."""
    try:
        return str((await gateway.records.get("SandboxNode", node))["metadata"]["uid"])
    except RecordNotFoundError:
        return ""


async def _record_node(gateway: Gateway, asked: NodeRegistration, peer: Peer | None) -> str:
    """Write the SandboxNode record, if it says something new, and return its uid.

    Who comes with a certificate (`peer`) must have a record already: that it was made for.
    Raises ApiError 403 (it was removed), 409.
    """
    records = gateway.records
    for attempt in range(ATTEMPTS):
        known: Record | None = None
        with contextlib.suppress(RecordNotFoundError):
            known = await records.get("SandboxNode", asked.name)
        if peer is not None and not stands(peer, known):
            raise revoked(asked.name)
        record = known or await _create_node(gateway, asked)
        uid = str(record["metadata"]["uid"])
        fresh = _registered(record, asked, gateway)
        if fresh is None:
            return uid
        try:
            await records.replace_status(fresh)
        except (RecordConflictError, RecordNotFoundError):
            if attempt == ATTEMPTS - 1:
                raise
        else:
            log.info("node registered", node=asked.name, endpoint=asked.endpoint)
            return uid
    raise AssertionError("unreachable: the last attempt returns or raises")  # pragma: no cover


async def _create_node(gateway: Gateway, asked: NodeRegistration) -> Record:
    spec: dict[str, object] = {"labels": asked.labels}
    if asked.pool:
        spec["pool"] = asked.pool
    body = {
        "apiVersion": API_VERSION,
        "kind": "SandboxNode",
        "metadata": {"name": asked.name},
        "spec": spec,
    }
    try:
        return await gateway.records.create(body)
    except RecordConflictError:
        return await gateway.records.get("SandboxNode", asked.name)


def _registered(record: Record, asked: NodeRegistration, gateway: Gateway) -> Record | None:
    """Return the record with the registration in its status, or None where nothing changes."""
    node = SandboxNode.model_validate(record)
    status = node.status
    if status.uid and status.uid != asked.uid and status.endpoint:
        last = status.last_seen
        recent = last is not None and (gateway.clock.now() - last).total_seconds() < 60  # noqa: PLR2004 - a minute
        if recent and status.incarnation > asked.incarnation:
            raise ApiError(409, "conflict", f"another machine is registered as {asked.name}")
    told = {
        "uid": asked.uid,
        "endpoint": asked.endpoint,
        "boot_id": asked.boot_id,
        "incarnation": asked.incarnation,
        "inventory": asked.inventory,
    }
    if all(getattr(status, name) == value for name, value in told.items()):
        return None
    status = status.model_copy(update={**told, "last_seen": gateway.clock.now()})
    body = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {**record, "status": body}


async def _epoch(gateway: Gateway) -> int:
    try:
        return await gateway.leader.epoch()
    except ApiError:
        # no leader yet: the agent learns the epoch from the first call of one
        return 0
