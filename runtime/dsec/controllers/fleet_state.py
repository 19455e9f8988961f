"""The fleet as node planning sees it, from what the leader remembers, sees and has bound.

Every node is in it: those that were bought, as the book has them, and all others as machines that
nobody switches, which are capacity and are left alone.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from zoneinfo import ZoneInfoNotFoundError

from dsec.api.meta import ConditionStatus
from dsec.api.nodes import RecordReason
from dsec.api.pool_status import HeldNode
from dsec.api.reasons import PendingReason
from dsec.api.records import SandboxNodePool
from dsec.api.scaling import Market, Shrinking
from dsec.controllers.fleet import Fleet, Member
from dsec.controllers.pool_book import PoolBook
from dsec.journal.bindings import Binding, Bindings
from dsec.placement.accelerators import Accelerator
from dsec.placement.refusal import Refusal
from dsec.placement.request import Health, Node
from dsec.placement.translating import request_of
from dsec.placement.view import ClusterView
from dsec.scaling.nodes.carrying import watched
from dsec.scaling.nodes.catalogue import offerings_of
from dsec.scaling.nodes.load import observed
from dsec.scaling.nodes.offerings import FleetNode, NodePhase, Offering, Running
from dsec.scaling.nodes.rules import NodeRules, PoolRules, pool_rules
from dsec.scaling.nodes.state import FleetState, Pending

LEFT_ALONE = frozenset({PendingReason.QUOTA, PendingReason.INVALID, PendingReason.CONTROL_PLANE})
"""Waits that no node ends."""
BY_HAND = "by-hand"
"""Make of nodes that nobody bought."""
AHEAD_S = 3 * NodeRules().wind_down_s
"""Paid for no shorter ahead: renewed at half of it, a node must not be at its wind-down by then."""
PERCENT = 100.0
PHASES = {one.value: one for one in NodePhase}
WhyOf = Callable[[str, str], tuple[Refusal, ...]]
"""From a sandbox and its experiment's uid to why it waits."""


@dataclass(frozen=True, slots=True)
class Sold:
    """What may be bought now, under which rules, and what is wrong with pools."""

    offerings: Mapping[str, Offering]
    rules: NodeRules
    problems: Mapping[str, str]


def market(pools: Mapping[str, SandboxNodePool], suppliers: Iterable[str], fleet: Fleet) -> Sold:
    """Return the offerings of pools by their keys; pools that cannot be served say why.

    `suppliers`: those that this installation has.
    """
    known = frozenset(suppliers)
    offered: dict[str, Offering] = {}
    rules: list[PoolRules] = []
    problems: dict[str, str] = {}
    for name, pool in pools.items():
        asked = pool.spec.scaling
        if asked is None:
            # by hand from now on: what was bought goes once it is idle
            rules.append(PoolRules(name, max_nodes=0, consolidation=False))
            continue
        try:
            made = pool_rules(name, asked)
            rules.append(replace(made, run_until_s=max(made.run_until_s, AHEAD_S)))
            found, lacking = offerings_of(name, pool.spec, lambda _: None, _makes(name, fleet))
        except (ValueError, ZoneInfoNotFoundError) as problem:
            problems[name] = f"scaling cannot be followed: {problem}"
            rules.append(PoolRules(name, frozen=True, shrink=Shrinking.OFF))
            continue
        if asked.supplier not in known:
            has = ", ".join(sorted(known)) or "none"
            problems[name] = (
                f"no node is bought: this installation has no supplier {asked.supplier}; it has "
                f"{has}"
            )
            continue
        if lacking:
            problems[name] = (
                f"not bought, for lack of a price: {', '.join(lacking[:4])}; set pricePerHour"
            )
        offered |= {one.key: one for one in found}
    return Sold(offered, NodeRules(tuple(rules)), problems)


def _makes(pool: str, fleet: Fleet) -> dict[str, Node]:
    """Return a node that has registered, by its make: better known than any description."""
    found = {}
    for member in fleet.members.values():
        make = member.record.spec.labels.get("instance-type", "")
        if make and member.record.spec.pool == pool and not member.problem():
            node = member.described(Health.READY)
            if node is not None:
                found[make] = node
    return found


@dataclass(frozen=True, slots=True)
class Seen:
    """What the leader sees of work: `paused` are ids at rest, `waited` seconds in the queue.

    `movable`: whether something can go on elsewhere now; `moved_at`: when it did last, in UTC
    seconds.
    """

    waiting: Sequence[Binding]
    why: WhyOf
    waited: Callable[[Binding], float]
    paused: frozenset[str]
    regions: Callable[[Binding], tuple[str, ...]]
    view: ClusterView
    movable: Callable[[str], bool] = lambda _id: False
    moved_at: Callable[[str], float | None] = lambda _id: None


def fleet_state(
    book: PoolBook, sold: Sold, fleet: Fleet, bound: Bindings, seen: Seen, *, now: float
) -> tuple[FleetState, NodeRules]:
    """Return the state for a plan, and its rules with pools by hand left alone.

    Takes note in the book of since when nodes idle, and of load. `now` is UTC in seconds.
    """
    nodes = []
    for held in book.nodes.values():
        node = watched(_held(held, sold.offerings, fleet, bound, seen), now)
        held.idle_since = node.idle_since
        nodes.append(node)
    others = _by_hand(book, fleet, now)
    pending = tuple(pending_of(seen, bound, now))
    rules = sold.rules
    mine = {one.pool for one in rules.pools}
    for pool in mine:
        book.memories[pool] = observed(
            FleetState(now, memories=tuple(book.memories.values())).memory(pool),
            now,
            rules,
            cpu_percent=_load(pool, nodes, fleet),
            waiting=len(pending),
        )
    alone = {one.offering.pool for one in others} - mine
    rules = replace(
        rules,
        pools=(
            *rules.pools,
            *(PoolRules(one, frozen=True, shrink=Shrinking.OFF) for one in sorted(alone)),
        ),
    )
    return (
        FleetState(
            now,
            nodes=(*nodes, *others),
            pending=pending,
            offerings=tuple(sold.offerings.values()),
            backoffs=book.backoffs,
            buffers=rules.buffers(),
            memories=tuple(book.memories[one] for one in sorted(mine)),
            serial=book.serial,
            consolidated_at=book.consolidated_at,
            view=seen.view,
        ),
        rules,
    )


def pending_of(seen: Seen, bound: Bindings, now: float) -> Iterable[Pending]:
    """Yield what waits for a node: not for quota, and not for a first look."""
    live = bound.bound
    for binding in seen.waiting:
        known = bound.by_id.get(binding.id)
        if binding.id in live or (known is not None and not known.live):
            continue
        why = seen.why(binding.id, binding.spec.identity.experiment_uid)
        if not why or any(one.reason in LEFT_ALONE for one in why):
            continue
        yield Pending(
            request_of(binding),
            now - seen.waited(binding),
            None,
            path_of(binding),
            seen.regions(binding),
        )


def path_of(binding: Binding) -> str:
    """Return the budget path of work: tenant/project/task, or tenant/project without a task."""
    identity = binding.spec.identity
    parts = (binding.tenant, identity.project, identity.experiment)
    return "/".join(one for one in parts if one)


def usable(fleet: Fleet, name: str) -> bool:
    """Return whether a node may be given work."""
    return name in fleet.members and fleet.verdict(name)[0] is ConditionStatus.TRUE


def answering(fleet: Fleet, name: str) -> bool:
    """Return whether a node's agent answers, whether it takes work or not."""
    return name in fleet.members and fleet.answers(name)


def _held(
    held: HeldNode, offered: Mapping[str, Offering], fleet: Fleet, bound: Bindings, seen: Seen
) -> FleetNode:
    phase = PHASES[held.phase]
    if phase is NodePhase.READY and (held.cordoned or not usable(fleet, held.name)):
        phase = NodePhase.CORDONED
    member = fleet.members.get(held.name)
    registered = None if member is None else _described(member)
    return FleetNode(
        held.name,
        bought_as(held, offered, registered),
        phase,
        held.requested_at,
        ready_at=held.ready_at,
        run_until=held.run_until,
        idle_since=held.idle_since,
        spot_notice_at=held.spot_notice_at,
        rebalance_at=held.rebalance_at,
        work=_work(held.name, bound, seen),
        covers=tuple(held.covers),
        token=held.token,
        registered=registered,
        since=held.since,
    )


def bought_as(
    held: HeldNode, offered: Mapping[str, Offering], registered: Node | None = None
) -> Offering:
    """Return the offering that a node was bought as, at its price then, also one that is no more.

    Of that nothing but its size is known, until its agent has told.
    """
    known = offered.get(held.offering)
    price = Decimal(held.price_per_hour)
    if known is not None:
        return replace(known, price_per_hour=price, currency=held.currency)
    pool, region, zone, make, market_ = (held.offering.split("/") + [""] * 5)[:5]
    node = registered or Node(
        make,
        held.cpu_milli,
        1 << 30,
        devices=tuple(Accelerator(f"card-{n}") for n in range(held.gpu_count)),
    )
    return Offering(
        pool,
        held.supplier,
        make,
        region,
        zone,
        Market(market_ or Market.OWNED.value),
        node,
        price,
        held.currency,
        minimum_bill_seconds=held.minimum_seconds,
    )


def _described(member: Member) -> Node | None:
    return None if member.problem() else member.described(Health.READY)


def _work(name: str, bound: Bindings, seen: Seen) -> tuple[Running, ...]:
    return tuple(
        Running(
            one.id,
            request_of(one),
            (one.bound_at or one.at).timestamp(),
            one.needs.task_class,
            movable=seen.movable(one.id),
            last_moved_at=seen.moved_at(one.id),
            paused=one.id in seen.paused,
            devices=tuple(one.spec.devices),
            cpus=tuple(one.spec.cpus),
            budget=path_of(one),
        )
        for one in bound.on_node(name)
    )


def _by_hand(book: PoolBook, fleet: Fleet, now: float) -> list[FleetNode]:
    """Return the nodes that nobody bought: capacity that stays; what is on it the view knows."""
    found = []
    for node in fleet.nodes():
        if node.name in book.nodes:
            continue
        offering = Offering(
            node.pool, "", BY_HAND, node.region, node.zone, Market.OWNED, node, Decimal(0), "USD"
        )
        ready = fleet.verdict(node.name)[1] is not RecordReason.CORDONED
        phase = NodePhase.READY if ready else NodePhase.CORDONED
        found.append(FleetNode(node.name, offering, phase, now, protected=True, registered=node))
    return found


def _load(pool: str, nodes: Sequence[FleetNode], fleet: Fleet) -> float | None:
    """Return the part of a pool's CPU that sandboxes have, in percent; None: nobody says."""
    used = total = 0
    for node in nodes:
        member = fleet.members.get(node.name)
        if node.offering.pool != pool or member is None or node.phase is not NodePhase.READY:
            continue
        inventory = member.record.status.inventory
        if inventory is not None and fleet.answers(node.name):
            used += member.watch.memory.used.cpu_milli
            total += inventory.cpu_milli
    return PERCENT * used / total if total else None
