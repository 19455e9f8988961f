"""Image registries: which content a tag names now, and how large it is.

`HttpRegistry` asks real ones by the OCI distribution protocol, anonymously; `SimulatedRegistry`
holds a table for tests and the simulator. Neither keeps answers: whoever asks often caches.
"""

import asyncio
import hashlib
import ipaddress
import json
import os
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol
from urllib.parse import SplitResult, urlsplit

import httpx2

from dsec.api import imageref
from dsec.world.network import Network

_OCI, _DOCKER = "application/vnd.oci.image", "application/vnd.docker.distribution.manifest"
MANIFESTS = (
    f"{_OCI}.index.v1+json, {_OCI}.manifest.v1+json, {_DOCKER}.list.v2+json, {_DOCKER}.v2+json"
)
"""Forms of manifests that nodes can use, lists of machines first: the digest must name the list."""
SECONDS = 4.0
"""A registry that does not answer in this time is away: experiments do not wait for it."""
ANSWER_SECONDS = 12.0
"""The same for one whole answer, token included: a trickle never times out by itself."""
MANIFEST_BYTES = 4 << 20
"""Most of one answer: manifests may have 4 MiB, and whoever names an image picks its registry."""
MOST_CLIENTS = 64
"""Registries whose connections are kept; the one not asked for longest goes first."""
MACHINES = 16
"""Manifests of one list that are looked at for their sizes."""
_TOLD = 200
"""Characters of a registry's words in an error."""
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_HUB, _HUB_API = "docker.io", "registry-1.docker.io"


class RegistryAwayError(Exception):
    """Nothing is known: no answer, an answer that is no answer, or no right to ask."""


class ImageUnknownError(Exception):
    """The registry answered that it has no such image, or the reference names none."""


class Registry(Protocol):
    """Whoever knows what a tag names."""

    async def digest(self, reference: str) -> str:
        """Return the digest (sha256:...) of a reference, its own where it has one.

        Raises ImageUnknownError, RegistryAwayError.
        """
        ...

    async def size(self, reference: str) -> int:
        """Return the compressed size of an image, in bytes; of several machines' the largest.

        Raises ImageUnknownError, RegistryAwayError.
        """
        ...


Resolve = Callable[[str], Awaitable[list[str]]]
"""Addresses of a host, or of an address in any form. Raises OSError, UnicodeError: has none."""


async def addresses(host: str) -> list[str]:
    """Return the addresses of a host as this machine sees them. Raises OSError, UnicodeError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return sorted({str(one[4][0]) for one in found})


class _Answer(NamedTuple):
    """One whole answer."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class HttpRegistry:
    """Asks registries over HTTP. Owns its connections, one client per registry."""

    def __init__(
        self,
        network: Network,
        *,
        default_registry: str = "",
        plain_http: frozenset[str] = frozenset(),
        resolve: Resolve = addresses,
    ) -> None:
        """`plain_http`: registries that are spoken to without TLS."""
        self._network = network
        self._resolve = resolve
        self._default = default_registry
        self._plain = plain_http
        self._clients: dict[str, httpx2.AsyncClient] = {}
        self._busy: Counter[str] = Counter()

    @classmethod
    def from_environment(
        cls, network: Network, environ: Mapping[str, str] | None = None
    ) -> "HttpRegistry":
        """Use DSEC_DEFAULT_REGISTRY, and DSEC_PLAIN_HTTP_REGISTRIES (comma-separated)."""
        environ = os.environ if environ is None else environ
        plain = environ.get("DSEC_PLAIN_HTTP_REGISTRIES", "").split(",")
        return cls(
            network,
            default_registry=environ.get("DSEC_DEFAULT_REGISTRY", ""),
            plain_http=frozenset(name.strip() for name in plain if name.strip()),
        )

    async def close(self) -> None:
        """Close the connections."""
        clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            await client.aclose()

    async def digest(self, reference: str) -> str:
        """Return the digest of a reference. Raises ImageUnknownError, RegistryAwayError."""
        if digest := _parsed(reference).digest:
            return digest
        _, registry = self._place(reference)
        told = str((await self._ask("HEAD", reference)).headers.get("docker-content-digest", ""))
        if not told:
            answer = await self._ask("GET", reference)
            told = f"sha256:{hashlib.sha256(answer.content).hexdigest()}"
        try:
            return imageref.parse(f"x@{told}").digest
        except ValueError as problem:
            raise RegistryAwayError(f"registry {registry} told no digest: {problem}") from None

    async def size(self, reference: str) -> int:
        """Return the compressed size of an image. Raises ImageUnknownError, RegistryAwayError."""
        image, registry = self._place(reference)
        whole = await self._manifest(reference)
        try:
            if "manifests" not in whole:
                return _size(whole)
            # what is for no machine is no image: signatures, bills of material
            machines = [
                f"{registry}/{image.repository}@{one['digest']}"
                for one in whole["manifests"]
                if one.get("platform", {}).get("os", "linux") != "unknown"
            ]
            return max([_size(await self._manifest(one)) for one in machines[:MACHINES]], default=0)
        except (KeyError, TypeError, AttributeError, ValueError) as problem:
            raise RegistryAwayError(f"registry {registry} told no manifest: {problem!r}") from None

    async def _manifest(self, reference: str) -> Any:
        answer = await self._ask("GET", reference)
        try:
            return json.loads(answer.content)
        except ValueError:
            _, registry = self._place(reference)
            raise RegistryAwayError(f"registry {registry} told no manifest") from None

    def _place(self, reference: str) -> tuple[imageref.ImageRef, str]:
        """Return a reference in its parts, and the registry to ask. Raises ImageUnknownError."""
        image = _parsed(reference)
        registry = image.registry or self._default
        if not registry:
            raise ImageUnknownError(f"{reference} names no registry, and there is no default one")
        return image, registry

    async def _ask(self, method: str, reference: str) -> "_Answer":
        """Return a registry's answer about a manifest, as far as it is one."""
        image, registry = self._place(reference)
        path = f"/v2/{image.repository}/manifests/{image.digest or image.tag or 'latest'}"
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await self._send(method, registry, path)
        except (httpx2.HTTPError, TimeoutError) as problem:
            why = str(problem) or type(problem).__name__
            raise RegistryAwayError(f"registry {registry} does not answer: {why}") from problem
        if answer.status == httpx2.codes.NOT_FOUND:
            raise ImageUnknownError(f"registry {registry} has no {reference}")
        if not httpx2.codes.is_success(answer.status):
            raise RegistryAwayError(f"registry {registry} answered {answer.status}")
        return answer

    async def _send(self, method: str, registry: str, path: str) -> "_Answer":
        """Ask once, and where the registry wants a token once more with one."""
        headers = {"Accept": MANIFESTS}
        answer = await self._request(method, registry, path, headers=headers)
        if answer.status == httpx2.codes.UNAUTHORIZED:
            token = await self._token(registry, answer.headers.get("www-authenticate", ""))
            if token:
                headers["Authorization"] = f"Bearer {token}"
                answer = await self._request(method, registry, path, headers=headers)
        return answer

    async def _request(
        self, method: str, host: str, path: str, *, scheme: str = "", **more: Any
    ) -> "_Answer":
        """Return one whole answer. Raises RegistryAwayError where it is too large, HTTPError."""
        async with (
            self._client(host, scheme) as client,
            client.stream(method, path, **more) as answer,
        ):
            content = bytearray()
            async for part in answer.aiter_bytes():
                content += part
                if len(content) > MANIFEST_BYTES:
                    raise RegistryAwayError(f"{host} answered more than {MANIFEST_BYTES} bytes")
            return _Answer(answer.status_code, answer.headers, bytes(content))

    async def _token(self, registry: str, challenge: str) -> str:
        """Return an anonymous token of the service that a challenge names; empty: none is given.

        Raises RegistryAwayError where the service is at a place that is not asked.
        """
        kind, _, rest = challenge.partition(" ")
        asked = dict(_CHALLENGE.findall(rest))
        if kind.lower() != "bearer" or not asked.get("realm"):
            return ""
        place = await self._service(registry, asked["realm"])
        query = {name: asked[name] for name in ("service", "scope") if name in asked}
        host, path = place.netloc, place.path or "/"
        answer = await self._request("GET", host, path, scheme=place.scheme, params=query)
        # a redirect is no success: where it leads to was not looked at
        if not httpx2.codes.is_success(answer.status):
            return ""
        try:
            told = json.loads(answer.content)
        except ValueError:
            return ""
        if not isinstance(told, dict):
            return ""
        return str(told.get("token") or told.get("access_token") or "")

    async def _service(self, registry: str, realm: str) -> SplitResult:
        """Return where a token service is. Raises RegistryAwayError where it must not be asked.

        Whoever names an image picks its registry, and that picks the service: it must not reach
        what only the leader can. The name may have another address when the connection is made;
        what is there needs a certificate for that name before it hears of the question.
        """

        def refuse(why: str) -> RegistryAwayError:
            return RegistryAwayError(
                f"registry {registry} names the token service {realm[:_TOLD]!r}, which is not "
                f"asked: {why}"
            )

        try:
            place, own = urlsplit(realm), urlsplit(f"//{registry}").hostname
            host, _ = place.hostname, place.port
        except ValueError as problem:
            raise refuse(str(problem)) from None
        if not host or "@" in place.netloc:
            raise refuse("it must be a URL with a host and without a user")
        if place.scheme != "https" and not (place.scheme == "http" and registry in self._plain):
            raise refuse("it must be https; http is for registries of DSEC_PLAIN_HTTP_REGISTRIES")
        if host == own:
            return place
        try:
            found = await self._resolve(host)
        except (OSError, UnicodeError) as problem:
            raise refuse(f"{host} has no address: {problem}") from None
        for address in found:
            if not _public(address):
                raise refuse(
                    f"{host} is at {address}; only a registry's own host may have an address that "
                    f"is loopback, private or link-local"
                )
        return place

    @asynccontextmanager
    async def _client(self, host: str, scheme: str) -> AsyncIterator[httpx2.AsyncClient]:
        """Lend the client of a registry; beyond MOST_CLIENTS idle ones are closed."""
        scheme = scheme or ("http" if host in self._plain else "https")
        url = f"{scheme}://{_HUB_API if host == _HUB else host}"
        client = self._clients.pop(url, None) or self._network.client(url, timeout=SECONDS)
        self._clients[url] = client
        self._busy[url] += 1
        try:
            yield client
        finally:
            self._busy[url] -= 1
            if not self._busy[url]:
                del self._busy[url]
            over = len(self._clients) - MOST_CLIENTS
            idle = [one for one in self._clients if one not in self._busy]
            # out of reach first: nobody may take one that is about to close
            for old in [self._clients.pop(one) for one in idle[: max(0, over)]]:
                await old.aclose()


def _parsed(reference: str) -> imageref.ImageRef:
    """Return a reference in its parts. Raises ImageUnknownError."""
    try:
        return imageref.parse(reference)
    except ValueError as problem:
        raise ImageUnknownError(str(problem)) from None


def _public(address: str) -> bool:
    """Return whether an address is one of the Internet."""
    known = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(known, ipaddress.IPv6Address):
        known = known.ipv4_mapped or known.sixtofour or known
    return known.is_global and not known.is_multicast


def _size(manifest: Any) -> int:
    """Return the sum of what a manifest lists, in bytes. Raises KeyError, TypeError, ValueError."""
    return sum(int(part["size"]) for part in (manifest["config"], *manifest["layers"]))


@dataclass(slots=True)
class SimulatedRegistry:
    """A table of references and their digests. `away` makes it silent; `asked` counts questions.

    `sizes` has bytes by digest, one where it has none; `lost` are digests that are gone.
    """

    images: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    away: bool = False
    asked: int = 0

    async def digest(self, reference: str) -> str:
        """Return the digest of a reference. Raises ImageUnknownError, RegistryAwayError."""
        self.asked += 1
        if self.away:
            raise RegistryAwayError("the simulated registry is away")
        if "@" in reference:
            return reference.partition("@")[2]
        try:
            return self.images[reference]
        except KeyError:
            raise ImageUnknownError(f"the simulated registry has no {reference}") from None

    async def size(self, reference: str) -> int:
        """Return the size of what a digest names. Raises ImageUnknownError, RegistryAwayError."""
        if self.away:
            raise RegistryAwayError("the simulated registry is away")
        digest = reference.partition("@")[2]
        if digest in self.lost:
            raise ImageUnknownError(f"the simulated registry has no {reference}")
        return self.sizes.get(digest, 1)
