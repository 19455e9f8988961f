"""Small objects over a store that fails: written so that who is told "done" can read it back.

A write is repeated until its body was read back, or another's stands there. A body that is the
beginning of ours was cut short on its way in, and is put right by its etag. A read is repeated
until it can be understood; what never can, though it comes as long as the store says, is damaged.
"""

import contextlib
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from dsec.world.objects import NotFoundError, ObjectStore, ObjectStoreError, PreconditionError

ATTEMPTS = 6
"""Tries of one call; waiting between them is for who calls again."""

M = TypeVar("M", bound=BaseModel)


class DamagedError(Exception):
    """What is stored is not what belongs there; the message says the key and why."""


async def read(objects: ObjectStore, key: str, model: type[M]) -> tuple[M, str] | None:
    """Return an object and its etag; None: it does not exist.

    Raises DamagedError, and ObjectStoreError where it cannot be told.
    """
    problem: Exception = ObjectStoreError(f"{key}: no answer")
    longest, why = 0, ""
    for _ in range(ATTEMPTS):
        try:
            data, etag = await objects.get(key)
        except NotFoundError:
            return None
        except ObjectStoreError as failure:
            problem = failure
            continue
        try:
            return model.model_validate_json(data), etag
        except ValidationError as failure:
            # perhaps only this answer was cut short
            longest, why = max(longest, len(data)), str(failure.errors()[0]["msg"])
    if not why:
        raise problem
    size = await size_of(objects, key)
    if size is None:
        return None
    if longest < size:
        raise ObjectStoreError(f"{key}: its body never comes whole")
    raise DamagedError(f"{key}: {why}")


async def create(objects: ObjectStore, key: str, data: bytes) -> bool:
    """Create an object; False: another's stands there, and stays. Idempotent.

    Raises ObjectStoreError where the outcome is unknown.
    """
    return await write(objects, key, data, None)


async def replace(objects: ObjectStore, key: str, data: bytes, etag: str) -> bool:
    """Replace one version; False: another was faster. Idempotent. Raises ObjectStoreError."""
    return await write(objects, key, data, etag)


async def remove(objects: ObjectStore, key: str) -> None:
    """Delete an object; repeating it is no error. Raises ObjectStoreError."""
    problem: Exception | None = None
    for _ in range(ATTEMPTS):
        try:
            await objects.delete(key)
        except ObjectStoreError as failure:
            problem = failure
        else:
            return
    raise ObjectStoreError(f"{key}: cannot be deleted") from problem


async def write(objects: ObjectStore, key: str, data: bytes, etag: str | None) -> bool:
    """Replace the version that was read, or create where none was: as `replace` and `create`."""
    problem: Exception = ObjectStoreError(f"{key}: no answer")
    for _ in range(ATTEMPTS):
        try:
            with contextlib.suppress(PreconditionError):
                # what stands there is another's, or ours whose answer was lost: reading tells
                if etag is None:
                    await objects.put_if_absent(key, data)
                else:
                    await objects.put_if_match(key, data, etag)
            stored, now = await objects.get(key)
        except ObjectStoreError as failure:
            problem = failure
            continue
        except NotFoundError:
            if etag is not None:
                return False
            continue
        if stored == data:
            return True
        if data.startswith(stored):
            # cut short on its way in, or only on its way out: ours either way
            etag = now
        elif now != etag:
            size = await size_of(objects, key)
            if size is None or size == len(stored):
                return False
    raise ObjectStoreError(f"{key}: cannot tell whether it was written: {problem}") from problem


async def size_of(objects: ObjectStore, key: str) -> int | None:
    """Return an object's size in bytes; None: it does not exist. Raises ObjectStoreError."""
    try:
        return await objects.size(key)
    except NotFoundError:
        return None
