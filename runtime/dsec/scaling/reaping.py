"""Which sandboxes nobody would miss: the rules of the reaper, the back-stop to active recycling.

Looks in, decisions out: over the declared run time (OPS-06), silent for half an hour (OPS-07),
idle for a day (OPS-08), paused for a month, or ended and still there. A sandbox is first warned
about, can be extended in a window, and is ended only when nobody did (OPS-09). Spans count looks
that followed each other in time: what happened while no control plane looked adds one round at
most (CONF-21). Paused ones use nothing and say nothing: they are exempt, with a limit of their own
(CONF-36).
"""

from dataclasses import dataclass
from enum import StrEnum

from dsec.api.reaping import Finding, Mark
from dsec.api.sandbox import SandboxState

_ENDING = frozenset({SandboxState.STOPPING, SandboxState.ARCHIVING})
_CORE = 1000
"""Thousandths in a core."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Limits, in seconds. Defaults: source 004; those that it does not give are ours."""

    patrol: float = 300.0
    silent: float = 1800.0
    idle_share: float = 0.01
    """Of the CPU that it booked; of one core at most where it holds a GPU: nobody measures that."""
    idle: float = 86_400.0
    paused: float = 31 * 86_400.0
    """Longer than a budget's month, at whose end what it paused goes on."""
    ending: float = 3600.0
    """Longer than any node waits for an archive to be taken."""
    overtime: float = 60.0
    """A node ends what is over its run time by itself, and may be a moment late."""
    window: float = 1800.0
    """Between the warning and the end."""


@dataclass(frozen=True, slots=True)
class Look:
    """One sandbox as a patrol saw it. Times are UTC seconds.

    `beat_age` and `cpu_seconds` are None where its node cannot tell.
    """

    at: float
    state: SandboxState
    running_since: float | None
    max_run: float | None
    cpu_milli: int
    gpus: int
    cpu_seconds: float | None
    beat_age: float | None


class Act(StrEnum):
    """What to do after a look."""

    WARN = "warn"
    END = "end"
    AGAIN = "again"
    """Its end was ordered before, and it is still there: order it again."""
    CLEAR = "clear"
    """Nothing is wrong with it any more."""


@dataclass(frozen=True, slots=True)
class Step:
    """The new mark, what to do, and since when (seconds) it was of no use to anybody."""

    mark: Mark
    act: Act | None = None
    wasted: float = 0.0
    words: str = ""


def step(policy: Policy, old: Mark | None, look: Look) -> Step:
    """Return what is known after a look, and what to do about it."""
    mark = _seen(policy, old, look)
    stuck = mark.ending > policy.ending and mark.finding is not Finding.ZOMBIE
    if mark.caught and mark.finding is not None and not stuck:
        return Step(mark, Act.AGAIN, 0.0, words(mark.finding, policy, mark, look))
    held = mark.extended_until is not None and mark.extended_until > look.at
    finding = None if held else _finding(policy, mark, look)
    if finding is None:
        cleared = mark.model_copy(update={"finding": None, "warned_at": None, "due": None})
        was = mark.finding is not None and not held
        return Step(cleared, Act.CLEAR if was else None)
    text = words(finding, policy, mark, look)
    wasted = _wasted(finding, mark, look)
    if mark.warned_at is None or mark.due is None:
        due = look.at + policy.window
        update = {"finding": finding, "warned_at": look.at, "due": due}
        return Step(mark.model_copy(update=update), Act.WARN, wasted, text)
    mark = mark.model_copy(update={"finding": finding})
    if mark.due is not None and look.at < mark.due:
        return Step(mark)
    return Step(mark.model_copy(update={"caught": True}), Act.END, wasted, text)


def extended(old: Mark | None, at: float, until: float, by: str, state: SandboxState) -> Mark:
    """Return a mark that lets a sandbox be until a time; after it, a new warning comes first."""
    mark = old or Mark(at=at, state=state)
    update = {"finding": None, "warned_at": None, "due": None, "caught": False}
    return mark.model_copy(update={**update, "extended_until": until, "extended_by": by})


def worth_keeping(policy: Policy, mark: Mark) -> bool:
    """Return whether a mark tells more than the next look would find by itself."""
    return bool(mark.idle or mark.paused or mark.ending or mark.finding or mark.extended_until) or (
        mark.silent >= policy.patrol
    )


def words(finding: Finding, policy: Policy, mark: Mark, look: Look) -> str:
    """Return why a sandbox is found, for people."""
    if finding is Finding.RUN_TIME:
        ran = look.at - (look.running_since or look.at)
        return f"it has run for {_span(ran)}, its declared maximum is {_span(look.max_run or 0)}"
    if finding is Finding.SILENT:
        return f"no heartbeat for {_span(mark.silent)}; {_span(policy.silent)} is allowed"
    if finding is Finding.IDLE:
        return f"less than {policy.idle_share:.0%} of its CPU was used for {_span(mark.idle)}"
    if finding is Finding.PAUSED:
        return f"paused for {_span(mark.paused)}; {_span(policy.paused)} is allowed"
    return f"its program has ended, and its node has not put it away for {_span(mark.ending)}"


def _seen(policy: Policy, old: Mark | None, look: Look) -> Mark:
    """Return the mark with the spans as they are now."""
    same = old is not None and (old.state in _ENDING) == (look.state in _ENDING)
    past = old if old is not None and same else None
    # an outage, a clock that jumped: nobody looked, and what was not seen is held against nobody
    gap = min(max(0.0, look.at - past.at), policy.patrol * 1.5) if past else 0.0
    paused = look.state is SandboxState.PAUSED
    running = look.state is SandboxState.RUNNING
    same_state = past is not None and past.state is look.state
    silent = idle = 0.0
    if past is not None and running and same_state:
        if look.beat_age is not None:
            silent = min(max(0.0, look.beat_age), past.silent + gap)
        else:
            silent = past.silent
        idle = _idle(policy, past, look, gap)
    return Mark(
        at=look.at,
        state=look.state,
        cpu_seconds=look.cpu_seconds,
        silent=silent,
        idle=idle,
        paused=past.paused + gap if past is not None and paused and same_state else 0.0,
        ending=past.ending + gap if past is not None and look.state in _ENDING else 0.0,
        finding=old.finding if old else None,
        warned_at=old.warned_at if old else None,
        due=old.due if old else None,
        extended_until=old.extended_until if old else None,
        extended_by=old.extended_by if old else "",
        caught=old.caught if old else False,
    )


def _idle(policy: Policy, past: Mark, look: Look, gap: float) -> float:
    """Return for how long it has used next to nothing; a use that nobody knows is no idleness."""
    if look.cpu_seconds is None or past.cpu_seconds is None or look.cpu_seconds < past.cpu_seconds:
        return 0.0
    if gap <= 0:
        return past.idle
    milli = min(look.cpu_milli, _CORE) if look.gpus else look.cpu_milli
    # counters go on while nobody looks: the use is that of the whole time
    share = (look.cpu_seconds - past.cpu_seconds) / ((look.at - past.at) * milli / _CORE)
    return past.idle + gap if share < policy.idle_share else 0.0


def _finding(policy: Policy, mark: Mark, look: Look) -> Finding | None:
    if mark.ending > policy.ending:
        return Finding.ZOMBIE
    if look.state not in {SandboxState.RUNNING, SandboxState.PAUSED}:
        return None
    if look.max_run is not None and look.running_since is not None:
        over = look.at - look.running_since - look.max_run
        if over > policy.overtime:
            return Finding.RUN_TIME
    if mark.silent > policy.silent:
        return Finding.SILENT
    if mark.idle >= policy.idle:
        return Finding.IDLE
    return Finding.PAUSED if mark.paused > policy.paused else None


def _wasted(finding: Finding, mark: Mark, look: Look) -> float:
    """Return for how long its room was of no use, in seconds."""
    if finding is Finding.RUN_TIME:
        return look.at - (look.running_since or look.at) - (look.max_run or 0.0)
    spans = {
        Finding.SILENT: mark.silent,
        Finding.IDLE: mark.idle,
        Finding.PAUSED: mark.paused,
        Finding.ZOMBIE: mark.ending,
    }
    return spans[finding]


def _span(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
