"""Reads task documents without keeping anybody else waiting.

A large document takes most of a second to parse and check. It is read in a thread, one at a time,
so that the calls of others are answered meanwhile and a crowd of them cannot take every thread.
"""

import asyncio
from functools import partial

from dsec.api.tenant import TenantSpec
from dsec.rules import Settings
from dsec.rules.verdict import Checked, check_document

SMALL = 8 << 10
"""Characters that are read on the spot: milliseconds, less than a change of threads is worth."""


class Documents:
    """Of one gateway."""

    def __init__(self) -> None:
        self._one = asyncio.Semaphore(1)

    async def check(
        self, text: str, *, project: str, tenant: str, rights: TenantSpec, settings: Settings
    ) -> Checked:
        """Return what a document asks for. Raises DocumentError with every mistake."""
        read = partial(
            check_document, text, project=project, tenant=tenant, rights=rights, settings=settings
        )
        if len(text) <= SMALL:
            return read()
        async with self._one:
            return await asyncio.to_thread(read)
