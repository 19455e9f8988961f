"""`dsec snapshot` and the commands about where sandboxes are: words, tables, exit codes."""

import json
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from dsec.api.snapshot import SnapshotKind, SnapshotRef
from dsec.api.snapshot_calls import Snapshot, Snapshots
from dsec.api.wire import KeyedAnswer
from dsec.cli import moves, snapshot
from dsec.cli.main import run

NAME = "exp/u1/worker/0@3"


def one() -> Snapshot:
    """Return a snapshot."""
    ref = SnapshotRef(
        tenant="t",
        project="lab",
        lineage="exp/u1/worker/0",
        seq=3,
        kind=SnapshotKind.STATE,
        sandbox="sb-1",
        incarnation=1,
        experiment="walk",
        node="gpu-7",
        created=datetime(2026, 1, 1, tzinfo=UTC),
        manifest="00",
        files=4,
        bytes=50 * 10**9,
        stored_bytes=1 << 20,
        seconds=12.5,
        held_seconds=0.25,
        reason="period",
        image="base@sha256:aa",
        meta={"step": 120},
    )
    return Snapshot(name=NAME, ref=ref, pinned=True, pinned_why="figure 3", live=True)


class Fake:
    """A client that answers without a server, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.good = True
        self.left = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        return None

    def snapshots(self, **how: Any) -> Snapshots:
        """List one."""
        self.asked.append(("snapshots", how))
        return Snapshots(items=[one()], damaged=["refs/x: no reference"])

    def snapshot(self, name: str) -> Snapshot:
        """Return it."""
        self.asked.append(("snapshot", name))
        return one()

    def verify_snapshot(self, name: str, *, data: bool) -> dict[str, Any]:
        """Say whether it is good."""
        self.asked.append(("verify", (name, data)))
        return {
            "name": name,
            "good": self.good,
            "problems": [] if self.good else ["a pack is gone"],
        }

    def diff_snapshots(self, name: str, other: str) -> dict[str, Any]:
        """Say what differs."""
        item = {"path": "workspace/a", "what": "changed", "before": 10, "after": 20}
        return {"before": other, "after": name, "items": [item], "changed": 2, "more": 1}

    def restore_snapshot(self, name: str, **how: Any) -> dict[str, Any]:
        """Put back."""
        self.asked.append(("restore", (name, how)))
        return {"how": "put-back", "id": "sb-1"}

    def fork_snapshot(self, name: str, **how: Any) -> list[KeyedAnswer]:
        """Refuse the second."""
        self.asked.append(("fork", (name, how)))
        refused = KeyedAnswer(key="k/1", outcome="refused", message="over its budget")
        return [KeyedAnswer(key="k/0", outcome="bound", id="sb-2"), refused]

    def drain(self, **how: Any) -> dict[str, Any]:
        """Begin."""
        self.asked.append(("drain", how))
        return {"nodes": ["gpu-7"]}

    def nodes(self) -> list[dict[str, Any]]:
        """Return a node that is empty at the second look."""
        self.left -= 1
        reason = "Draining" if self.left >= 0 else "Drained"
        said = {"type": "Drained", "reason": reason, "message": "1 sandboxes are still there"}
        return [{"metadata": {"name": "gpu-7"}, "status": {"conditions": [said]}}]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Let commands use the fake client, and not wait."""
    found = Fake()
    for module in (snapshot, moves):
        monkeypatch.setattr(module, "client", lambda *_, **__: found)
    monkeypatch.setattr(moves, "LOOK_SECONDS", 0.0)
    return found


def test_ls_is_a_table_for_people_and_json_for_programs(
    fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is damaged is told besides, on standard error."""
    assert run(["snapshot", "ls", "--experiment", "walk"]) == 0
    shown = capsys.readouterr()
    assert NAME in shown.out
    assert "46.57Gi" in shown.out
    assert "damaged: refs/x" in shown.err
    assert fake.asked[0][1]["experiment"] == "walk"
    assert run(["snapshot", "ls", "-o", "json"]) == 0
    (item,) = json.loads(capsys.readouterr().out)["items"]
    assert (item["name"], item["ref"]["storedBytes"], item["pinned"]) == (NAME, 1 << 20, True)


def test_show_says_what_a_restore_takes(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    """SNAP-13, SNAP-25: 50 GB take about 90 s, and the start."""
    del fake
    assert run(["snapshot", "show", NAME]) == 0
    words = capsys.readouterr().out
    assert "a restore takes about 95 s" in words
    assert "stood still 0.25 s" in words
    assert "pinned: figure 3" in words
    assert "its program said: step 120" in words


@pytest.mark.parametrize(("good", "code"), [(True, 0), (False, 1)])
def test_verify_exits_by_its_verdict(
    fake: Fake, capsys: pytest.CaptureFixture[str], *, good: bool, code: int
) -> None:
    """A script can rely on it; what is wrong is told."""
    fake.good = good
    assert run(["snapshot", "verify", NAME, "--quick"]) == code
    assert fake.asked == [("verify", (NAME, False))]
    words = capsys.readouterr().out
    assert ("is good" in words) is good
    assert ("a pack is gone" in words) is not good


def test_diff_restore_and_fork_speak(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    """Each in a sentence or a table; a fork that is refused is a failure."""
    assert run(["snapshot", "diff", NAME, "exp/u1/worker/0@2"]) == 0
    words = capsys.readouterr().out
    assert "0 added, 0 removed, 2 changed" in words
    assert "workspace/a  10 -> 20" in words
    assert "and 1 more" in words
    assert run(["snapshot", "restore", NAME, "--any-image"]) == 0
    assert capsys.readouterr().out == f"sandbox sb-1 is put back to {NAME}\n"
    assert fake.asked[-1] == ("restore", (NAME, {"any_image": True, "key": ""}))
    assert run(["snapshot", "fork", NAME, "-n", "2"]) == 1
    assert "over its budget" in capsys.readouterr().out


def test_wrong_words_are_named(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    """The option, the value and what is allowed; nothing is asked of the server."""
    assert run(["snapshot", "take", "sb-1", "--kind", "memory"]) == 2
    assert "state, checkpoint or disk" in capsys.readouterr().err
    assert run(["node", "drain"]) == 2
    assert "name a node, or --pool" in capsys.readouterr().err
    assert fake.asked == []


def test_a_drain_is_waited_for(
    fake: Fake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends with 0 once the node is empty, else with 1 and what is left."""
    assert run(["node", "drain", "gpu-7", "--wait", "5"]) == 0
    assert fake.asked[0] == ("drain", {"node": "gpu-7", "pool": "", "evict": False})
    fake.left = 10**6
    monkeypatch.setattr(moves.time, "monotonic", iter([0.0, 10.0]).__next__)
    assert run(["node", "drain", "gpu-7", "--wait", "5"]) == 1
    assert "gpu-7: 1 sandboxes are still there" in capsys.readouterr().out


def test_a_plot_needs_its_extra_or_draws(fake: Fake, tmp_path: Any) -> None:
    """Where matplotlib is not installed the extra is named."""
    del fake
    path = tmp_path / "lag.png"
    code = run(["snapshot", "ls", "--plot", str(path)])
    assert code == (0 if path.exists() else 2)


@pytest.mark.parametrize("name", ["notes.txt", "", "no/such/x.png"])
def test_a_plot_that_could_not_be_written_is_refused_before_anything_is_asked(
    fake: Fake, capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    """A name that is no picture's, a directory, one below a directory that is not there."""
    assert run(["snapshot", "ls", "--plot", str(tmp_path / name)]) == 2
    assert "--plot" in capsys.readouterr().err
    assert fake.asked == []
    assert list(tmp_path.iterdir()) == []
