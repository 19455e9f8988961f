"""Exec and logs: authorised here, streamed to and from the agent under a signed capability.

The gateway adds nothing and keeps nothing: frames pass as they are. When the agent breaks off, the
answer breaks off without its end frame, which means an unknown outcome.
"""

from collections.abc import AsyncIterator

import httpx2
import structlog
from pydantic import ValidationError
from starlette.background import BackgroundTask
from starlette.responses import Response, StreamingResponse

from dsec.api.frames import MEDIA_TYPE
from dsec.api.wire import ErrorBody
from dsec.gateway.calls import CORRELATION, Call
from dsec.gateway.errors import ApiError, away, not_found
from dsec.journal.bindings import Binding
from dsec.world.agents import NodeWatch

CAPABILITY = "X-Dsec-Capability"
CONNECT_SECONDS = 5.0

log = structlog.get_logger()


async def run(call: Call) -> Response:
    """Run a command in a live sandbox."""
    return await _stream(call, "exec", "POST", call.request.stream())


async def logs(call: Call) -> Response:
    """Stream the output of a sandbox; of an ended one what its end keeps."""
    return await _stream(call, "logs", "GET", None)


async def _stream(
    call: Call, verb: str, method: str, content: AsyncIterator[bytes] | None
) -> Response:
    binding, watch = await _target(call)
    identity = binding.spec.identity
    headers = {
        CORRELATION: call.correlation,
        CAPABILITY: call.gateway.ca.capability(
            sandbox=binding.id,
            project=identity.project,
            tenant=identity.tenant,
            verb=verb,
            now=call.gateway.clock.now(),
        ),
        "Content-Type": MEDIA_TYPE,
    }
    client = watch.client.http
    request = client.build_request(
        method,
        f"/v1/sandboxes/{binding.id}/{verb}",
        params=dict(call.request.query_params),
        content=content,
        headers=headers,
        # a command may be silent for as long as it runs
        timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
    )
    try:
        response = await client.send(request, stream=True)
    except httpx2.TransportError as problem:
        raise away(f"node {binding.node} is silent: {problem}") from problem
    if not response.is_success:
        raise await _refusal(response, binding)
    # the call has an id of its own; the sandbox has that of the call which asked for it
    log.info("stream", verb=verb, sandbox=binding.id, of=identity.correlation_id)
    return StreamingResponse(
        _pass(response), media_type=MEDIA_TYPE, background=BackgroundTask(response.aclose)
    )


async def _pass(response: httpx2.Response) -> AsyncIterator[bytes]:
    try:
        async for piece in response.aiter_raw():
            yield piece
    except httpx2.TransportError as problem:
        # the answer must break off, too: ending it well would make a lost outcome look known
        raise ConnectionError(f"the agent broke off: {problem}") from problem
    finally:
        await response.aclose()


async def _refusal(response: httpx2.Response, binding: Binding) -> ApiError:
    await response.aread()
    await response.aclose()
    try:
        body = ErrorBody.model_validate_json(response.content)
    except ValidationError:
        return away(f"node {binding.node} answered {response.status_code}")
    if response.status_code >= httpx2.codes.INTERNAL_SERVER_ERROR:
        return away(body.message)
    return ApiError(response.status_code, body.code, body.message, body.details)


async def _target(call: Call) -> tuple[Binding, NodeWatch]:
    """Return the binding and node of a sandbox of the caller's project. Raises ApiError."""
    gateway, sandbox = call.gateway, call.path("sandbox")
    log_ = await gateway.views.fresh_log()
    binding = log_.state.by_id.get(sandbox)
    if binding is None:
        binding = (await gateway.views.fresh_log(newest=True)).state.by_id.get(sandbox)
    if binding is None or binding.spec.identity.project != call.project:
        raise not_found(f"sandbox {sandbox} of project {call.project}")
    if not binding.node:
        raise ApiError(409, "not-running", f"{sandbox} waits for room and has no node yet")
    watch = gateway.views.watch(binding.node)
    if watch is None:
        raise away(f"node {binding.node} of {sandbox} is not known here now")
    return binding, watch
