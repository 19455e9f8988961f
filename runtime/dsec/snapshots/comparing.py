"""How two snapshots differ, path by path, from their manifests alone."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from dsec.snapshots.manifest import Entry, Kind, order
from dsec.snapshots.repository import Repository
from dsec.snapshots.walking import entries

LISTED = 1000
"""Most paths that are named; the others are counted."""


@dataclass(frozen=True, slots=True)
class Change:
    """One path. Sizes in bytes; None: it is not there."""

    path: str
    before: int | None
    after: int | None

    @property
    def what(self) -> str:
        """What has become of it."""
        if self.before is None:
            return "added"
        return "removed" if self.after is None else "changed"


@dataclass(slots=True)
class Changes:
    """All of them; `listed` has the first ones in tree order."""

    listed: list[Change] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=lambda: {"added": 0, "removed": 0, "changed": 0})

    def add(self, path: bytes, old: Entry | None, new: Entry | None) -> None:
        """Take note of one difference."""
        change = Change(
            path.decode(errors="backslashreplace"),
            None if old is None else old.size,
            None if new is None else new.size,
        )
        self.counts[change.what] += 1
        if len(self.listed) < LISTED:
            self.listed.append(change)


async def compare(repo: Repository, before: str, after: str) -> Changes:
    """Compare two manifests. Raises SnapshotDamagedError, ObjectStoreError."""
    found = Changes()
    if before == after:
        return found
    async with aclosing(entries(repo, before)) as olds, aclosing(entries(repo, after)) as news:
        old, new = await _next(olds), await _next(news)
        while old is not None or new is not None:
            if old is not None and (new is None or order(old.path) < order(new.path)):
                found.add(old.path, old, None)
                old = await _next(olds)
            elif new is not None and (old is None or order(new.path) < order(old.path)):
                found.add(new.path, None, new)
                new = await _next(news)
            elif old is not None and new is not None:
                if not _same(old, new):
                    found.add(new.path, old, new)
                old, new = await _next(olds), await _next(news)
    return found


def _same(old: Entry, new: Entry) -> bool:
    """Return whether a path is unchanged; a folder's time tells only of what is in it."""
    if old.kind is Kind.FOLDER and new.kind is Kind.FOLDER:
        return replace(old, mtime=0) == replace(new, mtime=0)
    return old == new


async def _next(source: AsyncIterator[Entry]) -> Entry | None:
    return await anext(source, None)
