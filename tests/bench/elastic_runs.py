"""The runs of bench-elastic: one load and one market per seed, and every policy on them.

What is fixed, so that the comparison is fair: the mix of work (printed), owned machines sized once
before any policy is looked at, one market keyed by offering and time, the same placement for all.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache
from pathlib import Path

import elastic_peers as peers
import numpy as np
from dsec.api.scaling import Market, Shrinking
from dsec.scaling.nodes.offerings import Offering
from dsec.scaling.nodes.rules import NodeRules, PoolRules
from dsec.sim.bursts import DAY_SECONDS
from dsec.sim.elastic.fleet import SNAPSHOT_PER_GIB, TRANSFER_PER_GIB, Fleet, Rules, Tally
from dsec.sim.elastic.load import Work, folded, in_order, rollouts
from dsec.sim.elastic.market import (
    OWNED_CPU,
    OWNED_GPU,
    RESERVED_PART,
    SHAPES,
    MarketModel,
    Shape,
    offerings,
    owned,
)
from dsec.sim.elastic.planned import Planned
from dsec.sim.trace import read_jobs

DAYS = 3
WARM_S = DAY_SECONDS
WINDOW = (WARM_S, DAYS * DAY_SECONDS)
"""The time that is billed and told."""
TAIL_S = 3600.0
"""After the window, so that what came late in it is seen to start."""
BUSY_FROM = 9.96e6
"""Creation time in the trace from which on it is busy."""
OWN_GPU_NODES, OWN_CPU_NODES = 5.0, 2.0
"""At scale 1; a fourth of the study's fleet for a fourth of its load."""
RIGHT_SIZE = 4
"""CPU is asked for four times of what is used: more brings nothing, memory binds."""
KINDS = ("gpu", "cpu", "rollout")
BOTH = (Market.SPOT, Market.ON_DEMAND)

PEERS = (
    "karpenter",
    "karpenter, evicting",
    "karpenter + spot",
    "karpenter + spot, evicting",
    "karpenter + spot, evicting after 5 min",
    "autoscaler + spot",
    "autoscaler + spot, evicting",
)
OURS = ("dsec", "dsec, GPU work not moved", "dsec, no spot")
SIZED = ("karpenter + spot, evicting, right-sized", "dsec, right-sized")


@dataclass(frozen=True, slots=True)
class Case:
    """One run of one policy. `seed` makes the load and the market."""

    data: Path
    policy: str
    seed: int
    scale: float
    static: tuple[int, int, int] = (0, 0, 0)
    """For `static gpu` and `static cpu`: nodes of 8 cards, of 4 cards, of 128 cores."""


@lru_cache(maxsize=4)
def load_of(data: Path, seed: int, scale: float) -> tuple[Work, ...]:
    """Return what arrives: a trace's busy days folded onto three, and rollouts beside it."""
    with (data / "openb_pod_list_default.csv").open(newline="", encoding="utf-8") as file:
        jobs = read_jobs(file, file.name)
    trace = folded(jobs, seed, days=DAYS, scale=scale, busy_from=BUSY_FROM)
    return tuple(in_order(trace, rollouts(seed, days=DAYS, scale=scale)))


def mix_of(load: Sequence[Work]) -> str:
    """Return the mix of a load in words: it decides the result as much as the policies do."""
    hours = DAYS * 24 * 3600
    parts = []
    for kind in KINDS:
        some = [one for one in load if one.kind == kind]
        cores = sum(one.cores * one.seconds for one in some) / hours
        gpus = sum(one.gpus * one.seconds for one in some) / hours
        told = f"{len(some)} {kind}, {cores:.0f} cores"
        parts.append(told + (f" and {gpus:.0f} GPUs" if gpus else "") + " on average")
    return "; ".join(parts)


def run(case: Case) -> tuple[Case, Tally]:
    """Run one policy."""
    load: Sequence[Work] = load_of(case.data, case.seed, case.scale)
    market = MarketModel(seed=case.seed)
    if case.policy.startswith("static"):
        return case, _static(case, load, market)
    if case.policy.endswith("right-sized"):
        load = [_smaller(one) for one in load]
    ours = case.policy.startswith("dsec")
    spot = "no spot" not in case.policy if ours else "+ spot" in case.policy
    ways = offerings(market, markets=BOTH if spot else BOTH[1:])
    # CPU work stays off own GPU nodes for everybody: its cores belong to the cards
    own = [
        peers.with_taint(owned(OWNED_GPU, max(1, round(OWN_GPU_NODES * case.scale)))),
        owned(OWNED_CPU, max(1, round(OWN_CPU_NODES * case.scale))),
    ]
    if ours:
        rules: Rules = Planned(our_rules(), ways)
    else:
        rules = _peer(case.policy, tuple(peers.with_taint(one) for one in ways), spot=spot)
    fleet = Fleet(
        load,
        own,
        market,
        rules,
        window=WINDOW,
        end=DAYS * DAY_SECONDS + TAIL_S,
        prepare=peers.kept_off,
        move_all=ours and "not moved" not in case.policy,
    )
    return case, fleet.run()


def _peer(policy: str, ways: tuple[Offering, ...], *, spot: bool) -> Rules:
    evicting = "evicting" in policy
    if policy.startswith("karpenter"):
        settled = 300.0 if "after 5 min" in policy else 0.0
        return peers.Karpenter(ways, spot=spot, evicting=evicting, settled_s=settled)
    return peers.ClusterAutoscaler(ways, spot=spot, evicting=evicting)


def our_rules() -> NodeRules:
    """Return the rules of dsec: its defaults, with no wait before cloud nodes are bought.

    Peers buy as soon as their batch closes: with the default of 10 s all waits would be that much
    longer. Spot is waited for half as long as by default, for the same reason. A move costs here
    what the market charges for it.
    """
    return NodeRules(
        pools=(
            # own machines are paid for whether they run or not
            PoolRules("own-gpu", shrink=Shrinking.OFF),
            PoolRules("own-cpu", shrink=Shrinking.OFF),
            PoolRules("cloud-gpu", burst_wait_s=0.0),
            PoolRules("cloud-cpu", burst_wait_s=0.0),
        ),
        spot_patience_s=30.0,
        move_price_per_gib=SNAPSHOT_PER_GIB + TRANSFER_PER_GIB,
    )


def _smaller(work: Work) -> Work:
    asked = work.request.resources
    sized = asked.model_copy(update={"cpu_milli": max(1, asked.cpu_milli // RIGHT_SIZE)})
    return replace(work, request=replace(work.request, resources=sized))


# -- a fleet that never changes -----------------------------------------------------------------

STATIC_SHAPES = {one.name: one for one in SHAPES}
G8, G4, C128 = (STATIC_SHAPES[name] for name in ("g8-96", "g4-48", "c128"))


def _static(case: Case, load: Sequence[Work], market: MarketModel) -> Tally:
    gpu = case.policy == "static gpu"
    part = [one for one in load if (one.kind == "gpu") is gpu]
    counts = zip((G8, G4, C128), case.static, strict=True)
    own = [peers.with_taint(owned(shape, count)) for shape, count in counts if count]
    fleet = Fleet(
        part,
        own,
        market,
        peers.Static(),
        window=WINDOW,
        end=DAYS * DAY_SECONDS + TAIL_S,
        prepare=peers.kept_off,
    )
    return fleet.run()


def most_at_once(works: Iterable[tuple[float, float, float]]) -> float:
    """Return the largest sum of amounts (begin, seconds, amount) that hold at one time."""
    steps = []
    for begin, seconds, amount in works:
        steps += [(begin, amount), (begin + seconds, -amount)]
    held = most = 0.0
    for _, step in sorted(steps):
        held += step
        most = max(most, held)
    return most


def static_start(load: Sequence[Work]) -> tuple[int, int, int]:
    """Return node counts that hold the peak: an upper end for the search."""
    # work that no node of four cards takes needs nodes of eight
    jobs = [one for one in load if one.kind == "gpu"]
    large = [one for one in jobs if one.gpus > G4.gpus or one.cores > G4.cores]
    small = [one for one in jobs if one.gpus <= G4.gpus and one.cores <= G4.cores]
    rest = [one for one in load if one.kind != "gpu"]
    n8 = most_at_once((one.at, one.seconds, one.gpus / G8.gpus) for one in large)
    n4 = max(
        most_at_once((one.at, one.seconds, one.gpus / G4.gpus) for one in small),
        most_at_once((one.at, one.seconds, one.cores / G4.cores) for one in small),
    )
    cpu = most_at_once((one.at, one.seconds, one.cores / C128.cores) for one in rest)
    return -int(-n8 // 1), int(n4 * 1.3) + 2, int(cpu * 1.1) + 2


def static_price(counts: tuple[int, int, int]) -> dict[str, Decimal]:
    """Return what a static fleet costs over the window, by who pays how."""
    hours = Decimal(str((DAYS * DAY_SECONDS - WARM_S) / 3600))
    pairs = list(zip((G8, G4, C128), counts, strict=True))
    listed = sum((shape.price * count for shape, count in pairs), Decimal(0))
    per_gpu = OWNED_GPU.price / OWNED_GPU.gpus
    per_core = OWNED_CPU.price / OWNED_CPU.cores

    def at_own(shape: Shape) -> Decimal:
        return per_gpu * shape.gpus if shape.gpus else per_core * shape.cores

    own = sum((at_own(shape) * count for shape, count in pairs), Decimal(0))
    return {
        "on-demand": listed * hours,
        "reserved": listed * RESERVED_PART * hours,
        "owned": own * hours,
    }


def p99(tally: Tally, kinds: Iterable[str] = KINDS) -> float:
    """Return the 99th percentile of the waits of some kinds, in seconds."""
    waits = [wait for kind in kinds for wait in tally.waits.get(kind, [])]
    return float(np.percentile(waits, 99)) if waits else 0.0


def mean(tally: Tally) -> float:
    """Return the mean wait, in seconds."""
    return float(np.mean([wait for kind in KINDS for wait in tally.waits.get(kind, [0.0])]))
