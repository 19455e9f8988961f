"""The Experiment controller: one reconcile brings an experiment to what it asks for.

Steps, in order: finalizer, deletion, resolve, freeze, replicas, status. Each is idempotent; the
status is written once per reconcile, and only when it says something new.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog
from pydantic import ValidationError

from dsec.api.budget import BudgetAction
from dsec.api.documents.resolve import gaps
from dsec.api.experiment import ExperimentBudget
from dsec.api.meta import TENANT_LABEL, ObjectMeta
from dsec.api.mistakes import mistakes_of
from dsec.api.reasons import EndReason
from dsec.api.records import Experiment, Tenant
from dsec.api.sandbox import SandboxState, SandboxStatus
from dsec.api.status import MAX_WARNINGS, ExperimentStatus, OverrideKind, Resolved
from dsec.api.tenant import TenantSpec
from dsec.controllers import over_budget
from dsec.controllers.budget_records import Hold
from dsec.controllers.candidates import Candidates, held, place_of
from dsec.controllers.collector import Collector
from dsec.controllers.compactor import Compacting
from dsec.controllers.creates import Placer
from dsec.controllers.digests import Digests
from dsec.controllers.dispatch import Dispatcher
from dsec.controllers.fleet import Fleet
from dsec.controllers.images import DeclaredImages
from dsec.controllers.replicas import Plan, current, desired_of, plan
from dsec.controllers.statuses import Facts, refused_status, status_of
from dsec.journal import queuelog
from dsec.journal.bindings import Binding, Row
from dsec.journal.bindlog import BindLog
from dsec.journal.history import HistoryWriter
from dsec.placement.refusal import Refusal
from dsec.rules.model import Facts as Known
from dsec.rules.verdict import judge
from dsec.world.cache import Cache, Key
from dsec.world.clock import Clock
from dsec.world.objects import ObjectStore, ObjectStoreError
from dsec.world.records import Record, RecordNotFoundError, Records, RecordsError

FINALIZER = "dsec.dev/collect"
"""Keeps the record until every sandbox is collected, archived and destroyed."""
STATUS_SECONDS = 1.0
"""Least time between two status writes of one experiment: records have a low write rate."""
STOP_REPEAT_SECONDS = 10.0
SWEEP_SECONDS = 60.0
"""How often experiments without a record are looked for."""
QUEUES_SECONDS = 1800.0
"""Between two looks for queues without an experiment; what two of them find is removed."""

log = structlog.get_logger()


@dataclass(slots=True)
class Parts:
    """What the reconciler works with; all of one term."""

    records: Records
    objects: ObjectStore
    experiments: Cache
    namespaces: Cache
    tenants: Cache
    bind_log: BindLog
    placer: Placer
    dispatcher: Dispatcher
    collector: Collector
    fleet: Fleet
    candidates: Candidates
    history: HistoryWriter
    clock: Clock
    digests: Digests
    images: DeclaredImages
    compacting: Compacting
    hold: Callable[[str, Key, ExperimentBudget | None], Hold | None]
    """From tenant, task and its own budget to what budgets say about it."""
    nodes: Callable[[Binding], str] = lambda _waiting: ""
    """What is done about nodes for a replica that waits, in words."""


@dataclass(slots=True)
class Experiments:
    """The reconciler. In memory are only times of last writes: losing them repeats a write."""

    parts: Parts
    _written: dict[str, float] = field(default_factory=dict)

    async def reconcile(self, key: Key) -> float | None:
        """Bring one experiment to what it asks for."""
        record = self.parts.experiments.get(key)
        if record is None:
            return await self.forsake()
        # metadata alone: what a version cannot read it can still protect and remove
        meta = ObjectMeta.model_validate(record["metadata"])
        if meta.deletion_timestamp is not None:
            return await self._delete(meta)
        if FINALIZER not in meta.finalizers:
            return await self._protect(key)
        try:
            experiment = Experiment.model_validate(record)
        except ValidationError as problem:
            return await self._invalid(record, meta, problem)
        return await self._resolved(experiment)

    async def _resolved(self, experiment: Experiment) -> float | None:
        """Resolve a protected experiment and run it, or say why it cannot run."""
        meta = experiment.metadata
        rights = self._rights(experiment)
        if rights is None:
            await self.parts.placer.withdraw(meta.uid)
            await self._write(experiment, refused_status(experiment, "", self.parts.clock.now()))
            return 5.0
        tenant, spec = rights
        resolved = self._resolve(experiment, tenant, spec)
        mistakes = gaps(resolved.spec)
        if mistakes:
            message = "; ".join(str(one) for one in mistakes)
            now = self.parts.clock.now()
            await self.parts.placer.withdraw(meta.uid)
            await self._write(experiment, refused_status(experiment, message, now))
            return None
        return await self._run(experiment, resolved, spec)

    async def forsake(self) -> float | None:
        """End what is left of experiments whose record is gone, finalizer and all.

        Only with synced caches; the store is asked again before anything is ended.
        """
        parts = self.parts
        if not parts.experiments.synced.is_set():
            return STOP_REPEAT_SECONDS
        known = {record["metadata"]["uid"] for record in parts.experiments.all()}
        again = None
        for uid in (parts.bind_log.state.experiments() | parts.placer.demanding()) - known:
            left = [*parts.bind_log.state.of_experiment(uid), *parts.placer.missing(uid)]
            if not left:
                continue  # another look was faster
            identity = left[0].spec.identity
            try:
                found = await parts.records.get("Experiment", identity.experiment, identity.project)
            except RecordNotFoundError:
                found = None
            if found is not None and found["metadata"]["uid"] == uid:
                continue
            log.warning("experiment without a record", uid=uid, name=identity.experiment)
            if not await self._ended(uid, "the task's record is gone"):
                again = STOP_REPEAT_SECONDS
        return again

    async def sweep(self) -> None:
        """Look for experiments without a record again and again; the first time at once."""
        clock, looked, alone = self.parts.clock, -QUEUES_SECONDS, set[tuple[str, str]]()
        while True:
            try:
                await self.forsake()
                if clock.monotonic() - looked >= QUEUES_SECONDS:
                    looked = clock.monotonic()
                    alone = await self._forsake_queues(alone)
            except RecordsError as problem:
                log.warning("records are away", error=str(problem))
            except ObjectStoreError as problem:
                log.warning("queues without an experiment stay", error=str(problem))
            await clock.sleep(SWEEP_SECONDS)

    async def _forsake_queues(self, before: set[tuple[str, str]]) -> set[tuple[str, str]]:
        """Remove queues that had no experiment at the last look either; return today's others.

        A put that was under way while its experiment was deleted leaves such a queue.
        """
        parts = self.parts
        found = await queuelog.owners(parts.objects)
        known = {record["metadata"]["uid"] for record in parts.experiments.all()}
        alone = {(project, uid) for project, uid in found if uid not in known}
        for project, uid in sorted(alone & before):
            count = await queuelog.remove(parts.objects, project, uid)
            log.info("queues without an experiment are removed", uid=uid, objects=count)
        return alone - before

    async def _run(
        self, experiment: Experiment, resolved: Resolved, rights: TenantSpec
    ) -> float | None:
        parts, uid, now = self.parts, experiment.metadata.uid, self.parts.clock.now()
        # what is pinned stays so: records of images are read for the others only
        open_ = any(not one.digest for one in resolved.images)
        declared = parts.images.of(experiment.metadata.namespace, rights) if open_ else {}
        pinned = await parts.digests.pin(resolved, declared)
        resolved = pinned.resolved
        overrides = current(experiment.status.overrides, resolved.spec.roles, now)
        frozen = any(one.kind is OverrideKind.FREEZE for one in overrides)
        bindings = parts.bind_log.state.of_experiment(uid)
        key = experiment.metadata.namespace, experiment.metadata.name
        hold = parts.hold(resolved.tenant, key, resolved.spec.budget)
        plans = [
            plan(
                role,
                over_budget.wanted(role, desired_of(role, overrides), hold),
                bindings,
                now,
            )
            for role in resolved.spec.roles
        ]
        missing: list[Binding] = []
        unread: dict[str, Refusal] = {}
        waits: dict[str, tuple[Refusal, ...]] = {}
        if frozen:
            parts.placer.demand(uid, [])
            await self._stop(
                [b for b in bindings if b.live], EndReason.FROZEN, "the task was frozen"
            )
        elif hold is not None and hold.action is BudgetAction.END:
            over_budget.end(plans)
            parts.placer.demand(uid, [])
            live = [b for b in bindings if b.live]
            await self._stop(live, EndReason.OVER_BUDGET, hold.words)
        else:
            await self._hold_back(plans, bindings, hold)
            unread = await parts.candidates.unread(experiment, plans)
            missing = await parts.candidates.missing(experiment, resolved, rights, plans, unread)
            waits = held(missing, {**pinned.missing, **unread})
            paused = await parts.candidates.unusable(plans)
            waits |= {b.id: (paused[p],) for b in missing if (p := place_of(b)) in paused}
            waits |= dict(over_budget.waits(plans, missing, hold))
            parts.placer.demand(uid, [b for b in missing if b.id not in waits])
        facts = Facts(
            plans=plans,
            bindings=bindings,
            waiting=missing,
            why={b.id: waits.get(b.id) or parts.placer.why(b.id, uid) for b in missing},
            statuses=self._statuses(bindings),
            overrides=overrides,
            frozen=frozen,
            moves={b.id: words for b in bindings if (words := parts.compacting.about(b.id))},
            nodes={b.id: words for b in missing if (words := parts.nodes(b))},
            hold=hold,
        )
        status = status_of(experiment, resolved, facts, now)
        wait = await self._write(experiment, status)
        looks = [one.next_look for one in plans if one.next_look is not None and not frozen]
        looks += [one for one in (wait, pinned.again) if one is not None]
        looks += [STOP_REPEAT_SECONDS] if unread else []
        return min(looks) if looks else None

    # ------------------------------------------------------------------ steps

    async def _hold_back(
        self, plans: Sequence[Plan], bindings: Sequence[Binding], hold: Hold | None
    ) -> None:
        """End what is too many, and let rest what no budget pays for."""
        why = "scaled down"
        if hold is not None and hold.action is BudgetAction.DEGRADE:
            why = f"scaled down: {hold.words}"
        for one in plans:
            await self._stop(one.surplus, EndReason.STOPPED, why)
        if hold is None or hold.action is not BudgetAction.PAUSE:
            return
        rests, others = over_budget.to_rest(bindings)
        await self._stop(others, EndReason.STOPPED, hold.words)
        for binding in rests:
            status = self.parts.fleet.status(binding.id, binding.node)
            if status is not None and status.state is SandboxState.RUNNING:
                self.parts.dispatcher.turn(binding.node, binding.id, pause=True, message=hold.words)

    async def _protect(self, key: Key) -> float | None:
        record = await self.parts.records.get("Experiment", key[1], key[0])
        meta = record["metadata"]
        meta["finalizers"] = [*meta.get("finalizers", []), FINALIZER]
        self.parts.experiments.put(await self.parts.records.replace(record))
        return 0.0

    async def _invalid(
        self, record: Record, meta: ObjectMeta, problem: ValidationError
    ) -> float | None:
        """Say that this version cannot read a record. What runs of it runs on."""
        await self.parts.placer.withdraw(meta.uid)
        try:
            status = ExperimentStatus.model_validate(record.get("status") or {})
        except ValidationError:
            status = ExperimentStatus()
        # its spec is what cannot be read, and nothing below looks at it
        shell = Experiment.model_construct(metadata=meta, status=status)  # type: ignore[call-arg]
        message = "; ".join(str(one) for one in mistakes_of(problem))
        await self._write(shell, refused_status(shell, message, self.parts.clock.now()))
        return None

    async def _ended(self, uid: str, why: str) -> bool:
        """End every sandbox of an experiment and forget the bindings. False: some are left."""
        parts = self.parts
        # a round under way may still bind: nothing may come after the look below
        await parts.placer.withdraw(uid)
        live = [b for b in parts.bind_log.state.of_experiment(uid) if b.live]
        await self._stop(live, EndReason.STOPPED, why)
        if any(b.live for b in parts.bind_log.state.of_experiment(uid)):
            return False
        if parts.bind_log.state.of_experiment(uid):
            now = parts.clock.now()
            await parts.bind_log.append([Row(kind="forget", at=now, experiment_uid=uid)])
        parts.candidates.forget(uid)
        self._written.pop(uid, None)
        return True

    async def _delete(self, meta: ObjectMeta) -> float | None:
        """End every sandbox, forget the bindings, let the record go. In that order."""
        parts = self.parts
        if not await self._ended(meta.uid, "the task was deleted"):
            return STOP_REPEAT_SECONDS
        if FINALIZER in meta.finalizers:
            await queuelog.remove(parts.objects, meta.namespace, meta.uid)
            try:
                record = await parts.records.get("Experiment", meta.name, meta.namespace)
            except RecordNotFoundError:
                return None
            if record["metadata"]["uid"] != meta.uid:
                return None
            kept = [one for one in record["metadata"]["finalizers"] if one != FINALIZER]
            record["metadata"]["finalizers"] = kept
            await parts.records.replace(record)
            parts.history.add("experiment-deleted", experiment=meta.name, project=meta.namespace)
        return None

    def _rights(self, experiment: Experiment) -> tuple[str, TenantSpec] | None:
        """Return the tenant of the experiment's namespace: never the one that it names itself."""
        namespace = self.parts.namespaces.get(("", experiment.metadata.namespace))
        labels = (namespace or {}).get("metadata", {}).get("labels", {})
        name = labels.get(TENANT_LABEL, "")
        record = self.parts.tenants.get(("", name))
        if record is None:
            return None
        return name, Tenant.model_validate(record).spec

    def _resolve(self, experiment: Experiment, tenant: str, rights: TenantSpec) -> Resolved:
        """Return the decided form: once per generation, so that later defaults change nothing."""
        known, generation = experiment.status.resolved, experiment.metadata.generation
        if known is not None and known.generation == generation:
            return known
        about = Known(experiment.metadata.namespace, tenant, rights)
        verdict = judge(experiment.spec, name=experiment.given_name, facts=about)
        fresh = verdict.resolved
        fresh.generation = generation
        # what a dry run says to its caller is kept for those who look later
        fresh.warnings = verdict.warnings[:MAX_WARNINGS]
        for image in fresh.images:
            # a digest in the reference is one already; the registry is asked for the others
            image.digest = image.reference.partition("@")[2]
        return fresh

    async def _stop(self, bindings: Sequence[Binding], reason: EndReason, message: str) -> None:
        parts = self.parts
        await parts.collector.stop(bindings, reason, message, parts.dispatcher)

    def _statuses(self, bindings: Sequence[Binding]) -> dict[str, SandboxStatus]:
        found = {}
        for binding in bindings:
            if binding.live:
                status = self.parts.fleet.status(binding.id, binding.node)
                if status is not None:
                    found[binding.id] = status
        return found

    async def _write(self, experiment: Experiment, status: ExperimentStatus) -> float | None:
        """Write a status that says something new. Returns seconds to wait where it is too early."""
        if status == experiment.status:
            return None
        uid, now = experiment.metadata.uid, self.parts.clock.monotonic()
        # a verdict that turns is told at once; messages and counts can wait
        turned = _verdicts(status) != _verdicts(experiment.status)
        early = STATUS_SECONDS - (now - self._written.get(uid, -STATUS_SECONDS))
        # times are floats: what is left of a span that was waited for is not exactly zero
        if early > 0.01 and not turned:  # noqa: PLR2004 - seconds, far below the span
            return early
        key = (experiment.metadata.namespace, experiment.metadata.name)
        record = self.parts.experiments.get(key)
        if record is None:
            return None
        body = status.model_dump(mode="json", by_alias=True, exclude_none=True)
        # the accountant may have written it since this status was made, and an alert is told once
        if counted := (record.get("status") or {}).get("budget"):
            body["budget"] = counted
        written = await self.parts.records.replace_status({**record, "status": body})
        self._written[uid] = now
        self.parts.experiments.put(written)
        log.info(
            "experiment",
            name=key[1],
            ready=status.ready,
            pending=status.pending,
            ended=status.ended,
        )
        return None


def _verdicts(status: ExperimentStatus) -> set[tuple[str, str, str]]:
    return {(one.type, one.status.value, one.reason) for one in status.conditions}
