"""Cards: what another region needs to make an experiment again, kept beside its snapshots.

Object `records/<root>.json` of a repository: the record as its owner declared it, and where it
lives. The leader writes it, copies carry it; of two the one of the higher home epoch, then of the
later generation, holds.
"""

from datetime import datetime
from typing import Any

from pydantic import Field

from dsec.api.base import WireModel
from dsec.snapshots.layout import under
from dsec.snapshots.steady import DamagedError, read, remove, write
from dsec.world.objects import ObjectStore, ObjectStoreError

ATTEMPTS = 4
PART = "records"


class Card(WireModel):
    """One experiment."""

    root: str = Field(description="The part of its lineages that all replicas share.")
    tenant: str
    project: str
    name: str
    region: str = Field(description="Where it lives.")
    home_epoch: int = Field(default=0, ge=0)
    generation: int = Field(default=0, ge=0)
    origin: str = Field(default="", description="Root that it was restored from.")
    ended: bool = False
    record: dict[str, Any] = Field(description="apiVersion, kind, metadata, spec.")
    at: datetime


async def cards(objects: ObjectStore, prefix: str) -> list[Card]:
    """Return the cards of a repository; damaged ones are left out. Raises ObjectStoreError."""
    found = []
    for info in await objects.list(under(prefix, PART, "")):
        try:
            one = await read(objects, info.key, Card)
        except DamagedError:
            # it is written again with the next change, and at each start of a leader
            continue
        if one is not None:
            found.append(one[0])
    return found


async def write_card(objects: ObjectStore, prefix: str, card: Card) -> bool:
    """Write a card unless a later one is there; True: it was written. Raises ObjectStoreError."""
    key, data = under(prefix, PART, f"{card.root}.json"), card.model_dump_json(by_alias=True)
    for _ in range(ATTEMPTS):
        try:
            known = await read(objects, key, Card)
        except DamagedError:
            await remove(objects, key)
            continue
        if known is not None and _rank(known[0]) >= _rank(card):
            return False
        if await write(objects, key, data.encode(), known[1] if known else None):
            return True
    raise ObjectStoreError(f"{key}: changes too often")


def _rank(card: Card) -> tuple[int, int, bool]:
    return card.home_epoch, card.generation, card.ended
