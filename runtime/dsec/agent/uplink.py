"""The agent's calls to the gateway: registration, journal rows and artifacts.

The gateway may be away at any time. `AwayError` always means "try again later"; nothing here gives
up by itself, because a sandbox never needs the control plane to go on.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from itertools import groupby
from operator import itemgetter
from urllib.parse import quote

import httpx2
import structlog
from pydantic_core import to_json

from dsec.agent.spool import Record, Spool
from dsec.api.sandbox import Identity
from dsec.api.scene import pack
from dsec.api.wire import NodeAdmission, NodeRegistration
from dsec.world.clock import Clock, Randomness
from dsec.world.network import Network

FIRST_DELAY, LAST_DELAY = 0.2, 30.0
"""Seconds before the second try, and at most between two: a new gateway is found within these."""
BATCH_ROWS = 500
"""Rows in one push: a few hundred kilobytes."""
SHIP_SECONDS = 1.0
"""Rows gather this long before they are shipped: one call, and one object, for many."""
QUIET_TRIES = 3
"""Refusals in a row before they are logged: a gateway may learn late that the node exists."""
ARTIFACT_SECONDS, JOURNAL_SECONDS, REGISTER_SECONDS, ASK_SECONDS = 120.0, 30.0, 10.0, 40.0
"""Limits for the gateway to answer; a gateway that hangs must not look like a silent node."""
MOVES_AT_ONCE = 4
"""Calls about snapshots under way: the gateway pays for a connection of each, of every node."""
DIRECT = "-"
"""Stands for the experiment of a sandbox that was created directly, in paths."""

_log = structlog.get_logger(__name__)
_UNAVAILABLE = frozenset({408, 425, 429})
_SERVER_ERROR, _CONFLICT, _TOO_LARGE = 500, 409, 413
_NOBODY, REVOKED = 401, "revoked"
"""Status and code of what is refused for who calls: the next registration puts it right."""
REGISTER = "/agent/v1/register"


class AwayError(Exception):
    """No usable answer: the outcome is unknown, and the call is safe to repeat."""


class RefusedError(Exception):
    """The gateway refuses for good; `code` is the stable word of its answer."""

    def __init__(self, status: int, code: str, message: str) -> None:
        """Keep status and code for callers that decide on them."""
        super().__init__(f"{status} {code}: {message}")
        self.status = status
        self.code = code
        self.message = message


class FencedError(RefusedError):
    """A newer incarnation of this sandbox's replica exists: nothing of it is taken any more."""


def backoff(attempt: int, randomness: Randomness) -> float:
    """Return the seconds to wait after a number of failures: doubling, half of it random."""
    ceiling = min(LAST_DELAY, FIRST_DELAY * 2.0 ** min(attempt, 16))
    return ceiling * (0.5 + randomness.random() / 2)


def archive_prefix(identity: Identity) -> str:
    """Return the object prefix of a sandbox's scene: artifacts/<project>/<experiment>/<id>/."""
    return f"artifacts/{identity.project}/{identity.experiment or DIRECT}/{identity.id}/"


class Uplink:
    """One gateway address. `renew` makes new connections, with a new certificate where one is.

    `identified` says whether the gateway can know who calls. While it cannot, nothing but a
    registration is sent: rows wait, and everything else is as when the gateway is away.
    """

    def __init__(
        self,
        gateway: str,
        network: Network,
        clock: Clock,
        randomness: Randomness,
        *,
        identified: bool = True,
    ) -> None:
        self._gateway = gateway
        self._network = network
        self._clock = clock
        self._randomness = randomness
        self._client = network.client(gateway, timeout=ARTIFACT_SECONDS)
        # programs that wait for work hold connections: never those of journal and artifacts
        self._asking = network.client(gateway, timeout=ASK_SECONDS)
        # nor do the many bytes of snapshots
        self._moving = network.client(gateway, timeout=ARTIFACT_SECONDS)
        self._moves = asyncio.Semaphore(MOVES_AT_ONCE)
        self._identified = asyncio.Event()
        if identified:
            self._identified.set()

    async def renew(self, *, identified: bool) -> None:
        """Replace the pooled connections: those open now were made with the old identity."""
        old = self._client, self._asking, self._moving
        self._client = self._network.client(self._gateway, timeout=ARTIFACT_SECONDS)
        self._asking = self._network.client(self._gateway, timeout=ASK_SECONDS)
        self._moving = self._network.client(self._gateway, timeout=ARTIFACT_SECONDS)
        if identified:
            self._identified.set()
        else:
            self._identified.clear()
        for client in old:
            await client.aclose()

    async def close(self) -> None:
        """Close the connections."""
        for client in (self._client, self._asking, self._moving):
            await client.aclose()

    async def ask(self, method: str, path: str, body: bytes) -> bytes:
        """Make a call in the name of a sandbox; return the answer. Raises AwayError, RefusedError.

        What is said to be safe to repeat is so for takes and puts: they carry their own keys.
        """
        answer = await self._call(
            method, path, body.decode(errors="replace"), limit=ASK_SECONDS, client=self._asking
        )
        return answer.content

    async def move(
        self,
        method: str,
        path: str,
        body: str | bytes = b"",
        headers: dict[str, str] | None = None,
    ) -> bytes:
        """Make a call about the bytes of snapshots; text is JSON. Returns the answer's content.

        Raises AwayError, FencedError, RefusedError.
        """
        async with self._moves:
            answer = await self._call(method, path, body, headers, client=self._moving)
        return answer.content

    async def register(self, registration: NodeRegistration, token: str = "") -> NodeAdmission:
        """Introduce the node. Raises AwayError, RefusedError (for example a used token)."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        answer = await self._call(
            "POST",
            REGISTER,
            registration.model_dump_json(by_alias=True),
            headers,
            limit=REGISTER_SECONDS,
        )
        try:
            return NodeAdmission.model_validate_json(answer.content)
        except ValueError as error:
            raise AwayError(f"the gateway's admission cannot be read: {error}") from error

    async def push(self, node: str, rows: list[Record]) -> None:
        """Ship journal rows as they are stored, one call (JournalPush) per boot id, in order.

        Raises AwayError, RefusedError.
        """
        for boot_id, group in groupby(rows, key=itemgetter("bootId")):
            body = {"node": node, "bootId": boot_id, "rows": list(group)}
            text = to_json(body).decode()
            await self._call("POST", "/agent/v1/journal", text, limit=JOURNAL_SECONDS)

    async def put_artifact(self, identity: Identity, name: str, content: bytes) -> None:
        """Store one file of a scene. Idempotent. Raises FencedError, AwayError, RefusedError."""
        path = "/agent/v1/" + archive_prefix(identity) + name.lstrip("/")
        await self._call(
            "PUT", quote(path), content, {"X-Dsec-Incarnation": str(identity.incarnation)}
        )

    async def put_scene(self, identity: Identity, files: Mapping[str, bytes]) -> None:
        """Store files of a scene with one request, the last after all others. As `put_artifact`."""
        path = "/agent/v1/" + archive_prefix(identity).rstrip("/")
        await self._call("POST", quote(path), pack(files))

    async def retry(
        self, what: str, call: Callable[[], Awaitable[None]], *, patience: Callable[[], float]
    ) -> bool:
        """Call until it is answered; False when `patience()` (seconds left) has run out."""
        attempt = 0
        while True:
            try:
                await call()
            except AwayError as error:
                left = patience()
                if left <= 0:
                    return False
                if attempt == 0:
                    _log.info("gateway away, will repeat", what=what, error=str(error))
                await self._clock.sleep(min(left, backoff(attempt, self._randomness)))
                attempt += 1
            else:
                return True

    async def ship(self, node: str, spool: Spool, wake: asyncio.Event) -> None:
        """Ship the spool's rows in order, for ever; `wake` says that there may be new ones.

        A refused batch is halved down to the row that is refused; that one is set aside.
        """
        attempt, batch = 0, BATCH_ROWS
        while True:
            await self._identified.wait()
            wake.clear()
            await spool.commit()
            rows = spool.unshipped(batch)
            if not rows:
                await wake.wait()
                await self._clock.sleep(SHIP_SECONDS)
                continue
            try:
                await self.push(node, rows)
            except (AwayError, RefusedError) as error:
                if isinstance(error, RefusedError) and await self._blames_rows(node, error, rows):
                    if len(rows) > 1:
                        batch = len(rows) // 2
                    else:
                        _log.error("journal row refused, set aside", error=str(error), row=rows[0])
                        spool.set_aside(rows[0], str(error))
                    continue
                if attempt == QUIET_TRIES:
                    _log.warning("journal rows not taken, will repeat", error=str(error))
                await self._clock.sleep(backoff(attempt, self._randomness))
                attempt += 1
                continue
            attempt, batch = 0, min(BATCH_ROWS, batch * 2)
            spool.shipped(int(rows[-1]["seq"]))

    async def _blames_rows(self, node: str, error: RefusedError, rows: list[Record]) -> bool:
        """Say whether a push was refused for its rows: for who the node is, an empty one is too."""
        if error.status == _TOO_LARGE:
            return True
        body = {"node": node, "bootId": rows[0]["bootId"], "rows": []}
        try:
            await self._call("POST", "/agent/v1/journal", json.dumps(body), limit=JOURNAL_SECONDS)
        except (AwayError, RefusedError):
            return False
        return True

    async def _call(
        self,
        method: str,
        path: str,
        body: str | bytes,
        headers: dict[str, str] | None = None,
        *,
        limit: float = ARTIFACT_SECONDS,
        client: httpx2.AsyncClient | None = None,
    ) -> httpx2.Response:
        if path != REGISTER and not self._identified.is_set():
            raise AwayError("the node has no certificate that counts now")
        content = body.encode() if isinstance(body, str) else body
        kind = "application/json" if isinstance(body, str) else "application/octet-stream"
        try:
            answer = await (client or self._client).request(
                method,
                path,
                content=content,
                headers={"Content-Type": kind, **(headers or {})},
                timeout=limit,
            )
        except (httpx2.TransportError, RuntimeError) as error:
            # RuntimeError: the pool was renewed under this call
            raise AwayError(f"{type(error).__name__}: {error}") from error
        if answer.is_success:
            return answer
        if answer.status_code >= _SERVER_ERROR or answer.status_code in _UNAVAILABLE:
            raise AwayError(f"{answer.status_code} from {path}")
        code, message = _error_of(answer)
        if path != REGISTER and (answer.status_code == _NOBODY or code == REVOKED):
            raise AwayError(f"{answer.status_code} {code} from {path}: {message}")
        kind_of_refusal = (
            FencedError if answer.status_code == _CONFLICT and code == "fenced" else RefusedError
        )
        raise kind_of_refusal(answer.status_code, code, message)


def _error_of(answer: httpx2.Response) -> tuple[str, str]:
    """Read code and message of an ErrorBody, or the plain text of anything else."""
    try:
        body = answer.json()
    except ValueError:
        return "", answer.text[:500]
    if not isinstance(body, dict):
        return "", answer.text[:500]
    return str(body.get("code", "")), str(body.get("message", ""))
