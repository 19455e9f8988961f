"""Decisions about nodes in words: what, how many, why, and what would change it."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from dsec.placement.asked import Asked
from dsec.placement.request import Request
from dsec.placement.words import amount
from dsec.scaling.nodes.plans import Drain, Plan, Purchase, Refused, Removal, Renewal, Why


def work_words(request: Request) -> str:
    """Return a class of work for people: `4 cores, 16 GiB, 1 GPU of A100`."""
    asked = Asked.of(request)
    found = [amount("cpu", asked.cpu), amount("memory", asked.memory)]
    if asked.gpus:
        part = f" x {asked.milli / 1000:g}" if asked.milli else ""
        model = f" of {request.gpu_model}" if request.gpu_model else ""
        found.append(f"{asked.gpus}{part} GPU{'s' if asked.gpus > 1 else ''}{model}")
    return ", ".join(found)


def purchase_words(buy: Purchase) -> str:
    """Return one purchase as a sentence."""
    offering = buy.offering
    nodes = "1 node" if buy.count == 1 else f"{buy.count} nodes"
    place = "/".join(one for one in (offering.region, offering.zone) if one)
    where = f" in {place}" if place else ""
    head = (
        f"buys {nodes} of {offering.instance_type} ({offering.market.value}){where} for pool "
        f"{offering.pool} at {buy.price_per_hour:f} {offering.currency} per hour"
    )
    one = len(buy.covers) == 1
    covered = "1 request" if one else f"{len(buy.covers)} requests"
    tail = {
        Why.PENDING: f"{covered} {'waits' if one else 'wait'} that no node covers",
        Why.BUFFER: "less room is free than is kept for what comes",
        Why.MINIMUM: "the pool has fewer nodes than its least number",
        Why.LOAD: "CPU was above the threshold for its window",
        Why.REPLACEMENT: (
            f"the provider takes nodes back, and {covered} {'needs' if one else 'need'} a place"
        ),
    }[buy.reason]
    region = ""
    if buy.region is not None:
        others = ", ".join(f"{name} {price}" for name, price in buy.region.considered)
        region = f"; region {buy.region.region} by {buy.region.why} (of {others})"
    return f"{head}: {tail}{region}"


def drain_words(drain: Drain) -> str:
    """Return one drain as a sentence."""
    moved = "1 sandbox moves" if len(drain.moves) == 1 else f"{len(drain.moves)} sandboxes move"
    rests = "1 sandbox is" if len(drain.rests) == 1 else f"{len(drain.rests)} sandboxes are"
    until = "" if drain.deadline is None else f" by {_clock(drain.deadline)}"
    said = {
        Why.CONSOLIDATION: f"{moved} to other nodes; saves {drain.saving_per_hour:f} per hour",
        Why.SPOT_NOTICE: f"the provider takes it back; {rests} paused and saved{until}",
        Why.REBALANCE: f"the provider may take it back; {moved} to nodes that are ready",
        Why.EXPIRY: f"it is paid for no longer; {rests} paused and saved{until}",
    }[drain.reason]
    return f"drains {drain.node}: {said}"


def removal_words(one: Removal) -> str:
    """Return one removal as a sentence."""
    said = {
        Why.EMPTY: f"idle for {one.idle_s:.0f} s, and nothing that waits or is kept free needs it",
        Why.CALM: f"idle for {one.idle_s:.0f} s in a pool with low CPU",
        Why.SURPLUS: "the pool has more nodes than its most",
        Why.LATE: f"not ready {one.idle_s:.0f} s after it was asked for",
        Why.DRAINED: "what was on it has moved",
        Why.REBALANCE: "the provider may take it back, and nothing runs on it",
    }[one.reason]
    return f"removes {one.node}: {said}"


def renewal_words(one: Renewal) -> str:
    """Return one extension as a sentence."""
    return f"pays for {one.node} until {_clock(one.run_until)}"


def refused_words(one: Refused) -> str:
    """Return as a sentence what was not done, why, and what would change it."""
    return f"{one.subject}: {_REFUSED[one.reason](one)}"


def plan_words(plan: Plan) -> list[str]:
    """Return all of a plan, a sentence each."""
    found = [purchase_words(buy) for buy in plan.buys]
    found += [f"gives no new work to {name}" for name in plan.cordons]
    found += [drain_words(one) for one in plan.drains]
    found += [removal_words(one) for one in plan.removals]
    found += [renewal_words(one) for one in plan.renewals]
    return found + [refused_words(one) for one in plan.refusals]


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _waiting(one: Refused) -> str:
    return "1 waits" if one.count == 1 else f"{one.count} wait"


def _detail(one: Refused, before: str = ": ") -> str:
    detail = one.figure("detail")
    return f"{before}{detail}" if detail else ""


_REFUSED: Mapping[Why, Callable[[Refused], str]] = {
    Why.NO_OFFERING: lambda one: (
        f"{_waiting(one)}: no node that may be had can hold it{_detail(one)}; add an offering that "
        "is large enough, or ask for less"
    ),
    Why.BACKED_OFF: lambda one: (
        f"{_waiting(one)}: every way to get a node for it failed lately{_detail(one)}; one node is "
        "tried when the backoff ends"
    ),
    Why.BURST_WAIT: lambda one: (
        f"{_waiting(one)}: cloud nodes are bought after {one.figure('detail')} s in the queue"
    ),
    Why.SPOT_FIRST: lambda one: (
        f"{_waiting(one)}: it may run on spot nodes, and on-demand is bought only when spot has "
        "failed and it has waited"
    ),
    Why.LOAD_WINDOW: lambda one: (
        f"{_waiting(one)}: own nodes are added once a backlog has lasted {one.figure('detail')} s"
    ),
    Why.COOLDOWN: lambda one: (
        "the pool's last step is too recent; the next may be in "
        f"{one.figure('seconds') or one.figure('detail')} s"
    ),
    Why.FROZEN: lambda one: f"{_waiting(one)}: scaling of the pool is stopped by hand",
    Why.LIMIT: lambda one: f"{_waiting(one)}: a limit is reached{_detail(one)}; raise it or wait",
    Why.BUDGET: lambda one: (
        f"a budget does not cover it{_detail(one)}"
        + (f"; it ends in {one.figure('seconds')} s" if one.figure("seconds") else "")
    ),
    Why.RESIDENCY: lambda one: (
        f"{_waiting(one)}: its data may be in{_detail(one, ' ')} only, and no node is offered there"
    ),
    Why.FLOOR: lambda one: f"kept: the pool has {one.figure('least')} nodes at least",
    Why.GUARD: lambda one: (
        f"kept for {one.figure('seconds')} s more: the pool went down and up again lately"
    ),
    Why.PROTECTED: lambda _: "kept: high-risk work is on it",
    Why.DRY_RUN: lambda one: (
        f"would be removed, idle for {one.figure('idle')} s; removals of this pool are only told"
    ),
    Why.NOT_MOVABLE: lambda one: (
        f"not drained: {one.count} of its sandboxes cannot be moved ({one.figure('work')}); it "
        "waits until they end or a mover can take them"
    ),
    Why.NO_PAYBACK: lambda one: (
        f"not drained: moving costs {one.figure('cost')} and saves {one.figure('saving')}"
    ),
    Why.NO_ROOM: lambda _: "not drained: its work does not fit elsewhere as a whole",
    Why.SETTLED: lambda one: (
        f"not drained: {one.figure('work')} has moved already, and demand has not changed enough"
    ),
    Why.CAP: lambda _: "not drained: as many nodes of the pool are drained as may be at once",
    Why.FAILED_MOVE: lambda one: (
        f"kept and flagged abnormal with its scene: {one.figure('work')} could not be moved"
    ),
}
