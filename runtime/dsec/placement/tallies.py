"""What the ledger counts for whom: accounts, the sums over their entries, and proof of those. Pure.

`Ledger` decides what is counted here. The sums change only together with what is counted.
"""

from dataclasses import replace

from dsec.placement.accounts import Account, Amounts
from dsec.placement.admission import delegable, given, rooms
from dsec.placement.branches import Kind, Tree
from dsec.placement.entries import Entry


class Tallies:
    """Accounts, what is counted for them, and the figures that follow from it."""

    def __init__(self) -> None:
        self.tree = Tree()
        self.entries: dict[str, Entry] = {}
        self.leases: dict[str, Entry] = {}
        self.holds: dict[str, tuple[Entry, float]] = {}

    # accounts

    def put(self, account: Account) -> None:
        """Declare or change an account; nobody is evicted.

        Raises QuotaError where a child is given more than its parent has left to give: the sum of
        the children's nominal amounts and of guaranteed work beside them is never above it.
        """
        delegable(self.tree, account)
        self.tree.put(account)

    def put_cohort(self, name: str, spare: Amounts) -> None:
        """Set what a cohort may lend beside the shares of its tenants: room that nobody owns."""
        self.tree.put_cohort(name, spare)

    def remove(self, path: str) -> None:
        """Forget an account; what is counted below it stays until it ends."""
        self.tree.remove(path)

    def close(self, path: str) -> None:
        """End a task: what it was given and does not use returns to its project at once (TEN-03).

        What it still uses returns as its sandboxes end.
        """
        branch = self.tree.branches.get(path)
        if branch is not None and branch.account is not None:
            self.tree.put(replace(branch.account, closed=True))

    # figures

    def used(self, path: str) -> dict[str, int]:
        """Return the sum over the live sandboxes of an account."""
        return self._sums(path, Kind.LIVE)

    def leased(self, path: str) -> dict[str, int]:
        """Return the sum over the leases of an account."""
        return self._sums(path, Kind.LEASE)

    def borrowed(self, path: str) -> dict[str, int]:
        """Return what an account uses or has leased above its nominal amounts."""
        branch = self.tree.branches.get(path)
        if branch is None:
            return {}
        above = {d: branch.counted(d) - most for d, most in branch.nominal.items()}
        return {dimension: value for dimension, value in above.items() if value > 0}

    def free(self, path: str) -> dict[str, int]:
        """Return what an account owns and has neither used nor given to its children.

        Dimensions without a nominal figure are left out. Never below 0.
        """
        branch = self.tree.branches.get(path)
        if branch is None:
            return {}
        return {d: max(0, most - given(branch, d)) for d, most in branch.nominal.items()}

    def room(self, like: Entry) -> dict[str, int]:
        """Return how much more work of that account and class could be given now, per dimension.

        The least over the account and all above it; unlimited dimensions are left out.
        """
        return rooms(self.tree, like)

    def audit(self) -> list[str]:
        """Return every branch whose sums are not those of its entries; empty: the books are right.

        The sums are made anew from accounts and entries, in other tallies.
        """
        fresh = Tallies()
        fresh.tree.spare = dict(self.tree.spare)
        for branch in list(self.tree.branches.values()):
            if branch.account is not None:
                fresh.tree.put(branch.account)
        for kind, entries in (
            (Kind.LIVE, self.entries.values()),
            (Kind.LEASE, self.leases.values()),
            (Kind.HOLD, [entry for entry, _ in self.holds.values()]),
        ):
            for entry in entries:
                fresh._count(entry, kind, 1)
        mine, theirs = self.tree.books(), fresh.tree.books()
        return [p for p in sorted({*mine, *theirs}) if mine.get(p) != theirs.get(p)]

    # inside

    def _sums(self, path: str, kind: Kind) -> dict[str, int]:
        branch = self.tree.branches.get(path)
        return dict(branch.by_kind.get(kind, {})) if branch else {}

    def _count(self, entry: Entry, kind: Kind, sign: int) -> None:
        self.tree.count(
            entry.account,
            entry.amounts,
            (f"{kind.value} {entry.id}",),
            kind,
            guaranteed=entry.guaranteed,
            sign=sign,
        )
