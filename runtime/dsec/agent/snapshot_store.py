"""The store of snapshots as an agent sees it: through the gateway, or straight by its URLs.

An agent holds no credential of the store. Small objects and lists go through the gateway; for large
ones it gives presigned URLs where its store can, and where the node reaches that store.
"""

from collections.abc import Callable
from urllib.parse import quote, urlencode

import httpx2
import structlog

from dsec.agent.snapshot_spool import DeniedError, ShortError
from dsec.agent.uplink import AwayError, RefusedError, Uplink
from dsec.api.snapshot import SnapshotRef
from dsec.api.snapshot_store import (
    Access,
    AccessCall,
    PublishCall,
    Published,
    StoredObjects,
    Urls,
    UrlsCall,
)
from dsec.world.clock import Clock, until
from dsec.world.network import Network
from dsec.world.objects import (
    NotFoundError,
    ObjectInfo,
    ObjectStoreError,
    PreconditionError,
)

BASE = "/agent/v1/snapshots"
DIRECT_BYTES = 1 << 20
"""From this size on an object is worth a URL of its own."""
DIRECT_PART = 64 << 10
"""And a part of one, whose URL serves all its parts."""
URL_SECONDS = 600.0
"""A URL is used again for so long; gateways sign for 15 minutes."""
RELAY_SECONDS = 300.0
"""Where the store itself cannot be reached, everything goes through the gateway for so long."""
DIRECT_TIMEOUT = 120.0
_NOT_FOUND, _PRECONDITION, _RANGE = 404, 412, 416
_DENIED = frozenset({401, 403, 409})
_log = structlog.get_logger(__name__)


class TakenError(Exception):
    """The number of a snapshot is taken by another one of this very copy."""


class DoomedError(Exception):
    """What the snapshot relies on was removed while it was taken: it has to be taken again."""


async def access(uplink: Uplink, sandbox: str) -> Access:
    """Ask for the repository of a sandbox. Raises AwayError, FencedError, RefusedError."""
    body = AccessCall(sandbox=sandbox).model_dump_json(by_alias=True)
    return Access.model_validate_json(await uplink.move("POST", f"{BASE}/access", body))


async def publish(uplink: Uplink, call: PublishCall) -> SnapshotRef:
    """Make a snapshot exist. Idempotent.

    Raises TakenError, DoomedError, AwayError, FencedError (another copy of the sandbox counts now),
    RefusedError.
    """
    try:
        answer = await uplink.move("POST", f"{BASE}/publish", call.model_dump_json(by_alias=True))
    except RefusedError as error:
        if error.code == "taken":
            raise TakenError(error.message) from error
        if error.code == "doomed":
            raise DoomedError(error.message) from error
        raise
    return Published.model_validate_json(answer).ref


class GatewayObjects:
    """An ObjectStore of the tenants whose sandboxes this node runs.

    `outside` makes clients without the node's identity, for URLs; None: all goes by the gateway.
    """

    def __init__(
        self, uplink: Uplink, clock: Clock, outside: Network | None, *, direct: bool
    ) -> None:
        self._uplink = uplink
        self._clock = clock
        self._outside = outside if direct else None
        self._clients: dict[str, httpx2.AsyncClient] = {}
        self._readable: dict[str, tuple[str, dict[str, str], Callable[[], float]]] = {}
        self._relay: Callable[[], float] | None = None

    async def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            await client.aclose()
        self._clients.clear()

    async def get(self, key: str) -> tuple[bytes, str]:
        """Return content and no etag: nobody replaces objects from here."""
        found = await self._direct("GET", key)
        return (await self._ask("GET", _path(key), key) if found is None else found), ""

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return a part of the content. Raises NotFoundError, ObjectStoreError."""
        part = {"Range": f"bytes={start}-{start + length - 1}"}
        found = await self._direct("GET", key, headers=part) if length >= DIRECT_PART else None
        if found is None:
            found = await self._ask("GET", _path(key), key, headers=part)
        if len(found) > length:
            # who ignores the range answers with the whole
            found = found[start : start + length]
        return found

    async def size(self, key: str) -> int:
        """Return the size in bytes. Raises NotFoundError, ObjectStoreError."""
        for info in await self.list(key):
            if info.key == key:
                return info.size
        raise NotFoundError(key)

    async def put(self, key: str, data: bytes) -> str:
        """Write without condition."""
        await self._ask("PUT", _path(key), key, body=data)
        return ""

    async def put_if_absent(self, key: str, data: bytes) -> str:
        """Create. Raises PreconditionError when the key exists, ObjectStoreError when unknown."""
        found = await self._direct("PUT", key, body=data) if len(data) >= DIRECT_BYTES else None
        if found is None:
            await self._ask("PUT", _path(key), key, body=data, headers={"If-None-Match": "*"})
        return ""

    async def put_if_match(self, key: str, data: bytes, etag: str) -> str:  # noqa: ARG002 - the interface's
        """Refuse: an agent replaces nothing."""
        raise ObjectStoreError(f"{key}: an agent replaces no object")

    async def list(self, prefix: str, *, start_after: str = "") -> list[ObjectInfo]:
        """Return all objects below a prefix, in key order, after a key."""
        query = urlencode({"prefix": prefix, "after": start_after})
        answer = await self._ask("GET", f"{BASE}/objects?{query}", prefix)
        found = StoredObjects.model_validate_json(answer).objects
        return [ObjectInfo(one.key, one.etag, one.size) for one in found]

    async def delete(self, key: str) -> None:
        """Remove; gateways allow it for what a running save says of itself."""
        await self._ask("DELETE", _path(key), key)

    # ------------------------------------------------------------------ ways

    async def _ask(
        self,
        method: str,
        path: str,
        key: str,
        *,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
    ) -> bytes:
        try:
            return await self._uplink.move(method, path, body, headers)
        except AwayError as error:
            raise ObjectStoreError(f"{key}: {error}") from error
        except RefusedError as error:
            raise _problem(error.status, key, str(error)) from error

    async def _direct(
        self, method: str, key: str, *, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> bytes | None:
        """Do it at the store itself; None: by the gateway. Raises as the store's answer says."""
        if self._outside is None or (self._relay is not None and self._relay() > 0):
            return None
        try:
            url, signed = await self._url(method, key)
            parts = httpx2.URL(url)
            origin = f"{parts.scheme}://{parts.netloc.decode()}"
            client = self._clients.get(origin)
            if client is None:
                client = self._outside.client(origin, timeout=DIRECT_TIMEOUT)
                self._clients[origin] = client
            answer = await client.request(
                method, url, content=body, headers={**signed, **(headers or {})}
            )
        except (AwayError, RefusedError, httpx2.TransportError) as error:
            self._give_up(f"{type(error).__name__}: {error}")
            return None
        if answer.is_success:
            whole = answer.headers.get("content-length", "")
            if method == "GET" and whole.isdecimal() and int(whole) != len(answer.content):
                raise ObjectStoreError(f"{key}: {len(answer.content)} of {whole} bytes came")
            return answer.content
        if answer.status_code in {_NOT_FOUND, _PRECONDITION, _RANGE}:
            raise _problem(answer.status_code, key, answer.text[:200])
        self._readable.pop(key, None)
        self._give_up(f"{answer.status_code}: {answer.text[:200]}")
        return None

    async def _url(self, method: str, key: str) -> tuple[str, dict[str, str]]:
        if method == "GET" and (known := self._readable.get(key)) is not None and known[2]() > 0:
            return known[:2]
        call = UrlsCall(method=method, keys=[key]).model_dump_json(by_alias=True)
        urls = Urls.model_validate_json(await self._uplink.move("POST", f"{BASE}/urls", call))
        if method == "GET":
            stale = [one for one, (_, _, left) in self._readable.items() if left() <= 0]
            for one in stale:
                del self._readable[one]
            self._readable[key] = (urls.urls[key], urls.headers, until(self._clock, URL_SECONDS))
        return urls.urls[key], urls.headers

    def _give_up(self, why: str) -> None:
        """Go by the gateway for a while. What may have been written is found there."""
        _log.warning("snapshots go through the gateway", why=why, seconds=RELAY_SECONDS)
        self._relay = until(self._clock, RELAY_SECONDS)


def _path(key: str) -> str:
    return f"{BASE}/objects/{quote(key)}"


def _problem(status: int, key: str, words: str) -> Exception:
    if status == _NOT_FOUND:
        return NotFoundError(key)
    if status == _PRECONDITION:
        return PreconditionError(key)
    if status == _RANGE:
        return ShortError(f"{key}: {words}")
    if status in _DENIED:
        return DeniedError(f"{key}: {words}")
    return ObjectStoreError(f"{key}: {words}")
