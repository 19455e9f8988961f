"""An agent's ways to the store of snapshots: through the gateway, and straight by its URLs."""

import json
from dataclasses import dataclass, field
from typing import cast

import pytest
from dsec.agent.snapshot_spool import DeniedError, ShortError
from dsec.agent.snapshot_store import DIRECT_BYTES, GatewayObjects
from dsec.agent.uplink import AwayError, RefusedError, Uplink
from dsec.world.clock import SystemClock
from dsec.world.inprocess import InProcessNetwork
from dsec.world.objects import NotFoundError, ObjectStoreError, PreconditionError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

LARGE = b"x" * DIRECT_BYTES


@dataclass
class Way:
    """Stands for the way to the gateway: signs URLs, remembers what goes by it."""

    went: list[tuple[str, str]] = field(default_factory=list)
    problem: Exception | None = None

    async def move(
        self, method: str, path: str, body: str | bytes = b"", headers: object = None
    ) -> bytes:
        """Answer a call."""
        del headers
        if path.endswith("/urls"):
            call = json.loads(body)
            urls = {key: f"http://store/{key}" for key in call["keys"]}
            signed = {"If-None-Match": "*"} if call["method"] == "PUT" else {}
            return json.dumps({"urls": urls, "headers": signed}).encode()
        if self.problem is not None:
            raise self.problem
        self.went.append((method, path.rpartition("/objects/")[2]))
        return b"by the gateway"


@dataclass
class Store:
    """The store itself, as URLs reach it."""

    objects: dict[str, bytes] = field(default_factory=dict)
    status: int = 0
    """Of every answer; 0: as it should be."""

    async def serve(self, request: Request) -> Response:
        """Answer a request."""
        if self.status:
            return Response("no", self.status)
        key = request.path_params["key"]
        return await (self._put if request.method == "PUT" else self._get)(key, request)

    async def _put(self, key: str, request: Request) -> Response:
        if key in self.objects:
            return Response(status_code=412)
        self.objects[key] = await request.body()
        return Response()

    async def _get(self, key: str, request: Request) -> Response:
        data = self.objects.get(key)
        if data is None:
            return Response(status_code=404)
        part = request.headers.get("range", "").removeprefix("bytes=")
        start, last = map(int, part.split("-")) if part else (0, len(data) - 1)
        if start >= len(data):
            return Response(status_code=416)
        return Response(data[start : last + 1], 206 if part else 200)


def opened(way: Way, store: Store | None, *, direct: bool = True) -> GatewayObjects:
    """Return the store as an agent sees it; without one nothing listens there."""
    routes = {}
    if store is not None:
        path = Route("/{key:path}", store.serve, methods=["GET", "PUT"])
        routes["http://store"] = Starlette(routes=[path])
    return GatewayObjects(
        cast("Uplink", way), SystemClock(), InProcessNetwork(routes), direct=direct
    )


async def test_large_objects_go_straight_and_small_ones_by_the_gateway() -> None:
    """Conditions count on both ways, and so do parts."""
    way, store = Way(), Store()
    objects = opened(way, store)
    await objects.put_if_absent("large", LARGE)
    await objects.put_if_absent("small", b"s")
    assert list(store.objects) == ["large"]
    assert way.went == [("PUT", "small")]
    with pytest.raises(PreconditionError):
        await objects.put_if_absent("large", LARGE)
    assert (await objects.get("large"))[0] == LARGE
    assert await objects.get_range("large", 0, DIRECT_BYTES) == LARGE
    assert await objects.get_range("large", 3, 5) == b"the g"
    with pytest.raises(NotFoundError):
        await objects.get("none")
    with pytest.raises(ShortError):
        await objects.get_range("large", DIRECT_BYTES, DIRECT_BYTES)
    await objects.close()


@pytest.mark.parametrize("status", [0, 403, 500])
async def test_a_store_that_cannot_be_reached_is_gone_around(status: int) -> None:
    """Nothing listens there, or it refuses: everything goes by the gateway for a while."""
    way = Way()
    objects = opened(way, Store(status=status) if status else None)
    await objects.put_if_absent("large", LARGE)
    assert (await objects.get("large"))[0] == b"by the gateway"
    assert way.went == [("PUT", "large"), ("GET", "large")]


async def test_where_no_urls_are_given_nothing_goes_straight() -> None:
    """The gateway's store signs nothing."""
    way, store = Way(), Store()
    await opened(way, store, direct=False).put_if_absent("large", LARGE)
    assert way.went == [("PUT", "large")]


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (AwayError("503"), ObjectStoreError),
        (RefusedError(404, "not-found", ""), NotFoundError),
        (RefusedError(412, "exists", ""), PreconditionError),
        (RefusedError(416, "short", ""), ShortError),
        (RefusedError(403, "denied", ""), DeniedError),
        (RefusedError(409, "fenced", ""), DeniedError),
    ],
)
async def test_what_the_gateway_answers_is_what_a_store_would_say(
    problem: Exception, kind: type[Exception]
) -> None:
    """Away is away; the rest says what it is."""
    objects = opened(Way(problem=problem), None, direct=False)
    with pytest.raises(kind) as raised:
        await objects.get("key")
    assert type(raised.value) is kind
    with pytest.raises(ObjectStoreError, match="replaces no object"):
        await objects.put_if_match("key", b"", "e")
