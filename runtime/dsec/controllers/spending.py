"""What was spent, on the leader: nodes are metered, and each cell that is over is booked once.

What a node cost in a cell of five minutes that is over becomes rows of the money book
(`journal.moneybook`); what it cost since then counts for budgets at once and is said in
`money/now`. Sums come from the rows alone, so another leader has the same.
"""

from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal

import structlog

from dsec.controllers.metered_nodes import MeteredNodes
from dsec.controllers.usage import Usage
from dsec.cost.amounts import MoneyError
from dsec.cost.budgets import Allowance
from dsec.cost.commitments import Commitment
from dsec.cost.entries import Entry, entry_of, row_of
from dsec.cost.ledger import Ledger
from dsec.cost.metering import CELL, NodeUse, cells, entries, meter
from dsec.cost.periods import Span
from dsec.cost.pools import UNPRICED
from dsec.journal.bindings import Binding, Bindings
from dsec.journal.moneybook import MoneyBook
from dsec.world.clock import Clock

SAY_SECONDS = 30.0
"""Between two writes of what is used and not booked yet."""
LATE_SECONDS = 3600.0
"""A node of which nothing was ever booked counts from this long ago at most."""
KEEP_SECONDS = 2 * 86_400.0
"""Rows this young stay whole in memory; older ones are sums."""
AT_ONCE = 100
"""Sandboxes that are metered before others get a turn: about ten milliseconds."""

log = structlog.get_logger()


class Spending:
    """Of one term. Nothing is known before `open`."""

    def __init__(
        self, bindings: Bindings, book: MoneyBook, nodes: MeteredNodes, clock: Clock
    ) -> None:
        self._bindings = bindings
        self._book = book
        self._nodes = nodes
        self._clock = clock
        self._usage: Usage | None = None
        self._known: dict[str, NodeUse] = {}
        self._metered: dict[str, float] = {}
        self._running = Ledger()
        self._said: float | None = None
        self.ledger = Ledger()
        """What is booked."""

    async def open(self) -> None:
        """Read the book; all that is in memory follows from it and from the records.

        Raises FencedError, ObjectStoreError.
        """
        found = await self._book.open()
        state = found.state or {}
        rows = [*state.get("rows", ()), *found.rows]
        self.ledger = Ledger.rebuild(rows, state.get("checkpoint"))
        self._running = Ledger()
        self._usage = Usage(self._bindings, self._clock.now())
        self._metered.clear()
        await self._adopt()

    def note(self, bindings: Iterable[Binding]) -> None:
        """Take note of sandboxes that have started, moved or ended."""
        if self._usage is not None:
            self._usage.note(bindings, self._clock.now())

    def spent(self, allowance: Allowance, span: Span, region: str = "") -> Decimal:
        """Return what was spent on a budget, what is not booked yet included."""
        booked = self.ledger.spent(allowance, span, region)
        return booked + self._running.spent(allowance, span, region)

    def commitments(self) -> list[Commitment]:
        """Return what is promised to nodes, each from where its use is counted."""
        return [
            replace(one, charged_until=self._charged(one.id)) for one in self._nodes.commitments()
        ]

    async def store(self, found: Iterable[Entry]) -> bool:
        """Book entries, each once. False: the book went on without this leader's knowledge.

        Raises FencedError, ObjectStoreError.
        """
        try:
            new = self.ledger.extend(found)
        except MoneyError as problem:
            log.warning("money is booked already, reading it again", why=str(problem))
            return False
        return not new or await self._book.append([row_of(one) for one in new])

    async def keep(self, now: float) -> None:
        """Store a snapshot where one is due. Raises FencedError, ObjectStoreError."""
        if self._book.snapshot_due:
            self.ledger.forget(now - KEEP_SECONDS)
            rows = [row_of(one) for one in self.ledger.entries.values()]
            await self._book.snapshot(
                {"checkpoint": self.ledger.checkpoint(), "rows": rows, "at": now}
            )

    async def meter(self, now: float, *, watched: bool) -> bool:
        """Book the cells that are over. False: an earlier leader's rows came first.

        `watched`: there are budgets, to which what is not over yet matters as well. Raises
        FencedError, ObjectStoreError.
        """
        usage = self._usage
        if usage is None:
            return False
        usage.refresh(self._clock.now())
        there = self._nodes.all()
        ended = {
            name: replace(use, ended=now if use.ended is None else min(now, use.ended))
            for name, use in self._known.items()
            if name not in there
        }
        over: list[Entry] = []
        running: list[Entry] = []
        # readers want what is not over yet now and then
        say = self._said is None or now - self._said >= SAY_SECONDS
        metered = 0
        for use in (*there.values(), *ended.values()):
            metered += 1 + len(usage.on(use.node))
            if metered > AT_ONCE:
                metered = 0
                await self._clock.sleep(0)
            end = float(use.end) if use.end is not None else None
            for cell in cells(use, now, self._from(use, now), partial=say or watched):
                lines = entries(meter(use, usage.on(use.node), cell), now)
                if cell[1] % CELL == 0 or (end is not None and cell[1] >= end):
                    over += lines
                    self._metered[use.node] = float(cell[1])
                    usage.trim(use.node, float(cell[1]))
                else:
                    running += lines
        if over and not await self.store(over):
            return False
        self._known = there
        self._running = Ledger()
        self._running.extend(running)
        for name in ended:
            self._metered.pop(name, None)
        if say:
            await self._book.say_now(now, [row_of(one) for one in running])
            self._said = now
        return True

    async def _adopt(self) -> None:
        """Book what an earlier leader said of nodes that are there no more."""
        said = await self._book.said_now()
        there = self._nodes.all()
        rows = [entry_of(row) for row in said.get("rows", ()) if row["source"] not in there]
        late = [one for one in rows if self._is_after(one)]
        if late and not await self.store(late):
            log.info("money of ended nodes is booked at the next look")

    def _is_after(self, entry: Entry) -> bool:
        charged = self.ledger.charged_until(entry.source)
        return charged is None or (entry.since or 0.0) >= charged

    def _from(self, use: NodeUse, now: float) -> float:
        """Return from when a node's use is not booked yet."""
        late = now - LATE_SECONDS
        charged = self.ledger.charged_until(use.node)
        found = max(charged or 0.0, self._metered.get(use.node, 0.0))
        if charged is None or use.price.source == UNPRICED:
            # what costs nothing while it is idle leaves no rows to go on from
            found = max(found, late)
        return found

    def _charged(self, node: str) -> float | None:
        running = self._running.charged_until(node)
        return running if running is not None else self.ledger.charged_until(node)
