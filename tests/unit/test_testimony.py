"""Ends that a node has told of before it was lost: of that node, in those days, and no others."""

from datetime import UTC, datetime, timedelta
from typing import Any

from dsec.api.reasons import EndReason
from dsec.api.wire import JournalRow
from dsec.journal.history import store
from dsec.journal.testimony import told_ends
from dsec.world.memory import MemoryObjects

NOW = datetime(2026, 1, 10, 0, 5, tzinfo=UTC)


def row(sandbox: str, seq: int, at: datetime = NOW, **fields: Any) -> JournalRow:
    """Return the row of an end of node n1."""
    values: dict[str, Any] = {
        "node": "n1",
        "kind": "sandbox-ended",
        "body": {"incarnation": 1, "end": {"reason": "completed"}},
    }
    return JournalRow(boot_id="b", seq=seq, utc=at, sandbox=sandbox, **(values | fields))


async def test_ends_are_found_over_midnight_and_of_that_node_only() -> None:
    """Rows of other kinds, nodes and sandboxes, and what cannot be read, are no ends."""
    objects = MemoryObjects()
    yesterday = NOW - timedelta(minutes=10)
    await store(objects, [row("s1", 1, yesterday)])
    await store(
        objects,
        [
            row("s2", 2, body={"incarnation": 3, "end": {"reason": "oom-killed"}}),
            row("s3", 3, kind="sandbox-running"),
            row("s4", 4, body={"incarnation": 1, "end": {"reason": "no such reason"}}),
            row("s5", 5, body={"end": {"reason": "completed"}}),
            row("other", 6),
        ],
    )
    await store(objects, [row("s3", 1, node="n2")])
    asked = {"s1", "s2", "s3", "s4", "s5"}
    found = await told_ends(objects, "n1", asked, yesterday, NOW)
    assert {name: (at, end.reason) for name, (at, end) in found.items()} == {
        "s1": (1, EndReason.COMPLETED),
        "s2": (3, EndReason.OOM_KILLED),
    }


async def test_rows_from_before_are_not_read() -> None:
    """A day before the first of them came to the node says nothing of them."""
    objects = MemoryObjects()
    await store(objects, [row("s1", 1, NOW - timedelta(days=2))])
    assert not await told_ends(objects, "n1", {"s1"}, NOW, NOW)
