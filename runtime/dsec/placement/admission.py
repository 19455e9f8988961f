"""Whether the accounts have room for an entry: the one place that compares with a limit. Pure.

An entry passes where, per dimension, for its account and everything above it,

- counted + asked <= ceiling; of a cohort: <= what its tenants own together;
- guaranteed work: guaranteed + asked <= nominal everywhere, and reserved + asked <= nominal where
  the nearest nominal figure is (above that, the claim of the child has it covered).

A hold of its own has to be lifted before (Ledger does).
"""

from dsec.api.reasons import PendingReason
from dsec.placement.accounts import DIMENSIONS, Account, QuotaError
from dsec.placement.branches import Branch, Tree
from dsec.placement.entries import Entry
from dsec.placement.quota_words import Limit
from dsec.placement.refusal import Refusal


def refusals(tree: Tree, entry: Entry) -> tuple[Refusal, ...]:
    """Return what stands in the way, at most one refusal a dimension; empty: it may be booked."""
    tenant = tree.branches.get(entry.tenant)
    if tenant is None or not tenant.declared:
        # a tenant that is gone has no quota: no limit known is not no limit
        return (Refusal(PendingReason.QUOTA, "tenant", entry.tenant),)
    chain = tree.chain(entry.account)
    found = [
        Refusal(
            PendingReason.QUOTA,
            "sandboxes",
            entry.amounts.get("sandboxes", 1),
            whose=branch.path,
            limit=Limit.CLOSED,
        )
        for branch in chain
        if branch.account is not None and branch.account.closed
    ]
    if not found:
        for dimension in DIMENSIONS:
            asked = entry.amounts.get(dimension, 0)
            if asked:
                refusal = _refusal(chain, dimension, asked, guaranteed=entry.guaranteed)
                if refusal is not None:
                    found.append(refusal)
    tree.prune(chain[0])
    return tuple(found)


def rooms(tree: Tree, like: Entry) -> dict[str, int]:
    """Return, per limited dimension, the most that would still pass."""
    found: dict[str, int] = {}
    chain = tree.chain(like.account)
    for dimension in DIMENSIONS:
        covered = False
        for branch in chain:
            figures = []
            most = branch.most(dimension)
            if most is not None:
                figures.append(most - branch.total.get(dimension, 0))
            nominal = branch.nominal.get(dimension)
            if like.guaranteed and nominal is not None and branch.parent is not None:
                figures.append(nominal - branch.guaranteed.get(dimension, 0))
                if not covered:
                    figures.append(nominal - branch.reserved.get(dimension, 0))
                covered = True
            for figure in figures:
                found[dimension] = max(0, min(figure, found.get(dimension, figure)))
    tree.prune(chain[0])
    return found


def given(branch: Branch, dimension: str) -> int:
    """Return what a branch has used itself or given to its children, used there or not."""
    own = branch.total.get(dimension, 0)
    to_children = 0
    for child in branch.children.values():
        own -= child.total.get(dimension, 0)
        to_children += max(child.nominal.get(dimension, 0), given(child, dimension))
    return own + to_children


def delegable(tree: Tree, account: Account) -> None:
    """Raise QuotaError where a parent has not left what an account is to be given (TEN-03).

    Only what is added is looked at: a parent whose share was lowered takes nothing away by that.
    """
    parent_path, _, _ = account.path.rpartition("/")
    parent = tree.branches.get(parent_path)
    if parent is None or account.closed:
        return
    branch = tree.branches.get(account.path)
    for dimension, nominal in account.nominal.items():
        reserved = branch.reserved.get(dimension, 0) if branch else 0
        before = branch.nominal.get(dimension, reserved) if branch else 0
        more = max(nominal, reserved) - max(before, reserved)
        above: Branch | None = parent
        while above is not None and above.parent is not None and dimension not in above.nominal:
            above = above.parent
        if above is None or above.parent is None or more <= 0:
            continue
        left = above.nominal[dimension] - above.reserved.get(dimension, 0)
        if more > left:
            raise QuotaError(
                f"{account.path}: nominal.{dimension}: {nominal} is {more} more than before, but "
                f"{above.path} has only {max(0, left)} of {above.nominal[dimension]} left to give"
            )


def _refusal(
    chain: list[Branch], dimension: str, asked: int, *, guaranteed: bool
) -> Refusal | None:
    """Return the lowest limit that an amount would pass, or None."""
    covered = not guaranteed
    below: Branch | None = None
    for branch in chain:
        nominal = branch.nominal.get(dimension)
        if guaranteed and nominal is not None and branch.parent is not None:
            taken = branch.guaranteed.get(dimension, 0)
            if not covered:
                taken = max(taken, branch.reserved.get(dimension, 0))
                covered = True
            if taken + asked > nominal:
                return _short(
                    branch,
                    dimension,
                    asked,
                    free=nominal - taken,
                    largest=nominal,
                    limit=Limit.NOMINAL,
                )
        most = branch.most(dimension)
        total = branch.total.get(dimension, 0)
        if most is not None and total + asked > most:
            limit = Limit.CEILING if branch.parent is not None else Limit.IDLE
            whose, largest = branch, most
            if below is not None and owns(below, dimension, asked, guaranteed=guaranteed):
                limit, whose, largest = Limit.LENT, below, below.nominal[dimension]
            return _short(whose, dimension, asked, free=most - total, largest=largest, limit=limit)
        below = branch
    return None


def owns(branch: Branch, dimension: str, asked: int, *, guaranteed: bool) -> bool:
    """Return whether an amount more is within what a branch owns: then others have to give back.

    The one test for who may ask back and, turned round (`over`), for who has to give. Without a
    share of its own nobody has a right to anything.
    """
    nominal = branch.nominal.get(dimension)
    if nominal is None:
        return False
    # guaranteed work comes first in a share; what is then above it is the tenant's softer work
    taken = branch.guaranteed if guaranteed else branch.total
    return taken.get(dimension, 0) + asked <= nominal


def over(branch: Branch, dimension: str, *, more: int = 0) -> bool:
    """Return whether a branch has more than it owns: its softer work is what can be asked back.

    A branch without a share is measured with all others of its kind by what their parent has not
    delegated. `more` is added to what is counted (negative: already asked back).
    """
    nominal = branch.nominal.get(dimension)
    if nominal is not None:
        return branch.total.get(dimension, 0) + more > nominal
    pool = branch.parent.pool(dimension) if branch.parent is not None else None
    return pool is not None and pool[1] + more > pool[0]


def _short(
    branch: Branch, dimension: str, asked: int, *, free: int, largest: int, limit: Limit
) -> Refusal:
    return Refusal(
        PendingReason.QUOTA,
        dimension,
        asked,
        max(0, free),
        largest=largest,
        whose=branch.path,
        limit=limit,
    )


def spendable(tree: Tree, lease: Entry, entry: Entry) -> None:
    """Raise QuotaError where a lease is not for an entry, or has too little left for it."""
    below = entry.account == lease.account or entry.account.startswith(lease.account + "/")
    chain = tree.chain(entry.account)
    limited = any(b.declared and len(b.path) > len(lease.account) for b in chain[:-1])
    tree.prune(chain[0])
    if not below or limited:
        raise QuotaError(
            f"{entry.id}: account {entry.account}: lease {lease.id} is for {lease.account}; a "
            f"task with limits of its own needs a lease of its own"
        )
    if entry.task_class is not lease.task_class:
        raise QuotaError(
            f"{entry.id}: class {entry.task_class.value}: lease {lease.id} is for "
            f"{lease.task_class.value} work"
        )
    for dimension, value in entry.amounts.items():
        if value > lease.amounts.get(dimension, 0):
            raise QuotaError(
                f"{entry.id}.{dimension}: {value}: lease {lease.id} has "
                f"{lease.amounts.get(dimension, 0)} left"
            )
