"""The SandboxImage controller: what a reference names, how large it is, and whether it moved.

The first answer stands: experiments and keyed creates of the project use the digest of the record,
whatever the tag names later. Soft state only: every look asks the registry again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import structlog
from pydantic import ValidationError

from dsec.api import imageref
from dsec.api.documents.resolve import mirrored
from dsec.api.meta import TENANT_LABEL, Condition, ConditionStatus, ObjectMeta, with_condition
from dsec.api.mistakes import mistakes_of
from dsec.api.nodes import RecordReason, SandboxImageStatus
from dsec.api.records import SandboxImage, Tenant
from dsec.api.tenant import TenantSpec
from dsec.controllers.digests import AGAIN_SECONDS, LOCAL, pinned_to
from dsec.world.cache import Cache, Key
from dsec.world.clock import Clock
from dsec.world.records import Record, Records
from dsec.world.registry import ImageUnknownError, Registry, RegistryAwayError

LOOK_SECONDS = 600.0
"""How often a known image is looked for again: its tag may move, its registry may lose it."""

log = structlog.get_logger()
TRUE, FALSE, UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN


@dataclass(frozen=True, slots=True)
class DeclaredImages:
    """What the SandboxImage records of a project say about references."""

    images: Cache

    def of(self, project: str, rights: TenantSpec) -> dict[str, str]:
        """Return the digest of each reference that a project pins, as its tenant's mirrors name it.

        A digest that the record asks for holds at once, others once the registry has told them.
        """
        found = {}
        for record in self.images.all():
            if record["metadata"].get("namespace") != project:
                continue
            try:
                image = SandboxImage.model_validate(record)
                reference, _ = mirrored(image.spec.reference, rights)
                known = imageref.parse(reference)
            except ValueError:
                continue  # its condition says what is wrong with it
            digest = image.spec.digest or image.status.digest
            if digest and not known.digest and not reference.startswith(LOCAL):
                found[reference] = digest
        return found


@dataclass(frozen=True, slots=True)
class _Found:
    """What one look has shown. `moved` is what the tag names where that is not `digest`."""

    holds: ConditionStatus
    reason: RecordReason
    message: str
    digest: str = ""
    size: int = 0
    tag: str = ""
    again: float = LOOK_SECONDS


@dataclass(slots=True)
class Images:
    """The reconciler of SandboxImage records."""

    records: Records
    images: Cache
    namespaces: Cache
    tenants: Cache
    registry: Registry | None
    clock: Clock

    async def reconcile(self, key: Key) -> float | None:
        """Write what an image is."""
        record = self.images.get(key)
        if record is None:
            return None
        meta = ObjectMeta.model_validate(record["metadata"])
        if meta.deletion_timestamp is not None:
            return None
        try:
            image = SandboxImage.model_validate(record)
        except ValidationError as problem:
            message = "; ".join(str(one) for one in mistakes_of(problem))
            found = _Found(FALSE, RecordReason.INVALID, message)
            await self._write(record, meta, _old(record), found, [])
            return None
        found = await self._look(image)
        await self._write(record, meta, image.status, found, image.spec.preload_pools)
        return found.again

    async def _look(self, image: SandboxImage) -> _Found:
        """Ask the registry, as far as that is needed."""
        asked = image.spec.reference
        if asked.startswith(LOCAL):
            message = "a file of the machine; no registry is asked"
            return _Found(TRUE, RecordReason.LOCAL_IMAGE, message)
        reference, _ = mirrored(asked, self._rights(image.metadata.namespace))
        try:
            own = imageref.parse(reference).digest
        except ValueError as problem:
            return _Found(FALSE, RecordReason.INVALID, str(problem))
        if own and image.spec.digest and own != image.spec.digest:
            message = f"spec.reference names {own} and spec.digest {image.spec.digest}"
            return _Found(FALSE, RecordReason.INVALID, message)
        if self.registry is None:
            message = "this installation asks no registry; nodes use the reference as it is"
            return _Found(UNKNOWN, RecordReason.NO_REGISTRY, message, image.spec.digest)
        return await self._ask(self.registry, image, reference)

    async def _ask(self, registry: Registry, image: SandboxImage, reference: str) -> _Found:
        digest, size, tag = image.spec.digest or image.status.digest, image.status.size_bytes, ""
        same = digest == image.status.digest
        try:
            try:
                tag = await registry.digest(reference)
            except ImageUnknownError:
                if not digest:
                    raise  # else the tag may be gone, and the content still there
            digest = digest or tag
            size = await registry.size(pinned_to(reference, digest))
        except ImageUnknownError as problem:
            return _Found(
                FALSE,
                RecordReason.IMAGE_UNKNOWN,
                str(problem),
                digest,
                tag=tag,
                again=AGAIN_SECONDS,
            )
        except RegistryAwayError as problem:
            if same and size:
                # it has been there, and nodes that have it need nobody: no reason to stop using it
                message = f"{_named(reference, digest)}; not looked for now: {problem}"
                return _Found(TRUE, RecordReason.READY, message, digest, size, again=AGAIN_SECONDS)
            return _Found(
                UNKNOWN, RecordReason.REGISTRY_AWAY, str(problem), digest, again=AGAIN_SECONDS
            )
        return _Found(TRUE, RecordReason.READY, _named(reference, digest), digest, size, tag)

    async def _write(
        self,
        record: Record,
        meta: ObjectMeta,
        old: SandboxImageStatus,
        found: _Found,
        preload: Sequence[str],
    ) -> None:
        """Write a status that says something new."""
        now = self.clock.now().replace(microsecond=0)
        generation = meta.generation
        conditions = [one for one in old.conditions if one.type == "Ready"]
        rows = [("Ready", found.holds, found.reason, found.message)]
        if found.tag and found.digest and found.tag != found.digest:
            message = f"the tag names {found.tag} by now; the project stays with {found.digest}"
            rows.append(("Current", FALSE, RecordReason.TAG_MOVED, message))
        elif found.tag:
            message = "the tag names the digest in use"
            rows.append(("Current", TRUE, RecordReason.TAG_CURRENT, message))
        elif found.holds is not FALSE:
            # nothing was learnt about the tag: what was known stands
            conditions += [one for one in old.conditions if one.type == "Current"]
        if preload:
            message = "this version fetches images at their first use"
            rows.append(("Preloaded", FALSE, RecordReason.NOT_OFFERED, message))
        for kind, holds, reason, message in rows:
            before = [one for one in old.conditions if one.type == kind]
            rest = [one for one in conditions if one.type != kind]
            fresh = Condition(
                type=kind,
                status=holds,
                reason=reason.value,
                message=message[:4000],
                observed_generation=generation,
            )
            conditions = with_condition([*rest, *before], fresh, now=now)
        status = SandboxImageStatus(
            observed_generation=generation,
            conditions=conditions,
            ready=found.holds is TRUE,
            digest=found.digest,
            size_bytes=found.size,
        )
        if status != old:
            body = status.model_dump(mode="json", by_alias=True, exclude_none=True)
            self.images.put(await self.records.replace_status({**record, "status": body}))
            log.info("image", name=meta.name, project=meta.namespace, reason=found.reason.value)

    def _rights(self, namespace: str) -> TenantSpec:
        """Return what the tenant of a namespace may; of no tenant: nothing is mirrored."""
        labels = (self.namespaces.get(("", namespace)) or {}).get("metadata", {}).get("labels", {})
        record = self.tenants.get(("", labels.get(TENANT_LABEL, "")))
        try:
            return Tenant.model_validate(record).spec if record is not None else TenantSpec()
        except ValidationError:
            return TenantSpec()


def _named(reference: str, digest: str) -> str:
    return f"{reference.partition('@')[0]} is {digest}"


def _old(record: Record) -> SandboxImageStatus:
    """Return the status of a record that cannot be read as a whole."""
    try:
        return SandboxImageStatus.model_validate(record.get("status") or {})
    except ValidationError:
        return SandboxImageStatus()
