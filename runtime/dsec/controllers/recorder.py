"""Decision records of one term: taken around each round, written where they are told of.

A record is made and written to history once, when the first row of a sandbox names it: rounds that
only repeat a refusal cost a copy of the view. The leader also dumps a whole round, on request.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from dsec.api.decisions import DecisionRecord, LedgerFigure
from dsec.journal.decisions import add_decision
from dsec.journal.history import HistoryWriter
from dsec.placement.accounts import DIMENSIONS
from dsec.placement.deciding import Wanted
from dsec.placement.dumps import DecisionDump, Line, dump
from dsec.placement.entries import Entry
from dsec.placement.ledger import Ledger
from dsec.placement.mix import Mix
from dsec.placement.record import InputsDigest, ledger_figures, records
from dsec.placement.request import Decision, Request
from dsec.placement.view import ClusterView


@dataclass(slots=True)
class _Round:
    """What one round started from, and what came out."""

    at: datetime
    view: ClusterView
    """As it was before."""
    wanted: Mapping[str, Wanted]
    figures: Mapping[str, list[LedgerFigure]]
    """Of every dimension of an account and of those above it, by its path."""
    decisions: Mapping[str, Decision] = field(default_factory=dict)
    records: dict[str, DecisionRecord] | None = None
    written: set[str] = field(default_factory=set)


class Recorder:
    """Of one term. `before` and `after` surround a round; `name` is asked for each row."""

    def __init__(self, history: HistoryWriter, epoch: int) -> None:
        self._history = history
        self._epoch = epoch
        self._digests = InputsDigest()
        self._round: _Round | None = None
        self._asked: list[asyncio.Future[DecisionDump]] = []
        self._dump: DecisionDump | None = None

    def ask(self) -> asyncio.Future[DecisionDump]:
        """Ask for a dump of the next round that has anything to decide."""
        self._asked = [one for one in self._asked if not one.done()]
        self._asked.append(asyncio.get_running_loop().create_future())
        return self._asked[-1]

    def before(
        self,
        view: ClusterView,
        ledger: Ledger,
        mix: Mix,
        wanted: Sequence[Wanted],
        *,
        at: datetime,
        line: Callable[[], Line] | None = None,
    ) -> None:
        """Keep what a round starts from: all that its records and its dump need.

        `mix` has been told of the requests. `line` is called where a dump was asked for.
        """
        every = dict.fromkeys(DIMENSIONS, 1)
        figures = {
            account: ledger_figures(ledger, Entry("any", account, every))
            for account in {one.entry.account for one in wanted}
        }
        by_id = {one.request.id: one for one in wanted}
        self._round = _Round(at, view.fork(), by_id, figures)
        self._dump = None
        if wanted and not all(one.done() for one in self._asked):
            self._dump = dump(
                view,
                [one.request for one in wanted],
                at=at,
                epoch=self._epoch,
                ledger=ledger,
                entries=[one.entry for one in wanted],
                mix=mix,
                line=line() if line else None,
            )

    def after(
        self, decisions: Mapping[str, Decision], later: Mapping[str, Decision] | None = None
    ) -> None:
        """Take what came out, by id; hand out the dump where one was asked for.

        `later` are decisions of a second look at some of them, which no replay repeats.
        """
        if self._round is not None:
            self._round.decisions = {**decisions, **(later or {})}
        if self._dump is not None:
            self._dump.decisions = [decisions[request.id] for request in self._dump.requests]
            asked, self._asked = self._asked, []
            for one in asked:
                if not one.done():
                    one.set_result(self._dump)
            self._dump = None

    def name(self, sandbox: str, tenant: str = "") -> str:
        """Return the id of the last round's record about a sandbox, written by now; else empty."""
        if self._round is None or sandbox not in self._round.decisions:
            return ""
        if self._round.records is None:
            self._round.records = self._made(self._round)
        record = self._round.records[sandbox]
        if record.id not in self._round.written:
            self._round.written.add(record.id)
            add_decision(self._history, record, tenant=tenant)
        return record.id

    def _made(self, done: _Round) -> dict[str, DecisionRecord]:
        def figures(request: Request) -> list[LedgerFigure]:
            entry = done.wanted[request.id].entry
            return [
                one.model_copy(update={"asked": entry.amounts[one.dimension]})
                for one in done.figures[entry.account]
                if one.dimension in entry.amounts
            ]

        return records(
            [done.wanted[id_].request for id_ in done.decisions],
            list(done.decisions.values()),
            inputs=self._digests.of(done.view),
            at=done.at,
            before=done.view,
            epoch=self._epoch,
            figures=figures,
        )
