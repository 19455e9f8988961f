"""Experiments over HTTP: submit, apply, read, describe, freeze, scale, results, inputs."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping

from pydantic import Field
from starlette.responses import JSONResponse, Response, StreamingResponse

from dsec.api.base import WireModel
from dsec.api.changes import changes
from dsec.api.decisions import SandboxDecision
from dsec.api.describe import describe as in_words
from dsec.api.experiment import MAX_REPLICAS, ExperimentSpec
from dsec.api.reaping import Mark
from dsec.api.records import Experiment
from dsec.api.sandbox import SandboxStatus
from dsec.api.status import Override, OverrideKind
from dsec.gateway.calls import DOCUMENT_BYTES, INPUT_BYTES, Call
from dsec.gateway.costs import estimated
from dsec.gateway.errors import ApiError, invalid
from dsec.gateway.overrides import experiment_of, override, scaled
from dsec.journal.bindings import Binding
from dsec.journal.inputs import ITEM_BYTES, input_key
from dsec.world.cache import first_of
from dsec.world.objects import ObjectStoreError, PreconditionError
from dsec.world.records import Record, RecordConflictError, RecordNotFoundError

ATTEMPTS = 5
"""Tries of a read-modify-write before a conflict is the caller's."""
CORRELATION_ANNOTATION = "dsec.dev/correlation-id"
NAME_LENGTH = 63
"""A record's name is a DNS label."""
DECISIONS_SECONDS = 2.0
"""How long a description waits for the history of decisions."""
SUFFIX = 6
"""Characters that tell experiments of one name apart."""


class ScaleCall(WireModel):
    """A live replica count of one role."""

    role: str
    replicas: int = Field(ge=0, le=MAX_REPLICAS)


async def submit(call: Call) -> Response:
    """Create an experiment from a document, or with mode=apply create or update it.

    A submit always makes a new experiment: where the name is taken it gets a suffix. The answer to
    an apply has `changes`, the fields in which the document differs from the record that was there.
    """
    mode = call.request.query_params.get("mode", "submit")
    if mode not in ("submit", "apply"):
        raise invalid("mode", mode, "submit or apply", "must be submit or apply")
    text = _text(await call.body(DOCUMENT_BYTES, "a task document"))
    tenant, rights = call.gateway.tenant_of(call.project)
    checked = await call.gateway.documents.check(
        text,
        project=call.project,
        tenant=tenant,
        rights=rights,
        settings=call.gateway.config.settings,
    )
    experiment = checked.parsed.record(call.project)
    record = experiment.record()
    record.pop("status", None)
    record["metadata"]["annotations"] = {
        CORRELATION_ANNOTATION: call.correlation,
        "dsec.dev/submitted-by": call.user.name,
    }
    if call.flag("dryRun"):
        resolved = checked.resolved.model_copy(update={"warnings": checked.warnings})
        shown = {"resolved": resolved.model_dump(mode="json", by_alias=True, exclude_none=True)}
        answer = {**record, "status": shown}
        spec = checked.resolved.spec
        answer["estimate"] = await estimated(call, spec, rights.defaults.currency)
        old = await _found(call, record["metadata"]["name"]) if mode == "apply" else None
        if old is not None:
            answer["changes"] = _changes(old, record)
        return JSONResponse(answer)
    if mode == "submit":
        return await _create(call, record)
    return await _apply(call, record)


async def _create(call: Call, record: Record) -> Response:
    """Create a record under its name, or where that is taken under the name with a suffix.

    The suffix comes from the correlation id, so that a call that is repeated because its answer was
    lost finds what it made.
    """
    given, spec = record["metadata"]["name"], record["spec"]
    for attempt in range(ATTEMPTS):
        try:
            return JSONResponse(await call.gateway.records.create(record), 201)
        except RecordConflictError:
            old = await _found(call, record["metadata"]["name"])
        told = (old or {}).get("metadata", {}).get("annotations", {}).get(CORRELATION_ANNOTATION)
        if old is not None and told == call.correlation and not _changes(old, {"spec": spec}):
            return JSONResponse(old)
        digest = hashlib.sha256(f"{call.correlation}/{attempt}".encode()).hexdigest()[:SUFFIX]
        record["metadata"]["name"] = f"{given[: NAME_LENGTH - SUFFIX - 1]}-{digest}"
    raise ApiError(409, "conflict", f"no free name found beside {given}; try again")


def _changes(old: Record, new: Record) -> list[dict[str, object]]:
    before, after = (ExperimentSpec.model_validate(one["spec"]) for one in (old, new))
    return [one.wire() for one in changes(before, after)]


async def _found(call: Call, name: str) -> Record | None:
    try:
        return await call.gateway.records.get("Experiment", name, call.project)
    except RecordNotFoundError:
        return None


async def _apply(call: Call, record: Record) -> Response:
    records, name = call.gateway.records, record["metadata"]["name"]
    for attempt in range(ATTEMPTS):
        old = await _found(call, name)
        if old is None:
            try:
                return JSONResponse(await records.create(record), 201)
            except RecordConflictError:
                continue
        if old.get("spec") == record["spec"]:
            return JSONResponse({**old, "changes": []})
        told = _changes(old, record)
        try:
            written = await records.replace({**old, "spec": record["spec"]})
            return JSONResponse({**written, "changes": told})
        except RecordConflictError:
            if attempt == ATTEMPTS - 1:
                raise
    raise ApiError(409, "conflict", f"experiment {name} changes too fast; try again")


async def list_all(call: Call) -> Response:
    """Return the experiments of the project."""
    found = await call.gateway.records.list("Experiment", call.project)
    return JSONResponse({"items": found.items})


async def read(call: Call) -> Response:
    """Return one experiment."""
    return JSONResponse(await _get(call))


async def describe(call: Call) -> Response:
    """Return an experiment in words."""
    experiment = Experiment.model_validate(await _get(call))
    sandboxes = await call.gateway.views.of_project(call.project, experiment.metadata.name)
    words = in_words(
        experiment,
        now=call.gateway.clock.now(),
        sandboxes=sandboxes,
        decisions=await _decisions(call, sandboxes),
        marks=await _marks(call),
    )
    return JSONResponse(words.wire())


async def _marks(call: Call) -> Mapping[str, Mark]:
    """Return what the reaper knows; a description does not fail without it."""
    try:
        return await call.gateway.reaper.marks()
    except ObjectStoreError:
        return {}


async def _decisions(call: Call, sandboxes: list[SandboxStatus]) -> dict[str, SandboxDecision]:
    """Return the newest decision about one sandbox of each role, by role.

    History is read once and remembered; a description does not wait for more than a moment of it,
    nor for a store that is away.
    """
    gateway = call.gateway
    log = (await gateway.views.fresh_log()).state
    newest = {
        one.identity.role: one.identity.id for one in sandboxes if one.identity.id in log.by_id
    }
    if not newest:
        return {}
    since = min(log.by_id[sandbox].at for sandbox in newest.values())
    reading = asyncio.ensure_future(gateway.decisions.find(newest.values(), since))
    await first_of(asyncio.wait({reading}), gateway.clock.sleep(DECISIONS_SECONDS))
    if not reading.done():
        # it reads on: the next description has it
        reading.add_done_callback(lambda done: done.cancelled() or done.exception())
        return {}
    try:
        found = reading.result()
    except ObjectStoreError:
        return {}
    return {role: found[sandbox] for role, sandbox in newest.items() if sandbox in found}


async def delete(call: Call) -> Response:
    """Ask for the end of an experiment; deleting what is absent is no error."""
    try:
        record = await _get(call)
    except ApiError:
        return JSONResponse({}, 200)
    meta = record["metadata"]
    await call.gateway.records.delete("Experiment", meta["name"], call.project, uid=meta["uid"])
    return JSONResponse({}, 202)


async def freeze(call: Call) -> Response:
    """Stop an experiment and keep its scene; repeating it changes nothing."""

    def change(experiment: Experiment) -> list[Override]:
        kept = experiment.status.overrides
        if any(one.kind is OverrideKind.FREEZE for one in kept):
            return kept
        return [*kept, _override(call, OverrideKind.FREEZE)]

    return JSONResponse(await override(call.gateway, call.project, call.path("name"), change))


async def scale(call: Call) -> Response:
    """Set the live replica count of a role, until its declared count changes."""
    wanted = await call.model(ScaleCall)

    def change(experiment: Experiment) -> list[Override]:
        return scaled(
            experiment,
            wanted.role,
            wanted.replicas,
            by=call.user.name,
            at=call.gateway.clock.now(),
        )

    return JSONResponse(await override(call.gateway, call.project, call.path("name"), change))


async def results(call: Call) -> Response:
    """Stream how each sandbox ended, by role and index; of each replica the last word only."""
    record = await _get(call)
    log = await call.gateway.views.fresh_log(newest=True)
    last: dict[tuple[str, int], Binding] = {}
    for binding in log.state.of_experiment(record["metadata"]["uid"]):
        identity = binding.spec.identity
        last[identity.role, identity.index] = binding
    ended = [last[key] for key in sorted(last) if not last[key].live]

    async def lines() -> AsyncIterator[bytes]:
        for binding in ended:
            status = await _result(call, binding)
            yield status.model_dump_json(by_alias=True, exclude_none=True).encode() + b"\n"

    return StreamingResponse(lines(), media_type="application/x-ndjson")


async def put_input(call: Call) -> Response:
    """Store the items of a batch under their digest; repeating it changes nothing."""
    digest = call.path("sha256")
    data = await call.body(INPUT_BYTES)
    found = hashlib.sha256(data).hexdigest()
    if digest != found:
        raise invalid("sha256", digest, found, "is not the SHA-256 of the body")
    _check_items(data)
    try:
        await call.gateway.objects.put_if_absent(input_key(call.project, digest), data)
    except PreconditionError:
        return JSONResponse({"sha256": digest, "stored": False})
    return JSONResponse({"sha256": digest, "stored": True}, 201)


def _check_items(data: bytes) -> None:
    """Refuse items that no sandbox could be given. Raises ApiError 422."""
    for number, line in enumerate(data.split(b"\n")):
        where = f"items[{number}]"
        if len(line) > ITEM_BYTES:
            allowed = f"at most {ITEM_BYTES} bytes"
            raise invalid(where, f"{len(line)} bytes", allowed, f"must have {allowed}")
        try:
            line.decode()
        except UnicodeDecodeError as problem:
            raise invalid(where, "bytes", "UTF-8 text", f"is not UTF-8: {problem}") from problem


async def _result(call: Call, binding: Binding) -> SandboxStatus:
    views = call.gateway.views
    found = await views.results.read(binding.result) if binding.result else None
    return found or views.status(binding)


async def _get(call: Call) -> Record:
    """Return the record of a name as given or as stored. Raises ApiError 404."""
    return await experiment_of(call.gateway, call.project, call.path("name"))


def _override(call: Call, kind: OverrideKind) -> Override:
    return Override(kind=kind, by=call.user.name, at=call.gateway.clock.now())


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as problem:
        raise invalid("document", "bytes", "UTF-8 text", f"is not UTF-8: {problem}") from problem
