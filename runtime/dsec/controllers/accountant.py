"""Money on the leader: budgets are compared with what was used, and their levels act.

One look every few seconds: `spending` books what nodes cost, the budgets are compared with it, and
`budget_statuses` writes what they say. An action of a level is carried out by the controller of
experiments, which asks `hold`.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal

from dsec.api.experiment import ExperimentBudget, Role
from dsec.api.records import Experiment
from dsec.api.tenant import TenantSpec
from dsec.controllers.budget_records import BudgetRecords, Declared, Hold
from dsec.controllers.budget_statuses import BudgetStatuses
from dsec.controllers.metered_nodes import MeteredNodes
from dsec.controllers.over_budget import ceilings
from dsec.controllers.replica_scaler import NO_CEILINGS, Ceilings
from dsec.controllers.replicas import current, desired_of
from dsec.controllers.spending import Spending
from dsec.cost.budgets import Allowance, Fired, Standing, crossings, standing
from dsec.cost.entries import Entry
from dsec.cost.flows import opened, settled
from dsec.cost.gate import BudgetState, LeaseRules, state_of
from dsec.cost.ledger import Ledger
from dsec.cost.periods import ALL_TIME, Span
from dsec.journal.bindings import Binding
from dsec.journal.bindlog import BindLog
from dsec.journal.history import HistoryWriter
from dsec.journal.moneybook import MoneyBook
from dsec.world.cache import Cache, Key
from dsec.world.clock import Clock
from dsec.world.objects import ObjectStore
from dsec.world.records import Records

LOOK_SECONDS = 5.0
REST = 10.0
"""A look that takes long is followed by so many times its length of rest."""


class Accountant:
    """Of one term."""

    def __init__(
        self,
        spending: Spending,
        budgets: BudgetRecords,
        history: HistoryWriter,
        clock: Clock,
        *,
        region: str,
    ) -> None:
        """`region`: where this cluster is, for budgets of some regions."""
        self._spending = spending
        self._budgets = budgets
        self._clock = clock
        self._region = region
        self._statuses = BudgetStatuses(budgets, history, self.spent, region)
        self._lock = asyncio.Lock()
        self._state = state_of(())
        self._wrong: list[Declared] = []
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

    @property
    def ledger(self) -> Ledger:
        """What is booked."""
        return self._spending.ledger

    def note(self, bindings: Iterable[Binding]) -> None:
        """Take note of sandboxes that have started, moved or ended."""
        self._spending.note(bindings)

    def budgets(self) -> BudgetState:
        """Return all budgets as of the last look, with what is promised to nodes."""
        return self._state

    def spent(self, allowance: Allowance, span: Span, region: str = "") -> Decimal:
        """Return what was spent on a budget, what is not booked yet included."""
        since = self._budgets.since(allowance)
        if since is not None:
            # the ceiling of a task does not count an earlier task of its name
            span = Span(since, span.end)
        return self._spending.spent(allowance, span, region)

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
            if not await self._spending.meter(now, watched=bool(self._state.standings)):
                await self._open()
                return
            await self._compare(now)
            await self._spending.keep(now)

    async def _open(self) -> None:
        await self._spending.open()
        self._stand(self._clock.now().timestamp())
        self.ready.set()

    def _stand(self, now: float) -> list[tuple[Declared, Standing]]:
        """Compare all budgets; returns those that can be compared."""
        found = []
        self._wrong = []
        for one in self._budgets.all():
            if one.allowance is None:
                self._wrong.append(one)
            else:
                fired = self._statuses.fired(one)
                found.append((one, self._standing(one.allowance, now, fired)))
        self._state = state_of([one for _, one in found], self._spending.commitments())
        return found

    def _standing(self, allowance: Allowance, now: float, fired: Iterable[Fired]) -> Standing:
        return standing(
            allowance,
            self.spent,
            now,
            region=self._region if allowance.regions else "",
            fired=fired,
        )

    async def _compare(self, now: float) -> None:
        stood = self._stand(now)
        told: list[tuple[Declared, Standing]] = []
        for declared, one in stood:
            spent_out = self._state.exhausted(one, now, LeaseRules())
            new = crossings(one, now, exhausted=spent_out)
            if new:
                fired = (*one.fired, *(crossing.fired for crossing in new))
                one = self._standing(one.allowance, now, fired)  # noqa: PLW2901 - the same budget
                self._statuses.reached(declared.name, one, new)
            told.append((declared, one))
        self._state = state_of([one for _, one in told], list(self._state.commitments.values()))
        await self._flow(stood, now)
        for key in self._budgets.turned(self._state):
            self.turned(key)
        for declared, one in told:
            await self._statuses.write(declared, one, self._state, now)
        for declared in self._wrong:
            await self._statuses.refuse(declared, now)

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
        await self._spending.store(flows)


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
    book = MoneyBook(objects, clock, epoch=bind_log.epoch, writer=f"epoch-{bind_log.epoch}")
    nodes = MeteredNodes(caches["SandboxNode"], caches["SandboxNodePool"])
    return Accountant(
        Spending(bind_log.state, book, nodes, clock),
        BudgetRecords(
            records, caches["Budget"], caches["Experiment"], caches["Namespace"], tenants
        ),
        history,
        clock,
        region=nodes.region,
    )
