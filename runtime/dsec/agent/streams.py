"""Output of sandboxes as streams: one exec, the kept log, the archived scene."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator

from dsec.agent import rings, rootfs
from dsec.agent.archive import COLLECT_MOST, TEMP_MOST, Scene
from dsec.agent.initlink import EXEC, EXIT, KILL, STDOUT, InitLink, LinkClosedError
from dsec.agent.records import Record
from dsec.api.reasons import EndReason
from dsec.api.sandbox import SandboxSpec
from dsec.world.substrate import Chunk, ExecRequest, SubstrateError

_END_SECONDS = 1.0


def last_chunk(report: dict[str, object]) -> Chunk:
    """Return the end of an exec. Raises SubstrateError where the command did not start."""
    reason = str(report.get("reason") or "")
    if reason == EndReason.START_FAILED:
        raise SubstrateError(reason, str(report.get("message")))
    code, signal = report.get("exitCode"), report.get("signal")
    if not reason and code != 0 and report.get("pidsRefused"):
        reason = EndReason.PIDS_LIMIT
    dropped = report.get("droppedBytes")
    return Chunk(
        stream="end",
        exit_code=code if isinstance(code, int) else None,
        signal=signal if isinstance(signal, int) else None,
        reason=reason,
        dropped_bytes=dropped if isinstance(dropped, int) else 0,
    )


async def run_exec(
    link: InitLink, request: ExecRequest, env: dict[str, str], workdir: str, user: str
) -> AsyncGenerator[Chunk, None]:
    """Run a command; a caller that stops listening ends it, with its whole tree.

    Raises SubstrateError; a lost init is `infrastructure`: the outcome is unknown.
    """
    command, stream = link.open_stream()
    order: dict[str, object] = {
        "command": list(request.command),
        "env": env,
        "workdir": workdir,
        "user": user,
        "timeout": request.timeout,
        "outputCap": request.output_cap,
    }
    ended = False
    try:
        await link.order(EXEC, command, order, request.stdin)
        while (item := await stream.get()) is not None:
            kind, payload = item
            if kind == EXIT:
                ended = True
                yield last_chunk(json.loads(payload))
                return
            yield Chunk(stream="stdout" if kind == STDOUT else "stderr", data=payload)
        ended = True
    except LinkClosedError:
        ended = True
    finally:
        link.close_stream(command)
        if not ended and not link.closed.is_set():
            await asyncio.shield(link.send(KILL, command))
    why = "outcome unknown: init of the sandbox is gone"
    raise SubstrateError(EndReason.INFRASTRUCTURE, why)


async def read_log(record: Record, link: InitLink | None, *, follow: bool) -> AsyncIterator[Chunk]:
    """Yield the kept output of the main command, then (follow) what comes, until it ends."""
    positions = {"stdout": 0, "stderr": 0}
    paths = {"stdout": record.stdout, "stderr": record.stderr}
    while True:
        last_look = not follow or link is None or link.end.done() or link.closed.is_set()
        for name, path in paths.items():
            data, position, lost = await asyncio.to_thread(rings.read, path, positions[name])
            if lost and not positions[name]:
                data, lost = rings.tail(data, lost, len(data))
            positions[name] = position
            if data or lost:
                yield Chunk(stream=name, data=data, dropped_bytes=lost)
        if last_look or link is None:
            return
        await link.news(positions["stdout"], positions["stderr"])


async def scene(
    spec: SandboxSpec, record: Record, pid: int | None, context: dict[str, object]
) -> AsyncIterator[tuple[str, bytes]]:
    """Yield (name, content) of the archive. Without a live init only the logs are left."""
    for name, path in (("stdout.log", record.stdout), ("stderr.log", record.stderr)):
        data, _, lost = await asyncio.to_thread(rings.read, path, 0)
        yield name, rings.tail(data, lost, len(data))[0]
    yield "environment.json", json.dumps(context, indent=1).encode()
    yield "spec.json", json.dumps(spec.wire(), indent=1).encode()
    yield "end.json", record.end_file.read_bytes() if record.end_file.exists() else b"{}"
    yield "identity.json", rootfs.identity_text(spec).encode()
    try:
        root = os.open(f"/proc/{pid}/root", os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield "PARTIAL", b"PID 1 was killed: only the output that was kept outside is here\n"
        return
    try:
        walk = Scene(root)
        collected = [rootfs.OUTPUT, *(mount.path for mount in spec.mounts if mount.collect)]
        sources = [(path, f"collect{path}", COLLECT_MOST) for path in dict.fromkeys(collected)]
        sources.append(("/tmp", "temp", TEMP_MOST))  # noqa: S108 - inside the sandbox
        for source, prefix, budget in sources:
            found = walk.collect(source, prefix, budget)
            while (entry := await asyncio.to_thread(next, found, None)) is not None:
                yield entry
        yield "manifest.json", walk.manifest()
    finally:
        os.close(root)
