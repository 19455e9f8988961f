"""Asking registries for digests: what is known, what is unknown, and who is away."""

import asyncio
import hashlib
import re
from collections.abc import MutableMapping
from typing import Any

import pytest
from dsec.world.inprocess import Fault, InProcessNetwork
from dsec.world.registry import (
    MANIFEST_BYTES,
    MOST_CLIENTS,
    HttpRegistry,
    ImageUnknownError,
    RegistryAwayError,
)
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

BODY = b'{"schemaVersion": 2}'
DIGEST = f"sha256:{hashlib.sha256(BODY).hexdigest()}"


async def manifest(request: Request) -> Response:
    """Answer as a registry does; `silent` tells no digest, `guarded` wants a token."""
    name = request.path_params["name"]
    if name == "guarded" and request.headers.get("authorization") != "Bearer anonymous":
        challenge = 'Bearer realm="https://tokens.example/get",service="hub",scope="pull"'
        return Response(status_code=401, headers={"WWW-Authenticate": challenge})
    if name == "broken":
        return Response(status_code=500)
    if name == "private":
        return Response(status_code=403)
    if request.path_params["tag"] not in {"1", "latest"}:
        return JSONResponse({"errors": []}, 404)
    assert "oci.image.index" in request.headers["accept"]
    headers = {} if name == "silent" else {"Docker-Content-Digest": DIGEST}
    if name == "odd":
        headers = {"Docker-Content-Digest": "md5:no"}
    return Response(BODY, headers=headers)


def plain(config: int, *layers: int) -> dict[str, Any]:
    """Return a manifest of parts with these sizes."""
    return {"config": {"size": config}, "layers": [{"size": size} for size in layers]}


AMD, ARM, BILL = (f"sha256:{digit * 64}" for digit in "abc")
SIZES: dict[str, Any] = {
    "sized/1": plain(10, 500, 90),
    "machines/1": {
        "manifests": [
            {"digest": AMD, "platform": {"os": "linux", "architecture": "amd64"}},
            {"digest": ARM, "platform": {"os": "linux", "architecture": "arm64"}},
            {"digest": BILL, "platform": {"os": "unknown", "architecture": "unknown"}},
        ]
    },
    f"machines/{AMD}": plain(1, 100),
    f"machines/{ARM}": plain(1, 200),
    f"machines/{BILL}": plain(1, 9000),
    "torn/1": {"manifests": [{"size": 1}]},
    "list/1": ["no", "manifest"],
}


async def sized(request: Request) -> Response:
    """Answer with the manifest of a name and a tag or digest."""
    name, tag = request.path_params["name"], request.path_params["tag"]
    found = SIZES.get(f"{name}/{tag}")
    return JSONResponse(found) if found is not None else JSONResponse({}, 404)


async def token(request: Request) -> Response:
    """Give an anonymous token."""
    assert dict(request.query_params) == {"service": "hub", "scope": "pull"}
    return JSONResponse({"token": "anonymous"})


HOSTS = {
    "tokens.example": ["8.8.8.8", "2606:4700::1111"],
    "inside.example": ["8.8.8.8", "10.0.0.7"],
    "mapped.example": ["::ffff:127.0.0.1"],
}
"""What the names of token services resolve to; addresses are their own."""


async def resolve(host: str) -> list[str]:
    """Resolve without a network."""
    if host in HOSTS:
        return HOSTS[host]
    if host.endswith(".example"):
        raise OSError("no such name")
    return [host]


@pytest.fixture
def routes() -> MutableMapping[str, ASGIApp]:
    """One registry with TLS, and one without."""
    served = Starlette(routes=[Route("/v2/{name}/manifests/{tag}", manifest, methods=["GET"])])
    tokens = Starlette(routes=[Route("/get", token)])
    return {
        "https://registry.example": served,
        "http://10.0.0.1:5000": served,
        "https://tokens.example": tokens,
        "https://sizes.example": Starlette(
            routes=[Route("/v2/{name}/manifests/{tag}", sized, methods=["GET"])]
        ),
    }


@pytest.fixture
def registry(routes: MutableMapping[str, ASGIApp]) -> HttpRegistry:
    """As a controller on a local cluster sees it."""
    environ = {
        "DSEC_DEFAULT_REGISTRY": "10.0.0.1:5000",
        "DSEC_PLAIN_HTTP_REGISTRIES": "10.0.0.1:5000,",
    }
    registry = HttpRegistry.from_environment(InProcessNetwork(routes), environ)
    registry._resolve = resolve
    return registry


@pytest.mark.parametrize(
    "reference",
    [
        "registry.example/base:1",
        "registry.example/base",
        "10.0.0.1:5000/base:1",
        "base:1",
        "registry.example/silent:1",
        "registry.example/guarded:1",
        f"nowhere.example/base@{DIGEST}",
    ],
)
async def test_known(registry: HttpRegistry, reference: str) -> None:
    """A tag, no tag, the default registry, no header, a token; a digest asks nobody."""
    assert await registry.digest(reference) == DIGEST
    await registry.close()


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("registry.example/base:2", "has no registry.example/base:2"),
        ("Registry.example/BASE", "repository part"),
    ],
)
async def test_unknown(registry: HttpRegistry, reference: str, words: str) -> None:
    """The registry said no, or the reference can name nothing."""
    with pytest.raises(ImageUnknownError, match=words):
        await registry.digest(reference)


async def test_no_registry_is_named(routes: MutableMapping[str, ASGIApp]) -> None:
    """Without a default registry a bare name leads nowhere."""
    with pytest.raises(ImageUnknownError, match="no default one"):
        await HttpRegistry(InProcessNetwork(routes)).digest("base:1")


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("nowhere.example/base:1", "registry nowhere.example does not answer"),
        ("registry.example/broken:1", "answered 500"),
        ("registry.example/private:1", "answered 403"),
        ("registry.example/odd:1", "told no digest"),
    ],
)
async def test_away(registry: HttpRegistry, reference: str, words: str) -> None:
    """Nothing is known: that is no verdict about the image."""
    with pytest.raises(RegistryAwayError, match=words):
        await registry.digest(reference)


async def test_a_lost_answer_is_away(routes: MutableMapping[str, ASGIApp]) -> None:
    """Silence is no verdict, either."""
    network = InProcessNetwork(routes, fault=lambda _: Fault.LOSE_REPLY)
    with pytest.raises(RegistryAwayError, match="does not answer"):
        await HttpRegistry(network).digest("registry.example/base:1")


@pytest.mark.parametrize(("name", "size"), [("sized", 600), ("machines", 201)])
async def test_the_size_of_an_image(registry: HttpRegistry, name: str, size: int) -> None:
    """All parts of a manifest; of several machines the largest, and never what is no image."""
    assert await registry.size(f"sizes.example/{name}:1") == size
    if name == "machines":
        assert await registry.size(f"sizes.example/{name}@{AMD}") == 101


class _Endless:
    """A registry of somebody who means no good: its answers never end, or never come."""

    def __init__(self, pause: float) -> None:
        self.pause = pause
        self.sent = 0

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Answer for ever."""
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await asyncio.sleep(self.pause)
            self.sent += 1 << 20
            await send({"type": "http.response.body", "body": b" " * (1 << 20), "more_body": True})


async def test_an_answer_without_end_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any tenant may name any registry: none may fill the leader's memory, or keep it waiting."""
    flood, drip = _Endless(0), _Endless(0.05)
    network = InProcessNetwork({"https://flood.example": flood, "https://drip.example": drip})
    with pytest.raises(RegistryAwayError, match="more than"):
        await HttpRegistry(network).size("flood.example/base:1")
    assert flood.sent <= 4 * MANIFEST_BYTES
    monkeypatch.setattr("dsec.world.registry.ANSWER_SECONDS", 0.1)
    with pytest.raises(RegistryAwayError, match="does not answer"):
        await HttpRegistry(network).size("drip.example/base:1")


async def test_connections_to_many_registries_are_not_kept(
    routes: MutableMapping[str, ASGIApp],
) -> None:
    """References name hosts without limit; the leader keeps the last ones."""
    registry = HttpRegistry(InProcessNetwork(routes), resolve=resolve)
    for number in range(MOST_CLIENTS + 20):
        with pytest.raises(RegistryAwayError):
            await registry.digest(f"r{number}.example/base:1")
    assert len(registry._clients) == MOST_CLIENTS
    assert await registry.digest("registry.example/guarded:1") == DIGEST


async def test_no_size(registry: HttpRegistry) -> None:
    """What is not there is unknown; what is no manifest tells nothing."""
    with pytest.raises(ImageUnknownError, match=r"has no sizes\.example/absent:1"):
        await registry.size("sizes.example/absent:1")
    for name in ("torn", "list"):
        with pytest.raises(RegistryAwayError, match="told no manifest"):
            await registry.size(f"sizes.example/{name}:1")


def challenging(realm: str, asked: list[str], *, location: str = "") -> ASGIApp:
    """Return a registry that names a token service, and is one: `asked` has the paths it saw."""

    async def answer(request: Request) -> Response:
        asked.append(request.url.path)
        if request.url.path == "/token" and location:
            return Response(status_code=307, headers={"Location": location})
        if request.url.path == "/token":
            return JSONResponse({"token": "anonymous"})
        if request.headers.get("authorization") == "Bearer anonymous":
            return Response(BODY, headers={"Docker-Content-Digest": DIGEST})
        return Response(status_code=401, headers={"WWW-Authenticate": f'Bearer realm="{realm}"'})

    return Starlette(routes=[Route("/{path:path}", answer)])


@pytest.mark.parametrize(
    ("realm", "words"),
    [
        ("http://tokens.example/token", "it must be https"),
        ("file:///etc/passwd", "a URL with a host"),
        ("https://user@tokens.example/token", "without a user"),
        ("https://[::1/token", "which is not asked"),
        ("https://tokens.example:port/token", "which is not asked"),
        ("https://127.0.0.1/token", "127.0.0.1 is at 127.0.0.1"),
        ("https://[::1]/token", "loopback, private or link-local"),
        ("https://169.254.169.254/token", "loopback, private or link-local"),
        ("https://inside.example/token", "inside.example is at 10.0.0.7"),
        ("https://mapped.example/token", "loopback, private or link-local"),
        ("https://absent.example/token", "absent.example has no address"),
    ],
)
async def test_a_registry_cannot_make_the_leader_call_inside(realm: str, words: str) -> None:
    """A token service is on the Internet, with TLS, or on the host of its registry."""
    asked: list[str] = []
    served = challenging(realm, asked)
    hosts = ("tokens.example", "127.0.0.1", "[::1]", "169.254.169.254", *HOSTS)
    everywhere = {f"{scheme}://{host}": served for host in hosts for scheme in ("http", "https")}
    network = InProcessNetwork({"https://foreign.example": served, **everywhere})
    with pytest.raises(RegistryAwayError, match=re.escape(words)) as caught:
        await HttpRegistry(network, resolve=resolve).digest("foreign.example/base:1")
    assert "registry foreign.example names the token service" in str(caught.value)
    assert asked == ["/v2/base/manifests/1"]


async def test_a_registry_inside_may_be_its_own_token_service() -> None:
    """Also without TLS where it is configured so; http elsewhere only for such a registry."""
    for registry, scheme, realm in (
        ("10.0.0.1:5000", "http", "http://10.0.0.1:5000/token"),
        ("10.0.0.1", "https", "https://10.0.0.1/token"),
    ):
        network = InProcessNetwork({f"{scheme}://{registry}": challenging(realm, [])})
        plain = frozenset({registry} if scheme == "http" else ())
        asker = HttpRegistry(network, plain_http=plain, resolve=resolve)
        assert await asker.digest(f"{registry}/base:1") == DIGEST


async def test_a_token_service_cannot_send_the_leader_on() -> None:
    """A redirect is not followed: it gives no token."""
    asked: list[str] = []
    inside: list[str] = []
    served = challenging("https://tokens.example/token", asked, location="https://10.0.0.7/token")
    network = InProcessNetwork(
        {
            "https://foreign.example": served,
            "https://tokens.example": served,
            "https://10.0.0.7": challenging("", inside),
        }
    )
    with pytest.raises(RegistryAwayError, match="answered 401"):
        await HttpRegistry(network, resolve=resolve).digest("foreign.example/base:1")
    assert (asked, inside) == (["/v2/base/manifests/1", "/token"], [])
