"""Dumps of decisions: everything that one round read, as JSON, and the same round again. Pure.

`dump` before the round, `decisions` of it set afterwards; `replay` runs today's code on it and says
whether the same comes out. The mix is dumped after it was told of the requests; its tables are made
anew: where they had drifted, a replay may choose another of nearly equal nodes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from pydantic import Field, PlainSerializer

from dsec.api.base import WireModel
from dsec.api.decisions import DecisionRecord, LedgerFigure
from dsec.api.reasons import PendingReason
from dsec.placement.accounts import Account
from dsec.placement.backfill import Reservation, Work, run_round
from dsec.placement.deciding import Wanted, decide
from dsec.placement.engine import place
from dsec.placement.entries import Entry
from dsec.placement.ledger import Ledger
from dsec.placement.mix import Mix
from dsec.placement.record import InputsDigest, ledger_figures, records
from dsec.placement.refusal import Refusal
from dsec.placement.request import Decision, Node, Request
from dsec.placement.scores import Weights
from dsec.placement.view import ClusterView

VERSION = 1
"""Of the dump's form."""
Named = Annotated[Decision, PlainSerializer(Decision._asdict)]
"""A decision by the names of its fields, not as a bare list."""


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


class Turn(WireModel):
    """Work that starts together or not at all, and how long it may run; unset: for ever."""

    name: str
    requests: list[str]
    since: float
    run_seconds: float | None = None


class Kept(WireModel):
    """Room kept for work at the head of the line, from the round before."""

    name: str
    decisions: list[Named]
    start: float | None = None
    expires: float


class Line(WireModel):
    """The order of waiting work, and what is known of ends: what decides who may overtake."""

    now: float
    turns: list[Turn]
    ends: dict[str, float] = {}
    kept: Kept | None = None
    rested: dict[str, float] = {}


class DecisionDump(WireModel):
    """Everything that one round of decisions was made from, and what came out."""

    version: int = VERSION
    at: datetime
    epoch: int = 0
    inputs: str
    nodes: list[Node]
    bookings: list[Held] = []
    books: Books | None = Field(default=None, description="Unset: quota was not looked at.")
    line: Line | None = Field(default=None, description="Unset: nothing is kept for anybody.")
    mix: dict[str, Any] | None = None
    weights: Weights
    requests: list[Request]
    decisions: list[Named] = []


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
    line: Line | None = None,
) -> DecisionDump:
    """Return a dump, taken before the decision; the caller sets `decisions` afterwards.

    `entries` are those of the requests, in their order, where the ledger is asked; then `line` says
    whether and how room was kept (see `line_of`).
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
        line=line,
        requests=list(requests),
    )


def line_of(
    works: Sequence[Work],
    *,
    now: float,
    ends: Mapping[str, float],
    kept: Reservation | None,
    rested: Mapping[str, float],
) -> Line:
    """Return the line of a round of `backfill.run_round`, from what that is given."""
    return Line(
        now=now,
        turns=[
            Turn(
                name=work.name,
                requests=[request.id for request in work.requests],
                since=work.since,
                run_seconds=_finite(work.run_seconds),
            )
            for work in works
        ],
        ends={id_: end for id_, end in ends.items() if math.isfinite(end)},
        kept=kept
        and Kept(
            name=kept.name,
            decisions=list(kept.decisions),
            start=_finite(kept.start),
            expires=kept.expires,
        ),
        rested=dict(rested),
    )


def _finite(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None


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
        decisions = place(
            view, taken.requests, mix=mix, weights=taken.weights, record=True, learn=False
        )
    else:
        ledger = _ledger(taken.books)
        books = ledger.fork()
        entries = {entry.id: entry for entry in taken.books.wanted}
        again = _Again(view, ledger, entries, mix, taken.weights)
        decisions = again.run(taken.line, taken.requests)

        def figures(request: Request) -> list[LedgerFigure]:
            return ledger_figures(books, entries[request.id])

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


@dataclass(frozen=True, slots=True)
class _Again:
    """Starts the work of a replayed round: quota, then room."""

    view: ClusterView
    ledger: Ledger
    entries: Mapping[str, Entry]
    mix: Mix | None
    weights: Weights

    def run(self, line: Line | None, requests: Sequence[Request]) -> list[Decision]:
        """Decide in one go, or in the order of a line with what is kept in it."""
        if line is None:
            return self.place(requests)
        by_id = {request.id: request for request in requests}
        works = [
            Work(
                turn.name,
                tuple(by_id[id_] for id_ in turn.requests),
                turn.since,
                math.inf if turn.run_seconds is None else turn.run_seconds,
            )
            for turn in line.turns
        ]
        kept = None
        if line.kept is not None:
            start = math.inf if line.kept.start is None else line.kept.start
            kept = Reservation(line.kept.name, tuple(line.kept.decisions), start, line.kept.expires)
        done = run_round(
            self.view,
            works,
            self,
            ends=line.ends,
            now=line.now,
            kept=kept,
            rested=line.rested,
        )
        late = (Refusal(PendingReason.RESERVED, done.kept.name if done.kept else "", 1),)
        return [done.decisions.get(id_) or Decision(id_, refusals=late) for id_ in by_id]

    def place(self, requests: Sequence[Request]) -> list[Decision]:
        """Decide on requests, in order."""
        wanted = [Wanted(request, self.entries[request.id]) for request in requests]
        return decide(
            self.view,
            self.ledger,
            wanted,
            mix=self.mix,
            weights=self.weights,
            record=True,
            learn=False,
        )

    def undo(self, ids: Sequence[str]) -> None:
        """Give room and quota back."""
        for id_ in ids:
            self.view.release(id_)
            self.ledger.end(id_)


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
