"""How busy this machine is, as the kernel counts it: /proc/pressure."""

from pathlib import Path

from dsec.agent.snapshot_plan import Pressure

PRESSURE = Path("/proc/pressure")


def parse(text: str) -> float | None:
    """Return the share (0 to 1) of the last ten seconds in which something waited."""
    for line in text.splitlines():
        kind, *pairs = line.split()
        values = dict(pair.partition("=")[::2] for pair in pairs)
        if kind == "some" and "avg10" in values:
            return float(values["avg10"]) / 100
    return None


def read(directory: Path = PRESSURE) -> Pressure:
    """Return the pressure of now; what the kernel does not count is None."""
    found: dict[str, float | None] = {}
    for name in ("io", "cpu"):
        try:
            found[name] = parse((directory / name).read_text())
        except (OSError, ValueError):
            found[name] = None
    return Pressure(**found)
