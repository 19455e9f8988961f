"""Dumps of decisions: everything that one round read, as JSON, and the same round again. Pure.

`dump` before the round, `decisions` of it set afterwards; `replay` runs today's code on it and says
whether the same comes out. What the mix has learned is in it, but its tables are made anew: where
they had drifted, a replay may choose another of nearly equal nodes.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pydantic import Field

from dsec.api.base import WireModel
from dsec.api.decisions import DecisionRecord, LedgerFigure
from dsec.placement.accounts import Account
from dsec.placement.engine import place
from dsec.placement.entries import Entry
from dsec.placement.ledger import Ledger
from dsec.placement.mix import Mix
from dsec.placement.record import InputsDigest, ledger_figures, records
from dsec.placement.request import Decision, Node, Request
from dsec.placement.rounds import Wanted, decide
from dsec.placement.scores import Weights
from dsec.placement.view import ClusterView

VERSION = 1
"""Of the dump's form."""


class DumpError(ValueError):
    """A dump that cannot be replayed; the message says why."""

    exit_code = 2


class Held(WireModel):
    """One booking of a dumped view."""

    request: Request
    node: str
    devices: tuple[str, ...] = ()
    cpus: tuple[int, ...] = ()
    paused: bool = False


class Books(WireModel):
    """The ledger of a dump, and what each request counts in it."""

    accounts: list[Account]
    spare: dict[str, dict[str, int]] = {}
    live: list[Entry] = []
    leases: list[Entry] = []
    holds: list[tuple[Entry, float]] = []
    wanted: list[Entry] = Field(default=[], description="In the order of the requests.")


class DecisionDump(WireModel):
    """Everything that one round of decisions was made from, and what came out."""

    version: int = VERSION
    at: datetime
    epoch: int = 0
    inputs: str
    nodes: list[Node]
    bookings: list[Held] = []
    books: Books | None = Field(default=None, description="Unset: quota was not looked at.")
    mix: dict[str, Any] | None = None
    weights: Weights
    requests: list[Request]
    decisions: list[Decision] = []


class Replay(WireModel):
    """What a replay found: whether the same came out, and the records of what did."""

    same: bool
    requests: int
    nodes: int
    differences: list[str] = []
    records: list[DecisionRecord] = []


def dump(
    view: ClusterView,
    requests: Sequence[Request],
    *,
    at: datetime,
    epoch: int = 0,
    ledger: Ledger | None = None,
    entries: Sequence[Entry] = (),
    mix: Mix | None = None,
    weights: Weights | None = None,
) -> DecisionDump:
    """Return a dump, taken before the decision; the caller sets `decisions` afterwards.

    `entries` are those of the requests, in their order, where the ledger is asked.
    """
    return DecisionDump(
        at=at,
        epoch=epoch,
        inputs=InputsDigest().of(view),
        nodes=list(view.described),
        bookings=[
            Held(request=b.request, node=b.node, devices=b.devices, cpus=b.cpus, paused=b.paused)
            for b in view.bookings().values()
        ],
        books=None if ledger is None else _books(ledger, entries),
        mix=None if mix is None else mix.state(),
        weights=weights or Weights(),
        requests=list(requests),
    )


def _books(ledger: Ledger, wanted: Sequence[Entry]) -> Books:
    accounts = [one.account for one in ledger.tree.branches.values() if one.account is not None]
    return Books(
        accounts=accounts,
        spare={name: dict(amounts) for name, amounts in ledger.tree.spare.items()},
        live=list(ledger.entries.values()),
        leases=list(ledger.leases.values()),
        holds=list(ledger.holds.values()),
        wanted=list(wanted),
    )


def replay(taken: DecisionDump) -> Replay:
    """Decide again with today's code, and compare. Raises DumpError where that makes no sense."""
    if taken.version != VERSION:
        raise DumpError(f"version: {taken.version}: this program replays version {VERSION} only")
    view = _view(taken)
    inputs, before = InputsDigest().of(view), view.fork()
    mix = None if taken.mix is None else Mix.from_state(taken.mix)
    figures = None
    if taken.books is None:
        decisions = place(view, taken.requests, mix=mix, weights=taken.weights, record=True)
    else:
        ledger = _ledger(taken.books)
        entries = {entry.id: entry for entry in taken.books.wanted}
        wanted = [Wanted(request, entries[request.id]) for request in taken.requests]
        books = ledger.fork()

        def figures(request: Request) -> list[LedgerFigure]:
            return ledger_figures(books, entries[request.id])

        decisions = decide(view, ledger, wanted, mix=mix, weights=taken.weights, record=True)
    found = [] if inputs == taken.inputs else [f"inputs: dumped {taken.inputs}, replayed {inputs}"]
    for then, now in zip(taken.decisions, decisions, strict=True):
        if (then.node, then.devices, then.cpus) != (now.node, now.devices, now.cpus):
            found.append(f"{then.id}: dumped {_where(then)}, replayed {_where(now)}")
    made = records(
        taken.requests,
        decisions,
        inputs=inputs,
        before=before,
        at=taken.at,
        epoch=taken.epoch,
        figures=figures,
    )
    return Replay(
        same=not found,
        requests=len(taken.requests),
        nodes=len(taken.nodes),
        differences=found,
        records=list({record.id: record for record in made.values()}.values()),
    )


def _view(taken: DecisionDump) -> ClusterView:
    view = ClusterView(taken.nodes)
    try:
        for held in taken.bookings:
            decision = Decision(held.request.id, held.node, held.devices, cpus=held.cpus)
            view.book(held.request, decision, force=True)
            if held.paused:
                view.pause(held.request.id)
    except ValueError as error:
        raise DumpError(f"bookings: {error}") from error
    return view


def _ledger(books: Books) -> Ledger:
    ledger = Ledger()
    for name, amounts in books.spare.items():
        ledger.put_cohort(name, amounts)
    for account in sorted(books.accounts, key=lambda one: one.path.count("/")):
        ledger.tree.put(account)  # as it stood, also where a share was lowered since
    ledger.rebuild(books.live)
    for entry in books.leases:
        ledger.lease(entry)
    for entry, until in books.holds:
        ledger.hold(entry, until)
    return ledger


def _where(decision: Decision) -> str:
    if not decision.node:
        return "nowhere"
    devices = f" with {', '.join(decision.devices)}" if decision.devices else ""
    return f"{decision.node}{devices}"
