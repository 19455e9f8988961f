"""Homes: the region that an experiment's snapshots belong to, by an epoch that only grows.

Object `homes/<root>.json` of a repository, where the root is the part of a lineage that all
replicas of an experiment share. Each region reads the copies of the others before it starts
anything; of two that differ the higher epoch holds. Who takes a home does it by a conditional write
of the next epoch in the store that is left, so that of two who try only one has it.
"""

from datetime import datetime

from pydantic import Field

from dsec.api.base import WireModel
from dsec.snapshots.layout import check_lineage, under
from dsec.snapshots.steady import DamagedError, read, write
from dsec.world.objects import ObjectStore, ObjectStoreError

ATTEMPTS = 4
"""Tries where answers are lost."""


class HomeTakenError(Exception):
    """Somebody else has just taken the home; the message says who."""


class Home(WireModel):
    """Where an experiment lives. Without such an object it lives where it was made, by epoch 0."""

    root: str
    region: str
    epoch: int = Field(ge=0)
    at: datetime
    who: str = ""
    why: str = ""


def root_of(lineage: str) -> str:
    """Return the part of a lineage that has a home: `exp/<uid>`, or `sb/<id>`."""
    return "/".join(check_lineage(lineage).split("/")[:2])


def home_key(prefix: str, root: str) -> str:
    """Return the key of a home."""
    return under(prefix, "homes", f"{root}.json")


async def home_of(objects: ObjectStore, prefix: str, root: str) -> Home | None:
    """Return the home that this store knows; None: it never moved. Raises ObjectStoreError."""
    found = await _read(objects, home_key(prefix, root))
    return found[0] if found else None


async def homes(objects: ObjectStore, prefix: str) -> list[Home]:
    """Return all homes of a repository that ever moved. Raises ObjectStoreError."""
    keys = [info.key for info in await objects.list(under(prefix, "homes/"))]
    found = [await _read(objects, key) for key in keys]
    return [one[0] for one in found if one is not None]


async def take_home(objects: ObjectStore, prefix: str, wanted: Home) -> Home:
    """Write a home of the next epoch; repeating it is no error.

    Raises HomeTakenError where this store has that epoch, or a higher one, of somebody else, and
    ObjectStoreError where the outcome is unknown: the caller tries the same again.
    """
    key = home_key(prefix, wanted.root)
    data = wanted.model_dump_json(by_alias=True, exclude_none=True).encode()
    for _ in range(ATTEMPTS):
        known = await _read(objects, key)
        if known is not None and known[0] == wanted:
            return wanted
        if known is not None and known[0].epoch >= wanted.epoch:
            other = known[0]
            raise HomeTakenError(
                f"{wanted.root}: epoch {other.epoch} belongs to {other.region} since "
                f"{other.at:%Y-%m-%d %H:%M:%S} UTC ({other.who or 'unknown'}: {other.why or '-'})"
            )
        if await write(objects, key, data, known[1] if known else None):
            return wanted
    raise ObjectStoreError(f"{key}: changes too often")


async def carry_home(target: ObjectStore, prefix: str, home: Home) -> Home:
    """Bring a home to another store, unless that knows a higher epoch; return which holds.

    Two regions that took the same epoch without seeing each other differ: the name that sorts first
    has it, in both. Raises ObjectStoreError.
    """
    key = home_key(prefix, home.root)
    data = home.model_dump_json(by_alias=True, exclude_none=True).encode()
    for _ in range(ATTEMPTS):
        known = await _read(target, key)
        if known is not None and _rank(known[0]) >= _rank(home):
            return known[0]
        if await write(target, key, data, known[1] if known else None):
            return home
    raise ObjectStoreError(f"{key}: changes too often")


def later(one: Home | None, other: Home | None) -> Home | None:
    """Return the one of two that holds."""
    if one is None or other is None:
        return one or other
    return max(one, other, key=_rank)


def _rank(home: Home) -> tuple[int, tuple[int, ...]]:
    return home.epoch, tuple(-ord(letter) for letter in home.region)


async def _read(objects: ObjectStore, key: str) -> tuple[Home, str] | None:
    try:
        return await read(objects, key, Home)
    except DamagedError as problem:
        # whose home it is must never be guessed
        raise ObjectStoreError(str(problem)) from problem
