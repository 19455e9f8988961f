"""How sandboxes ended, for people and as data: reason, evidence, time."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from dsec.api.reasons import EndReason
from dsec.api.sandbox import End, SandboxState, SandboxStatus
from dsec.cli.output import Column, size


def reason_of(status: SandboxStatus) -> str:
    """Return the typed reason, or the state of one that has not ended."""
    return status.end.reason.value if status.end else status.state.value


def exit_of(status: SandboxStatus) -> str:
    """Return exit code or signal; they are different things."""
    if status.end is None:
        return ""
    if status.end.signal is not None:
        return f"signal {status.end.signal}"
    return "" if status.end.exit_code is None else str(status.end.exit_code)


def evidence_of(end: End | None) -> str:
    """Return what was counted and bears on the reason."""
    if end is None:
        return ""
    seen = end.evidence
    parts = [
        f"oom kills {seen.oom_kills}" if seen.oom_kills else "",
        f"pids max hit {seen.pids_max_hits}" if seen.pids_max_hits else "",
        f"disk full writes {seen.disk_full_writes}" if seen.disk_full_writes else "",
        f"signal {end.signal}" if end.signal is not None else "",
        f"exit {end.exit_code}" if end.exit_code else "",
        f"dropped {size(seen.dropped_bytes)}" if seen.dropped_bytes else "",
        f"disk used {size(seen.disk_used_bytes)}"
        if end.reason is EndReason.DISK_FULL and seen.disk_used_bytes
        else "",
        f"wrote {size(seen.stdout_bytes + seen.stderr_bytes)}"
        if end.reason is EndReason.OUTPUT_LIMIT
        else "",
    ]
    return ", ".join(part for part in parts if part)


def seconds_of(status: SandboxStatus) -> float | None:
    """Return how long the main command ran, as its node saw it."""
    start = status.times.get(SandboxState.RUNNING)
    end = status.times.get(SandboxState.ARCHIVING) or status.times.get(SandboxState.ENDED)
    return (end - start).total_seconds() if start and end else None


def last_line(text: str) -> str:
    """Return the last line that says something, cut for a table."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:100] if lines else ""


def ran(status: SandboxStatus) -> str:
    """Return the run time for a table."""
    seconds = seconds_of(status)
    return "" if seconds is None else f"{seconds:.1f}s"


def _said(status: SandboxStatus) -> str:
    """Return the program's last line; where it said nothing, what dsec says of the end."""
    if status.end is None:
        return status.message
    return last_line(status.end.stdout or status.end.stderr) or last_line(status.end.message)


COLUMNS: list[Column] = [
    ("ROLE", lambda status: status.identity.role),
    ("INDEX", lambda status: status.identity.index),
    ("REASON", reason_of),
    ("EXIT", exit_of),
    ("EVIDENCE", lambda status: evidence_of(status.end)),
    ("RAN", ran),
    ("NODE", lambda status: status.node),
    ("SAID", _said),
]
"""The result table: one row per sandbox."""


def by_reason(results: Iterable[SandboxStatus]) -> list[dict[str, Any]]:
    """Return one row per reason: how many, and the evidence of all together."""
    results = list(results)
    counts = Counter(reason_of(status) for status in results)
    rows = []
    for reason, count in counts.most_common():
        ends = [status.end for status in results if status.end and reason_of(status) == reason]
        rows.append({"reason": reason, "count": count, "evidence": _together(ends)})
    return rows


def _together(ends: list[End]) -> dict[str, Any]:
    """Return sums and sets over ends of one reason; what is zero is left out."""
    sums = {
        "oomKills": sum(end.evidence.oom_kills for end in ends),
        "pidsMaxHits": sum(end.evidence.pids_max_hits for end in ends),
        "diskFullWrites": sum(end.evidence.disk_full_writes for end in ends),
        "droppedBytes": sum(end.evidence.dropped_bytes for end in ends),
    }
    data: dict[str, Any] = {name: value for name, value in sums.items() if value}
    signals = sorted({end.signal for end in ends if end.signal is not None})
    codes = sorted({end.exit_code for end in ends if end.exit_code})
    if signals:
        data["signals"] = signals
    if codes:
        data["exitCodes"] = codes
    return data
