"""Copies in other regions, and failover, over HTTP.

A cycle of copies is the leader's: it is asked for by an annotation. Failover is done here, from the
store and the records of this region alone, because the other one is gone: survey, isolate all,
recover what is isolated. Each step may be repeated, and a call that was cut off is made again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from starlette.responses import JSONResponse, Response

from dsec.api.failover import (
    FailoverAnswer,
    FailoverCall,
    FailoverCopy,
    FailoverRow,
    FailoverStep,
)
from dsec.api.records import Tenant
from dsec.api.replication import REPLICATE_NOW
from dsec.api.snapshot import SnapshotRef
from dsec.api.status import OverrideKind
from dsec.gateway.calls import Call
from dsec.gateway.core import Gateway
from dsec.gateway.errors import invalid, not_found
from dsec.snapshots.failover import (
    PARTITIONS,
    RESTORE_FROM,
    TAKEN,
    Case,
    Fate,
    Stage,
    again,
    isolate,
    plan,
    stage,
    survey,
)
from dsec.snapshots.homes import HomeTakenError
from dsec.snapshots.keys import KeyAwayError, KeyUnknownError
from dsec.snapshots.layout import name_of, prefix_of
from dsec.snapshots.refs import newest_good
from dsec.snapshots.replicating import REPOSITORY
from dsec.snapshots.repository import Repository
from dsec.snapshots.routing import Residency
from dsec.snapshots.sealing import SnapshotDamagedError
from dsec.snapshots.verifying import verify
from dsec.world.clock import until
from dsec.world.objects import NotFoundError
from dsec.world.records import (
    Record,
    RecordConflictError,
    RecordInvalidError,
    RecordNotFoundError,
)

PARKED = "failover:"
GONE_SECONDS = 60.0
"""How long a parked record of the same name may take to go."""
FIELDS = "dsec-replicate"


async def policies(call: Call) -> Response:
    """Return the replication policies, with how far their copies are behind."""
    listed = await call.gateway.records.list("ReplicationPolicy")
    items = [
        {
            "name": record["metadata"]["name"],
            "spec": record.get("spec") or {},
            "status": record.get("status") or {},
        }
        for record in listed.items
    ]
    return JSONResponse({"items": items})


async def replicate(call: Call) -> Response:
    """Have the leader run a cycle of a policy now; the answer names what status.handled will be."""
    gateway, name = call.gateway, call.path("name")
    try:
        await gateway.records.get("ReplicationPolicy", name)
    except RecordNotFoundError:
        raise not_found(f"replication policy {name}") from None
    asked = f"{gateway.clock.now():%Y%m%dT%H%M%S.%fZ}-{gateway.randomness.randbytes(3).hex()}"
    await gateway.records.apply(
        {
            "apiVersion": "dsec.dev/v1alpha1",
            "kind": "ReplicationPolicy",
            "metadata": {"name": name, "annotations": {REPLICATE_NOW: asked}},
        },
        FIELDS,
    )
    return JSONResponse({"name": name, "asked": asked}, 202)


async def failover(call: Call) -> Response:
    """Take over what lived in a lost region, or say what that would be."""
    asked = await call.model(FailoverCall)
    gateway = call.gateway
    here = gateway.config.region
    if asked.lost == here:
        raise invalid("lost", asked.lost, "another region", f"{here} is this region, and answers")
    work = _Failover(gateway, asked, call.user.name)
    return JSONResponse((await work.run()).wire())


@dataclass(slots=True)
class _Failover:
    gateway: Gateway
    asked: FailoverCall
    who: str
    steps: list[FailoverStep] = field(default_factory=list)

    async def run(self) -> FailoverAnswer:
        began = self.gateway.clock.monotonic()
        found = await self._survey()
        rows = {case.card.root: _row(case) for _, case in found}
        if self.asked.verify:
            for prefix, case in found:
                if case.fate in TAKEN:
                    await self._verify(prefix, rows[case.card.root])
        self._step(Stage.OBSERVE.value, began)
        going = [one for one in found if one[1].fate in TAKEN]
        rules, isolated = PARTITIONS["region"], None
        while not self.asked.rehearse:
            began = self.gateway.clock.monotonic()
            # all of one stage before the next: nothing runs here that could still run there
            now = stage(rules, 0.0, isolated_for=isolated, declared=True)
            if now is Stage.RECOVER:
                for _, case in found:
                    row = rows[case.card.root]
                    if not row.problem and self._owes(case):
                        await self._recover(case, row)
                self._step(now.value, began)
                break
            for prefix, case in going:
                await self._isolate(prefix, case, rows[case.card.root])
            isolated = self.gateway.clock.monotonic() - began
            self._step(now.value, began)
        lost = [rows[case.card.root].lost_seconds for _, case in going]
        return FailoverAnswer(
            here=self.gateway.config.region,
            lost=self.asked.lost,
            rehearsal=self.asked.rehearse,
            rows=list(rows.values()),
            steps=self.steps,
            recovery_point_seconds=_worst(lost),
        )

    def _step(self, name: str, began: float) -> None:
        seconds = self.gateway.clock.monotonic() - began
        self.steps.append(FailoverStep(name=name, seconds=round(seconds, 3)))

    def _owes(self, case: Case) -> bool:
        """Return whether an experiment is to be made: also one whose home an earlier try took."""
        lived = case.card.region == self.asked.lost
        return case.fate in TAKEN or (case.fate is Fate.HERE and lived)

    async def _survey(self) -> list[tuple[str, Case]]:
        gateway, now = self.gateway, self.gateway.clock.now()
        tenants = {
            record["metadata"]["name"]: Tenant.model_validate(record).spec
            for record in gateway.caches["Tenant"].all()
        }
        residency = Residency({name: one.residency for name, one in tenants.items()}, {})
        found = []
        for tenant in sorted(tenants):
            prefix = prefix_of(tenant)
            try:
                await gateway.objects.size(f"{prefix}{REPOSITORY}")
            except NotFoundError:
                continue
            cases = plan(
                await survey(gateway.objects, prefix),
                lost=self.asked.lost,
                here=gateway.config.region,
                residency=residency,
                now=now,
            )
            wanted = self.asked.projects
            found += [(prefix, one) for one in cases if not wanted or one.card.project in wanted]
        return found

    async def _verify(self, prefix: str, row: FailoverRow) -> None:
        """Read the newest copies; what is damaged is said, and restores fall back from it."""
        gateway = self.gateway
        source = gateway.config.snapshot_keys
        if source is None:
            row.why += "; not verified: this installation has no keys for snapshots"
            return
        try:
            repo = await Repository.open(
                gateway.objects, prefix, source, gateway.clock, gateway.randomness
            )
        except (KeyAwayError, KeyUnknownError, SnapshotDamagedError) as problem:
            row.problem = str(problem)
            return

        async def wrong(ref: SnapshotRef) -> str:
            return "; ".join((await verify(repo, ref.manifest)).problems[:1])

        for copy in row.copies:
            choice = await newest_good(gateway.objects, prefix, copy.lineage, wrong)
            if choice is None:
                copy.problem = f"{name_of(copy.lineage, copy.seq)} and all before it are damaged"
            elif choice.ref.seq != copy.seq:
                why = "; ".join(one.why for one in choice.skipped[:1])
                copy.problem = f"{name_of(copy.lineage, copy.seq)}: {why}; before it: usable"
                copy.seq = choice.ref.seq
                copy.age_seconds = (gateway.clock.now() - choice.ref.created).total_seconds()

    async def _isolate(self, prefix: str, case: Case, row: FailoverRow) -> None:
        try:
            home = await isolate(
                self.gateway.objects,
                prefix,
                case,
                here=self.gateway.config.region,
                who=self.who,
                why=self.asked.why or f"{self.asked.lost} is lost",
                now=self.gateway.clock.now(),
            )
        except HomeTakenError as problem:
            row.problem = str(problem)
        else:
            row.epoch = home.epoch

    async def _recover(self, case: Case, row: FailoverRow) -> None:
        records, record = self.gateway.records, dict(again(case.card))
        try:
            known = await self._in_the_way(case)
            if known is None:
                await records.create(record)
                row.made = True
                return
            if _restored(known) == case.card.root:
                row.made = True
                return
            if not _is_parked(known):
                row.problem = "an experiment of this name is here already, and is not parked"
                return
            meta = known["metadata"]
            await records.delete("Experiment", meta["name"], meta["namespace"], uid=meta["uid"])
            if await self._gone(case):
                await records.create(record)
                row.made = True
            else:
                row.problem = "its parked record is still going: ask again"
        except (RecordInvalidError, RecordConflictError, RecordNotFoundError) as problem:
            row.problem = f"its record is refused here: {problem}"

    async def _in_the_way(self, case: Case) -> Record | None:
        try:
            return await self.gateway.records.get("Experiment", case.card.name, case.card.project)
        except RecordNotFoundError:
            return None

    async def _gone(self, case: Case) -> bool:
        left = until(self.gateway.clock, GONE_SECONDS)
        while left() > 0:
            if await self._in_the_way(case) is None:
                return True
            await self.gateway.clock.sleep(0.5)
        return False


def _row(case: Case) -> FailoverRow:
    return FailoverRow(
        project=case.card.project,
        name=case.card.name,
        tenant=case.card.tenant,
        root=case.card.root,
        fate=case.fate.value,
        epoch=case.epoch,
        lost_seconds=case.lost_seconds if case.fate in TAKEN else None,
        copies=[
            FailoverCopy(lineage=one.lineage, seq=one.seq, age_seconds=one.age_seconds)
            for one in case.copies
        ],
        why=case.why,
    )


def _worst(lost: Sequence[float | None]) -> float | None:
    """Return the largest; None where one loses all, 0 where nothing is moved."""
    known = [one for one in lost if one is not None]
    return None if len(known) < len(lost) else max(known, default=0.0)


def _restored(record: Record) -> str:
    return str((record["metadata"].get("annotations") or {}).get(RESTORE_FROM, ""))


def _is_parked(record: Record) -> bool:
    overrides = (record.get("status") or {}).get("overrides") or ()
    return any(
        one.get("kind") == OverrideKind.FREEZE.value and str(one.get("by", "")).startswith(PARKED)
        for one in overrides
    )
