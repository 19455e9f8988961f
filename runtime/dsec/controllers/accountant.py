"""Money on the leader: what was used is booked, budgets are compared with it, and their levels act.

One look every few seconds. What a node cost in a cell of five minutes that is over becomes rows of
the money book (`journal.moneybook`), each once; what it cost since then counts for budgets at once
and is said in `money/now`. Sums come from the rows alone, so another leader has the same.

A level that was reached is written into the budget's status before anybody is told of it, and stays
in force from there; an action is carried out by the controller of experiments, which asks `hold`.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from decimal import Decimal

import structlog

from dsec.api.experiment import ExperimentBudget, Role
from dsec.api.records import Experiment
from dsec.api.tenant import TenantSpec
from dsec.controllers.budget_records import BudgetRecords, Declared, Hold
from dsec.controllers.metered_nodes import MeteredNodes
from dsec.controllers.over_budget import ceilings
from dsec.controllers.replica_scaler import NO_CEILINGS, Ceilings
from dsec.controllers.replicas import current, desired_of
from dsec.controllers.usage import Usage
from dsec.cost.amounts import MoneyError
from dsec.cost.budgets import Allowance, Fired, Standing, crossings, standing
from dsec.cost.entries import Entry, entry_of, row_of
from dsec.cost.flows import opened, settled
from dsec.cost.forecast import forecast
from dsec.cost.gate import BudgetState, LeaseRules, state_of
from dsec.cost.ledger import Ledger
from dsec.cost.metering import CELL, NodeUse, cells, entries, meter
from dsec.cost.periods import ALL_TIME, Span
from dsec.cost.pools import UNPRICED
from dsec.cost.status import fired_of, invalid_status, status_of
from dsec.cost.words import crossing_words
from dsec.journal.bindings import Binding, Bindings
from dsec.journal.bindlog import BindLog
from dsec.journal.history import HistoryWriter
from dsec.journal.moneybook import MoneyBook
from dsec.world.cache import Cache, Key
from dsec.world.clock import Clock
from dsec.world.objects import ObjectStore
from dsec.world.records import RecordConflictError, RecordNotFoundError, Records, RecordsError

LOOK_SECONDS = 5.0
SAY_SECONDS = 30.0
"""Between two writes of what is used and not booked yet."""
STATUS_SECONDS = 60.0
"""Between two writes of one budget's figures; what it says of its levels is written at once."""
LATE_SECONDS = 3600.0
"""A node of which nothing was ever booked counts from this long ago at most."""
KEEP_SECONDS = 2 * 86_400.0
"""Rows this young stay whole in memory; older ones are sums."""
REST = 10.0
"""A look that takes long is followed by so many times its length of rest."""
AT_ONCE = 100
"""Sandboxes that are metered before others get a turn: about ten milliseconds."""
ALERT = "budget-alert"
"""Kind of the history rows of alerts and levels."""

log = structlog.get_logger()


class Accountant:
    """Of one term."""

    def __init__(  # noqa: PLR0917 - what it reads, then what it writes
        self,
        bindings: Bindings,
        book: MoneyBook,
        nodes: MeteredNodes,
        budgets: BudgetRecords,
        history: HistoryWriter,
        clock: Clock,
    ) -> None:
        self._bindings = bindings
        self._book = book
        self._nodes = nodes
        self._budgets = budgets
        self._history = history
        self._clock = clock
        self._region = nodes.region
        self._lock = asyncio.Lock()
        self._usage: Usage | None = None
        self._known: dict[str, NodeUse] = {}
        self._metered: dict[str, float] = {}
        self._running = Ledger()
        self._state = state_of(())
        self._fired: dict[str, tuple[Fired, ...]] = {}
        self._untold: dict[str, list[tuple[Fired, str]]] = {}
        self._written: dict[str, float] = {}
        self._wrong: list[Declared] = []
        self._said: float | None = None
        self.ledger = Ledger()
        self.ready = asyncio.Event()
        """Set once what was spent before this term is known."""
        self.turned: Callable[[Key], None] = lambda _key: None
        """Is told of each task whose budgets say something else than before."""

    async def run(self) -> None:
        """Look for ever. Raises FencedError, ObjectStoreError."""
        await self._open()
        while True:
            began = self._clock.monotonic()
            await self.look()
            took = self._clock.monotonic() - began
            await self._clock.sleep(max(LOOK_SECONDS, REST * took))

    def note(self, bindings: Iterable[Binding]) -> None:
        """Take note of sandboxes that have started, moved or ended."""
        if self._usage is not None:
            self._usage.note(bindings, self._clock.now())

    def budgets(self) -> BudgetState:
        """Return all budgets as of the last look, with what is promised to nodes."""
        return self._state

    def spent(self, allowance: Allowance, span: Span, region: str = "") -> Decimal:
        """Return what was spent on a budget, what is not booked yet included."""
        since = self._budgets.since(allowance)
        if since is not None:
            # the ceiling of a task does not count an earlier task of its name
            span = Span(since, span.end)
        return self.ledger.spent(allowance, span, region) + self._running.spent(
            allowance, span, region
        )

    def hold(self, tenant: str, key: Key, budget: ExperimentBudget | None) -> Hold | None:
        """Return what budgets say about a task now; None: there is none on its path."""
        return self._budgets.hold(self._state, "/".join((tenant, *key)), budget)

    def refusal(self, tenant: str, project: str) -> str:
        """Return why a project gets no single sandboxes now, in words; empty: it does."""
        if not self.ready.is_set():
            return "what the budgets have left is being read; repeat the call"
        found = self._budgets.hold(self._state, f"{tenant}/{project}")
        return found.words if found is not None and found.action is not None else ""

    def keeps_paused(self, binding: Binding) -> bool:
        """Return whether a sandbox rests because its budget is spent."""
        identity = binding.spec.identity
        return self._budgets.paused((identity.project, identity.experiment))

    def ceilings(self, experiment: Experiment, role: Role) -> Ceilings:
        """Return what budgets say about the count of an elastic role."""
        meta, resolved = experiment.metadata, experiment.status.resolved
        if resolved is None:
            return NO_CEILINGS
        key = meta.namespace, meta.name
        hold = self.hold(resolved.tenant, key, resolved.spec.budget)
        overrides = current(experiment.status.overrides, resolved.spec.roles, self._clock.now())
        return ceilings(role, desired_of(role, overrides), hold)

    async def look(self) -> None:
        """Meter, book, compare, tell. Raises FencedError, ObjectStoreError."""
        async with self._lock:
            now = self._clock.now().timestamp()
            if not await self._meter(now):
                await self._open()
                return
            await self._compare(now)
            if self._book.snapshot_due:
                self.ledger.forget(now - KEEP_SECONDS)
                rows = [row_of(one) for one in self.ledger.entries.values()]
                await self._book.snapshot(
                    {"checkpoint": self.ledger.checkpoint(), "rows": rows, "at": now}
                )

    # ------------------------------------------------------------------ metering

    async def _open(self) -> None:
        """Read the book; all that is in memory follows from it and from the records."""
        found = await self._book.open()
        state = found.state or {}
        rows = [*state.get("rows", ()), *found.rows]
        self.ledger = Ledger.rebuild(rows, state.get("checkpoint"))
        self._running = Ledger()
        self._usage = Usage(self._bindings, self._clock.now())
        self._metered.clear()
        await self._adopt()
        self._stand(self._clock.now().timestamp())
        self.ready.set()

    async def _adopt(self) -> None:
        """Book what an earlier leader said of nodes that are there no more."""
        said = await self._book.said_now()
        there = self._nodes.all()
        rows = [entry_of(row) for row in said.get("rows", ()) if row["source"] not in there]
        late = [one for one in rows if self._is_after(one)]
        if late and not await self._store(late):
            log.info("money of ended nodes is booked at the next look")

    def _is_after(self, entry: Entry) -> bool:
        charged = self.ledger.charged_until(entry.source)
        return charged is None or (entry.since or 0.0) >= charged

    async def _meter(self, now: float) -> bool:
        """Book the cells that are over. False: an earlier leader's rows came first."""
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
        say = self._said is None or now - self._said >= SAY_SECONDS
        # what is not over yet matters to budgets, and now and then to readers
        partial = say or bool(self._state.standings)
        metered = 0
        for use in (*there.values(), *ended.values()):
            metered += 1 + len(usage.on(use.node))
            if metered > AT_ONCE:
                metered = 0
                await self._clock.sleep(0)
            end = float(use.end) if use.end is not None else None
            for cell in cells(use, now, self._from(use, now), partial=partial):
                lines = entries(meter(use, usage.on(use.node), cell), now)
                if cell[1] % CELL == 0 or (end is not None and cell[1] >= end):
                    over += lines
                    self._metered[use.node] = float(cell[1])
                    usage.trim(use.node, float(cell[1]))
                else:
                    running += lines
        if over and not await self._store(over):
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

    def _from(self, use: NodeUse, now: float) -> float:
        """Return from when a node's use is not booked yet."""
        late = now - LATE_SECONDS
        charged = self.ledger.charged_until(use.node)
        found = max(charged or 0.0, self._metered.get(use.node, 0.0))
        if charged is None or use.price.source == UNPRICED:
            # what costs nothing while it is idle leaves no rows to go on from
            found = max(found, late)
        return found

    async def _store(self, found: Iterable[Entry]) -> bool:
        """Book entries, each once. False: the book went on without this leader's knowledge."""
        try:
            new = self.ledger.extend(found)
        except MoneyError as problem:
            log.warning("money is booked already, reading it again", why=str(problem))
            return False
        return not new or await self._book.append([row_of(one) for one in new])

    # ------------------------------------------------------------------ budgets

    def _stand(self, now: float) -> list[tuple[Declared, Standing]]:
        """Compare all budgets; returns those that can be compared."""
        found = []
        self._wrong = []
        for one in self._budgets.all():
            if one.allowance is None:
                self._wrong.append(one)
                continue
            fired = {
                (f.percent, f.period_start, f.limit): f
                for f in (*fired_of(one.status), *self._fired.get(one.name, ()))
            }
            found.append((one, self._standing(one.allowance, now, fired.values())))
        commitments = (
            replace(one, charged_until=self._charged(one.id)) for one in self._nodes.commitments()
        )
        self._state = state_of([one for _, one in found], commitments)
        return found

    def _standing(self, allowance: Allowance, now: float, fired: Iterable[Fired]) -> Standing:
        return standing(
            allowance,
            self.spent,
            now,
            region=self._region if allowance.regions else "",
            fired=fired,
        )

    def _charged(self, node: str) -> float | None:
        running = self._running.charged_until(node)
        return running if running is not None else self.ledger.charged_until(node)

    async def _compare(self, now: float) -> None:
        stood = self._stand(now)
        told: list[tuple[Declared, Standing]] = []
        for declared, one in stood:
            spent_out = self._state.exhausted(one, now, LeaseRules())
            new = crossings(one, now, exhausted=spent_out)
            if new:
                fired = (*one.fired, *(crossing.fired for crossing in new))
                self._fired[declared.name] = fired
                one = self._standing(one.allowance, now, fired)  # noqa: PLW2901 - the same budget
                said = [(crossing.fired, crossing_words(crossing, one)) for crossing in new]
                self._untold.setdefault(declared.name, []).extend(said)
            told.append((declared, one))
        self._state = state_of([one for _, one in told], list(self._state.commitments.values()))
        await self._flow(stood, now)
        for key in self._budgets.turned(self._state):
            self.turned(key)
        for declared, one in told:
            await self._write(declared, one, now)
        for declared in self._wrong:
            status = invalid_status(
                declared.status, declared.problem, now, generation=declared.generation
            )
            if status.conditions != declared.status.conditions:
                await self._put(declared, status)

    async def _flow(self, stood: Iterable[tuple[Declared, Standing]], now: float) -> None:
        """Give a task's ceiling from its project, and back what it did not spend (COST-06)."""
        flows: list[Entry] = []
        for declared, one in stood:
            if not declared.task:
                continue
            if self._budgets.over(declared):
                flows += settled(self.ledger, one.allowance.path, now)
            else:
                flows += opened(self.ledger, one.allowance, ALL_TIME, now)
        await self._store(flows)

    async def _write(self, declared: Declared, one: Standing, now: float) -> None:
        """Write a budget's status where it says something new, then tell what it says."""
        old, name = declared.status, declared.name
        expected = forecast(
            one, self._state.committed(one.name), now, self.spent, region=self._region
        )
        status = status_of(
            old, one, self._state, now, generation=declared.generation, forecast=expected
        )
        verdict = [(c.type, c.status, c.reason) for c in status.conditions]
        turned = (
            verdict != [(c.type, c.status, c.reason) for c in old.conditions]
            or len(status.alerts) != len(old.alerts)
            or status.action != old.action
            or status.observed_generation != old.observed_generation
        )
        if not turned and (
            now - self._written.get(name, 0.0) < STATUS_SECONDS
            or (status.spent, status.committed, status.left) == (old.spent, old.committed, old.left)
        ):
            return
        if not await self._put(declared, status):
            return
        self._written[name] = now
        for fired, text in self._untold.pop(name, ()):
            log.warning("budget", budget=name, percent=fired.percent, why=text)
            self._history.add(
                ALERT,
                budget=name,
                path=one.allowance.path,
                percent=fired.percent,
                message=text,
                spent=f"{one.spent:f}",
                limit=f"{one.limit:f}",
            )

    async def _put(self, declared: Declared, status: object) -> bool:
        """Write; False: somebody else was first, and the next look tries again."""
        try:
            await self._budgets.write(declared, status)
        except (RecordConflictError, RecordNotFoundError):
            return False
        except RecordsError as problem:
            log.warning("status of a budget is not written", budget=declared.name, why=str(problem))
            return False
        return True


def accountant(  # noqa: PLR0917 - the parts of a term, in its own order
    caches: Mapping[str, Cache],
    bind_log: BindLog,
    objects: ObjectStore,
    records: Records,
    history: HistoryWriter,
    clock: Clock,
    tenants: Callable[[], Mapping[str, TenantSpec]],
) -> Accountant:
    """Return the accountant of a term."""
    return Accountant(
        bind_log.state,
        MoneyBook(objects, clock, epoch=bind_log.epoch, writer=f"epoch-{bind_log.epoch}"),
        MeteredNodes(caches["SandboxNode"], caches["SandboxNodePool"]),
        BudgetRecords(
            records, caches["Budget"], caches["Experiment"], caches["Namespace"], tenants
        ),
        history,
        clock,
    )
