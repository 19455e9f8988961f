"""The reaper's book in the object store: one object that the leader replaces and gateways read.

Replaced only as the version that was read: a leader whose office is over cannot overwrite what a
later one wrote, and finds out.
"""

import asyncio

from pydantic import ValidationError

from dsec.api.reaping import Book, Mark
from dsec.world.clock import Clock
from dsec.world.objects import NotFoundError, ObjectStore

KEY = "reaper/book.json"
FRESH_SECONDS = 5.0
"""Readers ask the store again after this."""


class ReaperBook:
    """The book as its only writer has it. Raises what the store raises."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._etag = ""
        self.book = Book()

    async def load(self) -> None:
        """Read the newest version; none is an empty one. Raises ObjectStoreError."""
        self.book, self._etag = await _read(self._objects)

    async def save(self, book: Book) -> None:
        """Replace the version that was read. Raises PreconditionError where it is another's now.

        After ObjectStoreError or PreconditionError `load` again: the outcome is not known.
        """
        data = book.model_dump_json(by_alias=True, exclude_defaults=True).encode()
        if self._etag:
            self._etag = await self._objects.put_if_match(KEY, data, self._etag)
        else:
            self._etag = await self._objects.put_if_absent(KEY, data)
        self.book = book


class ReaperReader:
    """What gateways know of it: a few seconds old at most."""

    def __init__(self, objects: ObjectStore, clock: Clock) -> None:
        self._objects = objects
        self._clock = clock
        self._marks: dict[str, Mark] = {}
        self._read: float | None = None
        self._reading = asyncio.Lock()

    async def marks(self) -> dict[str, Mark]:
        """Return all marks by sandbox id. Raises ObjectStoreError."""
        async with self._reading:
            now = self._clock.monotonic()
            if self._read is None or now - self._read > FRESH_SECONDS:
                self._marks = (await _read(self._objects))[0].marks
                self._read = now
            return self._marks


async def _read(objects: ObjectStore) -> tuple[Book, str]:
    try:
        data, etag = await objects.get(KEY)
    except NotFoundError:
        return Book(), ""
    try:
        return Book.model_validate_json(data), etag
    except ValidationError:
        # of a version that nobody reads any more: looks of the next rounds fill it again
        return Book(), etag
