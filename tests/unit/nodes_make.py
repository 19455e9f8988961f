"""Offerings, nodes and waiting work in few words, for tests of node planning. GiB and cores."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from dsec.api.elastic_status import GuardState
from dsec.api.experiment import TaskClass
from dsec.api.scaling import Market
from dsec.placement.request import Request
from dsec.scaling.nodes.offerings import FleetNode, NodePhase, Offering, Running
from dsec.scaling.nodes.planning import plan
from dsec.scaling.nodes.plans import Gate, GateAnswer, OpenGate, Plan, Purchase, Refused, Why
from dsec.scaling.nodes.rules import NodeRules, PoolRules
from dsec.scaling.nodes.state import Backoff, FleetState, Limit, Pending, PoolMemory
from placement_make import node as placement_node
from placement_make import request

NOW = 1_800_000_000.0
GUARANTEED, PREEMPTIBLE = TaskClass.GUARANTEED, TaskClass.PREEMPTIBLE
OPEN = OpenGate()

__all__ = [
    "GUARANTEED",
    "NOW",
    "OPEN",
    "PREEMPTIBLE",
    "Backoff",
    "FleetState",
    "GateAnswer",
    "GuardState",
    "Limit",
    "Market",
    "NodePhase",
    "NodeRules",
    "PoolMemory",
    "PoolRules",
    "Why",
    "become",
    "bought",
    "counts",
    "fleet_node",
    "offering",
    "pending",
    "planned",
    "refusals",
    "rules",
    "running",
    "waiting",
]


def offering(  # noqa: PLR0917  the figures of a node, as everybody says them
    kind: str = "c16",
    cores: float = 16,
    gib: float = 64,
    gpus: int = 0,
    price: str = "1",
    market: Market = Market.ON_DEMAND,
    **fields: Any,
) -> Offering:
    """Return an offering of the pool `cloud` (owned ones: of `owned`) in east/east-1."""
    fields.setdefault("pool", "owned" if market is Market.OWNED else "cloud")
    fields.setdefault("provider", "onprem" if market is Market.OWNED else "simulated")
    described = placement_node(kind, cores, gib, gpus, **fields.pop("node", {}))
    return Offering(
        instance_type=kind,
        region=fields.pop("region", "east"),
        zone=fields.pop("zone", "east-1"),
        market=market,
        node=described,
        price_per_hour=Decimal(price),
        currency="USD",
        **fields,
    )


def pending(asked: Request, waited: float = 120.0, **fields: Any) -> Pending:
    """Return waiting work."""
    return Pending(asked, NOW - waited, **fields)


def waiting(count: int, prefix: str = "w", waited: float = 120.0, **fields: Any) -> list[Pending]:
    """Return equal waiting requests; `budget`, `regions` and the like go to what waits."""
    own = {
        key: fields.pop(key)
        for key in ("budget", "regions", "sensitive", "burst_wait_s")
        if key in fields
    }
    return [
        pending(request(f"{prefix}{number}", **fields), waited, **own) for number in range(count)
    ]


def running(name: str, cores: float = 1, gib: float = 1, **fields: Any) -> Running:
    """Return a running sandbox that can be moved and has run for an hour."""
    own = {
        key: fields.pop(key)
        for key in (
            "movable",
            "paused",
            "last_moved_at",
            "moved_under",
            "expected_remaining_s",
            "started_at",
        )
        if key in fields
    }
    asked = request(name, cores, gib, **fields)
    own.setdefault("movable", True)
    own.setdefault("started_at", NOW - 3600)
    return Running(name, asked, task_class=asked.task_class, **own)


def fleet_node(
    name: str,
    made: Offering,
    phase: NodePhase = NodePhase.READY,
    work: Iterable[Running] = (),
    **fields: Any,
) -> FleetNode:
    """Return a node; a ready one is so for an hour, and idle for as long where nothing runs."""
    ready = NOW - 3600 if phase not in (NodePhase.BOOTING, NodePhase.REQUESTED) else None
    fields.setdefault("ready_at", ready)
    fields.setdefault("requested_at", NOW - 3700 if ready else NOW - 30)
    held = tuple(work)
    if not held and ready:
        fields.setdefault("idle_since", NOW - 3600)
    return FleetNode(name, made, phase, work=held, **fields)


def rules(*pools: PoolRules, **fields: Any) -> NodeRules:
    """Return rules of pools."""
    return NodeRules(pools=pools, **fields)


def planned(state: FleetState, by: NodeRules | None = None, gate: Gate = OPEN) -> Plan:
    """Return a plan, and check that the same comes out again."""
    made = plan(state, by or NodeRules(), gate)
    assert made == plan(state, by or NodeRules(), gate)
    return made


def bought(made: Plan) -> dict[str, int]:
    """Return how many nodes of each instance type and market are bought."""
    found: dict[str, int] = {}
    for buy in made.buys:
        key = f"{buy.offering.instance_type} {buy.offering.market.value}"
        found[key] = found.get(key, 0) + buy.count
    return found


def refusals(made: Plan, why: Why) -> list[Refused]:
    """Return the refusals with a reason."""
    return [one for one in made.refusals if one.reason is why]


def counts(buys: Sequence[Purchase]) -> int:
    """Return how many nodes are bought."""
    return sum(buy.count for buy in buys)


def become(state: FleetState, made: Plan, phase: NodePhase = NodePhase.BOOTING) -> FleetState:
    """Return the state after purchases came through."""
    new = [
        fleet_node(
            name,
            buy.offering,
            phase,
            requested_at=state.now,
            ready_at=None,
            covers=buy.places[at] if buy.places else (),
        )
        for buy in made.buys
        for at, name in enumerate(buy.names)
    ]
    return replace(
        state, nodes=(*state.nodes, *new), memories=made.memories, serial=state.serial + 1
    )
