"""Every budget that is declared: Budget records, and the ceilings of tasks in their documents."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from dsec.api.budget import BudgetAction, BudgetStatus
from dsec.api.experiment import ExperimentBudget
from dsec.api.meta import TENANT_LABEL
from dsec.api.mistakes import mistakes_of
from dsec.api.records import Budget, Experiment
from dsec.api.tenant import TenantSpec
from dsec.controllers.replicas import completed
from dsec.cost.amounts import MoneyError
from dsec.cost.budgets import Allowance, Standing, action_for, ancestors
from dsec.cost.declared import allowance_of, chosen_by, mistakes, task_allowance
from dsec.cost.gate import BudgetState
from dsec.cost.words import ACTIONS, standing_words
from dsec.world.cache import Cache, Key
from dsec.world.records import Record, Records

NOBODY = "none"
"""Tenant of a namespace of the platform, in paths that are not used."""


@dataclass(frozen=True, slots=True)
class Declared:
    """One budget. Without an allowance it contradicts itself and limits nothing."""

    name: str
    key: Key
    task: bool
    status: BudgetStatus
    generation: int
    allowance: Allowance | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Hold:
    """What budgets say about a task now. Without an action nothing is held back."""

    action: BudgetAction | None = None
    words: str = ""


@dataclass(slots=True)
class BudgetRecords:
    """Reads the caches of one leader, and writes the statuses."""

    records: Records
    budgets: Cache
    experiments: Cache
    namespaces: Cache
    tenants: Callable[[], Mapping[str, TenantSpec]]
    _since: dict[str, float] = field(default_factory=dict)
    _actions: dict[Key, BudgetAction] = field(default_factory=dict)

    def all(self) -> list[Declared]:
        """Return every budget; those of tasks after the records."""
        tenants = self.tenants()
        found = [self._record(record, tenants) for record in self.budgets.all()]
        asked = [one for one in self.experiments.all() if (one.get("spec") or {}).get("budget")]
        return [*found, *(self._task(record, tenants) for record in asked)]

    def since(self, allowance: Allowance) -> float | None:
        """Return since when the ceiling of a task counts; None for a record."""
        return self._since.get(allowance.name)

    def over(self, declared: Declared) -> bool:
        """Return whether a task has ended for good."""
        return completed(self.experiments.get(declared.key) or {})

    def hold(
        self, state: BudgetState, path: str, budget: ExperimentBudget | None = None
    ) -> Hold | None:
        """Return what budgets say about a task or project; None: none is on its path."""
        above = [one for at in ancestors(path) for one in state.standings.get(at, ())]
        if not above:
            return None
        chosen = chosen_by(budget)
        action = action_for(above, path, chosen)
        if action is None or action is BudgetAction.WARN:
            return Hold()
        first = next(one for one in above if _takes(one, action, path, chosen))
        words = standing_words(first, state.committed(first.name))
        return Hold(action, f"budget {first.name}: {words}; {action.value}: {ACTIONS[action]}")

    def turned(self, state: BudgetState) -> list[Key]:
        """Return the tasks whose hold is another than at the last call."""
        found: dict[Key, BudgetAction] = {}
        if state.standings:
            for record in self.experiments.all():
                meta = record["metadata"]
                key = meta.get("namespace", ""), meta["name"]
                tenant = self.tenant_of(key[0])
                if not tenant:
                    continue
                held = self.hold(state, "/".join((tenant, *key)), _budget(record))
                if held is not None and held.action is not None:
                    found[key] = held.action
        before, self._actions = self._actions, found
        return sorted(key for key in before | found if before.get(key) != found.get(key))

    def paused(self, key: Key) -> bool:
        """Return whether a budget keeps the sandboxes of a task paused."""
        return self._actions.get(key) is BudgetAction.PAUSE

    def tenant_of(self, namespace: str) -> str:
        """Return the tenant of a project; empty: a namespace of the platform."""
        record = self.namespaces.get(("", namespace)) or {}
        labels = record.get("metadata", {}).get("labels") or {}
        return str(labels.get(TENANT_LABEL, ""))

    async def write(self, declared: Declared, status: Any) -> None:
        """Write a status. Raises RecordsError, RecordConflictError, RecordNotFoundError."""
        body = status.model_dump(mode="json", by_alias=True, exclude_none=True)
        cache = self.experiments if declared.task else self.budgets
        record = cache.get(declared.key)
        if record is None:
            return
        if declared.task:
            body = {**(record.get("status") or {}), "budget": body}
        cache.put(await self.records.replace_status({**record, "status": body}))

    def _record(self, record: Record, tenants: Mapping[str, TenantSpec]) -> Declared:
        meta = record["metadata"]
        key = meta.get("namespace", ""), meta["name"]
        name, generation = "/".join(key), meta.get("generation", 0)
        tenant = self.tenant_of(key[0])
        currency = tenants[tenant].defaults.currency if tenant in tenants else None
        try:
            budget = Budget.model_validate(record)
        except ValidationError as problem:
            text = "; ".join(str(one) for one in mistakes_of(problem))
            return Declared(name, key, False, BudgetStatus(), generation, problem=text)
        wrong = mistakes(budget.spec, project=key[0], currency=currency, platform=not tenant)
        if wrong:
            text = "; ".join(str(one) for one in wrong)
            return Declared(name, key, False, budget.status, generation, problem=text)
        allowance = allowance_of(
            name, budget.spec, tenant=tenant or NOBODY, project=key[0], currency=currency
        )
        return Declared(name, key, False, budget.status, generation, allowance)

    def _task(self, record: Record, tenants: Mapping[str, TenantSpec]) -> Declared:
        meta = record["metadata"]
        key = meta.get("namespace", ""), meta["name"]
        tenant = self.tenant_of(key[0])
        path = "/".join((tenant or NOBODY, *key))
        name, generation = f"task/{path}", meta.get("generation", 0)
        currency = tenants[tenant].defaults.currency if tenant in tenants else None
        status = BudgetStatus()
        try:
            experiment = Experiment.model_validate(record)
            status = experiment.status.budget or status
            budget = experiment.spec.budget
            if budget is None or experiment.metadata.creation_timestamp is None:
                return Declared(name, key, True, status, generation, problem="it has no limit")
            self._since[name] = experiment.metadata.creation_timestamp.timestamp()
            allowance = task_allowance(path, budget, currency)
        except (ValidationError, MoneyError) as problem:
            return Declared(name, key, True, status, generation, problem=str(problem))
        return Declared(name, key, True, status, generation, allowance)


def _budget(record: Record) -> ExperimentBudget | None:
    asked = (record.get("spec") or {}).get("budget")
    try:
        return ExperimentBudget.model_validate(asked) if asked else None
    except ValidationError:
        return None


def _takes(one: Standing, action: BudgetAction, path: str, chosen: BudgetAction | None) -> bool:
    """Return whether it is this budget whose level asks for an action."""
    return action_for([one], path, chosen) is action
