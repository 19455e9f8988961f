"""The agent's log on disk: every crash point, group commit, rotation, shipping in order."""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from dsec.agent import spool as module
from dsec.agent.spool import Spool, SpoolError, decode, encode, merge, read_rows
from hypothesis import given
from hypothesis import strategies as st

Entries = dict[str, dict[str, Any]]


def segments(directory: Path) -> list[Path]:
    """Return the files of a log, oldest first."""
    return sorted(directory.glob("*.jsonl"))


class Writer:
    """A spool with the entries that its owner would hold."""

    def __init__(self, directory: Path, *, durable: bool = False) -> None:
        self.entries: Entries = {}
        self.spool = Spool(directory, lambda: list(self.entries.values()), durable=durable)
        self.recovered = self.spool.open()
        self.entries = dict(self.recovered.entries)

    def change(self, name: str, state: str) -> int:
        """Record a change of an entry with its row; return the row's number."""
        seq = self.spool.next_seq()
        first = name not in self.entries
        put = {"id": name, "state": state} | ({"spec": f"spec of {name}"} if first else {})
        self.entries[name] = merge(self.entries.get(name), put)
        self.spool.append({"row": {"seq": seq, "what": f"{name} {state}"}, "put": put})
        return seq

    def forget(self, name: str) -> None:
        """Record that an entry is gone."""
        del self.entries[name]
        self.spool.append({"forget": [name]})


async def test_every_crash_point(tmp_path: Path) -> None:
    """Cut at any byte of the newest segment, the log opens with exactly the whole records."""
    origin = tmp_path / "origin"
    writer = Writer(origin)
    states: list[tuple[Entries, int]] = [({}, 0)]
    for name, state in [("a", "x"), ("b", "x"), ("a", "y"), ("ü", "z"), ("b", "y")]:
        writer.change(name, state)
        await writer.spool.commit()
        states.append(({k: dict(v) for k, v in writer.entries.items()}, writer.spool._seq))
    writer.forget("a")
    await writer.spool.commit()
    states.append(({k: dict(v) for k, v in writer.entries.items()}, writer.spool._seq))
    writer.spool.close()
    (segment,) = segments(origin)
    data = segment.read_bytes()
    boundaries = [i + 1 for i, byte in enumerate(data) if byte == 10]
    for cut in range(len(data) + 1):
        copy = tmp_path / f"cut-{cut}"
        shutil.copytree(origin, copy)
        os.truncate(copy / segment.name, cut)
        whole = sum(boundary <= cut for boundary in boundaries)
        entries, seq = states[max(0, whole - 1)]
        again = Writer(copy)
        assert again.recovered.entries == entries, cut
        assert [row["seq"] for row in again.recovered.rows] == list(range(1, seq + 1)), cut
        assert again.recovered.damaged_lines == (cut not in {0, *boundaries}), cut
        assert again.change("c", "x") == seq + 1
        await again.spool.commit()
        again.spool.close()
        third = Writer(copy)
        assert third.recovered.damaged_lines == 0
        assert set(third.recovered.entries) == {*entries, "c"}
        third.spool.close()
        shutil.rmtree(copy)


async def test_a_crash_while_a_segment_is_started(tmp_path: Path) -> None:
    """A segment whose snapshot is incomplete counts for nothing: the one before it has all."""
    writer = Writer(tmp_path / "o")
    writer.change("a", "x")
    await writer.spool.commit()
    writer.spool.close()
    second = Writer(tmp_path / "o")
    second.spool.close()
    newest = segments(tmp_path / "o")[-1]
    data = newest.read_bytes()
    for cut in range(len(data)):
        copy = tmp_path / f"cut-{cut}"
        shutil.copytree(tmp_path / "o", copy)
        os.truncate(copy / newest.name, cut)
        again = Writer(copy)
        assert set(again.recovered.entries) == {"a"}, cut
        assert [row["seq"] for row in again.recovered.rows] == [1], cut
        again.spool.close()


async def test_damage_in_the_middle_is_counted_and_skipped(tmp_path: Path) -> None:
    """A flipped byte in an older segment loses that record alone, and it is known."""
    writer = Writer(tmp_path)
    for state in "xyz":
        writer.change("a", state)
    await writer.spool.commit()
    writer.spool.close()
    (old,) = segments(tmp_path)
    Writer(tmp_path).spool.close()
    data = bytearray(old.read_bytes())
    data[data.index(b"a y")] ^= 1
    old.write_bytes(data)
    again = Writer(tmp_path)
    assert again.recovered.damaged_lines == 1
    assert [row["what"] for row in again.recovered.rows] == ["a x", "a z"]
    assert again.recovered.entries["a"]["state"] == "z"
    again.spool.close()


@pytest.mark.parametrize("durable", [True, False])
async def test_commits_are_shared_and_ordered(tmp_path: Path, durable: bool) -> None:
    """Many committers at once: each returns when its record is on disk; the order is kept."""
    writer = Writer(tmp_path, durable=durable)

    async def one(number: int) -> None:
        seq = writer.change(f"s{number}", "x")
        await writer.spool.commit()
        assert seq in {row["seq"] for row in read_rows(tmp_path)}

    await asyncio.gather(*(one(number) for number in range(50)))
    assert [row["seq"] for row in read_rows(tmp_path)] == list(range(1, 51))
    writer.spool.close()


async def test_only_committed_rows_are_shipped(tmp_path: Path) -> None:
    """A row that a crash could still take back must not be known elsewhere."""
    writer = Writer(tmp_path)
    writer.change("a", "x")
    assert writer.spool.unshipped(10) == []
    await writer.spool.commit()
    writer.change("a", "y")
    assert [row["seq"] for row in writer.spool.unshipped(10)] == [1]
    writer.spool.close()


async def test_shipping_resumes_and_drops_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments rotate when full, and go when their rows are shipped; statuses are never lost."""
    monkeypatch.setattr(module, "SEGMENT_BYTES", 500)
    monkeypatch.setattr(module, "ROWS_IN_MEMORY", 7)
    writer = Writer(tmp_path)
    for number in range(60):
        writer.change(f"s{number % 5}", str(number))
        await writer.spool.commit()
        writer.spool.rotate()
    assert len(segments(tmp_path)) > 3
    shipped: list[int] = []
    while rows := writer.spool.unshipped(4):
        shipped += [row["seq"] for row in rows]
        writer.spool.shipped(shipped[-1])
        if len(shipped) == 20:
            writer.spool.close()
            writer = Writer(tmp_path)
    assert shipped == list(range(1, 61))
    assert len(segments(tmp_path)) == 1
    writer.spool.close()
    last = Writer(tmp_path)
    assert {name: entry["state"] for name, entry in last.entries.items()} == {
        f"s{number % 5}": str(number) for number in range(55, 60)
    }
    assert last.spool.next_seq() == 61
    last.spool.close()


async def test_a_full_disk_is_an_error_for_ever(tmp_path: Path) -> None:
    """After a failed write nothing is reported as durable any more."""
    writer = Writer(tmp_path)
    os.close(writer.spool._file)
    writer.spool._file = os.open("/dev/full", os.O_WRONLY)
    writer.change("a", "x")
    for _ in range(2):
        with pytest.raises(SpoolError):
            await writer.spool.commit()


async def test_a_segment_that_cannot_be_started_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of descriptors at a rotation: the old segment goes on, and the next try succeeds."""
    monkeypatch.setattr(module, "SEGMENT_BYTES", 100)
    writer = Writer(tmp_path)
    writer.spool._limit = 1
    writer.change("a", "x")
    await writer.spool.commit()
    real, failures = os.open, [OSError(24, "Too many open files")]

    def flawed(path: Any, *args: Any, **kwargs: Any) -> int:
        if str(path).endswith(".jsonl") and failures:
            raise failures.pop()
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", flawed)
    writer.spool.rotate()
    assert not failures
    # a number that was given back would be this file's now
    other = (tmp_path / "other").open("wb", buffering=0)
    writer.change("a", "y")
    await writer.spool.commit()
    assert (tmp_path / "other").read_bytes() == b""
    writer.spool.rotate()
    assert len(segments(tmp_path)) == 2
    other.close()
    writer.spool.close()
    assert [row["what"] for row in Writer(tmp_path).recovered.rows] == ["a x", "a y"]


JSON = st.recursive(st.none() | st.text(max_size=5) | st.integers(), st.lists, max_leaves=5)


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=3), st.floats(0, 1, exclude_max=True))
def test_a_line_reads_back(record: dict[str, Any], where: float) -> None:
    """Any JSON object survives; any cut of its line does not pass for one."""
    line = encode(record)
    assert decode(line) == record
    assert line.count(b"\n") == 1
    assert decode(line[: int(where * (len(line) - 1))]) is None
