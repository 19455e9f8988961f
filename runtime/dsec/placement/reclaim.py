"""Who gives back quota when its owner asks: the fewest, softest and youngest that suffice. Pure.

Right to ask: the asker is, with what it asks, within what its account owns at the level where room
lacks. Whoever would borrow asks nobody; whoever owns nothing has no right (and none is a victim in
a dimension of which it takes nothing, or of which its account has no more than it owns).

To be asked: only work that consented (`pausable`, `preemptible`), of accounts that have more than
they own in a dimension that lacks, at every level below that where it lacks; if that is not enough,
at the highest of these levels alone. One predicate (`over`) says both who is asked and when it is
enough, so that two accounts never take turns.

Order: pausable first (TEN-02), lowest priority, youngest.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf

from dsec.api.experiment import TaskClass
from dsec.placement.admission import over, refusals
from dsec.placement.branches import Branch
from dsec.placement.entries import GIVEN_BACK_WHEN_PAUSED, Entry
from dsec.placement.ledger import Ledger
from dsec.placement.quota_words import Limit

UNTOUCHABLE_ROLES = frozenset({"trainer"})
"""A process amid a gradient computation is not pushed aside (GPU-17)."""


@dataclass(frozen=True, slots=True)
class Return:
    """One victim, and whether a pause gives enough back."""

    entry: Entry
    pause: bool


def consents(entry: Entry) -> bool:
    """Return whether work may be displaced at all: by its class (TEN-10) and its role (GPU-17)."""
    return not entry.guaranteed and entry.role not in UNTOUCHABLE_ROLES


def softness(entry: Entry) -> tuple[bool, int, float, str]:
    """Return what victims are sorted by, first victim first."""
    return entry.task_class is not TaskClass.PAUSABLE, entry.priority, -entry.since, entry.id


def borrower(ledger: Ledger, entry: Entry, dimensions: Iterable[str]) -> bool:
    """Return whether work may be asked back, by its quota, in one of these dimensions.

    That is: its account and all above it have more than they own.
    """
    return consents(entry) and any(
        entry.amounts.get(dimension, 0) and _over_below(ledger, entry, None, dimension)
        for dimension in dimensions
    )


def give_back(
    ledger: Ledger,
    asking: Sequence[Entry],
    *,
    own_below: int | None = None,
    kept: Collection[str] = (),
    others: bool = True,
) -> list[Return] | None:
    """Return the least that has to be given back until the ledger admits `asking` whole.

    An empty list: it is admitted now. None: asking back does not help, or it has no right to.
    `own_below`: work of the asker's own tenant of a lower priority than this is also taken
    (preemption within a tenant). `kept`: work that is not asked. `others=False`: it has not waited
    long enough to ask borrowers. The ledger is not changed.
    """
    trial = ledger.fork()
    for entry in asking:
        trial.unhold(entry.id)
    if not trial.check(*asking):
        return []
    asking = _as_admitted(trial, asking)
    for entry in asking:
        trial.hold(entry, inf)
    taken: list[Return] = []
    rounds: list[tuple[bool, int | None]] = [(True, None), (False, None)] if others else []
    if own_below is not None:
        rounds.append((True, own_below))
    for deep, below in rounds:
        out = {*kept, *(victim.entry.id for victim in taken)}
        taken += _ask(trial, asking, out, deep=deep, own_below=below)
    if not taken or _tight(trial, asking):
        return None
    fewest = _pruned(trial, taken, asking)
    # guaranteed work may lack nominal amounts as well, which nobody can give back
    return None if trial.check(*asking) else fewest


def _as_admitted(trial: Ledger, asking: Sequence[Entry]) -> Sequence[Entry]:
    """Return the askers in the class that they would get: above nominal not all are guaranteed."""
    account = trial.tree.branch(asking[0].tenant).account
    softer = account.above_nominal if account else None
    if softer is None:
        return asking
    for entry in asking:
        if any(r.limit == Limit.NOMINAL for r in refusals(trial.tree, entry)):
            return [replace(one, task_class=softer) for one in asking]
        trial.hold(entry, inf)
    return asking


def _ask(
    trial: Ledger,
    asking: Sequence[Entry],
    kept: Collection[str],
    *,
    deep: bool,
    own_below: int | None,
) -> list[Return]:
    """Take victims, softest first, while there is too little somewhere.

    `deep`: only where every account down to the victim's has too much; else a project within its
    part pays for its tenant, whose other work is guaranteed. One pass is enough: with every victim
    there is less that lacks, and fewer have too much.
    """
    out = {*kept, *(entry.id for entry in asking)}
    candidates = [e for e in trial.entries.values() if e.id not in out and consents(e)]
    taken: list[Return] = []
    for entry in sorted(candidates, key=softness):
        tight = _tight(trial, asking)
        if not tight:
            break
        useful = [
            dimension
            for branch, dimension in tight
            if entry.amounts.get(dimension, 0)
            and _has_to_give(
                trial, entry, (branch, dimension), asking[0], deep=deep, own_below=own_below
            )
        ]
        if useful:
            taken.append(_take(trial, entry, useful))
    return taken


def _tight(ledger: Ledger, asking: Sequence[Entry]) -> list[tuple[Branch, str]]:
    """Return the branches above the askers that have too little, with the dimension."""
    asked = {dimension for entry in asking for dimension in entry.amounts}
    branches = {b.path: b for entry in asking for b in ledger.tree.chain(entry.account)}
    return [
        (branch, dimension)
        for branch in branches.values()
        for dimension in sorted(asked)
        if (most := branch.most(dimension)) is not None and branch.total.get(dimension, 0) > most
    ]


def _has_to_give(
    ledger: Ledger,
    entry: Entry,
    tight: tuple[Branch, str],
    asker: Entry,
    *,
    deep: bool,
    own_below: int | None,
) -> bool:
    branch, dimension = tight
    chain = ledger.tree.chain(entry.account)
    if branch not in chain:
        return False
    if own_below is not None:
        return entry.tenant == asker.tenant and entry.priority < own_below
    if not _may_ask(ledger, branch, dimension, asker):
        return False
    if deep or branch is chain[0]:
        return _over_below(ledger, entry, branch, dimension)
    return over(chain[chain.index(branch) - 1], dimension)


def _may_ask(ledger: Ledger, tight: Branch, dimension: str, asker: Entry) -> bool:
    """Return whether the asker (counted already) is within what it owns below a tight branch."""
    if asker.guaranteed:
        # it was admitted by its nominal amounts, else it would not have come here
        return any(dimension in b.nominal for b in ledger.tree.chain(asker.account)[:-1])
    chain = ledger.tree.chain(asker.account)
    position = chain.index(tight)
    if position == 0:
        return False
    child = chain[position - 1]
    shared = child.parent.pool(dimension) if child.parent is not None else None
    owned = dimension in child.nominal or shared is not None
    return owned and not over(child, dimension)


def _over_below(ledger: Ledger, entry: Entry, tight: Branch | None, dimension: str) -> bool:
    """Return whether every account from an entry's up to (not with) a branch has too much.

    None: up to its cohort. In a branch that has given shares to children, entries of its own count
    as the pool that is left.
    """
    chain = ledger.tree.chain(entry.account)
    last = chain.index(tight) if tight is not None else len(chain) - 1
    pool = chain[0].pool(dimension)
    if pool is not None and pool[1] <= pool[0]:
        return False
    return all(over(branch, dimension) for branch in chain[:last])


def _take(trial: Ledger, entry: Entry, useful: Sequence[str]) -> Return:
    pause = (
        entry.task_class is TaskClass.PAUSABLE
        and not entry.paused
        and all(dimension in GIVEN_BACK_WHEN_PAUSED for dimension in useful)
    )
    if pause:
        trial.pause(entry.id)
    else:
        trial.end(entry.id)
    return Return(entry, pause)


def _pruned(trial: Ledger, taken: list[Return], asking: Sequence[Entry]) -> list[Return]:
    """Leave out victims that later ones have made needless, the hardest to displace first."""
    kept = list(taken)
    for victim in reversed(taken):
        rests = trial.entries.get(victim.entry.id)
        # put back as a fact: whether its own account would admit it again is another question
        trial.end(victim.entry.id)
        trial.book(victim.entry)
        if not _tight(trial, asking):
            kept.remove(victim)
            continue
        trial.end(victim.entry.id)
        if rests is not None:
            trial.book(rests)
    return kept
