"""The local cluster's DNS server: names of Services, and nothing else, since nothing else is near.

`python -m dsec.local.cluster_dns ADDRESS KUBECONFIG` is one of the cluster's parts. It answers
`<service>.<namespace>.svc.cluster.local` with the ClusterIP, or with the ready addresses of a
headless Service. The wire format is that of RFC 1035; one question per message, as all resolvers
send. Names outside of the cluster's domain are refused: there is no way out of its network.
"""

import asyncio
import ipaddress
import ssl
import struct
import sys
import tempfile
from base64 import b64decode
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx2
import yaml

DOMAIN = "cluster.local"
PORT = 53
TTL_SECONDS = 5
FRESH_SECONDS = 1.0
"""How long one list of Services answers questions; a new one is seen after that."""
MOST_ADDRESSES = 20
"""More would not fit the 512 bytes of a plain UDP answer."""

_A, _IN = 1, 1
_OK, _FAILED, _NO_NAME, _REFUSED = 0, 2, 3, 5
_HEADER = struct.Struct("!6H")
_ANSWER_FLAGS = 0x8400
"""A response, authoritative."""
_RECURSION_DESIRED = 0x0100


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: `raw` is the question section, to be echoed."""

    number: int
    flags: int
    name: str
    kind: int
    raw: bytes


def parse(message: bytes) -> Question | None:
    """Return the question of a message, or None where it is not a query with exactly one."""
    if len(message) < _HEADER.size:
        return None
    number, flags, questions, *_ = _HEADER.unpack_from(message)
    if flags & 0x8000 or questions != 1:
        return None
    labels, at = [], _HEADER.size
    while at < len(message) and message[at]:
        length = message[at]
        if length > 63 or at + 1 + length >= len(message):  # noqa: PLR2004 - RFC 1035, 2.3.4
            return None
        labels.append(message[at + 1 : at + 1 + length])
        at += 1 + length
    end = at + 5
    if end > len(message):
        return None
    kind = int.from_bytes(message[at + 1 : at + 3], "big")
    name = b".".join(labels).decode("ascii", "replace").lower()
    return Question(number, flags, name, kind, message[_HEADER.size : end])


def reply(question: Question, code: int, addresses: list[str]) -> bytes:
    """Return the answer: A records for IPv4 addresses, or only a code."""
    flags = _ANSWER_FLAGS | (question.flags & _RECURSION_DESIRED) | code
    head = _HEADER.pack(question.number, flags, 1, len(addresses), 0, 0)
    # 0xC00C points back at the name in the question
    records = [
        struct.pack("!3HIH", 0xC00C, _A, _IN, TTL_SECONDS, 4) + ipaddress.IPv4Address(a).packed
        for a in addresses
    ]
    return head + question.raw + b"".join(records)


@dataclass(slots=True)
class Names:
    """Services by (name, namespace), as of the last list."""

    services: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def take(self, services: list[dict[str, Any]], endpoints: list[dict[str, Any]]) -> None:
        """Replace all names by what the API server lists."""
        ready = {_key(item): _ready(item) for item in endpoints}
        self.services = {}
        for item in services:
            address = item["spec"].get("clusterIP", "")
            headless = address in {"", "None"}
            self.services[_key(item)] = ready.get(_key(item), []) if headless else [address]

    def answer(self, question: Question) -> bytes:
        """Answer one question from what is known."""
        if question.name != DOMAIN and not question.name.endswith(f".{DOMAIN}"):
            return reply(question, _REFUSED, [])
        parts = question.name.removesuffix(DOMAIN).rstrip(".").split(".")
        if len(parts) != 3 or parts[2] != "svc":  # noqa: PLR2004 - service, namespace, "svc"
            return reply(question, _NO_NAME, [])
        found = self.services.get((parts[0], parts[1]))
        if found is None:
            return reply(question, _NO_NAME, [])
        # the name exists whatever is asked of it: no AAAA is an empty answer, not an error
        addresses = found[:MOST_ADDRESSES] if question.kind == _A else []
        return reply(question, _OK, addresses)


class Server:
    """Answers over UDP and TCP, and reads Services when asked and not fresh."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client
        self._names = Names()
        self._read = float("-inf")
        self._reading = asyncio.Lock()

    async def answer(self, message: bytes) -> bytes:
        """Return the answer to a message; empty where it is no query."""
        question = parse(message)
        if question is None:
            return b""
        try:
            await self._refresh()
        except (httpx2.HTTPError, KeyError, ValueError):
            return reply(question, _FAILED, [])
        return self._names.answer(question)

    async def _refresh(self) -> None:
        loop = asyncio.get_running_loop()
        async with self._reading:
            if loop.time() - self._read < FRESH_SECONDS:
                return
            services, endpoints = [await self._list(w) for w in ("services", "endpoints")]
            self._names.take(services, endpoints)
            self._read = loop.time()

    async def _list(self, what: str) -> list[dict[str, Any]]:
        answer = (await self._client.get(f"/api/v1/{what}")).raise_for_status()
        items: list[dict[str, Any]] = answer.json()["items"]
        return items

    async def stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one TCP connection: each message has its length before it."""
        try:
            while True:
                length = int.from_bytes(await reader.readexactly(2), "big")
                message = await self.answer(await reader.readexactly(length))
                writer.write(len(message).to_bytes(2, "big") + message)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, server: Server) -> None:
        self._server = server
        self._transport: asyncio.DatagramTransport | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # asyncio's own transport is none by class before Python 3.12
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        task = asyncio.ensure_future(self._answer(data, addr))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        message = await self._server.answer(data)
        if message and self._transport is not None:
            self._transport.sendto(message, addr)


def api_client(kubeconfig: Path) -> httpx2.AsyncClient:
    """Return a client for the one cluster and user of a kubeconfig with everything embedded."""
    config = yaml.safe_load(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    authority = b64decode(cluster["certificate-authority-data"]).decode()
    context = ssl.create_default_context(cadata=authority)
    with tempfile.NamedTemporaryFile() as pem:
        # the ssl module takes a client certificate from a file only
        for part in ("client-certificate-data", "client-key-data"):
            pem.write(b64decode(user[part]))
        pem.flush()
        context.load_cert_chain(pem.name)
    return httpx2.AsyncClient(
        base_url=cluster["server"], verify=context, timeout=3.0, trust_env=False
    )


def _key(item: dict[str, Any]) -> tuple[str, str]:
    return item["metadata"]["name"], item["metadata"]["namespace"]


def _ready(endpoints: dict[str, Any]) -> list[str]:
    return [
        address["ip"]
        for subset in endpoints.get("subsets") or []
        for address in subset.get("addresses") or []
    ]


async def serve(address: str, kubeconfig: Path) -> None:
    """Serve on an address until cancelled. Raises OSError where the port is taken."""
    async with api_client(kubeconfig) as client:
        server = Server(client)
        loop = asyncio.get_running_loop()
        await loop.create_datagram_endpoint(lambda: _Datagrams(server), (address, PORT))
        streams = await asyncio.start_server(server.stream, address, PORT)
        async with streams:
            await streams.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], Path(sys.argv[2])))
