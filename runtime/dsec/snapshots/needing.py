"""What a snapshot needs, as a collector asks it: damage is not absence.

Only what exists no more makes a snapshot broken, which gives up the rest of it. What is there and
cannot be read may be read by a later dsec, from another region, or once it is repaired.
"""

from dsec.api.snapshot import SnapshotRef
from dsec.snapshots.collecting import BrokenError, Needs
from dsec.snapshots.repository import GoneError, Repository
from dsec.snapshots.walking import needed_packs


def needs_of(repo: Repository) -> Needs:
    """Return who says which packs a snapshot needs, for the collector of a repository."""

    async def needs(ref: SnapshotRef) -> set[str]:
        await repo.refresh()
        try:
            return await needed_packs(repo, ref.manifest)
        except GoneError as problem:
            if repo.damaged:
                raise  # it may well exist: the index that would say so cannot be read
            raise BrokenError(str(problem)) from problem

    return needs
