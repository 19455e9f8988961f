"""Work in a thread that nobody leaves behind: who is cancelled waits for its end."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run something in a thread and return what it does; raises what it raises.

    A thread cannot be cancelled. If its caller went on, the files that it works with would be
    closed under it, and their numbers could be those of a stranger's files by then.
    """
    running = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        raise
