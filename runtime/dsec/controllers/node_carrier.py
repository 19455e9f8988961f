"""What was decided about nodes, carried out: purchases, cordons, rests, ends, extensions.

Everything here is in the book before it is done, and is done again at each look until it shows: so
a leader that dies between any two lines leaves nothing half done for good.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import structlog

from dsec.api.pool_status import HeldNode
from dsec.api.reasons import EndReason
from dsec.api.sandbox import SandboxState
from dsec.api.wire import RunUntilCall
from dsec.controllers.dispatch import Dispatcher
from dsec.controllers.drainer import away
from dsec.controllers.fleet import Fleet
from dsec.controllers.fleet_state import Sold, bought_as
from dsec.controllers.mover import Mover
from dsec.controllers.pool_book import PoolBook, pool_of
from dsec.controllers.suppliers import Suppliers
from dsec.journal.bindings import Bindings
from dsec.journal.history import HistoryWriter
from dsec.providers.provider import BuyAnswer, Failure, ProviderNode
from dsec.scaling.nodes.backoff import failed, succeeded
from dsec.scaling.nodes.offerings import NodePhase, Offering
from dsec.scaling.nodes.plans import Drain, Purchase, Why
from dsec.scaling.nodes.rules import NodeRules
from dsec.world.agents import AgentRefusedError, AgentSilentError, AgentStaleError
from dsec.world.clock import Clock
from dsec.world.records import RecordConflictError, RecordNotFoundError, Records

DECIDED = "node-decision"
"""Kind of the history rows of what was decided about nodes, and of what has happened to them."""
CORDONED_BY, US = "dsec.dev/cordoned-by", "node-scaling"
"""Annotation of a node that this controller made unschedulable; others it leaves as they are."""
RESTS = frozenset({Why.SPOT_NOTICE.value, Why.EXPIRY.value})
"""Drains that do not wait: what cannot move in time is ended and starts again elsewhere."""
MOVES = frozenset({Why.CONSOLIDATION.value, Why.REBALANCE.value})
"""Drains whose work moves, or the node is kept."""
LAST_S = 45.0
"""What still moves so long before its node goes is ended instead: its agent saves it once more."""
OUT = frozenset({SandboxState.STOPPING, SandboxState.ARCHIVING, SandboxState.ENDED})
LONG_S = 3650 * 86_400.0
"""Own machines have no end: this stands in their annotation."""
EARLY_S = 1.0
"""An agent's end this much before what is paid for is told again."""

log = structlog.get_logger()


@dataclass(slots=True)
class Carrier:
    """Of one term."""

    book: PoolBook
    suppliers: Suppliers
    fleet: Fleet
    bindings: Bindings
    dispatcher: Dispatcher
    records: Records
    clock: Clock
    history: HistoryWriter
    mover: Mover
    sold: Sold = field(default_factory=lambda: Sold({}, NodeRules(), {}))
    """What may be bought now."""
    _told: dict[str, int] = field(default_factory=dict)
    """Node -> revision of its run-until that its agent has taken: an agent whose clock is behind
    keeps an earlier time for good, and is not asked again."""

    def now(self) -> float:
        """Return UTC seconds."""
        return self.clock.now().timestamp()

    def offering_of(self, held: HeldNode) -> Offering:
        """Return the offering that a node was bought as."""
        return bought_as(held, self.sold.offerings)

    def tell(self, pool: str, words: str) -> None:
        """Tell people of something that was decided or has happened, and why."""
        self.book.tell(pool).decide(self.now(), words)
        self.history.add(DECIDED, pool=pool, text=words)
        log.info("nodes", pool=pool, what=words)

    # ------------------------------------------------------------------ purchases

    async def buy(self, token: str) -> bool:
        """Ask for the reserved nodes of a token, however often; False: plan again at once.

        Raises FencedError.
        """
        held = [one for one in self.book.nodes.values() if one.token == token]
        asked = [one for one in held if one.phase == NodePhase.REQUESTED.value]
        if not asked:
            return True
        first, offering = asked[0], self.offering_of(asked[0])
        if first.supplier not in self.suppliers.providers:
            self._free(asked)
            return True
        names = tuple(one.name for one in asked)
        purchase = Purchase(offering, len(held), token, Why.PENDING, names=names)
        until = first.run_until if first.run_until is not None else self.now() + LONG_S
        answer = await self.suppliers.buy(first.supplier, purchase, until)
        return self._answered(asked, answer, offering)

    def _answered(self, asked: list[HeldNode], answer: BuyAnswer, offering: Offering) -> bool:
        known = {one.id for one in self.book.nodes.values() if one.id}
        fresh = [node for node in answer.nodes if node.id not in known]
        for held, node in zip(asked, fresh, strict=False):
            self.enter(held, node)
        left = asked[len(fresh) :]
        failure = answer.failure
        if not left or failure is None:
            if fresh:
                self.book.backoffs = succeeded(self.book.backoffs, offering)
            # asked for again, and ended meanwhile
            self._free(left)
            return True
        words = f"{len(left)} of {offering.key} did not come: {failure.words}"
        self.tell(offering.pool, words)
        if failure.unsure:
            # what exists tells: until then they count as coming
            self.suppliers.hurry(asked[0].supplier)
            return True
        self.give_up(left, offering, failure)
        return False

    def enter(self, held: HeldNode, node: ProviderNode) -> None:
        """Take over a machine that the provider shows for a reserved node."""
        del self.book.nodes[held.name]
        made = held.model_copy(
            update={
                "name": node.name,
                "id": node.id,
                "phase": NodePhase.BOOTING.value,
                "since": self.now(),
            }
        )
        if held.run_until is not None and node.run_until is not None:
            made.run_until = node.run_until
        self.book.nodes[node.name] = made
        log.info("node comes", node=node.name, offering=held.offering, token=held.token)

    def give_up(self, left: list[HeldNode], offering: Offering, failure: Failure | None) -> None:
        """Free what was reserved and did not come, and leave that way alone for a while."""
        self.book.backoffs = failed(
            self.book.backoffs,
            offering,
            self.now(),
            scope=failure.scope.value if failure else "offering",
            code=failure.code if failure else "no-answer",
            retry_after_s=failure.retry_after if failure else None,
        )
        self._free(left)

    def _free(self, nodes: Iterable[HeldNode]) -> None:
        for one in nodes:
            self.book.nodes.pop(one.name, None)

    # ------------------------------------------------------------------ drains and ends

    async def follow_drains(self) -> None:
        """Bring cordons, rests and ends to where the book says. Raises FencedError."""
        ending: dict[str, list[str]] = {}
        for held in list(self.book.nodes.values()):
            if held.ended_at is not None:
                continue
            if held.phase == NodePhase.ENDING.value and held.id:
                ending.setdefault(held.supplier, []).append(held.id)
            if held.phase == NodePhase.DRAINING.value:
                self._rest(held)
            await self.cordon(held)
        for supplier, ids in sorted(ending.items()):
            await self.suppliers.end(supplier, ids)

    def can_move(self, sandbox: str) -> bool:
        """Return whether a sandbox can go on elsewhere, and has not failed to lately."""
        return not self.mover.failed(sandbox) and not self.mover.hindrance(sandbox)

    def move(self, drain: Drain) -> None:
        """Begin the moves of a drain as they are planned; the others are planned at each look."""
        for one in drain.moves:
            if why := self.mover.ask(one, f"{drain.node} is given back"):
                log.info("not moved yet", sandbox=one.id, why=why)

    def _rest(self, held: HeldNode) -> None:
        """Have what runs on a node that goes leave it."""
        work = self.bindings.on_node(held.name)
        if held.why in MOVES and work:
            failed = [one for one in work if self.mover.failed(one.id)]
            if failed:
                self._keep(held)
                words = self.mover.about(failed[0].id)
                self.tell(pool_of(held), f"keeps {held.name}: {failed[0].id}: {words}")
            else:
                away(self.mover, held.name, work, f"{held.name} is given back")
            return
        if held.why not in RESTS:
            if work:
                # a gateway was faster: what came is not turned away for an idle node
                self._keep(held)
            return
        words = {
            Why.SPOT_NOTICE.value: "the provider takes its node back; it starts again elsewhere",
            Why.EXPIRY.value: "its node is paid for no longer; it starts again elsewhere",
        }[held.why]
        left = self._left(held)
        if left > LAST_S:
            away(self.mover, held.name, work, words.partition(";")[0])
        for binding in work:
            moves = binding.id in self.mover.under_way or self.can_move(binding.id)
            if left > LAST_S and moves:
                continue  # it runs until there is a place for it
            known = self.fleet.status(binding.id, held.name)
            gone = known is not None and known.state in OUT
            if not gone and not self.dispatcher.stopping(held.name, binding.id):
                self.dispatcher.stop(held.name, binding.id, EndReason.PREEMPTED, words)

    def _keep(self, held: HeldNode) -> None:
        held.phase, held.why, held.cordoned = NodePhase.READY.value, "", False
        held.since = self.now()

    def _left(self, held: HeldNode) -> float:
        """Return seconds until a node that goes is gone."""
        ends = [] if held.run_until is None else [held.run_until]
        if held.why == Why.SPOT_NOTICE.value and held.spot_notice_at is not None:
            ends.append(held.spot_notice_at + self.sold.rules.spot_notice_s)
        return min(ends, default=self.now()) - self.now()

    async def cordon(self, held: HeldNode) -> None:
        """Make a node's record say what the book says; what people set stays as it is."""
        member = self.fleet.members.get(held.name)
        if member is None:
            return
        meta = member.record.metadata
        ours = (meta.annotations or {}).get(CORDONED_BY) == US
        is_cordoned = member.record.spec.unschedulable
        if held.cordoned == (is_cordoned and ours) or (held.cordoned and is_cordoned):
            return
        try:
            record = await self.records.get("SandboxNode", held.name)
            notes = dict(record["metadata"].get("annotations") or {})
            if held.cordoned:
                notes[CORDONED_BY] = US
            else:
                notes.pop(CORDONED_BY, None)
            metadata = {**record["metadata"], "annotations": notes}
            spec = {**(record.get("spec") or {}), "unschedulable": held.cordoned}
            await self.records.replace({**record, "metadata": metadata, "spec": spec})
        except (RecordConflictError, RecordNotFoundError) as problem:
            log.info("node is not cordoned yet", node=held.name, why=str(problem))

    # ------------------------------------------------------------------ run-until

    async def extend(self) -> None:
        """Tell provider and agent of run-until times that are later than what they know.

        The provider first: a tag that is late would let a node end that is paid for. Raises
        FencedError.
        """
        self._told = {name: one for name, one in self._told.items() if name in self.book.nodes}
        for held in list(self.book.nodes.values()):
            member = self.fleet.members.get(held.name)
            if (
                held.run_until is None
                or member is None
                or member.run_until is None
                or member.ending
                or held.phase != NodePhase.READY.value
                or self._told.get(held.name) == held.revision
                or member.run_until.timestamp() >= held.run_until - EARLY_S
                or not self.fleet.answers(held.name)
            ):
                continue
            left = held.run_until - self.now()
            if left > 0 and await self.suppliers.extend(held.supplier, held.id, held.run_until):
                await self._tell_agent(held)

    async def _tell_agent(self, held: HeldNode) -> None:
        watch = self.fleet.watch(held.name)
        if watch is None or held.run_until is None:
            return
        call = RunUntilCall(
            epoch=self.suppliers.epoch,
            run_until=datetime.fromtimestamp(held.run_until, UTC),
            left_seconds=max(1.0, held.run_until - self.now()),
            revision=held.revision,
        )
        try:
            answer = await watch.client.extend(call)
        except AgentStaleError:
            self.dispatcher.stale.set()
        except (AgentSilentError, AgentRefusedError) as problem:
            log.info(
                "node is not extended yet", node=held.name, pool=pool_of(held), why=str(problem)
            )
        else:
            if answer.revision == held.revision:
                self._told[held.name] = held.revision
            member = self.fleet.members.get(held.name)
            if member is not None:
                member.run_until, member.ending = answer.run_until, answer.ending
