"""Calls of programs inside their sandboxes: to the task queues and the scaler of their experiment.

A sandbox has no network and no credential. Its init hands calls to the agent, which makes them at a
gateway with the node's certificate and the sandbox's id; the gateway checks that this node holds
the copy that counts. Nothing here waits in the way of heartbeats, journal or artifacts.
"""

import re
from collections.abc import Callable

from dsec.agent import snapshot_marks
from dsec.agent.core import Core
from dsec.agent.snapshot_marks import Marks
from dsec.agent.uplink import AwayError, RefusedError, Uplink
from dsec.api.wire import ErrorBody

MOST_AT_ONCE = 190
"""Calls of a node under way: fewer than a pool has connections, or they would wait for one unseen.
A take may wait for work, and hold its own for 20 seconds."""
_QUEUE = re.compile(r"/v1/queue/([a-z0-9][-a-z0-9]{0,62})(?:/(put|take|ack|release|extend))?")
_SCALE = "/v1/scale"
_PATHS = (
    "POST /v1/queue/{queue}/{put|take|ack|release|extend}, GET /v1/queue/{queue}, POST /v1/scale, "
    "POST /v1/snapshot/mark, GET /v1/snapshot/notice"
)


def gateway_path(sandbox: str, method: str, path: str) -> str | None:
    """Return where a gateway takes a call of a sandbox; None: there is no such call."""
    base = f"/agent/v1/sandboxes/{sandbox}"
    if (method, path) == ("POST", _SCALE):
        return f"{base}/scale"
    found = _QUEUE.fullmatch(path)
    if found is None or method != ("POST" if found[2] else "GET"):
        return None
    return f"{base}/queues/{found[1]}" + (f"/{found[2]}" if found[2] else "")


class Inside:
    """Of one node: makes the calls, as many as a node may have under way."""

    def __init__(self, core: Core, uplink: Uplink, marks: Callable[[str], Marks]) -> None:
        """`marks` finds those of a sandbox: the agent itself answers what is about snapshots."""
        self._core = core
        self._uplink = uplink
        self._marks = marks
        self._under_way = 0

    async def call(self, sandbox: str, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Make a call; return status and JSON body: whatever goes wrong is an answer, too."""
        entry = self._core.get(sandbox)
        if entry is None or not entry.live:
            return _refused(409, "fenced", f"{sandbox} does not count any more")
        if snapshot_marks.is_about_snapshots(path):
            return await snapshot_marks.serve(self._marks(sandbox), method, path, body)
        return await self._pass_on(sandbox, method, path, body)

    async def _pass_on(
        self, sandbox: str, method: str, path: str, body: bytes
    ) -> tuple[int, bytes]:
        """Make the call at a gateway."""
        target = gateway_path(sandbox, method, path)
        if target is None:
            return _refused(
                404, "not-found", f"{method} {path[:200]} is no call; there are {_PATHS}"
            )
        if self._under_way >= MOST_AT_ONCE:
            return _refused(429, "busy", f"{MOST_AT_ONCE} calls of this node are under way already")
        self._under_way += 1
        try:
            return 200, await self._uplink.ask(method, target, body)
        except RefusedError as problem:
            return _refused(problem.status, problem.code or "refused", problem.message)
        except AwayError as problem:
            why = (
                f"the gateway gave no answer, the outcome is not known; repeat the call: {problem}"
            )
            return _refused(503, "away", why)
        finally:
            self._under_way -= 1


def _refused(status: int, code: str, message: str) -> tuple[int, bytes]:
    body = ErrorBody(code=code, message=message)
    return status, body.model_dump_json(by_alias=True, exclude_defaults=True).encode()
