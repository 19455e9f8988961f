"""Sandboxes over HTTP: keyed creates, lists, one, end. Nodes and tenants, who am I, version."""

from importlib.metadata import version as installed

from starlette.responses import JSONResponse, Response

from dsec.api.internal import CreatesCall, EndCall, ExtendAsk
from dsec.api.reaping import ExtendCall, Extension
from dsec.api.records import SandboxNode
from dsec.api.sandbox import SandboxState
from dsec.api.wire import PROTOCOL, CreateBatch
from dsec.gateway.calls import BATCH_BYTES, Call
from dsec.gateway.errors import ApiError, away, invalid, not_found
from dsec.journal.inputs import ITEM_BYTES
from dsec.world.records import Access


async def create(call: Call) -> Response:
    """Bind keyed creates: at most one sandbox per key, whatever is lost on the way."""
    batch = await call.model(CreateBatch, BATCH_BYTES)
    _check_sizes(batch)
    gateway = call.gateway
    tenant, rights = gateway.tenant_of(call.project)
    asked = CreatesCall(
        project=call.project,
        user=call.user.name,
        correlation_id=call.correlation,
        batch=batch,
    )
    answers = await gateway.placing.create(asked, tenant, rights)
    gateway.metrics.creates.labels("leader" if answers is None else "gateway").inc(
        len(batch.creates)
    )
    if answers is None:
        try:
            answers = await gateway.leader.create(asked)
        except ApiError as problem:
            if problem.status != 503:  # noqa: PLR2004 - HTTP
                raise
            raise away(f"{problem}; {gateway.placing.leases.words()}") from problem
    text = answers.model_dump_json(by_alias=True, exclude_none=True)
    return Response(text, media_type="application/json")


def _check_sizes(batch: CreateBatch) -> None:
    """Refuse texts that are too long for one sandbox. Raises ApiError 422."""
    allowed = f"at most {ITEM_BYTES} bytes"
    for number, create in enumerate(batch.creates):
        if create.item is None and create.stdin is None:
            continue
        for name, text in (("item", create.item), ("stdin", create.stdin)):
            if text is not None and (size := len(text.encode())) > ITEM_BYTES:
                where = f"creates[{number}].{name}"
                raise invalid(where, f"{size} bytes", allowed, f"must have {allowed}")


async def list_all(call: Call) -> Response:
    """Return the sandboxes of the project, with the age of what is told."""
    query = call.request.query_params
    state = query.get("state", "")
    if state and state not in set(SandboxState):
        allowed = ", ".join(SandboxState)
        raise invalid("state", state, allowed, f"must be one of {allowed}")
    found = await call.gateway.views.of_project(call.project, query.get("experiment", ""))
    role = query.get("role", "")
    items = [
        status.wire()
        for status in found
        if role in ("", status.identity.role) and state in ("", status.state.value)
    ]
    return JSONResponse({"items": items, "ageSeconds": round(call.gateway.views.age(), 3)})


async def read(call: Call) -> Response:
    """Return one sandbox."""
    status = await call.gateway.views.one(call.path("sandbox"))
    if status is None or status.identity.project != call.project:
        raise not_found(f"sandbox {call.path('sandbox')} of project {call.project}")
    return JSONResponse(status.wire())


async def decision(call: Call) -> Response:
    """Return the newest placement decision about one sandbox."""
    sandbox = call.path("sandbox")
    binding = await call.gateway.views.binding(sandbox)
    if binding is None or binding.spec.identity.project != call.project:
        raise not_found(f"sandbox {sandbox} of project {call.project}")
    found = await call.gateway.decisions.find([sandbox], binding.at)
    if sandbox not in found:
        raise not_found(f"a decision about sandbox {sandbox}")
    return JSONResponse(found[sandbox].wire())


async def dump(call: Call) -> Response:
    """Return everything that the leader's next round of decisions is made from, and what it is."""
    found = await call.gateway.leader.dump()
    return Response(found.model_dump_json(by_alias=True), media_type="application/json")


async def delete(call: Call) -> Response:
    """End one sandbox; repeating it changes nothing."""
    sandbox = call.path("sandbox")
    message = f"stopped by {call.user.name}"
    outcome = await call.gateway.leader.end(
        EndCall(project=call.project, ids=[sandbox], message=message)
    )
    if outcome.unknown:
        raise not_found(f"sandbox {sandbox} of project {call.project}")
    if not outcome.taken:
        raise away(f"the node of {sandbox} is silent; repeat the call")
    return JSONResponse({}, 202)


async def extend(call: Call) -> Response:
    """Let a sandbox be for so long from now, whatever the reaper would find."""
    sandbox, asked = call.path("sandbox"), await call.model(ExtendCall)
    outcome = await call.gateway.leader.extend(
        ExtendAsk(project=call.project, id=sandbox, seconds=asked.seconds, user=call.user.name)
    )
    if not outcome.known or outcome.until is None:
        raise not_found(f"a live sandbox {sandbox} of project {call.project}")
    return JSONResponse(Extension(id=sandbox, until=outcome.until).wire())


async def nodes(call: Call) -> Response:
    """Return the nodes as recorded, with what their agents last said."""
    items = []
    for record in call.gateway.caches["SandboxNode"].all():
        node = SandboxNode.model_validate(record)
        watch = call.gateway.views.watch(node.metadata.name)
        silent = None if watch is None else watch.silent_for()
        if watch is not None and silent is not None:
            node.status.used, node.status.live = watch.memory.used, watch.memory.live
        age = None if silent is None else round(silent, 3)
        items.append({**node.record(), "ageSeconds": age})
    return JSONResponse({"items": items})


async def tenants(call: Call) -> Response:
    """Return the tenants that the caller may see: all, or those of projects it may read."""
    gateway, items = call.gateway, []
    everything = await gateway.authoriser.allows(call.user, Access("list", "tenants"))
    for record in gateway.caches["Tenant"].all():
        seen = everything
        for project in record.get("spec", {}).get("projects", []):
            if seen:
                break
            access = Access("list", "experiments", project)
            seen = await gateway.authoriser.allows(call.user, access)
        if seen:
            items.append(record)
    return JSONResponse({"items": items})


async def whoami(call: Call) -> Response:
    """Return who the caller is taken for."""
    return JSONResponse({"user": call.user.name, "groups": list(call.user.groups)})


async def version(_: Call) -> Response:
    """Return the version of the server and of its protocol."""
    return JSONResponse({"version": installed("dsec"), "protocol": PROTOCOL})
