"""Decision records in history: one row per class and round, named by the rows of its sandboxes.

A row of kind `decision` holds a DecisionRecord; rows `sandbox-placed` and `sandbox-waits` name it
in `decision`. A burst of equal sandboxes thus costs one record.
"""

from datetime import datetime, timedelta
from typing import Any

from dsec.api.decisions import DecisionRecord, SandboxDecision
from dsec.api.wire import JournalRow
from dsec.journal.history import HistoryWriter, Question, read
from dsec.world.objects import ObjectStore

DECISION, PLACED, WAITS = "decision", "sandbox-placed", "sandbox-waits"
WRITER = "controller-"
"""How the names of those who decide begin; agents' rows need not be read."""
SKEW = timedelta(minutes=10)
"""Clocks of two leaders may differ by less than this."""


def add_decision(history: HistoryWriter, record: DecisionRecord, *, tenant: str = "") -> None:
    """Queue the row of a decision."""
    history.add(DECISION, tenant=tenant, **record.wire())


async def decision_of(
    objects: ObjectStore, sandbox: str, since: datetime
) -> SandboxDecision | None:
    """Return the newest decision about a sandbox that was asked for at `since`; None: none yet.

    Raises ObjectStoreError.
    """
    newest: JournalRow | None = None
    records: dict[str, DecisionRecord] = {}
    question = Question(since=since - SKEW, writer=WRITER)
    async for row in read(objects, question):
        if row.kind == DECISION:
            record = DecisionRecord.model_validate(row.body)
            records[record.id] = record
        elif row.sandbox == sandbox and row.kind in (PLACED, WAITS):
            newest = row if newest is None or _order(newest) < _order(row) else newest
    if newest is None:
        return None
    body: dict[str, Any] = newest.body
    return SandboxDecision(
        sandbox=sandbox,
        at=newest.utc,
        node=body.get("node", ""),
        devices=body.get("devices", []),
        message=body.get("why", ""),
        record=records.get(body.get("decision", "")),
    )


def _order(row: JournalRow) -> tuple[int, int]:
    """Terms follow each other by epoch, which a leader's boot id ends with; rows by number."""
    epoch = row.boot_id.rpartition("-")[2]
    return int(epoch) if epoch.isdigit() else 0, row.seq
