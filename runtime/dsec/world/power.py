"""Commands and packets that end or wake a machine."""

import asyncio
import contextlib
import socket
from collections.abc import Mapping, Sequence

HOOK_SECONDS = 60.0
MAGIC_PORT = 9
_MAC_BYTES = 6
_TAIL = 500


class HookError(Exception):
    """A command failed, or did not end; the message says which, and what it said."""


async def run_hook(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    seconds: float = HOOK_SECONDS,
) -> str:
    """Run a command (no shell), and return what it printed. Raises HookError."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=dict(environment) if environment is not None else None,
        )
    except OSError as error:
        raise HookError(f"{command[0]}: {error.strerror}") from error
    try:
        told, _ = await asyncio.wait_for(process.communicate(), seconds)
    except TimeoutError:
        raise HookError(f"{command[0]}: not done within {seconds:g} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    text = told.decode(errors="replace")
    if process.returncode:
        raise HookError(f"{command[0]}: exit status {process.returncode}: {text[-_TAIL:].strip()}")
    return text


def magic_packet(mac: str) -> bytes:
    """Return the payload that wakes a network card: six bytes of ones, then its address 16 times.

    Raises ValueError where the address is none.
    """
    try:
        address = bytes.fromhex(mac.replace(":", "").replace("-", ""))
    except ValueError:
        address = b""
    if len(address) != _MAC_BYTES:
        raise ValueError(f"mac: {mac!r}; six bytes are wanted, for example 00:25:90:ab:cd:ef")
    return b"\xff" * _MAC_BYTES + address * 16


async def wake_on_lan(mac: str, broadcast: str, port: int = MAGIC_PORT) -> None:
    """Send the magic packet to a broadcast address. Nothing answers. Raises OSError, ValueError."""
    packet = magic_packet(mac)
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sender.setblocking(False)
        await loop.sock_sendto(sender, packet, (broadcast, port))
