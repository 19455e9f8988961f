"""The rule for elastic roles: numbers that contradict each other, or that make a count swing."""

from collections.abc import Iterator, Sequence
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from dsec.rules.model import Finding, Rule, Severity, Subject, each, get, number

SHORTEST_WINDOW = 60
"""Seconds of observation below which a count follows noise (ELAS-05)."""
FULL = 100
"""Percent: a mean use above it does not exist."""
_USES = frozenset({"cpu", "memory", "gpu", "use"})


def elasticity(subject: Subject) -> Iterator[Finding]:
    """Elastic roles have bounds, steps, thresholds and schedules that can be met."""
    for at, role in each(subject.spec, "roles"):
        path = f"spec.roles[{at}]"
        elastic = get(role, "elastic")
        if elastic is not None:
            yield from _thresholds(subject, elastic, f"{path}.elastic")
            yield from _steps(subject, role, elastic, path)
            yield from _schedule(subject, elastic, f"{path}.elastic")
        yield from _vertical(subject, role, path)


def _thresholds(subject: Subject, elastic: Any, path: str) -> Iterator[Finding]:
    target, lower = number(get(elastic, "target")), number(get(elastic, "lower"))
    if target == 0:
        yield _breach(subject, f"{path}.target", "target 0 is always passed", target)
    use = get(elastic, "preset") == "cpu-target" or get(elastic, "metric") in _USES
    if use and target is not None and target > FULL:
        yield _breach(subject, f"{path}.target", f"a mean use of {target} % is never seen", target)
    if target is not None and lower is not None and lower >= target:
        what = f"lower {lower} is not below target {target}, so it would grow and shrink at once"
        yield _breach(subject, f"{path}.lower", what, lower)
    window = number(get(elastic, "windowSeconds"))
    if window is not None and window < SHORTEST_WINDOW:
        what = f"a window of {window} s follows noise: the count may swing"
        yield _breach(subject, f"{path}.windowSeconds", what, window, Severity.WARNING)


def _steps(subject: Subject, role: Any, elastic: Any, path: str) -> Iterator[Finding]:
    low, high = number(get(role, "min")), number(get(role, "max"))
    if high is None:
        what = f"role {get(role, 'name')} has no max, so it never grows above its replicas"
        yield _breach(subject, f"{path}.max", what, None, Severity.WARNING)
    ladder = [number(step) for _, step in each(elastic, "ladder")]
    known = [step for step in ladder if step is not None]
    if known != sorted(set(known)):
        what = f"the steps {_list(known)} do not rise"
        yield _breach(subject, f"{path}.elastic.ladder", what, known)
    for at, step in enumerate(known):
        if (low is not None and step < low) or (high is not None and step > high):
            what = f"step {step} lies outside of min {low} and max {high}"
            yield _breach(subject, f"{path}.elastic.ladder[{at}]", what, step)


def _schedule(subject: Subject, elastic: Any, path: str) -> Iterator[Finding]:
    zone = get(elastic, "timeZone")
    if isinstance(zone, str) and not _zone(zone):
        what = f"there is no time zone {zone}"
        yield _breach(subject, f"{path}.timeZone", what, zone)
    for at, window in each(elastic, "schedule"):
        low, high = number(get(window, "min")), number(get(window, "max"))
        below = f"{path}.schedule[{at}]"
        if high == 0:
            what = "a schedule that takes the last replica leaves work to time out until it is back"
            yield _breach(subject, f"{below}.max", what, high)
        elif low is not None and high is not None and low > high:
            yield _breach(subject, f"{below}.min", f"min {low} is above max {high}", low)


def _vertical(subject: Subject, role: Any, path: str) -> Iterator[Finding]:
    vertical, resources = get(role, "vertical"), get(role, "resources")
    low, high = (number(get(vertical, key)) for key in ("minCpuMilli", "maxCpuMilli"))
    if low is not None and high is not None and low > high:
        what = f"minCpuMilli {low} is above maxCpuMilli {high}"
        yield _breach(subject, f"{path}.vertical.minCpuMilli", what, low)
    for key, field in (("maxCpuMilli", "cpuMilli"), ("maxMemoryBytes", "memoryBytes")):
        most, declared = number(get(vertical, key)), number(get(resources, field))
        if most is not None and declared is not None and most < declared:
            what = f"{key} {most} is below the declared {field} {declared}"
            yield _breach(subject, f"{path}.vertical.{key}", what, most)


def _zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def _list(steps: Sequence[int]) -> str:
    return ", ".join(map(str, steps))


def _breach(
    subject: Subject, path: str, what: str, value: Any, severity: Severity = Severity.ERROR
) -> Finding:
    message = f"The {subject} must {ELASTICITY.must}: {what} (rule {ELASTICITY.name})."
    return Finding(ELASTICITY.name, path, message, ELASTICITY.remedy, severity, value)


ELASTICITY = Rule(
    "elasticity",
    "give its elastic roles numbers that agree",
    "A count that cannot settle costs starts and money, and one without a ceiling has no bill "
    "(ELAS-05, ELAS-18).",
    "Keep lower below target, ladder steps rising within min and max, windows of 60 s or more, and "
    "schedules with at least one replica in a known time zone.",
    elasticity,
)
