"""How benchmarks print what they measured: one line a figure, for people and for programs."""

from collections.abc import Sequence
from statistics import median


def figure(
    name: str,
    values: Sequence[float],
    *,
    unit: str,
    target: float | None = None,
    at_most: bool = False,
    digits: int = 3,
    **more: object,
) -> str:
    """Return one line: the median of the runs, their spread, and whether the target was met.

    With `at_most` the target is the largest value allowed, else the least. `more` are fields of a
    figure's own.
    """
    value = median(values)
    spread = f"{min(values):.{digits}f}..{max(values):.{digits}f}"
    line = f"FIGURE {name}={value:.{digits}f}"
    if target is not None:
        met = value <= target if at_most else value >= target
        line += f" target={target:g} met={'yes' if met else 'no'}"
    line += f" unit={unit} runs={len(values)} spread={spread}"
    return line + "".join(f" {key}={one}" for key, one in more.items())
