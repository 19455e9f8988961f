"""The controller of replica counts: one look per period and elastic role.

It writes what a person's `scale` writes, an override in the status, and beside it what the scaler
remembers: so that a restart, or another leader, goes on where this one was. The spec is never
written. Switched off, counts stay as they are and everything else works on (ELAS-01, OPS-18).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import structlog
from pydantic import ValidationError

from dsec.api.elastic_status import RoleScaling
from dsec.api.experiment import ExperimentSpec, Role
from dsec.api.meta import ConditionStatus, condition_of
from dsec.api.reasons import PendingReason
from dsec.api.records import Experiment
from dsec.api.status import ExperimentCondition, ExperimentStatus, Override, OverrideKind
from dsec.controllers.replicas import current, desired_of, requested_of
from dsec.controllers.scaling_signals import ScalingSignals
from dsec.journal.bindings import Bindings
from dsec.journal.history import HistoryWriter
from dsec.scaling.replicas.evaluate import Facts, evaluate, first_result
from dsec.scaling.replicas.rules import Rule, rule_of
from dsec.world.cache import Cache, Key
from dsec.world.clock import Clock
from dsec.world.records import Record, Records

BY = "dsec-scaler"
"""Who the overrides of this controller say they are by."""
SCALED = "replicas-scaled"
"""Kind of the history rows of changed counts."""
SAMPLED, SAMPLE_SECONDS = "replicas-sampled", 300.0
"""Kind of the rows that record a role's load, and how often: a week of them proposes thresholds."""
SOON = 0.05
"""Seconds: a round that is due this soon is due."""
_PASSING = frozenset({PendingReason.QUOTA, PendingReason.CONTROL_PLANE, PendingReason.BUDGET})
"""Waits that say nothing about room on nodes."""
_STILL = frozenset({OverrideKind.FREEZE, OverrideKind.PAUSE, OverrideKind.HOLD})

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Switches:
    """Which parts of elasticity are switched on in an installation."""

    replicas: bool = True
    """Whether counts are looked at, at all."""
    growth: bool = True
    shrink: bool = True
    """Off: what would be removed is told, and stays (ELAS-29)."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What money says about the count of a role; None: nothing."""

    budget: int | None = None
    worth: int | None = None
    spare: bool = False


NO_CEILINGS = Ceilings()
CeilingsOf = Callable[[Experiment, Role], Ceilings]
RoomOf = Callable[[str, str], int | None]
"""From experiment uid and role to how many more replicas its quota takes; None: no limit known."""


@dataclass(slots=True)
class ReplicaScaler:
    """Of one term. In memory are only times of rounds: losing them costs at most one period."""

    records: Records
    experiments: Cache
    bindings: Bindings
    signals: ScalingSignals
    history: HistoryWriter
    clock: Clock
    room: RoomOf
    switches: Switches = Switches()
    ceilings: CeilingsOf = lambda _experiment, _role: NO_CEILINGS
    _rounds: dict[tuple[str, str], float] = field(default_factory=dict)

    async def reconcile(self, key: Key) -> float | None:
        """Look at the elastic roles of one experiment that are due."""
        experiment = self._readable(key)
        if experiment is None or not self.switches.replicas:
            return None
        spec, status = _decided(experiment), experiment.status
        if spec is None or _stands_still(status):
            return None
        now, uid = self.clock.now(), experiment.metadata.uid
        overrides = current(status.overrides, spec.roles, now)
        counts = {
            role.name: desired_of(role, overrides)
            for role in spec.roles
            if role.elastic is not None
        }
        if not counts:
            await self._forget(key, status)
            return None
        # a role that somebody set to nothing, and that has no min, is off
        elastic = [
            r for r in spec.roles if r.name in counts and (counts[r.name] or r.min is not None)
        ]
        known = {one.role: one for one in status.scaling}
        found: dict[str, RoleScaling] = {}
        rounds: set[str] = set()
        waits: list[float] = []
        for role in elastic:
            rule = rule_of(role, spec)
            old = known.get(role.name) or RoleScaling(role=role.name)
            # what a task asks for itself is answered at once, not at the end of a period
            asked = requested_of(role, overrides)
            left = 0.0 if asked is not None else self._left(uid, rule, old, now)
            if left <= SOON:
                found[role.name] = await self._round(
                    experiment, role, rule, old, counts[role.name], asked=asked
                )
                rounds.add(role.name)
                waits.append(rule.period_seconds)
            else:
                waits.append(left)
                shown = first_result(old, _ready(status, role.name), now)
                if shown != old:
                    found[role.name] = shown
        if found and not await self._write(key, experiment, found, counts):
            return 0.0
        for name in sorted(rounds):
            self._rounds[uid, name] = self.clock.monotonic()
            old_at = known[name].at if name in known else -SAMPLE_SECONDS
            if found[name].at // SAMPLE_SECONDS != old_at // SAMPLE_SECONDS:
                self._sample(experiment, found[name], counts[name])
        return min(waits, default=None)

    def _readable(self, key: Key) -> Experiment | None:
        record = self.experiments.get(key)
        if record is None or not _concerns(record):
            return None
        try:
            experiment = Experiment.model_validate(record)
        except ValidationError:
            return None  # the Experiment controller tells of it
        return None if experiment.metadata.deletion_timestamp is not None else experiment

    def _left(self, uid: str, rule: Rule, old: RoleScaling, now: datetime) -> float:
        """Return seconds to a role's next round: by this process's own clock once it had one."""
        last = self._rounds.get((uid, rule.role))
        if last is not None:
            return rule.period_seconds - (self.clock.monotonic() - last)
        if old.utc is None:
            return 0.0
        gone = (now - old.utc).total_seconds()
        # a clock that went back must not hold a role for longer than one period
        return rule.period_seconds - min(max(gone, 0.0), rule.period_seconds)

    async def _round(
        self,
        experiment: Experiment,
        role: Role,
        rule: Rule,
        old: RoleScaling,
        count: int,
        *,
        asked: int | None,
    ) -> RoleScaling:
        uid, status = experiment.metadata.uid, experiment.status
        own = self.bindings.of_experiment(uid)
        readings = await self.signals.read(experiment, role, rule, own)
        money = self.ceilings(experiment, role)
        waiting = {one.reason for one in status.pending_reasons if one.role == role.name}
        ready = _ready(status, role.name)
        more = self.room(uid, role.name)
        facts = Facts(
            count=count,
            ready=ready,
            # while some of what was asked for has no place, asking for more gives nothing
            quota=count
            if PendingReason.QUOTA in waiting
            else (None if more is None else count + more),
            nodes=count if waiting - _PASSING else None,
            budget=money.budget,
            worth=money.worth,
            spare=money.spare,
            requested=asked,
            grow=self.switches.growth,
            shrink=self.switches.shrink,
        )
        now = self.clock.now()
        return first_result(evaluate(rule, old, readings, facts, now), ready, now)

    async def _write(
        self,
        key: Key,
        seen: Experiment,
        found: Mapping[str, RoleScaling],
        counts: Mapping[str, int],
    ) -> bool:
        """Write new states and counts. False: what was decided on has changed meanwhile.

        Raises RecordConflictError where the cache was behind.
        """
        latest = self._readable(key)
        if latest is None or latest.metadata.uid != seen.metadata.uid:
            return True
        if latest.metadata.generation != seen.metadata.generation or (
            latest.status.overrides != seen.status.overrides
        ):
            return False
        now, status = self.clock.now(), latest.status
        changed = {name: one for name, one in found.items() if one.count != counts[name]}
        spec = _decided(latest)
        declared = {role.name: role.replicas for role in spec.roles} if spec else {}
        scaled = [
            Override(
                kind=OverrideKind.SCALE,
                role=name,
                replicas=one.count,
                declared=declared.get(name),
                by=BY,
                at=now,
            )
            for name, one in sorted(changed.items())
        ]
        # a request that was looked at is answered, whatever the answer was
        over = {OverrideKind.SCALE: set(changed), OverrideKind.REQUEST: set(found)}
        kept = [one for one in status.overrides if one.role not in over.get(one.kind, set())]
        states = {one.role: one for one in status.scaling if one.role in declared} | dict(found)
        fresh = status.model_copy(
            update={
                "overrides": [*kept, *scaled],
                "scaling": [states[name] for name in sorted(states)],
            }
        )
        await self._put(key, fresh)
        for name, one in changed.items():
            self._tell(latest, name, counts[name], one)
        return True

    async def _forget(self, key: Key, status: ExperimentStatus) -> None:
        """Drop what was remembered of roles that are elastic no more."""
        if status.scaling:
            await self._put(key, status.model_copy(update={"scaling": []}))

    async def _put(self, key: Key, status: ExperimentStatus) -> None:
        record = self.experiments.get(key)
        if record is None:
            return
        body = status.model_dump(mode="json", by_alias=True, exclude_none=True)
        self.experiments.put(await self.records.replace_status({**record, "status": body}))

    def _sample(self, experiment: Experiment, one: RoleScaling, count: int) -> None:
        """Record how loaded a role is, for whoever sets its thresholds later (ELAS-28)."""
        values = {read.name: read.value for read in one.readings if read.value is not None}
        meta, resolved = experiment.metadata, experiment.status.resolved
        self.history.add(
            SAMPLED,
            tenant=resolved.tenant if resolved else "",
            experiment=meta.name,
            project=meta.namespace,
            role=one.role,
            count=count,
            readings=values,
        )

    def _tell(self, experiment: Experiment, role: str, before: int, one: RoleScaling) -> None:
        meta, resolved = experiment.metadata, experiment.status.resolved
        self.history.add(
            SCALED,
            tenant=resolved.tenant if resolved else "",
            experiment=meta.name,
            project=meta.namespace,
            role=role,
            before=before,
            after=one.count,
            reason=one.reason.value,
            message=one.message,
            readings={reading.name: reading.value for reading in one.readings},
        )
        log.info(
            "replicas scaled",
            name=meta.name,
            role=role,
            before=before,
            after=one.count,
            why=one.message,
        )


def _concerns(record: Record) -> bool:
    """Return whether any role is elastic, or was: most records are not worth reading in full."""
    spec, status = record.get("spec") or {}, record.get("status") or {}
    return bool(status.get("scaling")) or any(
        isinstance(role, dict) and role.get("elastic") for role in spec.get("roles") or ()
    )


def _decided(experiment: Experiment) -> ExperimentSpec | None:
    """Return the resolved spec of this generation; None while it is not decided."""
    resolved = experiment.status.resolved
    if resolved is None or resolved.generation != experiment.metadata.generation:
        return None
    return resolved.spec


def _stands_still(status: ExperimentStatus) -> bool:
    """Return whether somebody froze, paused or holds it, or it is complete or cannot run."""
    if any(one.kind in _STILL for one in status.overrides):
        return True
    done = condition_of(status.conditions, ExperimentCondition.COMPLETED)
    accepted = condition_of(status.conditions, ExperimentCondition.ACCEPTED)
    return (done is not None and done.status is ConditionStatus.TRUE) or (
        accepted is None or accepted.status is not ConditionStatus.TRUE
    )


def _ready(status: ExperimentStatus, role: str) -> int:
    return next((one.ready for one in status.roles if one.name == role), 0)
