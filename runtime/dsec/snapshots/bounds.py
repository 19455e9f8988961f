"""What the data of a shared repository is bound to, remembered for as long as it lies there.

Object `residency.json`: the regions of every task that ever kept snapshots there and named some. It
only grows: the record of a task goes, its data stays.
"""

from pydantic import Field

from dsec.api.base import WireModel
from dsec.snapshots.layout import under
from dsec.snapshots.steady import DamagedError, read, write
from dsec.world.objects import ObjectStore, ObjectStoreError

ATTEMPTS = 4
LARGEST = 256


class Bound(WireModel):
    """Each entry is the regions of one or several tasks."""

    regions: list[list[str]] = Field(default=[], max_length=LARGEST)


async def remember(
    objects: ObjectStore, prefix: str, regions: set[tuple[str, ...]]
) -> list[list[str]]:
    """Add sets of regions, and return all. Raises ObjectStoreError, also where it is damaged."""
    key = under(prefix, "residency.json")
    for _ in range(ATTEMPTS):
        try:
            known = await read(objects, key, Bound)
        except DamagedError as problem:
            # what it said is not known: nothing may leave on a guess
            raise ObjectStoreError(str(problem)) from problem
        old = {tuple(one) for one in known[0].regions} if known else set()
        if regions <= old:
            return [list(one) for one in sorted(old)]
        fresh = Bound(regions=[list(one) for one in sorted(old | regions)])
        data = fresh.model_dump_json(by_alias=True).encode()
        if await write(objects, key, data, known[1] if known else None):
            return fresh.regions
    raise ObjectStoreError(f"{key}: changes too often")
