"""How budget flows: given down from account to project to task, committed, given back. Pure.

Every function returns entries for `Ledger.extend`; their ids follow from what they book, so that
doing it again after a crash books nothing twice. For a task that has ended,

    allocated - consumed - returned = 0        per unit, to the millionth

and every commitment is released. What is not spent goes to the account above at once (TEN-03,
COST-06); what was consumed above the allocation (a soft budget) is taken from there.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from decimal import Decimal

from dsec.cost.amounts import ZERO, added, ceil_micro, over, shown
from dsec.cost.budgets import Allowance, ancestors
from dsec.cost.commitments import Commitment
from dsec.cost.entries import Entry, EntryKind
from dsec.cost.ledger import Ledger
from dsec.cost.periods import ALL_TIME, Span


def opened(ledger: Ledger, allowance: Allowance, span: Span, at: float) -> tuple[Entry, ...]:
    """Return the entry that gives a budget its limit for a period; none where it has it.

    Where the limit was changed since, only the difference is given or taken.
    """
    start = "ever" if span.start is None or span.end is None else f"{span.start:.0f}"
    base = f"{allowance.name}/{start}"
    have, count = ZERO, 0
    while True:
        gave = ledger.entries.get(f"{EntryKind.ALLOCATE.value}/{base}/{count}")
        took = ledger.entries.get(f"{EntryKind.RETURN.value}/{base}/{count}")
        if gave is None and took is None:
            break
        have += gave.amounts.get(allowance.unit, ZERO) if gave else ZERO
        have -= took.amounts.get(allowance.unit, ZERO) if took else ZERO
        count += 1
    missing = allowance.limit - have
    if not missing:
        return ()
    kind = EntryKind.ALLOCATE if missing > 0 else EntryKind.RETURN
    amounts = {allowance.unit: abs(missing)}
    name, note = f"{kind.value}/{base}/{count}", f"budget {allowance.name}"
    return (Entry(name, kind, at, allowance.path, amounts, note=note),)


def given(
    ledger: Ledger, allowance: Allowance, at: float, *, above: Iterable[Allowance] = ()
) -> tuple[Entry, ...] | str:
    """Return the entries that give a task or project its limit from the account above it.

    `above` are the budgets of that account: where it has one in this unit, it must hold as much;
    else the answer is why not, in words. Where it has none there is nothing to take it from, and
    the limit alone counts.
    """
    parents = ancestors(allowance.path)[-2:-1]
    for parent in parents:
        counted = any(one.path == parent and one.unit == allowance.unit for one in above)
        left = ledger.balance(parent, allowance.unit)
        if counted and left < allowance.limit:
            return (
                f"budget of {parent}: asked {shown(allowance.limit, allowance.unit)} for "
                f"{allowance.path}, free {shown(max(ZERO, left), allowance.unit)}; starts when "
                f"other tasks of {parent} give back what they did not spend or its limit is raised"
            )
    return opened(ledger, allowance, ALL_TIME, at)


def committed(ledger: Ledger, commitment: Commitment, at: float) -> tuple[Entry, ...]:
    """Return the entries that book a commitment, or a new revision of one.

    The new revision is booked first and the old ones released after it: between the two rows a
    crash leaves too much promised, never too little.
    """
    old = [one for one in ledger.revisions(commitment.id) if one.revision < commitment.revision]
    return (
        _promise(EntryKind.COMMIT, commitment, at),
        *(_promise(EntryKind.RELEASE, one, at) for one in old),
    )


def released(ledger: Ledger, name: str, at: float) -> tuple[Entry, ...]:
    """Return the entries that end a commitment: what it did not use is free again."""
    return tuple(_promise(EntryKind.RELEASE, one, at) for one in ledger.revisions(name))


def settled(ledger: Ledger, path: str, at: float) -> tuple[Entry, ...]:
    """Return the entries that close the bill of a task that has ended; empty when it is closed.

    Call it after the last use has been booked: later use needs another call.
    """
    entries = [
        _promise(EntryKind.RELEASE, one, at)
        for held in ledger.open(path)
        if {payer.path for payer in held.payers} == {path}
        for one in ledger.revisions(held.id)
    ]
    balances = ledger.balances(path)
    back = {unit: one for unit, one in balances.items() if one > 0}
    lacking = {unit: -one for unit, one in balances.items() if one < 0}
    # the sums so far make the id: closing again after later use is another entry
    mark = ",".join(f"{unit}={ledger.total(path, unit)}" for unit in sorted(balances))
    for kind, amounts, note in (
        (EntryKind.RETURN, back, "not spent"),
        (EntryKind.ALLOCATE, lacking, "spent above the allocation"),
    ):
        if amounts:
            entry_id = f"{kind.value}/{path}/end/{mark}"
            entries.append(Entry(entry_id, kind, at, path, amounts, note=note))
    return tuple(entries)


def turned(ledger: Ledger, allowance: Allowance, ended: Span, at: float) -> tuple[Entry, ...]:
    """Return the entries of a period's end: what is left is returned, the next limit given."""
    fresh = opened(ledger, allowance, allowance.period.span(at), at)
    left = ledger.balance(allowance.path, allowance.unit)
    start = f"{ended.start:.0f}" if ended.start is not None else "ever"
    name = f"{EntryKind.RETURN.value}/{allowance.name}/{start}/end"
    if left <= 0 or name in ledger.entries:
        return fresh
    amounts, note = {allowance.unit: left}, "end of period"
    return (Entry(name, EntryKind.RETURN, at, allowance.path, amounts, note=note), *fresh)


def _promise(kind: EntryKind, commitment: Commitment, at: float) -> Entry:
    return Entry(
        f"{kind.value}/{commitment.id}#{commitment.revision}",
        kind,
        at,
        commitment.payers[0].path,
        promise_of(commitment),
        source=commitment.id,
        region=commitment.region,
        pool=commitment.pool,
        commitment=commitment,
    )


def promise_of(commitment: Commitment) -> Mapping[str, Decimal]:
    """Return all that a commitment may come to from its start, per unit."""
    seconds = max(0, int(-(-commitment.run_until // 1)) - int(commitment.charged_from // 1))
    seconds += commitment.wind_down_seconds
    use = {unit: ceil_micro(over(rate, seconds)) for unit, rate in commitment.rates.items()}
    return added(use, commitment.closing, commitment.held)


def extended(commitment: Commitment, run_until: float) -> Commitment:
    """Return the next revision of a commitment, with a new run-until time."""
    return replace(commitment, run_until=run_until, revision=commitment.revision + 1)
