"""One round of decisions: quota first, then a place; what gets no place gives its quota back. Pure.

The leader calls it on what waits, in the order of the queues; a replay calls it on a dump.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from dsec.placement.accounts import QuotaError
from dsec.placement.engine import place
from dsec.placement.entries import Entry
from dsec.placement.ledger import Ledger
from dsec.placement.mix import Mix
from dsec.placement.refusal import Refusal
from dsec.placement.request import Decision, Request
from dsec.placement.scores import Weights
from dsec.placement.view import ClusterView


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request with what it counts in the ledger; both have the same id."""

    request: Request
    entry: Entry


def decide(
    view: ClusterView,
    ledger: Ledger,
    wanted: Sequence[Wanted],
    *,
    mix: Mix | None = None,
    weights: Weights | None = None,
    record: bool = False,
    learn: bool = True,
) -> list[Decision]:
    """Return one decision each, in order; what is accepted is booked in view and ledger.

    A gang gets quota as a whole or not at all. Raises QuotaError where a gang is of two tenants;
    then nothing has changed.
    """
    gangs: dict[str, list[Wanted]] = {}
    for one in wanted:
        gangs.setdefault(one.request.gang or one.request.id, []).append(one)
    for name, members in gangs.items():
        if len(members) > 1:
            _check(name, members)
    before = {one.entry.id for one in wanted if one.entry.id in ledger.entries}
    over: dict[str, tuple[Refusal, ...]] = {}
    for single, units in groupby(gangs.values(), lambda members: len(members) == 1):
        run = [[member.entry for member in members] for members in units]
        if single:
            answers = ledger.admit_each([entry for (entry,) in run])
        else:
            answers = [ledger.admit(*entries) for entries in run]
        for entries, answer in zip(run, answers, strict=True):
            if answer.refusals:
                over |= dict.fromkeys((entry.id for entry in entries), answer.refusals)
    counted = {one.entry.id for one in wanted if one.request.id not in over} - before
    admitted = [one.request for one in wanted if one.request.id not in over]
    placed = place(
        view, admitted, mix=mix, weights=weights or Weights(), record=record, learn=learn
    )
    found = {decision.id: decision for decision in placed}
    for decision in placed:
        if not decision.node and decision.id in counted:
            ledger.end(decision.id)
    return [
        found.get(one.request.id) or Decision(one.request.id, refusals=over[one.request.id])
        for one in wanted
    ]


def _check(gang: str, members: Sequence[Wanted]) -> None:
    """Raise QuotaError where a gang is of several tenants."""
    tenants = sorted({member.entry.tenant for member in members})
    if len(tenants) > 1:
        raise QuotaError(f"gang {gang}: members of tenants {', '.join(tenants)}; one is allowed")
