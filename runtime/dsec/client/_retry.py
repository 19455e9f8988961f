"""Trying a call again: exponential waits with jitter, in a bounded time, told to `logging` alone.

A library inside somebody's program prints nothing and leaves the hooks of other libraries alone.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from dsec.client.errors import BusyError, DsecError

FIRST_WAIT, LAST_WAIT, JITTER = 0.1, 2.0, 0.2
"""Seconds before the second try, most between two, and most added at random."""

_log = logging.getLogger("dsec.client")
T = TypeVar("T")


async def persist(
    call: Callable[[], Awaitable[T]],
    again: Callable[[DsecError], bool],
    *,
    what: str,
    patience: float,
) -> T:
    """Return what a call returns, called again while `again` says so of its error.

    A server that names a time to wait is obeyed. No try begins later than `patience` seconds after
    the first: then the last error is raised.
    """
    end = time.monotonic() + patience
    attempt = 0
    while True:
        try:
            return await call()
        except DsecError as error:
            if not again(error):
                raise
            wait = error.retry_after if isinstance(error, BusyError) else None
            if wait is None:
                jitter = random.uniform(0, JITTER)  # noqa: S311 - spreads callers, no secret
                wait = min(LAST_WAIT, FIRST_WAIT * 2.0 ** min(attempt, 10) + jitter)
            if time.monotonic() + wait > end:
                raise
            attempt += 1
            _log.info("%s: try %d in %.1f s: %s", what, attempt + 1, wait, error)
        await asyncio.sleep(wait)
