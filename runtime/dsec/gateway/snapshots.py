"""Snapshots over HTTP, for people: list, take, restore, fork, pin, verify, compare, collect.

References are read from the store at each call: what is told exists. A tenant sees its own
repository alone, and a project only what was taken of it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from starlette.responses import JSONResponse, Response

from dsec.api.internal import CreatesCall, MoveAsk, MoveOutcome, MoveVerb
from dsec.api.lineage import lineage_of
from dsec.api.sandbox import SandboxSpec
from dsec.api.snapshot import RestoreFrom, SnapshotCall, SnapshotRef
from dsec.api.snapshot_calls import (
    CollectedAll,
    Difference,
    Differences,
    ForkCall,
    MigrateCall,
    PinSnapshot,
    RestoreCall,
    Restored,
    Snapshot,
    Snapshots,
    TakeSnapshot,
    VerifyAnswer,
)
from dsec.api.wire import CreateBatch, KeyedAnswers, KeyedCreate
from dsec.gateway.calls import Call
from dsec.gateway.collecting import everywhere, open_repository
from dsec.gateway.errors import ApiError, away, invalid, not_found
from dsec.gateway.snapshot_bytes import data_key
from dsec.journal.bindings import Binding
from dsec.journal.keyed import SIMULATED_LABEL
from dsec.snapshots.comparing import compare
from dsec.snapshots.confiding import reveal
from dsec.snapshots.layout import name_of, parse_name, prefix_of
from dsec.snapshots.refs import Pin, bury, list_refs, pin, pins, read_ref, ref_key, unpin
from dsec.snapshots.repository import Repository
from dsec.snapshots.sealing import SnapshotDamagedError, derive
from dsec.snapshots.verifying import verify
from dsec.world.agents import AgentRefusedError, AgentSilentError, AgentStaleError
from dsec.world.objects import NotFoundError


@dataclass(frozen=True, slots=True)
class Place:
    """One snapshot that a call is about."""

    prefix: str
    ref: SnapshotRef

    @property
    def name(self) -> str:
        """What people call it."""
        return name_of(self.ref.lineage, self.ref.seq)


# ---------------------------------------------------------------------- look


async def list_all(call: Call) -> Response:
    """Return the snapshots of the project: all, or of one task, sandbox or lineage."""
    query = call.request.query_params
    lineage = query.get("lineage", "")
    if sandbox := query.get("sandbox", ""):
        lineage = lineage_of((await _binding(call, sandbox)).spec.identity)
    prefix = prefix_of(call.gateway.tenant_of(call.project)[0])
    try:
        listed = await list_refs(call.gateway.objects, prefix, lineage)
        held = await pins(call.gateway.objects, prefix, lineage)
    except ValueError as problem:
        raise invalid("lineage", lineage[:200], "a lineage", str(problem)) from problem
    now = call.gateway.clock.now()
    why = {(one.lineage, one.seq): one for one in held if one.holds(now)}
    task = query.get("experiment", "")
    own = [
        ref for ref in listed.refs if ref.project == call.project and task in ("", ref.experiment)
    ]
    living = await _living(call, own)
    items = []
    for ref in sorted(own, key=lambda one: one.created, reverse=True):
        kept = why.get((ref.lineage, ref.seq))
        items.append(
            Snapshot(
                name=name_of(ref.lineage, ref.seq),
                ref=ref.model_copy(update={"spec": {}, "sealed": ""}),
                pinned=kept is not None,
                pinned_why=kept.why if kept is not None else "",
                live=ref.lineage in living,
            )
        )
    damaged = [f"{one.key}: {one.why}" for one in listed.damaged]
    return JSONResponse(Snapshots(items=items, damaged=damaged).wire())


async def read(call: Call) -> Response:
    """Return one snapshot, with the sandbox as an agent was told to run it."""
    place = await _place(call)
    held = await pins(call.gateway.objects, place.prefix, place.ref.lineage)
    now = call.gateway.clock.now()
    kept = [one for one in held if one.seq == place.ref.seq and one.holds(now)]
    live = place.ref.lineage in await _living(call, [place.ref])
    why = kept[0].why if kept else ""
    ref = place.ref.model_copy(update={"sealed": ""})
    shown = Snapshot(name=place.name, ref=ref, pinned=bool(kept), pinned_why=why, live=live)
    return JSONResponse(shown.wire())


async def check(call: Call) -> Response:
    """Verify a snapshot: its figures, its parts, and every byte unless `data=false`."""
    place = await _place(call)
    text = call.request.query_params.get("data", "true")
    if text not in ("true", "false"):
        raise invalid("data", text, "true or false", "must be true or false")
    report = await verify(await _repository(call, place), place.ref.manifest, data=text == "true")
    problems = list(report.problems)
    figures = (("files", report.files, place.ref.files), ("bytes", report.bytes, place.ref.bytes))
    problems += [
        f"the manifest says {found} {what}, the reference {said}"
        for what, found, said in figures
        if found != said
    ]
    answer = VerifyAnswer(
        name=place.name,
        good=not problems,
        files=report.files,
        bytes=report.bytes,
        checked_bytes=report.checked_bytes,
        problems=problems,
    )
    return JSONResponse(answer.wire())


async def diff(call: Call) -> Response:
    """Return how a snapshot differs from another of the same tenant, `with`."""
    place = await _place(call)
    other = await _place(call, call.request.query_params.get("with", ""), "with")
    older, newer = sorted((other, place), key=lambda one: one.ref.created)
    try:
        found = await compare(
            await _repository(call, place), older.ref.manifest, newer.ref.manifest
        )
    except SnapshotDamagedError as problem:
        raise ApiError(409, "damaged", str(problem)) from problem
    items = [
        Difference(path=one.path, what=one.what, before=one.before, after=one.after)
        for one in found.listed
    ]
    answer = Differences(
        before=older.name,
        after=newer.name,
        items=items,
        more=sum(found.counts.values()) - len(items),
        **found.counts,
    )
    return JSONResponse(answer.wire())


# ---------------------------------------------------------------------- take and keep


async def take(call: Call) -> Response:
    """Have a sandbox saved now; the answer comes once it is stored."""
    asked = await call.model(TakeSnapshot)
    binding = await _binding(call, call.path("sandbox"))
    watch = call.gateway.views.watch(binding.node) if binding.live else None
    if watch is None:
        raise ApiError(409, "not-running", f"{binding.id} runs on no node that answers")
    epoch = await call.gateway.leader.epoch()
    try:
        answer = await watch.client.snapshot(
            binding.id, SnapshotCall(epoch=epoch, kind=asked.kind, reason="asked")
        )
    except AgentRefusedError as problem:
        raise ApiError(409, "not-saved", str(problem)) from problem
    except (AgentSilentError, AgentStaleError) as problem:
        raise away(f"it is not known whether it was saved: {problem}") from problem
    ref = answer.ref
    shown = Snapshot(name=name_of(ref.lineage, ref.seq), ref=ref, live=True)
    return JSONResponse(shown.wire(), 201)


async def keep(call: Call) -> Response:
    """Pin a snapshot: no rule removes it."""
    asked, place = await call.model(PinSnapshot), await _place(call)
    wanted = Pin(
        lineage=place.ref.lineage,
        seq=place.ref.seq,
        who=call.user.name,
        why=asked.why,
        at=call.gateway.clock.now(),
        until=asked.until,
    )
    try:
        await pin(call.gateway.objects, place.prefix, wanted)
    except NotFoundError:
        raise not_found(f"snapshot {place.name}") from None
    return JSONResponse({"name": place.name, "pinned": True})


async def let_go(call: Call) -> Response:
    """Unpin a snapshot; repeating it changes nothing."""
    place = await _place(call)
    await unpin(call.gateway.objects, place.prefix, place.ref.lineage, place.ref.seq)
    return JSONResponse({"name": place.name, "pinned": False})


async def delete(call: Call) -> Response:
    """Delete a snapshot. Its bytes go with the next collection, and in other regions by rule."""
    place, gateway = await _place(call), call.gateway
    held = await pins(gateway.objects, place.prefix, place.ref.lineage)
    now = gateway.clock.now()
    if any(one.seq == place.ref.seq and one.holds(now) for one in held):
        raise ApiError(409, "pinned", f"{place.name} is pinned; unpin it first")
    state = (await gateway.views.fresh_log(newest=True)).state
    for one in list(state.by_id.values()):
        wanted = one.spec.restore
        starts = one.live and (not one.node or one.kept is not None)
        if starts and wanted and (wanted.lineage, wanted.seq) == (place.ref.lineage, place.ref.seq):
            raise ApiError(409, "in-use", f"{place.name} is what {one.id} goes on from")
    why = f"deleted by {call.user.name}"
    await bury(gateway.objects, place.prefix, place.ref, why=why, now=now)
    return JSONResponse({"name": place.name, "deleted": True})


async def collect(call: Call) -> Response:
    """Remove what no snapshot needs from every repository; who saves now is waited for."""
    found = await everywhere(call.gateway, wait=not call.flag("noWait"))
    return JSONResponse(CollectedAll(items=found).wire())


# ---------------------------------------------------------------------- go on from one


async def restore(call: Call) -> Response:
    """Go on from a snapshot: what lives is put back to it, a direct sandbox that ended is made."""
    asked, place = await call.model(RestoreCall), await _place(call)
    ref = place.ref
    live = (await _living(call, [ref])).get(ref.lineage)
    if live is not None:
        wanted = RestoreFrom(lineage=ref.lineage, seq=ref.seq, any_image=asked.any_image)
        await _move(call, live.id, MoveVerb.PUT_BACK, restore=wanted)
        return JSONResponse(Restored(how="put-back", snapshot=place.name, id=live.id).wire())
    if not ref.lineage.startswith("sb/"):
        why = f"the task of {place.name} has ended; fork it to go on in sandboxes of their own"
        raise ApiError(409, "ended", why)
    spec = await _spec(call, place)
    create = _create(call, place, spec, asked.key or f"restore/{place.name}")
    create.restore = RestoreFrom(lineage=ref.lineage, seq=ref.seq, any_image=asked.any_image)
    (answer,) = (await _made(call, [create])).answers
    made = Restored(how="made", snapshot=place.name, id=answer.id or "", message=answer.message)
    return JSONResponse(made.wire(), 201)


async def fork(call: Call) -> Response:
    """Make new sandboxes of a snapshot, through the same gate as every create (case C04)."""
    asked, place = await call.model(ForkCall), await _place(call)
    if asked.image and not asked.any_image:
        raise invalid("image", asked.image, "anyImage: true", "is not the image of the snapshot")
    wanted = RestoreFrom(
        lineage=place.ref.lineage, seq=place.ref.seq, any_image=asked.any_image, fork=True
    )
    prefix = asked.key or f"fork/{call.correlation}"
    spec = await _spec(call, place)
    creates = [_create(call, place, spec, f"{prefix}/{number}") for number in range(asked.count)]
    for one in creates:
        one.restore, one.env = wanted, one.env | asked.env
        one.image = asked.image or one.image
    return JSONResponse((await _made(call, creates)).wire())


async def hibernate(call: Call) -> Response:
    """Save a sandbox and give its node back, until it is woken."""
    outcome = await _move(call, call.path("sandbox"), MoveVerb.HIBERNATE)
    return JSONResponse(outcome.wire())


async def wake(call: Call) -> Response:
    """Let a sandbox that hibernates go on, wherever there is room."""
    return JSONResponse((await _move(call, call.path("sandbox"), MoveVerb.WAKE)).wire())


async def migrate(call: Call) -> Response:
    """Move a sandbox to another node, with its state."""
    asked = await call.model(MigrateCall)
    outcome = await _move(call, call.path("sandbox"), MoveVerb.MIGRATE, node=asked.node)
    return JSONResponse(outcome.wire(), 202)


# ---------------------------------------------------------------------- shared


async def _move(
    call: Call, sandbox: str, verb: MoveVerb, *, node: str = "", restore: RestoreFrom | None = None
) -> MoveOutcome:
    ask = MoveAsk(
        project=call.project,
        id=sandbox,
        verb=verb,
        node=node,
        restore=restore,
        user=call.user.name,
    )
    outcome = await call.gateway.leader.move(ask)
    if not outcome.known:
        raise not_found(f"a live sandbox {sandbox} of project {call.project}")
    if outcome.why:
        raise ApiError(409, f"no-{verb.value}", f"{sandbox}: {outcome.why}")
    return outcome


async def _made(call: Call, creates: list[KeyedCreate]) -> KeyedAnswers:
    """Have sandboxes made by the leader: quota, budget and placement as for every create."""
    return await call.gateway.leader.create(
        CreatesCall(
            project=call.project,
            user=call.user.name,
            correlation_id=call.correlation,
            batch=CreateBatch(creates=creates),
        )
    )


async def _spec(call: Call, place: Place) -> SandboxSpec:
    """Return what a snapshot was taken of. Raises ApiError 409."""
    ref = place.ref
    if not ref.spec:
        raise ApiError(409, "incomplete", f"{place.name} does not say what it was taken of")
    if not ref.sealed:
        return SandboxSpec.model_validate(ref.spec)
    try:
        return reveal(derive(await data_key(call.gateway, place.prefix)), ref)
    except SnapshotDamagedError as problem:
        raise ApiError(409, "damaged", str(problem)) from problem


def _create(call: Call, place: Place, spec: SandboxSpec, key: str) -> KeyedCreate:
    """Return a create of what a snapshot was taken of."""
    node = call.gateway.caches["SandboxNode"].get(("", place.ref.node)) or {}
    inventory = (node.get("status") or {}).get("inventory") or {}
    # what ran on simulated nodes has invented state, and goes on there alone
    simulated = {SIMULATED_LABEL: "true"} if inventory.get("simulated") else {}
    return KeyedCreate(
        key=key,
        image=spec.image,
        command=spec.command,
        env=spec.env,
        resources=spec.resources,
        max_run_seconds=spec.max_run_seconds,
        isolation=spec.isolation,
        snapshot=spec.snapshot,
        labels=simulated,
    )


async def _place(call: Call, name: str | None = None, field: str = "snapshot") -> Place:
    """Return the snapshot that a call names, by default in its path. Raises ApiError 404, 422."""
    name = call.path("ref") if name is None else name
    prefix = prefix_of(call.gateway.tenant_of(call.project)[0])
    try:
        lineage, seq = parse_name(name)
    except ValueError as problem:
        raise invalid(field, name[:200], "LINEAGE@NUMBER", str(problem)) from problem
    found = await read_ref(call.gateway.objects, prefix, ref_key(prefix, lineage, seq))
    if found is None or (isinstance(found, SnapshotRef) and found.project != call.project):
        raise not_found(f"snapshot {name} of project {call.project}")
    if not isinstance(found, SnapshotRef):
        raise ApiError(409, "damaged", f"snapshot {name}: {found.why}")
    return Place(prefix, found)


async def _binding(call: Call, sandbox: str) -> Binding:
    binding = await call.gateway.views.binding(sandbox)
    if binding is None or binding.spec.identity.project != call.project:
        raise not_found(f"sandbox {sandbox} of project {call.project}")
    return binding


async def _living(call: Call, refs: Iterable[SnapshotRef]) -> dict[str, Binding]:
    """Return what goes on of the experiments and sandboxes of snapshots, by lineage."""
    state = (await call.gateway.views.fresh_log()).state
    found = {}
    for kind, owner in {tuple(ref.lineage.split("/")[:2]) for ref in refs}:
        known = state.of_experiment(owner) if kind == "exp" else [state.by_id.get(owner)]
        # oldest first: the newest stays
        for one in known:
            if one is not None and one.live:
                found[lineage_of(one.spec.identity)] = one
    return found


async def _repository(call: Call, place: Place) -> Repository:
    return await open_repository(call.gateway, place.prefix)
