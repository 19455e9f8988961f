"""The tree below the ledger: cohort, tenants, projects and tasks with their sums. Pure.

Each branch holds, per dimension, what is counted below it. `total` is what checks look at: live
sandboxes, leases and holds together. `reserved` is what guaranteed work and promises to children
take of its nominal amount:

    reserved(branch) = guaranteed entries of its own + sum of claim(child)
    claim(child)     = max(nominal(child), reserved(child)), or reserved(child) where it has none

so a share that was delegated is gone for guaranteed work elsewhere even while it is idle, and
delegation stays bounded: reserved(parent) <= nominal(parent).

A branch without a nominal figure shares what its parent has not delegated (the pool).
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum

from dsec.placement.accounts import DIMENSIONS, Account, Amounts, limits, split


class Kind(StrEnum):
    """What an entry of the ledger stands for."""

    LIVE = "live"
    """A sandbox, from before its dispatch to its end."""
    LEASE = "lease"
    """A slice that a gateway may spend."""
    HOLD = "hold"
    """Room kept for work whose victims are on their way out."""


class Branch:
    """One account, or the cohort above tenants, with its sums. Figures change through Tree only."""

    __slots__ = (
        "account",
        "by_kind",
        "children",
        "declared",
        "guaranteed",
        "keys",
        "nominal",
        "parent",
        "path",
        "reserved",
        "total",
    )

    def __init__(self, path: str, parent: "Branch | None") -> None:
        self.path = path
        self.parent = parent
        self.account: Account | None = None
        self.declared = False
        self.nominal: Amounts = {}
        self.children: dict[str, Branch] = {}
        self.keys: dict[str, None] = {}
        self.total: dict[str, int] = {}
        self.guaranteed: dict[str, int] = {}
        self.reserved: dict[str, int] = {}
        self.by_kind: dict[Kind, dict[str, int]] = {}

    def most(self, dimension: str) -> int | None:
        """Return the most of a dimension that may be counted here, None: unlimited."""
        if self.account is None or self.account.closed:
            return self.nominal.get(dimension)
        return self.account.most(dimension)

    def pool(self, dimension: str) -> tuple[int, int] | None:
        """Return (owned, counted) of the children without a share of their own, None: unlimited.

        The branch's own entries belong to its pool.
        """
        nominal = self.nominal.get(dimension)
        if nominal is None:
            return None
        shares = counted = 0
        for child in self.children.values():
            share = child.nominal.get(dimension)
            if share is not None:
                shares += share
                counted += child.total.get(dimension, 0)
        return max(0, nominal - shares), self.total.get(dimension, 0) - counted

    def counted(self, dimension: str) -> int:
        """Return what is live or leased: room that is only held for somebody is nobody's use."""
        held = self.by_kind.get(Kind.HOLD, {})
        return self.total.get(dimension, 0) - held.get(dimension, 0)

    def walk(self) -> "Iterator[Branch]":
        """Yield the branch and all below it, in order of their paths."""
        yield self
        for name in sorted(self.children):
            yield from self.children[name].walk()


class Tree:
    """All branches. Cohorts are roots; a tenant without a cohort has one of its own."""

    def __init__(self) -> None:
        self.cohorts: dict[str, Branch] = {}
        self.branches: dict[str, Branch] = {}
        self.spare: dict[str, Amounts] = {}

    def put(self, account: Account) -> None:
        """Declare or change an account. What is counted below it stays."""
        branch = self.branch(account.path)
        before = dict(branch.nominal)
        branch.account = account
        branch.declared = True
        if branch.parent is not None and "/" not in account.path:
            self._join(branch, account.cohort)
        branch.nominal = {} if account.closed else account.nominal
        self._reclaim_claims(branch, before)
        self._sum_cohort(branch)

    def put_cohort(self, name: str, spare: Amounts) -> None:
        """Set what a cohort may lend beside the shares of its tenants: room that nobody owns."""
        self.spare[f"cohort {name}"] = limits(spare, f"cohort {name}: spare", "relative")
        if f"cohort {name}" in self.cohorts:
            self._sum(self.cohorts[f"cohort {name}"])

    def remove(self, path: str) -> None:
        """Forget an account. What is still counted stays until it ends; it owns nothing now."""
        branch = self.branches.get(path)
        if branch is None:
            return
        before = dict(branch.nominal)
        branch.account, branch.declared, branch.nominal = None, False, {}
        self._reclaim_claims(branch, before)
        if "/" not in path:
            self._join(branch, "")
        self._sum_cohort(branch)
        self.prune(branch)

    def branch(self, path: str) -> Branch:
        """Return the branch of a path, made where it is missing."""
        found = self.branches.get(path)
        if found is not None:
            return found
        above = "/".join(split(path)[:-1])
        parent = self.branch(above) if above else self._cohort("", path)
        branch = Branch(path, parent)
        parent.children[path] = branch
        self.branches[path] = branch
        return branch

    def chain(self, path: str) -> list[Branch]:
        """Return the branches from a path up to its cohort."""
        found = []
        branch: Branch | None = self.branch(path)
        while branch is not None:
            found.append(branch)
            branch = branch.parent
        return found

    def count(
        self,
        path: str,
        amounts: Amounts,
        keys: Sequence[str],
        kind: Kind,
        *,
        guaranteed: bool,
        sign: int,
    ) -> None:
        """Add amounts to (sign 1) or take them from (sign -1) a branch and all above it.

        `keys` tell the entries of a branch apart: while there is one, the branch is kept. `amounts`
        are the sum over all of them.
        """
        chain = self.chain(path)
        for branch in chain:
            sums = branch.by_kind.setdefault(kind, {})
            for dimension, value in amounts.items():
                _add(branch.total, dimension, sign * value)
                _add(sums, dimension, sign * value)
                if guaranteed:
                    _add(branch.guaranteed, dimension, sign * value)
        if guaranteed:
            for dimension, value in amounts.items():
                _reserve(chain[0], dimension, sign * value)
        if sign > 0:
            chain[0].keys.update(dict.fromkeys(keys))
        else:
            for key in keys:
                del chain[0].keys[key]
            self.prune(chain[0])

    def books(self) -> dict[str, tuple[dict[str, int], ...]]:
        """Return all sums by path, for comparison; empty ones are left out."""
        branches = [*self.branches.values(), *self.cohorts.values()]
        return {
            b.path: (b.total, b.guaranteed, b.reserved, *(b.by_kind.get(kind, {}) for kind in Kind))
            for b in branches
            if b.total or b.reserved
        }

    def copy(self) -> "Tree":
        """Return a tree with sums of its own; accounts are shared, they do not change."""
        copy = Tree()
        copy.spare = self.spare
        copy.cohorts = {path: _copied(cohort, None, copy) for path, cohort in self.cohorts.items()}
        return copy

    def prune(self, branch: Branch) -> None:
        """Drop branches that nobody declared and nothing uses, from this one up."""
        while branch.parent is not None:
            parent = branch.parent
            if branch.declared or branch.children or branch.keys:
                return
            del self.branches[branch.path]
            del parent.children[branch.path]
            if parent.parent is None and not parent.children:
                del self.cohorts[parent.path]
            branch = parent

    def _cohort(self, name: str, tenant: str) -> Branch:
        path = f"cohort {name}" if name else f"tenant {tenant} alone"
        return self.cohorts.setdefault(path, Branch(path, None))

    def _join(self, tenant: Branch, cohort: str) -> None:
        """Move a tenant with its sums to a cohort."""
        before, after = tenant.parent, self._cohort(cohort, tenant.path)
        if before is after or before is None:
            return
        del before.children[tenant.path]
        after.children[tenant.path] = tenant
        tenant.parent = after
        for root, sign in ((before, -1), (after, 1)):
            for dimension, value in tenant.total.items():
                _add(root.total, dimension, sign * value)
            for dimension, value in tenant.guaranteed.items():
                _add(root.guaranteed, dimension, sign * value)
            for kind, sums in tenant.by_kind.items():
                for dimension, value in sums.items():
                    _add(root.by_kind.setdefault(kind, {}), dimension, sign * value)
        if before.children:
            self._sum(before)
        else:
            self.cohorts.pop(before.path, None)

    def _sum_cohort(self, branch: Branch) -> None:
        if branch.parent is not None and branch.parent.parent is None:
            self._sum(branch.parent)

    def _sum(self, cohort: Branch) -> None:
        """A cohort owns what its tenants own together; one without a limit lends without one."""
        tenants = list(cohort.children.values())
        spare = self.spare.get(cohort.path, {})
        cohort.nominal = {
            dimension: sum(tenant.nominal[dimension] for tenant in tenants)
            + spare.get(dimension, 0)
            for dimension in DIMENSIONS
            if tenants and all(dimension in tenant.nominal for tenant in tenants)
        }

    @staticmethod
    def _reclaim_claims(branch: Branch, before: Amounts) -> None:
        """Tell the parents how a branch's claims changed with its nominal amount."""
        if branch.parent is None or branch.parent.parent is None:
            return
        for dimension in {*before, *branch.nominal}:
            reserved = branch.reserved.get(dimension, 0)
            old = max(before.get(dimension, reserved), reserved)
            new = max(branch.nominal.get(dimension, reserved), reserved)
            _reserve(branch.parent, dimension, new - old)


def _add(sums: dict[str, int], dimension: str, value: int) -> None:
    """Add to a sum. Zeros are dropped, so that equal sums are equal dictionaries."""
    new = sums.get(dimension, 0) + value
    if new:
        sums[dimension] = new
    else:
        sums.pop(dimension, None)


def _reserve(branch: Branch, dimension: str, delta: int) -> None:
    """Change what is reserved at a branch, and above it as far as that is felt."""
    while delta and branch.parent is not None:
        before = branch.reserved.get(dimension, 0)
        _add(branch.reserved, dimension, delta)
        nominal = branch.nominal.get(dimension)
        if nominal is not None:
            delta = max(nominal, before + delta) - max(nominal, before)
        branch = branch.parent


def _copied(branch: Branch, parent: Branch | None, tree: Tree) -> Branch:
    copy = Branch(branch.path, parent)
    copy.account, copy.declared, copy.nominal = branch.account, branch.declared, branch.nominal
    copy.keys, copy.total = dict(branch.keys), dict(branch.total)
    copy.guaranteed, copy.reserved = dict(branch.guaranteed), dict(branch.reserved)
    copy.by_kind = {kind: dict(sums) for kind, sums in branch.by_kind.items()}
    copy.children = {path: _copied(c, copy, tree) for path, c in branch.children.items()}
    if parent is not None:
        tree.branches[branch.path] = copy
    return copy
