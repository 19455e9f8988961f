"""The final screen of the demo: ends by reason, the 36 in detail, identities, times."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dsec.api.sandbox import SandboxStatus
from dsec.cli.ends import by_reason, evidence_of, last_line, ran, reason_of
from dsec.cli.grading import Grades, Program
from dsec.cli.output import print_table


@dataclass(slots=True)
class Times:
    """Seconds per phase of the demo, in order."""

    rows: list[tuple[str, float]] = field(default_factory=list)

    def add(self, phase: str, seconds: float) -> None:
        """Note one phase."""
        self.rows.append((phase, seconds))


def show(
    programs: Sequence[Program],
    results: Sequence[SandboxStatus],
    grades: Grades,
    times: Times,
    grading_seconds: float,
) -> None:
    """Print everything; the closing line is the last one."""
    print("\nEnds by reason, with the evidence of all together\n")
    print_table(by_reason(results), _REASONS)
    failures = [(p, s) for p, s in zip(programs, results, strict=True) if p.reason != "completed"]
    print("\nThe programs that must fail\n")
    print_table(failures, _FAILURES)
    if grades.surprises:
        print("\nNot as expected\n")
        print_table(grades.surprises, _SURPRISES)
    print("\nIdentities\n")
    print_table(identities(results).items(), [("WHAT", _first), ("DISTINCT", _second)])
    rate = len(results) / grading_seconds if grading_seconds else 0.0
    print("\nTimes\n")
    print_table(times.rows, [("PHASE", _first), ("SECONDS", lambda row: f"{row[1]:.1f}")])
    print(f"\n{len(results)} sandboxes in {grading_seconds:.1f} s: {rate:.1f} sandboxes/s")
    print(f"\n{grades.line}")


def identities(results: Iterable[SandboxStatus]) -> dict[str, int]:
    """Return how many distinct sandboxes, namespaces and cgroups there were.

    Namespaces are told apart by the kernel's number of them where it gives one. An inode, which
    every kernel gives, may come again once its namespace is gone, and is named as such.
    """
    results = list(results)
    seen = [status.end.evidence for status in results if status.end]
    found = {
        "sandbox ids": len({status.identity.id for status in results}),
        "cgroup paths": len({one.cgroup for one in seen if one.cgroup}),
    }
    if any(one.pid_namespace_id for one in seen):
        pid = {one.pid_namespace_id for one in seen if one.pid_namespace_id}
        net = {one.net_namespace_id for one in seen if one.net_namespace_id}
        return {**found, "pid namespaces": len(pid), "net namespaces": len(net)}
    inodes = {
        "pid namespace inodes": len({one.pid_namespace for one in seen if one.pid_namespace}),
        "net namespace inodes": len({one.net_namespace for one in seen if one.net_namespace}),
    }
    return found | inodes


def words(evidence: dict[str, Any]) -> str:
    """Return summed evidence as text."""
    parts = []
    for name, value in evidence.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        parts.append(f"{name} {shown}")
    return "; ".join(parts)


def _first(row: Any) -> Any:
    return row[0]


def _second(row: Any) -> Any:
    return row[1]


_REASONS = [
    ("REASON", lambda row: row["reason"]),
    ("COUNT", lambda row: row["count"]),
    ("EVIDENCE", lambda row: words(row["evidence"])),
]
_FAILURES = [
    ("PROGRAM", lambda row: row[0].name),
    ("MUST END AS", lambda row: f"{row[0].reason} ({row[0].expects})"),
    ("ENDED AS", lambda row: reason_of(row[1])),
    ("EVIDENCE", lambda row: evidence_of(row[1].end)),
    ("RAN", lambda row: ran(row[1])),
    ("", lambda row: "ok" if row[0].fits(row[1]) else "DIFFERS"),
]
_SURPRISES = [
    ("PROGRAM", lambda row: row[0].name),
    ("SANDBOX", lambda row: row[1].identity.id),
    ("MUST END AS", lambda row: f"{row[0].reason} ({row[0].expects})"),
    ("ENDED AS", lambda row: reason_of(row[1])),
    ("MESSAGE", lambda row: row[1].end.message if row[1].end else row[1].message),
    ("STDERR", lambda row: last_line(row[1].end.stderr) if row[1].end else ""),
]
