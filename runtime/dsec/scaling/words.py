"""Decisions about replicas as sentences: figures first, then what holds them. Pure.

The first half are causes ("queue depth 100 is above 64"); `told` joins one with a decision.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dsec.api.elastic_status import Limit, ScalingReason

NAMES: Mapping[str, str] = {
    "queue_depth": "queue depth",
    "use": "mean use",
    "cpu": "CPU use",
    "memory": "memory use",
    "gpu": "GPU use",
    "latency": "sampling latency",
    "sample_throughput": "sample throughput",
    "active_agents": "active agents",
    "retry_rate": "retry rate",
    "io_wait": "wait for input and output",
}
_PERCENT = frozenset({"use", "cpu", "memory", "gpu", "io_wait"})


def name_of(metric: str) -> str:
    """Return what people call a signal; metrics of tasks keep their names."""
    return NAMES.get(metric, metric)


def figure(metric: str, value: float) -> str:
    """Return a value with its unit, without digits that nobody reads."""
    text = f"{value:.4g}" if abs(value) < 10_000 else f"{value:.0f}"  # noqa: PLR2004 - digits
    return f"{text} %" if metric in _PERCENT else text


# ------------------------------------------------------------------ causes


def missing(metric: str, problem: str = "") -> str:
    """No value, or one that is too old; `problem` says what kept it away, where that is known."""
    return f"{name_of(metric)} is missing or too old{f' ({problem})' if problem else ''}"


def none_runs() -> str:
    """Nothing to measure."""
    return "no replica runs yet"


def above(metric: str, value: float, bound: float) -> str:
    """The upper threshold is passed."""
    return f"{name_of(metric)} {figure(metric, value)} is above {figure(metric, bound)}"


def below(metric: str, value: float, bound: float) -> str:
    """The lower threshold is passed."""
    return f"{name_of(metric)} {figure(metric, value)} is below {figure(metric, bound)}"


def between(metric: str, value: float, low: float, high: float) -> str:
    """Nothing to do."""
    bounds = f"{figure(metric, low)} and {figure(metric, high)}"
    return f"{name_of(metric)} {figure(metric, value)} is between {bounds}"


def works_off(metric: str, value: float, wanted: int) -> str:
    """What the formula says."""
    return f"{name_of(metric)} {figure(metric, value)} needs {wanted}"


def enough(because: str, count: int, wanted: int) -> str:
    """Above the threshold, and yet the formula needs no more."""
    return f"{because}, and {count} are enough to work it off ({wanted} needed)"


def use_against(metric: str, use: float, target: float, ready: int) -> str:
    """Use of the replicas beside its set-point."""
    return f"{name_of(metric)} {figure(metric, use)} of {ready} at a target of {target:g} %"


def not_afresh(because: str) -> str:
    """The threshold has triggered before."""
    return f"{because}, and was not crossed afresh since the last change"


def no_baseline() -> str:
    """Too little history."""
    return "too little of the last hour is known to say what is usual"


def above_usual(metric: str, value: float, usual: float, band: float) -> str:
    """Above the role's own hour."""
    return f"{above(metric, value, usual * (1 + band))}: {band:.0%} over its mean {usual:.4g}"


def below_usual(metric: str, value: float, usual: float, band: float) -> str:
    """Below the role's own hour."""
    return f"{below(metric, value, usual * (1 - band))}: {band:.0%} under its mean {usual:.4g}"


def three(metric: str, depth: float, use: float, latency: float | None) -> str:
    """All three signals."""
    text = f"{name_of(metric)} {figure(metric, depth)} at mean use {use:.3g} %"
    return text if latency is None else f"{text}, latency {latency:.3g} s"


def agents(now: float, right: float) -> str:
    """More agents than the count was right for."""
    return f"{now:.4g} agents are active, and the count was right for {right:.4g}"


def asked(count: int) -> str:
    """The task's own request."""
    return f"the task asked for {count}"


def outside(low: int, high: int, window: str, limit: Limit | None) -> str:
    """The count was not within what is allowed now."""
    where = f" ({window})" if window else ""
    what = f", and the {_LIMITS[limit]}" if limit not in {None, Limit.MAX} else ""
    return f"between {low} and {high} are allowed now{where}{what}"


def retries(rate: float, usual: float) -> str:
    """Replicas fail and are started again."""
    return f"retry rate {rate:.2g} per replica and minute, usually {usual:.2g}"


def io_advice(io_wait: float, cpu: float) -> str:
    """What to look at instead of growing."""
    return (
        f"replicas wait for input and output {io_wait:.0f} % of their time at {cpu:.0f} % CPU: "
        "look at data loading and at traffic between replicas; more of them can make it worse"
    )


def headroom(count: int) -> str:
    """Budget is left for a small task."""
    return f"budget is left, and {count} make it faster"


# ------------------------------------------------------------------ decisions


@dataclass(frozen=True, slots=True)
class Said:
    """A decision with its figures, as `told` puts it in words."""

    reason: ScalingReason
    because: str
    before: int
    after: int
    rounds: int = 0
    of: int = 0
    seconds: float = 0.0
    """Period, or what is left of a wait."""
    limit: Limit | None = None


_LIMITS: Mapping[Limit | None, str] = {
    None: "limit",
    Limit.MAX: "role's max is reached",
    Limit.QUOTA: "quota has room for no more",
    Limit.BUDGET: "budget allows no more",
    Limit.NODES: "nodes have room for no more, and no more may be added",
    Limit.WORTH: "cost of a sample would rise by more than they bring",
}


def told(one: Said) -> str:
    """Return a decision as one sentence."""
    return _SENTENCES[one.reason](one)


def _moved(verb: str) -> Callable[[Said], str]:
    def text(one: Said) -> str:
        rounds = f" for {one.rounds} rounds" if one.rounds > 1 else ""
        return f"{verb} from {one.before} to {one.after}: {one.because}{rounds}"

    return text


def _confirming(one: Said) -> str:
    return (
        f"{one.before} stay: {one.because}, in {one.rounds} of {one.of} rounds that "
        f"{one.after} need"
    )


def _waits(what: str) -> Callable[[Said], str]:
    return lambda one: f"{one.before} stay: {one.because}, but {what} for {one.seconds:.0f} s more"


def _held(what: str) -> Callable[[Said], str]:
    return lambda one: f"{one.before} stay: {one.because}; {what}"


def _would(one: Said) -> str:
    verb = "remove" if one.after < one.before else "add"
    many = abs(one.after - one.before)
    return f"{one.before} stay, would {verb} {many}: {one.because}; such changes are only told"


def _limited(one: Said) -> str:
    return f"{one.before} stay: {one.because}, but the {_LIMITS[one.limit]}"


R = ScalingReason
_SENTENCES: Mapping[ScalingReason, Callable[[Said], str]] = {
    R.GROWN: _moved("raised"),
    R.SHRUNK: _moved("lowered"),
    R.REQUESTED: _moved("set"),
    R.BOUNDS: _moved("moved"),
    R.STEADY: lambda one: f"{one.before} are right: {one.because}",
    R.CONFIRMING_GROWTH: _confirming,
    R.CONFIRMING_SHRINK: _confirming,
    R.NO_DATA: _held("no data is not zero, so the count is held"),
    R.NO_BASELINE: _held("the count is held until then"),
    R.NOT_CROSSED: lambda one: f"{one.before} stay: {one.because}",
    R.COOLDOWN: _waits("the last change needs time to show"),
    R.GUARD: _waits("the last time it was too soon, so it has to be wanted"),
    R.PROTECTED: _waits("what was added is kept"),
    R.AT_LIMIT: _limited,
    R.AT_FLOOR: _held("no less is allowed now"),
    R.FROZEN: lambda one: f"growth frozen: {one.because}; {one.before} stay until they run well",
    R.IO_BOUND: _held("growth is withheld"),
    R.WOULD_SHRINK: _would,
    R.WOULD_GROW: _would,
}
