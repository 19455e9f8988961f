"""The buyer of nodes on the leader: pools with `scaling` grow for what waits, and shrink after it.

One look every five seconds: follow what providers and agents say, plan, write what is decided into
the pools' statuses, and carry it out. A purchase is reserved there before the provider is asked,
with the money that it may cost; where it fails the plan is made again at once. Everything is
level-triggered: what was not done is done at the next look, by whoever leads.

A node is emptied by moves of what saves its state; what does not is waited for, and said so.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

import structlog

from dsec.api.pool_status import HeldNode
from dsec.api.sandbox import SandboxState
from dsec.api.scaling import Market
from dsec.api.tenant import TenantSpec
from dsec.controllers.accountant import Accountant
from dsec.controllers.creates import Placer
from dsec.controllers.dispatch import Dispatcher
from dsec.controllers.fleet import Fleet
from dsec.controllers.fleet_state import Seen, fleet_state, market
from dsec.controllers.mover import Mover
from dsec.controllers.node_carrier import Carrier
from dsec.controllers.node_follower import Follower
from dsec.controllers.pool_book import PoolBook, pool_of, steady
from dsec.controllers.suppliers import Suppliers
from dsec.cost.amounts import CPU_HOURS, GPU_HOURS
from dsec.cost.budgets import POOL
from dsec.cost.commitments import Commitment, Payer
from dsec.cost.gate import BudgetState, LeaseRules, first_until
from dsec.journal.bindings import Binding, Bindings
from dsec.journal.bindlog import BindLog, FencedError
from dsec.journal.history import HistoryWriter
from dsec.placement.translating import request_of
from dsec.providers.provider import NodeProvider
from dsec.scaling.nodes.budgeted import WIND_DOWN_SECONDS, BudgetGate
from dsec.scaling.nodes.limits import reserve
from dsec.scaling.nodes.offerings import NodePhase
from dsec.scaling.nodes.planning import plan
from dsec.scaling.nodes.plans import Gate, OpenGate, Plan, Purchase, Refused, Removal, Why
from dsec.scaling.nodes.rules import NodeRules
from dsec.scaling.nodes.state import FleetState
from dsec.scaling.nodes.words import (
    drain_words,
    purchase_words,
    refused_words,
    removal_words,
    renewal_words,
    work_words,
)
from dsec.world.cache import Cache
from dsec.world.clock import Clock
from dsec.world.records import RecordConflictError, Records, RecordsError

LOOK_SECONDS = 5.0
REST = 10.0
"""A look that takes long is followed by so many times its length of rest."""
PASSES = 8
"""Plans in one look, at most: each after the first follows a way that has just failed."""
PATHS = 64
COMING = frozenset({NodePhase.REQUESTED.value, NodePhase.BOOTING.value})

log = structlog.get_logger()


@dataclass(slots=True)
class Buyer:
    """Of one term. `run` is its task."""

    book: PoolBook
    carrier: Carrier
    follower: Follower
    budgets: Callable[[], BudgetState]
    tenants: Callable[[], Mapping[str, TenantSpec]]
    placer: Placer
    fleet: Fleet
    bindings: Bindings
    experiments: Cache
    history: HistoryWriter
    clock: Clock
    changed: Callable[[Sequence[Binding]], None]
    """Is told of waiting work of which something else is said than before."""
    _said: dict[str, str] = field(default_factory=dict)
    _why: dict[str, str] = field(default_factory=dict)

    async def run(self) -> None:
        """Look again and again. Raises FencedError: the term is over then."""
        while True:
            began = self.clock.monotonic()
            try:
                if self.book.nodes or self.book.pools():
                    await self.look()
            except FencedError:
                raise
            except (RecordsError, RecordConflictError) as problem:
                log.warning("nodes are looked at again", why=str(problem))
            except Exception:
                # a plan that fails stops purchases, not the placement beside it
                log.exception("nodes cannot be planned")
            took = self.clock.monotonic() - began
            await self.clock.sleep(max(LOOK_SECONDS, REST * took))

    def about(self, binding: Binding) -> str:
        """Return what is done about nodes for waiting work, in words; empty: nothing is known."""
        for held in self.book.nodes.values():
            if held.phase in COMING and binding.id in held.covers:
                return f"node {held.name} is on its way for it"
        return self._why.get(work_words(request_of(binding)), "") if self._why else ""

    # ------------------------------------------------------------------ one look

    async def look(self) -> None:
        """Follow, plan, carry out.

        Raises FencedError, RecordsError, RecordConflictError.
        """
        pools = self.book.pools()
        await self.book.claim(pools)
        sold = self.carrier.sold = market(pools, self.carrier.suppliers.providers, self.fleet)
        for name in pools:
            self.book.tell(name).problem = sold.problems.get(name, "")
        await self.follower.look()
        await self.book.save(pools)
        for _ in range(PASSES):
            tokens = await self._plan(pools)
            done = [await self.carrier.buy(token) for token in tokens]
            if tokens:
                await self.book.save(pools)
            if all(done):
                break
        await self.carrier.follow_drains()
        await self.carrier.extend()
        await self.book.save(pools)

    async def _plan(self, pools: Iterable[str]) -> list[str]:
        """Plan, and write what is decided; return the tokens of what is to be bought."""
        # a round that is being written has booked what is recorded only after it
        async with self.placer.rounding:
            now = self.carrier.now()
            state, rules = fleet_state(
                self.book, self.carrier.sold, self.fleet, self.bindings, self._seen(now), now=now
            )
            gate = self._gate(now)
            made = plan(state, rules, gate)
        self.book.memories |= {
            one.pool: one for one in made.memories if one.pool in self.book.memories
        }
        self.book.consolidated_at = made.consolidated_at
        tokens = self._reserve(state, rules, made, gate)
        self._decide(made)
        self._refuse(made, state)
        await self.book.save(pools)
        return tokens

    def _seen(self, now: float) -> Seen:
        rounds = self.placer.rounds
        rounds.refresh()
        displacer = rounds.displacer
        states = self.fleet.turned(self.bindings.effective)
        return Seen(
            rounds.waiting,
            self.placer.why,
            lambda binding: displacer.waited(binding, now),
            frozenset(id_ for id_, one in states.items() if one is SandboxState.PAUSED),
            self._regions,
            rounds.planner.view,
            self.carrier.can_move,
            self.carrier.mover.moved_at.get,
        )

    def _regions(self, binding: Binding) -> tuple[str, ...]:
        """Return where the data of work may be; empty: anywhere."""
        identity = binding.spec.identity
        record = self.experiments.get((identity.project, identity.experiment)) or {}
        resolved = (record.get("status") or {}).get("resolved") or {}
        spec = resolved.get("spec") or record.get("spec") or {}
        own = spec.get("residency") or ()
        if own:
            return tuple(own)
        tenant = self.tenants().get(binding.tenant)
        return tuple(tenant.residency) if tenant is not None else ()

    def _gate(self, now: float) -> Gate:
        """Return the gate over all budgets; an open one where none is declared."""
        state = self.budgets()
        if not state.standings:
            return OpenGate()
        for held in self.book.nodes.values():
            known = state.commitments.get(held.name)
            if held.run_until is None or held.ended_at is not None:
                continue
            # what was bought or extended since budgets were last looked at counts at once
            if known is None:
                state = state.plus(commitment_of(held))
            elif held.run_until > known.run_until:
                # never cut: after a lost reply the node may run for the longer time
                changed = replace(known, run_until=held.run_until, revision=held.revision)
                state = state.plus(changed)
        return BudgetGate(state, now)

    # ------------------------------------------------------------------ what is bought

    def _reserve(self, state: FleetState, rules: NodeRules, made: Plan, gate: Gate) -> list[str]:
        """Enter purchases into the book, with their money; return their tokens."""
        if not made.buys:
            return []
        reserved, allowed = reserve(state, rules, made.buys)
        self.book.serial = reserved.serial
        return [buy.token for buy in allowed if self._enter(buy, rules, gate)]

    def _enter(self, buy: Purchase, rules: NodeRules, gate: Gate) -> bool:
        offering, now = buy.offering, self.carrier.now()
        ends: float | None = None
        count, paths = buy.count, list(buy.paths)
        if isinstance(gate, BudgetGate):
            promised = gate.commitments(buy)
            count = len(promised)
            ends = min((one.run_until for one in promised), default=None)
        else:
            length = int(rules.of(offering.pool).run_until_s)
            ends = first_until(buy.token, now, LeaseRules(length=length))
        if offering.market is Market.OWNED:
            ends = None
        if not count:
            return False
        covers = buy.places or (buy.covers,)
        for at, name in enumerate(buy.names[:count]):
            self.book.nodes[name] = HeldNode(
                name=name,
                offering=offering.key,
                supplier=offering.provider,
                token=buy.token,
                phase=NodePhase.REQUESTED.value,
                price_per_hour=f"{offering.price_per_hour:f}",
                currency=offering.currency,
                cpu_milli=offering.node.cpu_milli,
                gpu_count=len(offering.node.devices),
                minimum_seconds=offering.minimum_bill_seconds,
                paths=paths[:PATHS],
                covers=list(covers[at]) if at < len(covers) else [],
                requested_at=now,
                since=now,
                run_until=ends,
            )
        counted = replace(buy, count=count, names=buy.names[:count])
        self.carrier.tell(offering.pool, purchase_words(counted))
        self.history.add(
            "nodes-bought",
            pool=offering.pool,
            token=buy.token,
            offering=offering.key,
            count=count,
            pricePerHour=f"{offering.price_per_hour:f}",
            currency=offering.currency,
            runUntil=ends,
            reason=buy.reason.value,
            covers=len(buy.covers),
            triggeredAt=buy.triggered_at,
        )
        return True

    # ------------------------------------------------------------------ what goes, and stays

    def _decide(self, made: Plan) -> None:
        """Enter cordons, drains, removals and renewals into the book."""
        nodes = self.book.nodes
        for name in made.cordons:
            if name in nodes and not nodes[name].cordoned:
                nodes[name].cordoned = True
                self.carrier.tell(pool_of(nodes[name]), f"gives no new work to {name}")
        for drain in made.drains:
            if drain.node in nodes:
                self._phase(nodes[drain.node], NodePhase.DRAINING, drain.reason)
                self.carrier.tell(pool_of(nodes[drain.node]), drain_words(drain))
                self.carrier.move(drain)
        for removal in made.removals:
            if removal.node in nodes:
                self._remove(nodes[removal.node], removal)
        for renewal in made.renewals:
            held = nodes.get(renewal.node)
            member = self.fleet.members.get(renewal.node)
            if held is None or member is None or not self.fleet.answers(renewal.node):
                continue  # nobody pays further for a node that does not answer
            held.run_until, held.revision = renewal.run_until, held.revision + 1
            self.carrier.tell(pool_of(held), renewal_words(renewal))

    def _remove(self, held: HeldNode, removal: Removal) -> None:
        """Let a node go: in two steps, so that nobody places work on it in between."""
        if removal.reason in (Why.DRAINED, Why.LATE):
            if held.id:
                self._phase(held, NodePhase.ENDING, removal.reason)
                self.carrier.tell(removal.pool, removal_words(removal))
            return
        self._phase(held, NodePhase.DRAINING, removal.reason)
        self.carrier.tell(removal.pool, removal_words(removal))

    def _phase(self, held: HeldNode, phase: NodePhase, why: Why) -> None:
        held.phase, held.why, held.since = phase.value, why.value, self.carrier.now()
        held.cordoned = True

    def _refuse(self, made: Plan, state: FleetState) -> None:
        """Keep what is not done, and why; tell the experiments that it is about."""
        others = {one.name for one in state.nodes} - self.book.nodes.keys()
        names = {name: pool_of(one) for name, one in self.book.nodes.items()}
        told: dict[str, list[str]] = {pool: [] for pool in self.book.memories}
        work: dict[str, str] = {}
        for one in made.refusals:
            if one.subject in others:
                continue
            words = refused_words(one)
            for pool in _whose(one, names, told):
                told[pool].append(words)
            work[one.subject] = f"no node is bought for it: {words.partition(': ')[2]}"
        for pool, sentences in told.items():
            self.book.tell(pool).refusals = sorted(set(sentences))[:16]
        self._why = work
        said = {one.id: steady(self.about(one)) for one in self.placer.rounds.waiting}
        before, self._said = self._said, said
        news = [b for b in self.placer.rounds.waiting if before.get(b.id, "") != said[b.id]]
        if news:
            self.changed(news)


def buyer(
    outside: tuple[Records, Clock, Mapping[str, NodeProvider], Mapping[str, Cache]],
    bind_log: BindLog,
    fleet: Fleet,
    dispatcher: Dispatcher,
    *,
    placer: Placer,
    accountant: Accountant,
    tenants: Callable[[], Mapping[str, TenantSpec]],
    history: HistoryWriter,
    changed: Callable[[Sequence[Binding]], None],
    mover: Mover,
) -> Buyer:
    """Return the buyer of a term; `outside` has its records, clock, suppliers and caches."""
    records, clock, providers, caches = outside
    pools, epoch = caches["SandboxNodePool"], bind_log.epoch
    book = PoolBook(records, pools, epoch)
    suppliers = Suppliers(providers, epoch, clock)
    carrier = Carrier(
        book, suppliers, fleet, bind_log.state, dispatcher, records, clock, history, mover
    )
    return Buyer(
        book,
        carrier,
        Follower(book, suppliers, carrier, fleet, pools, records, lambda: accountant.ledger),
        accountant.budgets,
        tenants,
        placer,
        fleet,
        bind_log.state,
        caches["Experiment"],
        history,
        clock,
        changed,
    )


def commitment_of(held: HeldNode) -> Commitment:
    """Return what is promised for a node: from its start until its run-until."""
    hours = {CPU_HOURS: Decimal(held.cpu_milli) / 1000, GPU_HOURS: Decimal(held.gpu_count)}
    counted = {unit: one for unit, one in hours.items() if one}
    pool, region, *_ = [*held.offering.split("/"), "", ""]
    return Commitment(
        held.name,
        {held.currency: Decimal(held.price_per_hour), **counted},
        tuple(Payer(one) for one in held.paths) or (Payer(POOL + pool),),
        held.requested_at,
        held.requested_at if held.run_until is None else held.run_until,
        wind_down_seconds=WIND_DOWN_SECONDS,
        minimum_seconds=held.minimum_seconds,
        pool=pool,
        region=region,
        revision=held.revision,
    )


def _whose(one: Refused, nodes: dict[str, str], pools: dict[str, list[str]]) -> Sequence[str]:
    """Return the pools that a refusal is about: its node's, the one that it names, or all."""
    if one.subject in nodes:
        return [nodes[one.subject]] if nodes[one.subject] in pools else []
    kind, _, name = one.subject.partition(" ")
    named = name.partition("/")[0]
    if kind in ("pool", "buffer"):
        return [named] if named in pools else []
    return list(pools)
