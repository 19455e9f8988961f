"""A scene on its way to the gateway: small files gather into one request, large ones go alone.

A batch that is refused goes again file by file: that tells which of them is not taken, and serves
a gateway that takes no batches yet.
"""

import json
from collections.abc import Awaitable, Callable

import structlog

from dsec.agent.uplink import FencedError, RefusedError, Uplink
from dsec.api.sandbox import Identity
from dsec.api.scene import FILES_MOST

RESULT_NAME = "result.json"
"""The artifact that holds a sandbox's status and end; stored last, so it marks a whole scene."""
MANIFEST_NAME = "manifest.json"
"""The artifact that lists a scene's collected files; the substrate yields it last."""
BATCH_BYTES = 4 << 20
"""Of contents in one request: most scenes are smaller, and a repeat loses no more than this."""

_log = structlog.get_logger(__name__)


class OutOfPatienceError(Exception):
    """The gateway was away for so long that the scene is given up; names the file."""


class SceneUpload:
    """Takes the files of one scene in order; `flush` sends what still waits.

    `patience` gives the seconds left for a gateway that is away, `fenced` whether the copy is
    known to count no more. Both methods raise FencedError and OutOfPatienceError.
    """

    def __init__(
        self,
        uplink: Uplink,
        identity: Identity,
        *,
        patience: Callable[[], float],
        fenced: Callable[[], bool],
    ) -> None:
        self._uplink = uplink
        self._identity = identity
        self._patience = patience
        self._fenced = fenced
        self._waiting: dict[str, bytes] = {}
        self._bytes = 0
        self.stored = 0
        self.refused: list[dict[str, str]] = []

    async def add(self, name: str, content: bytes) -> None:
        """Take one file; sends those before it where they fill a request."""
        full = len(self._waiting) == FILES_MOST or self._bytes + len(content) > BATCH_BYTES
        if full:
            await self.flush()
        self._waiting[name] = content
        self._bytes += len(content)

    async def flush(self) -> None:
        """Send all that waits."""
        files, self._waiting, self._bytes = self._waiting, {}, 0
        if len(files) > 1 and await self._send_all(files):
            return
        for name, content in files.items():
            await self._send_one(name, self._told(content) if name == MANIFEST_NAME else content)

    async def _send_all(self, files: dict[str, bytes]) -> bool:
        """Store files with one request; False when it is refused."""
        if MANIFEST_NAME in files:
            files = {**files, MANIFEST_NAME: self._told(files[MANIFEST_NAME])}
        try:
            await self._repeat(
                f"{len(files)} files", lambda: self._uplink.put_scene(self._identity, files)
            )
        except FencedError:
            raise
        except RefusedError as error:
            _log.info("batch refused, goes file by file", why=str(error), **self._who())
            return False
        self.stored += len(files)
        return True

    async def _send_one(self, name: str, content: bytes) -> None:
        try:
            await self._repeat(
                name, lambda: self._uplink.put_artifact(self._identity, name, content)
            )
        except FencedError:
            raise
        except RefusedError as error:
            _log.warning("artifact refused", name=name, error=str(error), **self._who())
            self.refused.append({"path": name, "why": str(error)})
        else:
            self.stored += 1

    async def _repeat(self, what: str, put: Callable[[], Awaitable[None]]) -> None:
        async def unless_fenced() -> None:
            if self._fenced():
                raise FencedError(0, "fenced", "the controller said so")
            await put()

        name = f"{self._identity.id}/{what}"
        if not await self._uplink.retry(name, unless_fenced, patience=self._patience):
            raise OutOfPatienceError(name)

    def _told(self, manifest: bytes) -> bytes:
        """Return the manifest with the files that the gateway did not take: it comes last."""
        if not self.refused:
            return manifest
        return json.dumps({**json.loads(manifest), "refused": self.refused}, indent=1).encode()

    def _who(self) -> dict[str, str]:
        return {"sandbox": self._identity.id}
