"""What a direct create starts from once its node was lost: its own snapshots come first.

Where nothing of it was saved it begins as it had begun itself: a fork from what it was forked off,
what had gone on from an earlier sandbox of its key from that one's snapshots, all else from its
image.
"""

import asyncio
from collections.abc import Iterable

from dsec.api.lineage import lineage_of
from dsec.api.snapshot import RestoreFrom
from dsec.journal.bindings import Binding
from dsec.snapshots.layout import prefix_of, under
from dsec.world.objects import ObjectStore, ObjectStoreError

AT_ONCE = 16

Origins = dict[str, RestoreFrom | None]
"""By the id of the sandbox that was lost."""


def own_of(last: Binding) -> RestoreFrom:
    """Return the newest of a sandbox's own snapshots, whichever that is."""
    return RestoreFrom(lineage=lineage_of(last.spec.identity))


async def origins(snapshots: ObjectStore, lost: Iterable[Binding]) -> Origins:
    """Return what starts in place of sandboxes. A store that is silent leaves it to the node."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(last: Binding) -> RestoreFrom | None:
        own = own_of(last)
        below = under(prefix_of(last.tenant), "refs", own.lineage, "")
        async with gate:
            try:
                saved = await snapshots.list(below)
            except ObjectStoreError:
                return own
        return own if saved else last.spec.restore

    known = {last.id: last for last in lost}
    found = await asyncio.gather(*map(one, known.values()))
    return dict(zip(known, found, strict=True))
