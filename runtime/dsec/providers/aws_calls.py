"""Calls of the AWS API that are repeated where a repeat is harmless, with jittered pauses.

Only calls that are idempotent go through here: reads, and writes with a client token or of a state.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from dsec.providers.aws_errors import ABSENT, failure_of
from dsec.providers.provider import EndAnswer, Failure, FailureKind
from dsec.world.clock import Clock, Randomness
from dsec.world.ec2 import AwsApi, CloudError

THROTTLED_TRIES = 6
"""With pauses of 0.25 s doubled each time that is 8 s on average: after that the planner waits."""
UNSURE_TRIES = 3
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 8.0
"""Seconds; each pause is drawn evenly from zero to twice the one before, so that callers spread."""
CHUNK = 500
"""Identifiers in one call; the API takes a thousand and answers slower the more there are."""

_IDENTIFIER = re.compile(r"\b(?:i|vol)-[0-9a-f]{8,17}\b")

T = TypeVar("T")


class Calls:
    """The API of one region for one provider."""

    def __init__(self, api: AwsApi, clock: Clock, randomness: Randomness) -> None:
        self.api = api
        self._clock = clock
        self._randomness = randomness

    async def call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """Make an idempotent call. Raises CloudError with the last try's."""
        return await self._repeated(lambda: self.api.call(service, operation, **parameters))

    async def pages(
        self, service: str, operation: str, key: str, **parameters: Any
    ) -> list[dict[str, Any]]:
        """Read every page from the first one on. Raises CloudError with the last try's."""
        return await self._repeated(lambda: self.api.pages(service, operation, key, **parameters))

    async def _repeated(self, once: Callable[[], Awaitable[T]]) -> T:
        pause, throttles, unsure = FIRST_PAUSE, 0, 0
        while True:
            try:
                return await once()
            except CloudError as error:
                # the API gives a lack of capacity as a 5xx, too: that is an answer
                failure = failure_of(error)
                throttles += failure.kind is FailureKind.THROTTLED
                unsure += failure.unsure
                repeat = failure.kind is FailureKind.THROTTLED or failure.unsure
                if not repeat or throttles >= THROTTLED_TRIES or unsure >= UNSURE_TRIES:
                    raise
            await self._clock.sleep(pause * self._randomness.random())
            pause = min(2 * pause, LONGEST_PAUSE)


async def each_chunk(
    identifiers: Sequence[str],
    work: Callable[[list[str]], Awaitable[None]],
    *,
    absent_is_done: bool,
    size: int = CHUNK,
) -> EndAnswer:
    """Do an idempotent work on identifiers, many at once; one that fails fails its chunk alone.

    The API refuses a whole call for one identifier that it does not know: those that it names are
    taken out, and the rest is tried again.
    """
    ended: set[str] = set()
    failed: dict[str, Failure] = {}
    for start in range(0, len(identifiers), size):
        chunk = list(identifiers[start : start + size])
        while chunk:
            try:
                await work(chunk)
            except CloudError as error:
                failure = failure_of(error)
                unknown = set(chunk) & set(_IDENTIFIER.findall(error.message))
                if error.code not in ABSENT or not unknown:
                    failed |= dict.fromkeys(chunk, failure)
                    break
                if absent_is_done:
                    ended |= unknown
                else:
                    failed |= dict.fromkeys(unknown, failure)
                chunk = [one for one in chunk if one not in unknown]
            else:
                ended |= set(chunk)
                break
    return EndAnswer(frozenset(ended), failed)
