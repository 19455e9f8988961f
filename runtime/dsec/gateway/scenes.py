"""Scenes of sandboxes: what an agent archives is stored only while its copy counts.

A copy that was replaced, or has ended, is told `fenced`, and nothing of it is stored. The newest
state of the bind log decides, once per request: one request may hold a whole scene.
"""

import asyncio
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dsec.api.scene import SceneError, unpack
from dsec.gateway.calls import read_body
from dsec.gateway.core import Gateway
from dsec.gateway.errors import ApiError, invalid
from dsec.journal.bindings import Bindings

BODY_BYTES = 80 << 20
"""More than an agent archives of one file (64 MiB): each upload is held in memory here."""
PUTS_AT_ONCE = 8
"""Files of one scene stored at the same time; others have to get their turn, too."""
LONGEST_PATH = 512
"""Bytes of a name in a scene; object stores take keys of 1,024."""
DIRECT = "-"


async def store_file(gateway: Gateway, node: str, request: Request) -> Response:
    """Store the body as one file of the scene that the path names. Raises ApiError."""
    path = request.path_params["path"]
    _check_path(path)
    await _check_early(gateway, node, request.path_params)
    data = await read_body(request, BODY_BYTES)
    key = await _prefix(gateway, node, request.path_params) + path
    await gateway.objects.put(key, data)
    return JSONResponse({"key": key, "size": len(data)})


async def store_files(gateway: Gateway, node: str, request: Request) -> Response:
    """Store the files in the body, the last one after all others. Raises ApiError."""
    await _check_early(gateway, node, request.path_params)
    try:
        files = unpack(await read_body(request, BODY_BYTES))
    except SceneError as problem:
        allowed = "a list of files, and their contents"
        raise invalid("body", "", allowed, str(problem)) from None
    for path in files:
        _check_path(path)
    prefix = await _prefix(gateway, node, request.path_params)
    turns = asyncio.Semaphore(PUTS_AT_ONCE)

    async def put(path: str) -> None:
        async with turns:
            await gateway.objects.put(prefix + path, files[path])

    *others, last = files
    # all are waited for, so that nothing is written any more once the answer is out
    outcomes = await asyncio.gather(*map(put, others), return_exceptions=True)
    for outcome in outcomes:
        if outcome is not None:
            raise outcome
    # it may be what marks the scene as whole
    await put(last)
    return JSONResponse({"prefix": prefix, "files": len(files)})


def _check_path(path: str) -> None:
    """Check a file's place in its scene. Raises ApiError 422."""
    plain = all(part not in ("", ".", "..") for part in path.split("/")) and path.isprintable()
    if not plain or len(path.encode()) > LONGEST_PATH:
        raise invalid("path", path[:200], f"{LONGEST_PATH} bytes", "is no plain relative path")


async def _check_early(gateway: Gateway, node: str, scene: Mapping[str, str]) -> None:
    """Refuse before the body is read, so that nobody fills this process for nothing.

    A view of a moment ago is good enough to go on, and too old to refuse. Raises ApiError.
    """
    try:
        _prefix_in((await gateway.views.fresh_log()).state, node, scene)
    except ApiError:
        await _prefix(gateway, node, scene)


async def _prefix(gateway: Gateway, node: str, scene: Mapping[str, str]) -> str:
    """Return where the node may write for now: an old copy must not slip in. Raises ApiError."""
    return _prefix_in((await gateway.views.fresh_log(newest=True)).state, node, scene)


def _prefix_in(state: Bindings, node: str, scene: Mapping[str, str]) -> str:
    """Return the prefix of a scene's keys. Raises ApiError: 403 another's, 409 fenced."""
    sandbox = scene["sandbox"]
    binding = state.by_id.get(sandbox)
    if binding is None:
        raise ApiError(409, "fenced", f"{sandbox} is not known: nothing of it is taken")
    identity = binding.spec.identity
    place = (identity.project, identity.experiment or DIRECT)
    if place != (scene["project"], scene["experiment"]):
        raise ApiError(403, "denied", f"{sandbox} is not of {scene['project']}")
    if not state.effective(sandbox, node):
        raise ApiError(409, "fenced", f"{sandbox} is not bound to {node}, or has ended")
    return f"artifacts/{'/'.join(place)}/{sandbox}/"
