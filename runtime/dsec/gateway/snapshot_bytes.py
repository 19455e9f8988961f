"""The bytes of snapshots, between agents and the store: access, objects, URLs, and what exists.

An agent reaches the repository of a tenant while it runs a sandbox of that tenant. It adds objects
and replaces none; the reference, which alone makes a snapshot exist, is written here, after the
newest state of the bind log has said that its copy counts.
"""

import base64
import re

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dsec.api.lineage import lineage_of
from dsec.api.snapshot_store import (
    OBJECT_BYTES,
    Access,
    AccessCall,
    PublishCall,
    Published,
    StoredObject,
    StoredObjects,
    Urls,
    UrlsCall,
)
from dsec.gateway.calls import read_body, read_model
from dsec.gateway.core import Gateway
from dsec.gateway.errors import ApiError, away, invalid, not_found
from dsec.gateway.standing import calling_node
from dsec.journal.bindings import Binding, Bindings
from dsec.snapshots.homes import home_of, root_of
from dsec.snapshots.keys import KeyAwayError, KeyUnknownError
from dsec.snapshots.layout import prefix_of, repository_of
from dsec.snapshots.leases import DoomedError, confirm
from dsec.snapshots.refs import FencedError, TakenError, bury, publish
from dsec.snapshots.repository import Repository
from dsec.world.objects import NotFoundError, ObjectStoreError, PreconditionError, Presigner
from dsec.world.tls import peer_of

CALL_BYTES = 4 << 20
URL_SECONDS = 900
WRITABLE = ("packs/", "index/", "manifests/", "chunks/", "writers/")
"""Parts of a repository that agents add to; they say of themselves in the last."""
REMOVABLE = ("writers/",)
_RANGE = re.compile(r"bytes=(\d{1,15})-(\d{1,15})")


async def access(gateway: Gateway, request: Request) -> Response:
    """Tell a node where a sandbox's snapshots go, and with which key."""
    node = await calling_node(gateway, peer_of(request.scope))
    call = await read_model(request, AccessCall, CALL_BYTES)
    binding = await _effective(gateway, node, call.sandbox)
    identity = binding.spec.identity
    prefix, lineage = prefix_of(binding.tenant), lineage_of(identity)
    key = await data_key(gateway, prefix)
    home = await home_of(gateway.objects, prefix, root_of(lineage))
    answer = Access(
        tenant=binding.tenant,
        lineage=lineage,
        prefix=prefix,
        key=base64.b64encode(key).decode(),
        region=gateway.config.region,
        home_epoch=home.epoch if home is not None else 0,
        direct=isinstance(gateway.objects, Presigner),
    )
    return JSONResponse(answer.wire(), headers={"Cache-Control": "no-store"})


async def list_objects(gateway: Gateway, request: Request) -> Response:
    """Return the objects below a prefix of a repository."""
    prefix = request.query_params.get("prefix", "")
    await _check(gateway, request, prefix)
    found = await gateway.objects.list(prefix, start_after=request.query_params.get("after", ""))
    listed = [StoredObject(key=one.key, etag=one.etag, size=one.size) for one in found]
    return JSONResponse(StoredObjects(objects=listed).wire())


async def read_object(gateway: Gateway, request: Request) -> Response:
    """Return an object, or the range of it that is asked for."""
    key = request.path_params["key"]
    await _check(gateway, request, key)
    wanted = _RANGE.fullmatch(request.headers.get("range", ""))
    try:
        if wanted is None:
            data, _ = await gateway.objects.get(key)
            return Response(data, media_type="application/octet-stream")
        start, last = int(wanted[1]), int(wanted[2])
        if not start <= last < start + OBJECT_BYTES:
            raise invalid("Range", wanted[0], f"at most {OBJECT_BYTES} bytes", "is no such range")
        data = await _part(gateway, key, start, last - start + 1)
    except NotFoundError:
        raise not_found(f"object {key}") from None
    return Response(data, 206, media_type="application/octet-stream")


async def _part(gateway: Gateway, key: str, start: int, length: int) -> bytes:
    """Return a part of an object. Raises ApiError 416 where it ends before."""
    try:
        return await gateway.objects.get_range(key, start, length)
    except ObjectStoreError:
        size = await gateway.objects.size(key)
        if start < size:
            raise
        raise ApiError(416, "short", f"object {key} has {size} bytes only") from None


async def write_object(gateway: Gateway, request: Request) -> Response:
    """Add an object. One that exists stays: 412, which for a repeat is success."""
    key = request.path_params["key"]
    await _check(gateway, request, key, WRITABLE)
    data = await read_body(request, OBJECT_BYTES, "an object of a snapshot")
    own = _below(key, REMOVABLE)
    try:
        if own and request.headers.get("if-none-match") != "*":
            await gateway.objects.put(key, data)
        else:
            await gateway.objects.put_if_absent(key, data)
    except PreconditionError:
        raise ApiError(412, "exists", f"object {key} exists") from None
    return JSONResponse({"key": key, "size": len(data)})


async def delete_object(gateway: Gateway, request: Request) -> Response:
    """Remove what a running save has said of itself."""
    key = request.path_params["key"]
    await _check(gateway, request, key, REMOVABLE)
    await gateway.objects.delete(key)
    return JSONResponse({"key": key})


async def urls(gateway: Gateway, request: Request) -> Response:
    """Return presigned URLs, where the store can."""
    call = await read_model(request, UrlsCall, CALL_BYTES)
    store = gateway.objects
    if not isinstance(store, Presigner):
        raise ApiError(501, "not-implemented", "this store signs no URLs")
    allowed = WRITABLE[:-1] if call.method == "PUT" else ("",)
    for key in call.keys:
        await _check(gateway, request, key, allowed)
    signed: dict[str, str] = {}
    headers: dict[str, str] = {}
    for key in call.keys:
        signed[key], headers = await store.presign(call.method, key, URL_SECONDS)
    answer = Urls(urls=signed, headers=headers)
    return JSONResponse(answer.wire(), headers={"Cache-Control": "no-store"})


async def publish_ref(gateway: Gateway, request: Request) -> Response:
    """Make a snapshot exist, if the copy that it was taken of counts."""
    node = await calling_node(gateway, peer_of(request.scope))
    call = await read_model(request, PublishCall, CALL_BYTES)
    ref = call.ref
    binding = await _effective(gateway, node, ref.sandbox, newest=True)
    identity = binding.spec.identity
    told = {
        "tenant": (ref.tenant, binding.tenant),
        "project": (ref.project, identity.project),
        "lineage": (ref.lineage, lineage_of(identity)),
        "node": (ref.node, node),
        "region": (ref.region, gateway.config.region),
    }
    for name, (said, right) in told.items():
        if said != right:
            raise invalid(name, said[:200], right, f"{said[:200]!r} is not of {ref.sandbox}")
    if ref.incarnation != identity.incarnation:
        why = f"incarnation {identity.incarnation} of {ref.sandbox} counts, not {ref.incarnation}"
        raise ApiError(409, "fenced", why)
    prefix = prefix_of(binding.tenant)
    try:
        stored = await publish(gateway.objects, prefix, ref)
        await confirm(gateway.objects, prefix, call.collector_epoch, call.packs)
    except FencedError as problem:
        raise ApiError(409, "fenced", str(problem)) from problem
    except TakenError as problem:
        raise ApiError(409, "taken", str(problem), [{"free": problem.free}]) from problem
    except DoomedError as problem:
        # nobody was told that it exists
        await bury(gateway.objects, prefix, ref, why=str(problem), now=gateway.clock.now())
        raise ApiError(409, "doomed", str(problem)) from problem
    except ValueError as problem:
        named = f"{ref.lineage[:200]}@{ref.seq}"
        raise invalid("ref", named, "a reference that may exist", str(problem)) from problem
    return JSONResponse(Published(ref=stored).wire())


async def data_key(gateway: Gateway, prefix: str) -> bytes:
    """Return a repository's key, made with the repository where there is none yet.

    Raises ApiError where it cannot be had.
    """
    source, known = gateway.config.snapshot_keys, gateway.snapshot_keys.get(prefix)
    if source is None:
        raise ApiError(501, "not-implemented", "this installation has no keys for snapshots")
    if known is None:
        try:
            known = await Repository.key_of(
                gateway.objects, prefix, source, gateway.clock, gateway.randomness
            )
        except KeyAwayError as problem:
            raise away(f"the key service is away: {problem}") from problem
        except KeyUnknownError as problem:
            raise ApiError(409, "key-unknown", str(problem)) from problem
        gateway.snapshot_keys[prefix] = known
    return known


# ---------------------------------------------------------------------- who may


async def _effective(gateway: Gateway, node: str, sandbox: str, *, newest: bool = False) -> Binding:
    """Return the binding of a sandbox whose copy on the node counts. Raises ApiError 403, 409."""
    state = (await gateway.views.fresh_log(newest=newest)).state
    if not newest and not state.effective(sandbox, node):
        state = (await gateway.views.fresh_log(newest=True)).state
    binding = state.by_id.get(sandbox)
    if binding is None:
        raise ApiError(409, "fenced", f"{sandbox[:64]} is not known: nothing of it is taken")
    if not state.effective(sandbox, node):
        raise ApiError(409, "fenced", f"{sandbox} is not bound to {node}, or has ended")
    return binding


async def _check(
    gateway: Gateway, request: Request, key: str, parts: tuple[str, ...] = ("",)
) -> None:
    """Check that the calling node may touch a key of these parts. Raises ApiError 403, 422."""
    node = await calling_node(gateway, peer_of(request.scope))
    try:
        repository = repository_of(key)
    except ValueError as problem:
        raise invalid("key", key[:200], "a key below snapshots/<tenant>/", str(problem)) from None
    if not all(part not in {".", ".."} for part in key.split("/")) or not _below(key, parts):
        told = ", ".join(parts)
        raise ApiError(403, "denied", f"an agent may not do this to {key[:200]}; it may: {told}")

    def runs(state: Bindings) -> bool:
        # by the whole name: the one of another tenant may begin alike
        return any(prefix_of(one.tenant) == repository for one in state.on_node(node))

    if not runs((await gateway.views.fresh_log()).state) and not runs(
        (await gateway.views.fresh_log(newest=True)).state
    ):
        raise ApiError(403, "denied", f"{node} runs nothing of who owns {repository}")


def _below(key: str, parts: tuple[str, ...]) -> bool:
    return key.removeprefix(repository_of(key)).startswith(parts)
