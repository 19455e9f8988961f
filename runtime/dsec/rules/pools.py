"""The rules for pools of nodes: how they scale must make sense before anything is bought.

Pure, as the rules for experiments; `POOL_RULES` is the table of contents.
"""

from collections.abc import Iterator, Sequence
from math import gcd
from typing import Any
from zoneinfo import ZoneInfo

from dsec.rules.model import Finding, Rule, Severity, Subject, each, get, number

MOST_STEPS = 100_000
"""Sums of node sizes that are tried; finer limits are not looked at."""
CORE = 1000
OWN = "onprem"
"""The supplier of machines that are there already."""


def scaling(subject: Subject) -> Iterator[Finding]:
    """Bounds are in order, floors are above zero, and limits can be reached."""
    asked = get(subject.spec, "scaling")
    if asked is None:
        return
    yield from _bounds(subject, asked)
    yield from _floor(subject, asked)
    yield from _zone(subject, asked)
    for at, offering in each(asked, "offerings"):
        owned = any(market == "owned" for _, market in each(offering, "markets"))
        if owned and number(get(offering, "limit")) is None:
            path = f"spec.scaling.offerings[{at}].limit"
            kind = get(offering, "instanceType")
            yield _breach(subject, path, f"it does not say how many own machines {kind} are")
    yield from _reach(subject, asked)


def _bounds(subject: Subject, asked: Any) -> Iterator[Finding]:
    least, most = number(get(asked, "minNodes")) or 0, number(get(asked, "maxNodes")) or 0
    if most < least:
        what = f"its maxNodes {most} is below its minNodes {least}"
        yield _breach(subject, "spec.scaling.maxNodes", what, value=most)
    for at, window in each(asked, "schedule"):
        low, high = number(get(window, "minNodes")), number(get(window, "maxNodes"))
        low, high = least if low is None else low, most if high is None else high
        if high == 0:
            path = f"spec.scaling.schedule[{at}].maxNodes"
            yield _breach(subject, path, "a window of its schedule leaves no node", value=high)
        elif high < low:
            path = f"spec.scaling.schedule[{at}].maxNodes"
            what = f"in a window its maxNodes {high} is below its minNodes {low}"
            yield _breach(subject, path, what, value=high)


def _floor(subject: Subject, asked: Any) -> Iterator[Finding]:
    floor = number(get(asked, "floor"))
    floor = 1 if floor is None else floor
    most = number(get(asked, "maxNodes")) or 0
    if any(True for _ in each(asked, "schedule")) and floor == 0:
        what = "its schedule may leave no node at all"
        yield _breach(subject, "spec.scaling.floor", what, value=floor)
    elif floor > most > 0:
        what = f"its floor {floor} is above its maxNodes {most}"
        yield _breach(subject, "spec.scaling.floor", what, value=floor)


def _zone(subject: Subject, asked: Any) -> Iterator[Finding]:
    zone = get(asked, "timeZone")
    if not isinstance(zone, str):
        return
    try:
        ZoneInfo(zone)
    except (KeyError, ValueError):
        what = f"{zone!r} is no time zone of the IANA list"
        yield _breach(subject, "spec.scaling.timeZone", what, value=zone)


def _reach(subject: Subject, asked: Any) -> Iterator[Finding]:
    limit = number(get(asked, "maxCpuMilli"))
    sizes = [number(get(one, "cpuMilli")) for _, one in each(asked, "offerings")]
    known = sorted({size for size in sizes if size})
    if limit is None or not known:
        return
    reached = reachable(limit, known)
    if reached is not None and reached < limit:
        given = ", ".join(f"{size / CORE:g}" for size in known)
        what = (
            f"{limit / CORE:g} cores cannot be reached with nodes of {given} cores: "
            f"{reached / CORE:g} are"
        )
        path = "spec.scaling.maxCpuMilli"
        yield _breach(subject, path, what, value=limit, severity=Severity.WARNING)


def reachable(limit: int, sizes: Sequence[int]) -> int | None:
    """Return the largest sum of node sizes, each used any number of times, within a limit.

    None: there are too many sums to look at.
    """
    step = gcd(*sizes)
    count = limit // step
    if count > MOST_STEPS:
        return None
    # a set of sums as bits of one number: bit n is the sum n * step
    sums, mask = 1, (1 << (count + 1)) - 1
    for size in sizes:
        shift = size // step
        while shift <= count:
            sums |= (sums << shift) & mask
            shift *= 2
    return (sums.bit_length() - 1) * step


def spending(subject: Subject) -> Iterator[Finding]:
    """Whatever a pool may buy has a price that somebody chose as the most."""
    asked = get(subject.spec, "scaling")
    most = number(get(asked, "maxNodes")) or 0
    if asked is None or (get(asked, "supplier") or OWN) == OWN or most == 0:
        return
    if get(asked, "maxCostPerHour") is None:
        what = f"it may have {most} bought nodes at once, at any price"
        message = f"The {subject} must {SPENDING.must}: {what} (rule {SPENDING.name})."
        path = "spec.scaling.maxCostPerHour"
        yield Finding(SPENDING.name, path, message, SPENDING.remedy, Severity.WARNING)


def _breach(
    subject: Subject,
    path: str,
    what: str,
    *,
    value: Any = None,
    severity: Severity = Severity.ERROR,
) -> Finding:
    message = f"The {subject} must {SCALING.must}: {what} (rule {SCALING.name})."
    return Finding(SCALING.name, path, message, SCALING.remedy, severity, value)


SCALING = Rule(
    "scaling",
    "scale within bounds that make sense",
    "A pool whose bounds contradict each other does what nobody asked for, and a start from zero "
    "can outlast the time-outs of short tasks (ELAS-18).",
    "Order minNodes <= maxNodes, keep floor at 1 or more, say how many own machines there are, and "
    "choose limits that whole nodes reach.",
    scaling,
)

SPENDING = Rule(
    "spending",
    "say what its bought nodes may cost in an hour",
    "Budgets bound what work may spend; a limit of the pool itself holds whoever asks for nodes, "
    "and when a budget is wrong.",
    "Set maxCostPerHour, or be sure that a Budget of scope pool or account limits it.",
    spending,
)

POOL_RULES: tuple[Rule, ...] = (SCALING, SPENDING)
"""Every rule, in the order in which findings are shown."""
