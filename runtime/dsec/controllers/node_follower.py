"""Follows what providers and agents say of nodes: who came, who goes, who is nobody's.

The lists of a provider are the truth about what costs. What is in one and not in the book is
adopted where a reserved purchase brought it, and ended where none did (`providers.reconcile`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from dsec.api.pool_status import HeldNode
from dsec.controllers.fleet import Fleet
from dsec.controllers.fleet_state import usable
from dsec.controllers.node_carrier import Carrier
from dsec.controllers.pool_book import PoolBook, pool_of
from dsec.controllers.suppliers import Suppliers
from dsec.cost.ledger import Ledger
from dsec.providers.provider import EventKind, Holdings, Phase, ProviderNode
from dsec.providers.reconcile import OWNED, Patience, Recorded, Verdict, Why, reconcile
from dsec.scaling.nodes.backoff import taken_back
from dsec.scaling.nodes.offerings import NodePhase
from dsec.world.cache import Cache
from dsec.world.records import RecordConflictError, RecordNotFoundError, Records

SPOT, REBALANCE = EventKind.SPOT_NOTICE.value, EventKind.REBALANCE.value
LAG_SECONDS = 120.0
"""A list may lack what was bought so lately."""

log = structlog.get_logger()


@dataclass(slots=True)
class Follower:
    """Of one term."""

    book: PoolBook
    suppliers: Suppliers
    carrier: Carrier
    fleet: Fleet
    pools: Cache
    records: Records
    ledger: Callable[[], Ledger]
    """What nodes cost is booked there."""
    patience: Patience = field(default_factory=Patience)

    async def look(self) -> None:
        """Bring the book in line. Raises FencedError, RecordsError."""
        for supplier in self.suppliers.providers:
            for event in await self.suppliers.events(supplier):
                held = self.book.nodes.get(event.node)
                if held is None:
                    continue
                if event.kind is EventKind.GONE:
                    await self._gone(held, event.at, event.words)
                else:
                    self._noticed(held, event.kind.value, event.at)
            await self._list(supplier)
        self._forget()
        now = self.carrier.now()
        for held in self.book.nodes.values():
            member = self.fleet.members.get(held.name)
            for notice in member.notices if member is not None else ():
                self._noticed(held, notice.kind, notice.at.timestamp())
            if held.phase == NodePhase.BOOTING.value and usable(self.fleet, held.name):
                held.phase, held.ready_at, held.since = NodePhase.READY.value, now, now
                held.covers = []
                self.carrier.tell(pool_of(held), f"node {held.name} is ready")

    def _noticed(self, held: HeldNode, kind: str, at: float) -> None:
        if kind == SPOT and held.spot_notice_at is None:
            held.spot_notice_at = at
            offering = self.carrier.offering_of(held)
            now = self.carrier.now()
            self.book.backoffs = taken_back(self.book.backoffs, offering, now)
            self.carrier.tell(pool_of(held), f"the provider takes node {held.name} back")
        elif kind == REBALANCE and held.rebalance_at is None:
            held.rebalance_at = at
            self.carrier.tell(pool_of(held), f"the provider may take node {held.name} back soon")

    # ------------------------------------------------------------------ what exists

    async def _list(self, supplier: str) -> None:
        waiting = [
            one
            for one in self.book.nodes.values()
            if one.supplier == supplier and one.phase == NodePhase.REQUESTED.value
        ]
        if waiting:
            self.suppliers.hurry(supplier)
        found = await self.suppliers.holdings(supplier)
        if found is None:
            return
        await self._reconcile(supplier, found)
        shown = {node.id: node for node in found.nodes}
        now = self.carrier.now()
        for held in list(self.book.nodes.values()):
            if held.supplier != supplier or not held.id or held.ended_at is not None:
                continue
            node = shown.get(held.id)
            if node is not None and not _is_gone(node):
                continue
            asked = held.phase == NodePhase.ENDING.value
            if node is None and (
                not found.complete or (not asked and now - held.since <= LAG_SECONDS)
            ):
                continue
            await self._gone(held, now if held.run_until is None else min(now, held.run_until), "")
        if found.complete:
            await self._settle(waiting, now)

    async def _settle(self, waiting: list[HeldNode], now: float) -> None:
        """Ask again for what was reserved and is not there: by the same token it is made once."""
        for token in sorted({one.token for one in waiting}):
            left = [
                one
                for one in self.book.nodes.values()
                if one.token == token and one.phase == NodePhase.REQUESTED.value
            ]
            if not left:
                continue
            if now - left[0].requested_at > LAG_SECONDS:
                self.carrier.give_up(left, self.carrier.offering_of(left[0]), None)
                words = f"{len(left)} of {left[0].offering} did not come, and nobody says why"
                self.carrier.tell(pool_of(left[0]), words)
            else:
                await self.carrier.buy(token)

    async def _reconcile(self, supplier: str, found: Holdings) -> None:
        recorded: dict[str, Recorded] = {}
        for held in self.book.nodes.values():
            old = recorded.get(held.token, Recorded(0))
            known = {held.id} - {""}
            recorded[held.token] = Recorded(old.count + 1, old.known | known)
        joined = set(self.fleet.members) | {
            one.name for one in self.book.nodes.values() if one.ready_at is not None
        }
        nodes = {node.id: node for node in found.nodes}
        now = self.carrier.now()
        ends = []
        volumes = []
        for finding in reconcile(found, recorded, joined, now, self.patience):
            node = nodes.get(finding.id)
            if finding.verdict is Verdict.DELETE:
                volumes.append(finding.id)
            elif finding.verdict is Verdict.ADOPT and node is not None:
                self._adopt(node)
            elif node is not None and not self._unread(node):
                known_as = next(
                    (one for one in self.book.nodes.values() if one.id == node.id), None
                )
                if known_as is not None:
                    known_as.phase, known_as.why = NodePhase.ENDING.value, finding.why
                    known_as.since = now
                if known_as is None or finding.why is not Why.PAST_RUN_UNTIL:
                    ends.append(node.id)
                self.carrier.tell(node.pool, f"ends a node: {finding.words}")
        await self.suppliers.end(supplier, ends)
        if volumes:
            await self.suppliers.remove_volumes(supplier, volumes)

    def _adopt(self, node: ProviderNode) -> None:
        for held in list(self.book.nodes.values()):
            if held.token == node.token and held.phase == NodePhase.REQUESTED.value:
                self.carrier.enter(held, node)
                self.carrier.tell(
                    node.pool, f"node {node.name} came by a purchase whose reply was lost"
                )
                return

    def _held(self, machine: str) -> HeldNode | None:
        return next((one for one in self.book.nodes.values() if one.id == machine), None)

    def _unread(self, node: ProviderNode) -> bool:
        """Return whether a node is of a pool whose record cannot be read now: nobody judges it."""
        record = self.pools.get(("", node.pool))
        return (
            record is not None
            and bool((record.get("status") or {}).get("scaling"))
            and node.pool not in self.book.pools()
        )

    # ------------------------------------------------------------------ who has gone

    async def _gone(self, held: HeldNode, at: float, words: str) -> None:
        """Take note that a node costs nothing any more. Raises RecordsError."""
        if held.phase == NodePhase.REQUESTED.value or held.ended_at is not None:
            return
        try:
            if held.run_until is None:
                held.cordoned = False
                await self.carrier.cordon(held)
            else:
                await self.records.delete("SandboxNode", held.name)
        except (RecordNotFoundError, RecordConflictError):
            pass
        held.phase, held.ended_at = NodePhase.ENDING.value, max(at, held.requested_at)
        why = f": {words}" if words else ""
        self.carrier.tell(pool_of(held), f"node {held.name} is gone{why}")

    def _forget(self) -> None:
        """Drop nodes that are gone, once what they cost is booked."""
        for held in list(self.book.nodes.values()):
            if held.ended_at is None:
                continue
            booked = self.ledger().charged_until(held.name)
            free = held.run_until is None or not held.price_per_hour.strip("0.")
            if free or (booked is not None and booked >= held.ended_at):
                del self.book.nodes[held.name]


def _is_gone(node: ProviderNode) -> bool:
    if node.phase is Phase.GONE:
        return True
    # an own machine that is off costs the same, and is somebody's no more
    return node.phase is Phase.STOPPED and node.market == OWNED and not node.token
