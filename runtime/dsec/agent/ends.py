"""From what init and the kernel saw to one typed end."""

from dsec.api.reasons import EndReason
from dsec.api.sandbox import End, Evidence, SandboxSpec

_DISK_FULL_BYTES = 256 << 10
_DISK_NEARLY_BYTES = 2 << 20


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def decide(report: dict[str, object], evidence: Evidence, spec: SandboxSpec, stderr: bytes) -> End:
    """Return the end without output. `report` is init's; empty when init died without one.

    A failure is put down to a limit only with the kernel's count (or the full disk) as proof.
    """
    code, signal = _int(report.get("exitCode")), _int(report.get("signal"))
    message = str(report.get("message") or "")
    disk = report.get("disk")
    usage: dict[str, object] = disk if isinstance(disk, dict) else {}
    evidence = evidence.model_copy(update={"disk_used_bytes": _int(usage.get("used"))})
    reason, why = _reported(report, code, spec) or _failed(report, code, evidence, spec, stderr)
    return End(
        reason=reason, message=message or why, exit_code=code, signal=signal, evidence=evidence
    )


def _reported(
    report: dict[str, object], code: int | None, spec: SandboxSpec
) -> tuple[EndReason, str] | None:
    """Return the reasons that init knows itself; None where the command failed by itself."""
    said = report.get("reason")
    if not report:
        return EndReason.INFRASTRUCTURE, "PID 1 of the sandbox was killed from outside"
    if said in {EndReason.MOUNT_TIMEOUT, EndReason.START_FAILED}:
        return EndReason(str(said)), ""
    if said == EndReason.OUTPUT_LIMIT:
        cap = spec.output_hard_cap_bytes
        return EndReason.OUTPUT_LIMIT, f"wrote more than {cap} bytes to one stream"
    if report.get("stopRequested"):
        return EndReason.STOPPED, "stopped"
    return (EndReason.COMPLETED, "") if code == 0 else None


def _failed(
    report: dict[str, object],
    code: int | None,
    evidence: Evidence,
    spec: SandboxSpec,
    stderr: bytes,
) -> tuple[EndReason, str]:
    """Return why a command failed: the limit that the kernel counted, else its own status."""
    limits = spec.resources
    if kills := evidence.oom_kills:
        return EndReason.OOM_KILLED, f"{kills} killed at the limit of {limits.memory_bytes} bytes"
    if hits := evidence.pids_max_hits:
        return EndReason.PIDS_LIMIT, f"{hits} forks refused at the limit of {limits.pids}"
    disk = report.get("disk")
    usage: dict[str, object] = disk if isinstance(disk, dict) else {}
    free = _int(usage.get("free"))
    # a large write fails whole while a little is free, so then the program's own words decide
    nearly = max(_DISK_NEARLY_BYTES, limits.disk_bytes // 25)
    complains = b"No space left on device" in stderr or b"Errno 28" in stderr
    if free is not None and (free < _DISK_FULL_BYTES or (complains and free < nearly)):
        return EndReason.DISK_FULL, f"all of {limits.disk_bytes} bytes are in use"
    if _int(usage.get("inodesFree")) == 0:
        return EndReason.DISK_FULL, "all inodes are in use"
    if code is None:
        return EndReason.SIGNALED, f"killed by signal {report.get('signal')}"
    return EndReason.FAILED, f"exit status {code}"
