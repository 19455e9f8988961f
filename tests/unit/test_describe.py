"""`dsec describe`: words for every state, from the record alone."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from dsec.api.describe import Description, age, describe
from dsec.api.records import Experiment
from dsec.api.sandbox import SandboxStatus

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SPEC = {
    "name": "walk_v2",
    "roles": [
        {
            "name": "sim",
            "replicas": 8,
            "min": 4,
            "max": 12,
            "image": "r/sim:1",
            "resources": {"cpuMilli": 500, "memoryBytes": 1 << 30},
            "gpu": {"mode": "mps", "memoryBytes": 4 << 30, "model": "a100"},
        }
    ],
    "budget": {"limit": "12.50", "currency": "EUR"},
}


def described(status: dict[str, Any], **more: Any) -> Description:
    """Describe an experiment with a status."""
    record = Experiment.model_validate(
        {"metadata": {"name": "walk-v2-1", "namespace": "gait"}, "spec": SPEC, "status": status}
    )
    return describe(record, now=NOW, **more)


def condition(kind: str, status: str = "True", message: str = "") -> dict[str, Any]:
    """Return a condition."""
    return {"type": kind, "status": status, "message": message, "reason": "Because"}


ACCEPTED = condition("Accepted")


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({}, "the control plane has not looked at it yet"),
        ({"conditions": [condition("Accepted", "False", "no tenant")]}, "cannot run: no tenant"),
        (
            {
                "conditions": [ACCEPTED],
                "desired": 8,
                "pending": 8,
                "pendingReasons": [{"reason": "label", "message": "no gpu-type=a100", "count": 8}],
            },
            "is Pending, 8 of 8 replicas wait: no gpu-type=a100",
        ),
        ({"conditions": [ACCEPTED], "desired": 8, "pending": 3}, "is partly Pending, 3 of 8"),
        ({"conditions": [ACCEPTED], "desired": 8, "ready": 8}, "is Running: all 8 replicas"),
        ({"conditions": [ACCEPTED], "desired": 8, "ready": 5}, "is starting: 5 of 8"),
        ({"conditions": [ACCEPTED, condition("Completed")], "ended": 8}, "is complete: 8"),
        ({"conditions": [ACCEPTED, condition("Frozen")]}, "is frozen"),
    ],
)
def test_headline(status: dict[str, Any], words: str) -> None:
    """One sentence says the state and why."""
    assert words in described(status).headline
    assert described(status).headline.startswith("walk_v2 ")


def section(description: Description, title: str) -> dict[str, str]:
    """Return the lines of a section."""
    (one,) = (one for one in description.sections if one.title == title)
    return {line.name: line.text for line in one.lines}


def test_sections() -> None:
    """What was asked, what is, why it waits, and what was filled in."""
    resolved = {
        "tenant": "lab",
        "spec": SPEC,
        "defaulted": [{"path": "queue", "value": '"default"', "from": "built-in"}],
        "warnings": ["mind the tag"],
    }
    status = {
        "conditions": [ACCEPTED],
        "desired": 8,
        "ready": 5,
        "pending": 3,
        "resolved": resolved,
        "roles": [
            {"name": "sim", "desired": 8, "ready": 5, "pending": 3, "incarnations": 1}
            | {"ended": [{"reason": "oom-killed", "count": 1}]}
        ],
        "pendingReasons": [
            {"reason": "capacity", "message": "asked 0.5 CPU", "count": 3, "role": "sim"}
        ],
        "stages": [
            {"name": "submit", "at": NOW - timedelta(seconds=90)},
            {"name": "bind", "at": NOW - timedelta(seconds=60)},
        ],
        "overrides": [{"kind": "scale", "role": "sim", "replicas": 8, "by": "ann", "at": NOW}],
        "examples": [
            {"id": "sb-1", "role": "sim", "index": 3, "state": "ended", "reason": "failed"}
        ],
        "results": "results/x/",
    }
    told = described(status)
    asked = section(told, "Asked")
    assert asked["tenant"] == "lab"
    assert asked["role sim"] == (
        "8 x 0.5 CPU, 1Gi memory, 1 GPU a100 (mps) with 4Gi, between 4 and 12, image r/sim:1"
    )
    assert asked["budget"] == "12.50 EUR, then degrade"
    assert section(told, "Roles")["sim"] == (
        "5 of 8 run, 3 pending, 1 ended oom-killed, 1 replaced so far"
    )
    assert section(told, "Waits") == {"3 of sim (capacity)": "asked 0.5 CPU"}
    assert "30.0 s after the one before" in section(told, "Stages")["bind"]
    assert section(told, "Live changes")["sim"] == "scale to 8 by ann, 0 s ago"
    assert section(told, "Filled in")["queue"] == '"default" from built-in'
    assert section(told, "Warnings")["warning"] == "mind the tag"
    assert section(told, "Examples")["sb-1"] == "sim-3 ended: failed"
    assert section(told, "Results")["results"] == "results/x/"


def test_placement_counts_per_node() -> None:
    """Live sandboxes by node and role; ended and foreign ones do not count."""

    def sandbox(node: str, experiment: str = "walk-v2-1", state: str = "running") -> SandboxStatus:
        return SandboxStatus.model_validate(
            {
                "identity": {
                    "id": "sb-" + "0" * 26,
                    "tenant": "lab",
                    "project": "gait",
                    "experiment": experiment,
                    "role": "sim",
                },
                "state": state,
                "node": node,
                "resources": {"cpuMilli": 1, "memoryBytes": 1 << 20},
            }
        )

    told = described(
        {"conditions": [ACCEPTED]},
        sandboxes=[
            sandbox("n2"),
            sandbox("n1"),
            sandbox("n2"),
            sandbox("n1", "other"),
            sandbox("n1", state="ended"),
        ],
    )
    assert section(told, "Placed") == {"n1": "1 sim", "n2": "2 sim"}


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(5, "5 s"), (119, "119 s"), (180, "3 min"), (7200, "2 h"), (4 * 86400, "4 d")],
)
def test_age(seconds: int, words: str) -> None:
    """The largest unit that is at least two."""
    assert age(NOW - timedelta(seconds=seconds), NOW) == words
