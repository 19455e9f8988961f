"""The preset node-load: pools that grow and shrink by CPU and backlog held for minutes. Pure.

Growth when work has waited, or CPU was above 70 %, for its window; shrinking when it was below 30 %
(see removing.py); one step in ten minutes. No sample is not a sample of 0: a window goes on over a
short gap, and starts anew after a long one.
"""

import math
from dataclasses import replace
from itertools import chain

from dsec.api.scaling import Market, NodePreset
from dsec.scaling.nodes.plans import Why
from dsec.scaling.nodes.rules import NodeRules
from dsec.scaling.nodes.state import FleetState, PoolMemory
from dsec.scaling.nodes.virtual import serving


def observed(
    memory: PoolMemory, now: float, rules: NodeRules, *, cpu_percent: float | None, waiting: int
) -> PoolMemory:
    """Return the memory of a pool after a sample: mean CPU of its nodes, and requests that wait.

    `cpu_percent` None: there is no fresh sample.
    """
    busy, calm = memory.busy_since, memory.calm_since
    if cpu_percent is not None:
        busy = _since(busy, now, cpu_percent > rules.busy_percent)
        calm = _since(calm, now, cpu_percent < rules.calm_percent)
    elif memory.cpu_at is None or now - memory.cpu_at > rules.load_window_s:
        busy = calm = None
    return replace(
        memory,
        busy_since=busy,
        calm_since=calm,
        backlog_since=_since(memory.backlog_since, now, waiting >= rules.backlog_least),
        cpu_percent=memory.cpu_percent if cpu_percent is None else cpu_percent,
        cpu_at=memory.cpu_at if cpu_percent is None else now,
    )


def _since(known: float | None, now: float, holds: bool) -> float | None:
    if not holds:
        return None
    # one from the future is from before a clock went back
    return now if known is None else min(known, now)


def by_load(state: FleetState, rules: NodeRules, pool: str) -> bool:
    """Return whether some of a pool's nodes go by the preset node-load."""
    preset = rules.of(pool).preset
    if preset is not None:
        return preset is NodePreset.NODE_LOAD
    offerings = (one for one in state.offerings if one.pool == pool)
    held = (node.offering for node in state.of_pool(pool))
    return any(one.market is Market.OWNED for one in chain(offerings, held))


def closed_pools(state: FleetState, rules: NodeRules) -> dict[str, tuple[Why, str]]:
    """Return the pools that may not grow now by their preset, with why."""
    found: dict[str, tuple[Why, str]] = {}
    for pool in state.pools:
        if not by_load(state, rules, pool):
            continue
        memory = state.memory(pool)
        left = cooling(memory, state.now, rules)
        if left > 0:
            found[pool] = (Why.COOLDOWN, f"{left:.0f}")
        elif not _held(memory.backlog_since, state.now, rules.backlog_window_s) and not _held(
            memory.busy_since, state.now, rules.load_window_s
        ):
            found[pool] = (Why.LOAD_WINDOW, f"{rules.backlog_window_s:g}")
    return found


def cooling(memory: PoolMemory, now: float, rules: NodeRules) -> float:
    """Return for how long a pool takes no further step, in seconds."""
    if memory.acted_at is None:
        return 0.0
    return max(0.0, rules.cooldown_s - (now - min(memory.acted_at, now)))


def growth(state: FleetState, rules: NodeRules, pool: str) -> int:
    """Return how many nodes bring CPU back to the threshold; 0 where it was not held (ELAS-14)."""
    memory = state.memory(pool)
    if memory.cpu_percent is None or not _held(memory.busy_since, state.now, rules.load_window_s):
        return 0
    nodes = [one for one in state.of_pool(pool) if serving(one, state.now)]
    ready = sum(not one.coming for one in nodes)
    wanted = math.ceil(ready * memory.cpu_percent / rules.busy_percent)
    return max(0, wanted - len(nodes))


def calm(memory: PoolMemory, now: float, rules: NodeRules) -> bool:
    """Return whether CPU was low for the whole window (ELAS-15)."""
    return _held(memory.calm_since, now, rules.load_window_s)


def _held(since: float | None, now: float, window: float) -> bool:
    return since is not None and now - since >= window
