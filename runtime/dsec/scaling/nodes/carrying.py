"""What becomes of the state while a plan is carried out: answers of providers, idle nodes. Pure.

The steps of whoever carries plans out, each under the lock that `limits.reserve` speaks of:

    state, buys = reserve(state, rules, made.buys)      persist, then call the provider
    state = answered(state, buy, came, ...)             for each; nodes come in the order of names
    state = replace(state, memories=made.memories, consolidated_at=made.consolidated_at)

and where something failed plan again at once: the next offering is taken in the same pass.
"""

from dataclasses import replace

from dsec.scaling.nodes.backoff import OFFERING, failed, succeeded
from dsec.scaling.nodes.offerings import FleetNode, NodePhase
from dsec.scaling.nodes.plans import Purchase
from dsec.scaling.nodes.state import FleetState


def answered(
    state: FleetState,
    buy: Purchase,
    came: int,
    *,
    run_until: float | None = None,
    scope: str = OFFERING,
    code: str = "",
    retry_after_s: float | None = None,
) -> FleetState:
    """Return the state after a provider's answer to a reserved purchase: `came` of its nodes boot.

    Fewer than asked is a failure of that scope and code, and what was reserved for the rest is free
    again. A purchase whose outcome is not known is not entered: it stays reserved until the
    provider's list tells.
    """
    good, bad = set(buy.names[:came]), set(buy.names[came : buy.count])
    nodes = tuple(
        replace(one, phase=NodePhase.BOOTING, run_until=run_until, since=state.now)
        if one.name in good and one.phase is NodePhase.REQUESTED
        else one
        for one in state.nodes
        if one.name not in bad
    )
    if bad:
        backoffs = failed(
            state.backoffs,
            buy.offering,
            state.now,
            scope=scope,
            code=code,
            retry_after_s=retry_after_s,
        )
    else:
        backoffs = succeeded(state.backoffs, buy.offering)
    return replace(state, nodes=nodes, backoffs=backoffs)


def watched(node: FleetNode, now: float) -> FleetNode:
    """Return a node with how long it is idle: since when nothing is on it or on its way to it.

    Only ready nodes idle. A time in the future is from before a clock went back, and counts as now.
    """
    if node.phase is not NodePhase.READY or node.busy:
        return replace(node, idle_since=None)
    since = now if node.idle_since is None else min(node.idle_since, now)
    return replace(node, idle_since=since)
