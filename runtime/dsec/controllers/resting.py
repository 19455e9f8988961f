"""Paused sandboxes in the leader's books: who counts as paused, and who can go on before others."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from dsec.controllers.planner import Planner
from dsec.journal.bindings import Binding
from dsec.placement.asked import OverCapacityError
from dsec.placement.deciding import Wanted, decide
from dsec.placement.displacing import resumable, resume
from dsec.placement.ledger import Ledger
from dsec.placement.reclaim import borrower
from dsec.placement.request import Decision
from dsec.placement.translating import request_of
from dsec.placement.view import ClusterView

RIVALS = 1000
"""Most waiting work that is looked at before paused work goes on."""


def follow(
    view: ClusterView, ledger: Ledger, before: Collection[str], paused: Collection[str]
) -> None:
    """Count as paused what agents say is paused, and as running what was paused `before`."""
    bookings = view.bookings()
    for id_ in paused:
        if id_ in bookings:
            view.pause(id_)
        if id_ in ledger.entries:
            ledger.pause(id_)
    for id_ in before:
        if id_ not in paused:
            wake(view, ledger, id_)


def wake(view: ClusterView, ledger: Ledger, id_: str) -> None:
    """Count a sandbox as running, whatever room there is: its agent says so."""
    booking = view.bookings().get(id_)
    if booking is not None:
        try:
            view.resume(id_)
        except OverCapacityError:
            view.release(id_)
            decision = Decision(id_, booking.node, booking.devices, cpus=booking.cpus)
            view.book(booking.request, decision, force=True)
    entry = ledger.entries.get(id_)
    if entry is not None and ledger.resume(id_):
        ledger.end(id_)
        amounts = {**entry.amounts, **entry.given_back}
        ledger.book(replace(entry, amounts=amounts, given_back={}))


def able(planner: Planner, waiting: Sequence[Binding]) -> list[str]:
    """Return who is paused and can go on now, first ones first; a gang goes on as one.

    Waiting work of higher priority is thought of as placed before; so is all waiting work where a
    sandbox would have more than its tenant owns: what an owner waits for is not lent again.
    """
    candidates = resumable(planner.view, planner.ledger)
    if not candidates:
        return []
    view, ledger = planner.view.fork(), planner.ledger.fork()
    rest = list(waiting[:RIVALS])
    found = []
    for unit in candidates:
        books = ledger.fork()
        if any(books.resume(entry.id) for entry in unit):
            continue
        wholes = [books.entries[entry.id] for entry in unit]
        borrows = any(borrower(books, whole, whole.amounts) for whole in wholes)
        least = min(entry.priority for entry in unit)
        rivals = [b for b in rest if borrows or b.priority > least]
        rest = [b for b in rest if not borrows and b.priority <= least]
        decide(view, ledger, [Wanted(request_of(b), planner.entry(b)) for b in rivals], learn=False)
        if resume(view, ledger, unit):
            found += [entry.id for entry in unit]
    return found
