"""Decision records in history: one row per class and round, named by the rows of its sandboxes.

A row of kind `decision` holds a DecisionRecord; rows `sandbox-placed` and `sandbox-waits` name it
in `decision`. A burst of equal sandboxes thus costs one record.
"""

import asyncio
import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog

from dsec.api.decisions import DecisionRecord, SandboxDecision
from dsec.api.wire import JournalRow
from dsec.journal.history import HISTORY, HistoryWriter
from dsec.world.objects import NotFoundError, ObjectStore

DECISION, PLACED, WAITS = "decision", "sandbox-placed", "sandbox-waits"
PREEMPTED, RESUMED = "preempted", "resumed"
ABOUT_SANDBOXES = frozenset({PLACED, WAITS, PREEMPTED, RESUMED})
"""Kinds of rows that say where a sandbox is, or why it is not running."""
WRITER = "controller-"
"""How the names of those who decide begin; agents' segments are not read."""
SKEW = timedelta(minutes=10)
"""Clocks of two leaders may differ by less than this."""
KEPT_ROWS, KEPT_RECORDS, KEPT_KEYS = 50_000, 10_000, 200_000
"""What a reader remembers; the oldest is forgotten first and read again when it is asked for."""
AT_ONCE = 16
MOST_TOLD = 500
"""Characters of what is wrong with a row in the log."""

log = structlog.get_logger()


def add_decision(history: HistoryWriter, record: DecisionRecord, *, tenant: str = "") -> None:
    """Queue the row of a decision."""
    history.add(DECISION, tenant=tenant, record=record.wire())


class DecisionReader:
    """Finds decisions in history. Segments are immutable: each is read once."""

    def __init__(self, objects: ObjectStore, prefix: str = HISTORY) -> None:
        self._objects = objects
        self._prefix = prefix
        self._keys: dict[str, None] = {}
        self._newest: dict[str, JournalRow] = {}
        self._records: dict[str, DecisionRecord] = {}
        self._read_from = ""
        """The key after which everything was read up to `_latest`; empty: nothing was."""
        self._latest: datetime | None = None
        self._reading = asyncio.Lock()

    async def find(self, sandboxes: Iterable[str], since: datetime) -> dict[str, SandboxDecision]:
        """Return the newest decision about each sandbox that has one and was asked for at `since`.

        Raises ObjectStoreError.
        """
        async with self._reading:
            await self._catch_up(since - SKEW)
            rows = {one: self._newest[one] for one in sandboxes if one in self._newest}
            return {sandbox: self._decision(row) for sandbox, row in rows.items()}

    async def _catch_up(self, since: datetime) -> None:
        first, known = self._start(since), self._read_from
        whole = not known or first < known
        # several leaders may write within SKEW, each below keys of its own
        start = first if whole or self._latest is None else self._start(self._latest - SKEW)
        listed = await self._objects.list(f"{self._prefix}/", start_after=start)
        new = [
            info.key
            for info in listed
            if info.key not in self._keys and self._node(info.key).startswith(WRITER)
        ]
        for position in range(0, len(new), AT_ONCE):
            part = new[position : position + AT_ONCE]
            for key, data in zip(part, await asyncio.gather(*map(self._get, part)), strict=True):
                self._take(key, data)
                self._keys[key] = None
        if whole:
            self._read_from = first
        if len(self._keys) > KEPT_KEYS:
            self._read_from = ""  # what is forgotten now has to be found again
        for kept, most in (
            (self._keys, KEPT_KEYS),
            (self._newest, KEPT_ROWS),
            (self._records, KEPT_RECORDS),
        ):
            _trim(kept, most)

    def _start(self, moment: datetime) -> str:
        return f"{moment.astimezone(UTC).strftime(f'{self._prefix}/%Y-%m-%d')}/{WRITER}"

    def _node(self, key: str) -> str:
        return key.removeprefix(f"{self._prefix}/").split("/")[1]

    async def _get(self, key: str) -> bytes:
        try:
            return (await self._objects.get(key))[0]
        except NotFoundError:
            return b""

    def _take(self, key: str, segment: bytes) -> None:
        for line in segment.splitlines():
            try:
                self._take_row(json.loads(line))
            except (ValueError, KeyError, TypeError) as problem:
                # of another version, or torn: it must not hide all others
                log.warning("history row is unreadable", key=key, error=str(problem)[:MOST_TOLD])

    def _take_row(self, data: Any) -> None:
        """Take one row. Raises ValueError, KeyError, TypeError where it says nothing."""
        kind = data["kind"]
        if kind not in {DECISION, *ABOUT_SANDBOXES}:
            return
        if kind == DECISION:
            record = DecisionRecord.model_validate(data["body"]["record"])
            self._records[record.id] = record
            return
        row = JournalRow.model_validate(data)
        self._decision(row)
        self._latest = max(self._latest or row.utc, row.utc)
        known = self._newest.pop(row.sandbox, None)
        late = known is not None and _order(known) > _order(row)
        self._newest[row.sandbox] = known if known is not None and late else row

    def _decision(self, row: JournalRow) -> SandboxDecision:
        body: dict[str, Any] = row.body
        return SandboxDecision(
            sandbox=row.sandbox,
            at=row.utc,
            node="" if body.get("how") == "stopped" else body.get("node", ""),
            devices=body.get("devices", []),
            message=_message(row.kind, body),
            record=self._records.get(body.get("decision", "")),
        )


def _message(kind: str, body: dict[str, Any]) -> str:
    if kind == PREEMPTED:
        return f"{body.get('how', 'displaced')} {body.get('why', '')}".strip()
    if kind == RESUMED:
        return f"goes on, on node {body.get('node', '')}, after it was paused for other work"
    return body.get("why") or f"node {body.get('node', '')} took it"


def _trim(kept: dict[str, Any], most: int) -> None:
    for key in list(kept)[: max(0, len(kept) - most)]:
        del kept[key]


def _order(row: JournalRow) -> tuple[int, int]:
    """Terms follow each other by epoch, which a leader's boot id ends with; rows by number."""
    epoch = row.boot_id.rpartition("-")[2]
    return int(epoch) if epoch.isdigit() else 0, row.seq
