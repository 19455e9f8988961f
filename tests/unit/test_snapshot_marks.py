"""Marks and notices, as programs make and read them."""

import asyncio
import json
from pathlib import Path

import pytest
from dsec.agent.snapshot_marks import META_BYTES, Marks, is_about_snapshots, serve
from dsec.agent.snapshot_pool import merge_pool
from dsec.world.clock import SystemClock

MARK, NOTICE = "/v1/snapshot/mark", "/v1/snapshot/notice"


async def test_a_mark_waits_only_where_a_snapshot_does() -> None:
    """None due: answered at once. One due: the program stands until it is let go."""
    marks = Marks(SystemClock())
    assert await marks.mark({"step": 1}) == {"taken": False}
    wanted = asyncio.create_task(marks.next(5))
    await asyncio.sleep(0)
    call = asyncio.create_task(serve(marks, "POST", MARK, b'{"step": 2}'))
    stop = await wanted
    assert stop is not None
    assert stop.meta == {"step": 2}
    await asyncio.sleep(0.02)
    assert not call.done()
    second = await serve(marks, "POST", MARK, b"")
    assert json.loads(second[1]) == {"taken": False}
    stop.let_go({"taken": True})
    stop.let_go({"taken": False})
    status, body = await call
    assert (status, json.loads(body)) == (200, {"taken": True})
    assert marks.made == 3


async def test_who_makes_no_mark_is_not_waited_for_longer_than_said() -> None:
    """The patience ends, and a late mark finds nobody."""
    marks = Marks(SystemClock())
    assert await marks.next(0.01) is None
    assert await marks.mark({}) == {"taken": False}


async def test_a_notice_reaches_who_waits_and_who_asks_later() -> None:
    """Each once, by its number; and whoever asked counts as a listener."""
    marks = Marks(SystemClock())
    assert not marks.listens
    waiting = asyncio.create_task(serve(marks, "GET", f"{NOTICE}?after=0", b""))
    await asyncio.sleep(0.01)
    assert marks.listens
    marks.announce()
    assert json.loads((await waiting)[1]) == {"number": 1, "due": True}
    assert await marks.notice(0) == {"number": 1, "due": True}
    marks.withdraw()
    assert await marks.notice(0) == {"number": 1, "due": False}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "word"),
    [
        ("GET", MARK, b"", 405, "POST only"),
        ("POST", NOTICE, b"", 405, "GET only"),
        ("POST", MARK, b"[1]", 400, "a JSON object is wanted"),
        ("POST", MARK, b"{", 400, "no JSON"),
        ("POST", MARK, b"[" * 60_000, 400, "no JSON"),
        ("POST", MARK, b" " * (META_BYTES + 1), 413, "at most"),
        ("GET", f"{NOTICE}?after=x", b"", 400, "after: 'x'"),
    ],
)
async def test_a_call_that_cannot_be_served_says_why(
    method: str, path: str, body: bytes, status: int, word: str
) -> None:
    """Field, value and what is wanted."""
    got, answer = await serve(Marks(SystemClock()), method, path, body)
    assert got == status
    assert word in json.loads(answer)["message"]
    assert is_about_snapshots(path)
    assert not is_about_snapshots("/v1/queue/x")


def _piece(path: Path, *numbers: int, incarnation: int = 1, cut: bool = False) -> None:
    lines = [json.dumps({"seq": n, "incarnation": incarnation, "x": n * n}) for n in numbers]
    path.write_text("\n".join(lines) + ("" if cut else "\n"))


def test_the_pool_of_a_restored_program_has_each_record_once(tmp_path: Path) -> None:
    """Pieces overlap and the last line is cut: the count is that of the numbers."""
    pool = tmp_path / "workspace/pool"
    pool.mkdir(parents=True)
    _piece(pool / "a.jsonl", 1, 2, 3, 4)
    _piece(pool / "b.jsonl", 3, 4, 5, incarnation=2)
    _piece(pool / "c.jsonl", 5, 6, 7, cut=True)
    (pool / "notes.txt").write_text("stays")
    found = merge_pool(tmp_path, {"pool": "/workspace/pool"})
    assert (found["records"], found["repeated"], found["resume"]) == (6, 3, 7)
    lines = (pool / "a.jsonl").read_text().splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert sorted(one.name for one in pool.iterdir()) == ["a.jsonl", "notes.txt"]
    assert merge_pool(tmp_path, {"pool": "/workspace/pool"})["repeated"] == 0


def test_a_pool_that_is_none_stays_as_it_is(tmp_path: Path) -> None:
    """The restore goes on; the journal says why."""
    pool = tmp_path / "pool"
    pool.mkdir()
    (pool / "a.jsonl").write_text("no record\n")
    assert merge_pool(tmp_path, {}) == {}
    assert "no absolute path" in merge_pool(tmp_path, {"pool": "pool"})["why"]
    assert "No such file" in merge_pool(tmp_path, {"pool": "/none"})["why"]
    assert "a.jsonl:1" in merge_pool(tmp_path, {"pool": "/pool"})["why"]
    # one endless line is not read into memory
    with (pool / "b.jsonl").open("wb") as endless:
        endless.truncate(1 << 40)
    (pool / "a.jsonl").write_text("")
    assert "b.jsonl:1: longer than" in merge_pool(tmp_path, {"pool": "/pool"})["why"]
    (pool / "b.jsonl").write_bytes(b"[" * 60_000 + b"\n")
    assert "b.jsonl:1: no JSON" in merge_pool(tmp_path, {"pool": "/pool"})["why"]
    (pool / "b.jsonl").unlink()
    (pool / "a.jsonl").write_text("no record\n")
    assert "a.jsonl:1" in merge_pool(tmp_path, {"pool": "/pool"})["why"]
    assert (pool / "a.jsonl").read_text() == "no record\n"
    (tmp_path / "link").symlink_to(pool)
    assert "why" in merge_pool(tmp_path, {"pool": "/link"})
