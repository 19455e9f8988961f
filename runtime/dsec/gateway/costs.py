"""Cost and budgets over HTTP: read from the money book and the records, not from the leader."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from starlette.responses import JSONResponse, Response

from dsec.api.experiment import ExperimentSpec
from dsec.api.records import Budget, SandboxNode, SandboxNodePool
from dsec.cost.amounts import CPU_HOURS, MoneyError
from dsec.cost.budgets import POOL
from dsec.cost.entries import Entry
from dsec.cost.estimate import budgets_that_refuse, estimate
from dsec.cost.periods import Span
from dsec.cost.pools import INSTANCE_TYPE, prices
from dsec.cost.report import By, plain, report, total
from dsec.cost.savings import idle_costs, saving
from dsec.gateway.calls import Call
from dsec.gateway.errors import invalid
from dsec.gateway.used import BUCKET
from dsec.world.records import Access

_TASK = 2
"""Slashes in the path of a task."""


@dataclass(slots=True)
class _Sight:
    """What a caller may read: pools, and projects by what they list there."""

    call: Call
    resource: str

    async def pools(self) -> bool:
        """Return whether the caller reads what no project pays for."""
        return await self._allows(Access("list", "sandboxnodes"))

    async def project(self, name: str) -> bool:
        """Return whether the caller reads what a project spends."""
        return await self._allows(Access("list", self.resource, name))

    async def _allows(self, access: Access) -> bool:
        return await self.call.gateway.authoriser.allows(self.call.user, access)


async def cost(call: Call) -> Response:
    """Return what was spent, by tenant, project, task, pool or day: what the caller may read."""
    query = call.request.query_params
    by = query.get("by", By.TASK.value)
    if by not in set(By):
        allowed = ", ".join(By)
        raise invalid("by", by, allowed, f"must be one of {allowed}")
    zone = query.get("zone", "UTC")
    span = Span(_hour(call, "from", up=False), _hour(call, "to", up=True))
    entries, at = await call.gateway.costs.read()
    seen = await _seen(call, entries)
    try:
        rows = report(seen, By(by), span=span, zone=zone)
    except MoneyError as problem:
        raise invalid("zone", zone, "an IANA zone such as Europe/Berlin", str(problem)) from problem
    within = [one for one in seen if one.since is not None and one.since in span]
    answer = {
        "by": by,
        "at": at,
        "from": _text(span.start),
        "to": _text(span.end),
        "items": [plain(row) for row in rows],
        "total": plain(total(seen, span=span)),
        "pools": _pools(within),
        "savings": _savings(within, at),
    }
    return JSONResponse(answer)


async def budgets(call: Call) -> Response:
    """Return the budgets that the caller may read, with what is spent and what is in force."""
    gateway, sight = call.gateway, _Sight(call, "budgets")
    items: list[dict[str, Any]] = []
    for record in gateway.caches["Budget"].all():
        project = record["metadata"].get("namespace", "")
        if await sight.project(project):
            items.append(
                {
                    "name": record["metadata"]["name"],
                    "project": project,
                    "spec": record.get("spec") or {},
                    "status": record.get("status") or {},
                }
            )
    for record in gateway.caches["Experiment"].all():
        asked = (record.get("spec") or {}).get("budget")
        project, name = record["metadata"].get("namespace", ""), record["metadata"]["name"]
        if asked and await sight.project(project):
            items.append(
                {
                    "name": f"task/{name}",
                    "project": project,
                    "spec": {"scope": "task", "target": name, **asked},
                    "status": (record.get("status") or {}).get("budget") or {},
                }
            )
    return JSONResponse({"items": items})


async def estimated(call: Call, spec: ExperimentSpec, currency: str | None) -> dict[str, Any]:
    """Return what a task may cost on the nodes of now, and which budgets do not cover it."""
    gateway = call.gateway
    pools = {
        record["metadata"]["name"]: SandboxNodePool.model_validate({**record, "status": {}}).spec
        for record in gateway.caches["SandboxNodePool"].all()
    }
    nodes = [SandboxNode.model_validate(one) for one in gateway.caches["SandboxNode"].all()]
    known = prices(
        pools,
        (
            (one.spec.pool or "", one.spec.labels.get(INSTANCE_TYPE, ""), one.status.inventory)
            for one in nodes
            if one.status.inventory is not None
        ),
    )
    if not known:
        fields = "cost, placement.priceMicro or an offering's pricePerHour"
        return {"words": [f"no estimate: no pool says what its nodes cost ({fields})"]}
    currencies = sorted({one.currency for one in known.values()})
    asked = spec.budget.currency if spec.budget else None
    unit = asked or currency or currencies[0]
    try:
        found = estimate(spec, known, unit)
    except MoneyError as problem:
        return {"words": [f"no estimate: {problem}"]}
    left = [
        (budget.metadata.name, found.currency, Decimal(budget.status.left))
        for record in gateway.caches["Budget"].all()
        if record["metadata"].get("namespace") == call.project
        and (budget := Budget.model_validate(record)).status.period_start is not None
    ]
    return {
        "currency": found.currency,
        "lowPerHour": f"{found.low_per_hour:f}",
        "highPerHour": f"{found.high_per_hour:f}",
        "lower": f"{found.lower:f}",
        "upper": None if found.upper is None else f"{found.upper:f}",
        "roles": [
            {
                "role": one.role,
                "least": one.least,
                "most": one.most,
                "lowPerHour": f"{one.low_per_hour:f}",
                "highPerHour": f"{one.high_per_hour:f}",
                "cheapest": one.low_key,
                "dearest": one.high_key,
            }
            for one in found.roles
        ],
        "words": [*found.words, *budgets_that_refuse(found, left)],
    }


async def _seen(call: Call, entries: Sequence[Entry]) -> list[Entry]:
    sight = _Sight(call, "experiments")
    pools = await sight.pools()
    projects: dict[str, bool] = {}
    found = []
    for one in entries:
        if one.path.startswith(POOL):
            if pools:
                found.append(one)
            continue
        names = one.path.split("/")
        # what an account pays without a project is for those who see pools
        project = names[1] if len(names) > 1 else ""
        if project not in projects:
            projects[project] = await sight.project(project) if project else pools
        if projects[project]:
            found.append(one)
    return found


def _pools(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """Return per pool and currency what was used and what was idle (COST-17)."""
    rows = report(entries, By.POOL)
    found = []
    for unit in sorted({unit for row in rows for unit in row.money}):
        found += [
            {
                "pool": one.pool,
                "currency": unit,
                "used": f"{one.used:f}",
                "idle": f"{one.idle:f}",
                "idlePercent": f"{one.idle_percent:f}",
            }
            for one in idle_costs(rows, (), unit)
        ]
    return found


def _savings(entries: Iterable[Entry], at: float | None) -> list[dict[str, str]]:
    """Return per task what following the load saved beside its own peak (COST-08), by the hour."""
    traces: dict[str, dict[float, Decimal]] = {}
    for one in entries:
        if one.path.count("/") == _TASK and one.since is not None and CPU_HOURS in one.amounts:
            hour = one.since // BUCKET * BUCKET
            mine = traces.setdefault(one.path, {})
            mine[hour] = mine.get(hour, Decimal(0)) + one.amounts[CPU_HOURS]
    found = []
    for path, hours in sorted(traces.items()):
        first, last = min(hours), max(hours)
        if last == first or at is None:
            continue  # one hour alone has no course
        steps = range(int(first), int(last) + 1, BUCKET)
        # the hour that runs is not over: its mean is not known
        whole = [(float(one), int(hours.get(float(one), Decimal(0)) * 1000)) for one in steps][:-1]
        if any(milli for _, milli in whole):
            figure = saving(whole, last)
            found.append(
                {"task": path, "percent": f"{figure.percent:f}", "formula": figure.formula}
            )
    return found


def _hour(call: Call, name: str, *, up: bool) -> float | None:
    """Return a time of the query, to whole hours. Raises ApiError 422."""
    text = call.request.query_params.get(name, "")
    if not text:
        return None
    try:
        when = datetime.fromisoformat(text)
    except ValueError as problem:
        allowed = "a date or time such as 2026-03-10 or 2026-03-10T08:00Z"
        raise invalid(name, text, allowed, f"must be {allowed}") from problem
    seconds = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    return float(-(-seconds // BUCKET) * BUCKET if up else seconds // BUCKET * BUCKET)


def _text(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat()
