"""How simulated nodes join: which server, which CA, which tokens, and where they can be reached.

Server and credential are those of the user's context, as for every command; its server hands out
one join token per node. A token file may be given instead.
"""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsec.client.context import Context

LOOPBACK = "127.0.0.1"
AT_ONCE = 8
"""Records deleted at the same time."""


class JoinError(Exception):
    """It is not known how to join; the message says what is missing."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Join:
    """What simulated nodes need to register. `host` is the address to listen on."""

    gateway: str
    ca: Path | None
    tokens: list[str]
    host: str


@dataclass(frozen=True, slots=True)
class Given:
    """What the user said; empty where nothing."""

    name: str = ""
    state_dir: Path | None = None
    gateway: str = ""
    ca: Path | None = None
    token_file: Path | None = None


def directory(given: Given) -> Path:
    """Return where simulated nodes keep their files: beside the local server they belong to.

    Below a local cluster's directory, so that stopping the cluster also ends them.
    """
    if given.state_dir is not None:
        return given.state_dir.absolute() / "sim"
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    root = Path(base) / "dsec"
    cluster = root / "local" / (given.name or "local")
    return (cluster if (cluster / "cluster.json").exists() else root / "standalone") / "sim"


def find(given: Given, count: int) -> Join:
    """Return how so many nodes join. Raises JoinError, DsecError (the server gives no token)."""
    from dsec.client import context

    known = context.load()
    ca = given.ca or (Path(known.ca_file) if known.ca_file else None)
    gateway = given.gateway or known.server
    if not gateway:
        raise JoinError(
            "no server to join is known: start one with 'dsec up --standalone' or "
            "'dsec local up', or give --gateway, --ca and --token-file"
        )
    if not gateway.startswith("https://"):
        raise JoinError(
            f"gateway: {gateway!r}; nodes prove who they are by TLS: https:// is wanted"
        )
    if given.token_file is not None:
        tokens = [given.token_file.read_text().strip()] * count
    elif given.gateway and given.gateway != known.server:
        raise JoinError("token_file: give --token-file with a --gateway outside the context")
    else:
        tokens = asyncio.run(_tokens(known, count))
    return Join(gateway, ca, tokens, _host(directory(given).parent))


async def _tokens(context: "Context", count: int) -> list[str]:
    """Ask the server for one token per node. Raises DsecError."""
    from dsec.client._transport import Transport

    transport = Transport(context)
    try:
        answer = await transport.call("POST", "/v1/join-tokens", json={"count": count})
    finally:
        await transport.close()
    return list(answer.json()["tokens"])


def forget(gateway: str, names: Sequence[str]) -> None:
    """Delete the records of nodes that are gone. Raises DsecError, JoinError (another server)."""
    from dsec.client import context

    known = context.load()
    if known.server != gateway:
        raise JoinError(
            f"the nodes had joined {gateway}, the context's server is {known.server or 'none'}: "
            f"their records stay until 'kubectl delete dnode' there"
        )
    asyncio.run(_forget(known, names))


async def _forget(context: "Context", names: Sequence[str]) -> None:
    from dsec.client import NotFoundError
    from dsec.client._transport import Transport

    transport, turns = Transport(context), asyncio.Semaphore(AT_ONCE)

    async def one(name: str) -> None:
        async with turns:
            try:
                await transport.call("DELETE", f"/v1/nodes/{name}")
            except NotFoundError:  # absent records are no error: the call itself is not known
                raise JoinError(
                    "the server is older than this program and keeps the records of these nodes; "
                    "'kubectl delete dnode NAME' removes them"
                ) from None

    try:
        await asyncio.gather(*map(one, names))
    finally:
        await transport.close()


def _host(place: Path) -> str:
    """Return this machine's address as the gateway sees it: the link to a local cluster."""
    from dsec.local import cluster_state

    state = cluster_state.load(place.name, place)
    return state.layout.host_end if state is not None else LOOPBACK
