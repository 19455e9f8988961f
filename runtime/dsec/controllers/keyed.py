"""Keyed creates: the sandboxes that a caller asks for one by one, without an experiment.

What each gets of its tenant is decided here as for experiments: default image, mirror, digest. A
key that is known keeps the image that it got first. No state: keys are in the bind log.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from dsec.api.internal import CreatesCall, LeaseAnswer, LeaseCall
from dsec.api.meta import TENANT_LABEL
from dsec.api.records import Tenant
from dsec.api.tenant import TenantSpec
from dsec.api.wire import KeyedAnswer, KeyedCreate
from dsec.controllers.creates import Placer
from dsec.controllers.digests import Digests
from dsec.controllers.images import DeclaredImages
from dsec.controllers.leasing import Leasing
from dsec.journal.bindings import Binding
from dsec.journal.bindlog import BindLog
from dsec.journal.keyed import keyed_binding, new_ids, reference_of
from dsec.world.cache import Cache
from dsec.world.clock import Clock, Randomness
from dsec.world.registry import ImageUnknownError


class CallInvalidError(LookupError):
    """What a call is about is not there, or may not be done now; the message is for its caller."""


@dataclass(slots=True)
class KeyedCreates:
    """Of one term."""

    namespaces: Cache
    tenants: Cache
    bind_log: BindLog
    placer: Placer
    digests: Digests
    declared: DeclaredImages
    leasing: Leasing
    clock: Clock
    randomness: Randomness
    money: Callable[[str, str], str] = lambda _tenant, _project: ""
    """From tenant and project to why no budget pays for more of it, in words; empty: it does."""

    async def create(self, call: CreatesCall) -> list[KeyedAnswer]:
        """Bind a batch; one answer per create, in order.

        Raises FencedError, and CallInvalidError where the project's tenant may make none.
        """
        name, rights = self.tenant_of(call.project)
        images = await self._images(call, name, rights)
        # the registries may have taken their time
        name, rights = self.tenant_of(call.project)
        refused: dict[int, KeyedAnswer] = {}
        broke = self.money(name, call.project)
        wants: list[Binding] = []
        now = self.clock.now()
        ids = new_ids(len(images), self.clock, self.randomness)
        for number, (create, image) in enumerate(zip(call.batch.creates, images, strict=True)):
            if isinstance(image, ImageUnknownError):
                refused[number] = _refused(create, image)
                continue
            if broke and self.bind_log.state.key(name, create.key) is None:
                refused[number] = KeyedAnswer(key=create.key, outcome="refused", message=broke)
                continue
            wants.append(
                keyed_binding(
                    create,
                    image=image,
                    tenant=name,
                    project=call.project,
                    rights=rights,
                    sandbox=ids[number],
                    correlation=call.correlation_id,
                    now=now,
                )
            )
        answers: Iterator[KeyedAnswer] = iter(())
        if wants:
            async with self.leasing.claimed(name, [want.key for want in wants]):
                answers = iter(await self.placer.submit(wants))
        return [refused.get(at) or next(answers) for at in range(len(call.batch.creates))]

    async def lease(self, call: LeaseCall) -> LeaseAnswer:
        """Lend a gateway quota and keys of the projects that it names.

        What sandboxes use of the images that were asked for is told besides, as far as it can be
        used at all. Raises FencedError, ObjectStoreError.
        """
        tenants: dict[str, str] = {}
        pins: dict[str, dict[str, str]] = {}
        for project in {*call.images, *(want.project for want in call.wants)}:
            try:
                tenant, rights = self.tenant_of(project)
            except CallInvalidError:
                continue
            if not self.money(tenant, project):
                # else nothing is lent: what is asked for comes here, and is told why not
                tenants[project] = tenant
            images = call.images.get(project, [])
            names = {image: reference_of(image, rights) for image in images}
            usable = {image: name for image, name in names.items() if isinstance(name, str)}
            declared = self.declared.of(project, rights)
            found = await self.digests.references(usable.values(), declared)
            pins[project] = {
                image: pinned
                for image, name in usable.items()
                if isinstance(pinned := found[name], str)
            }
        return await self.leasing.lease(call, tenants, pins)

    async def _images(
        self, call: CreatesCall, tenant: str, rights: TenantSpec
    ) -> Sequence[str | ImageUnknownError]:
        """Return what the sandbox of each create uses, or why it can use nothing."""
        # what a known key got stands, whatever its tag names now
        state = self.bind_log.state
        known = [state.key(tenant, create.key) for create in call.batch.creates]
        found = [
            binding.spec.image if binding is not None else reference_of(create.image, rights)
            for create, binding in zip(call.batch.creates, known, strict=True)
        ]
        fresh = [
            image
            for image, binding in zip(found, known, strict=True)
            if binding is None and isinstance(image, str)
        ]
        pins = await self.digests.references(fresh, self.declared.of(call.project, rights))
        return [
            pins[image] if binding is None and isinstance(image, str) else image
            for image, binding in zip(found, known, strict=True)
        ]

    def tenant_of(self, project: str) -> tuple[str, TenantSpec]:
        """Return the tenant of a namespace's label, as gateways and experiments read it.

        Raises CallInvalidError where there is none, or it may make nothing now.
        """
        namespace = self.namespaces.get(("", project))
        labels = (namespace or {}).get("metadata", {}).get("labels", {})
        name = labels.get(TENANT_LABEL, "")
        record = self.tenants.get(("", name))
        if record is None:
            raise CallInvalidError(f"project {project} belongs to no tenant")
        try:
            tenant = Tenant.model_validate(record)
        except ValidationError as problem:
            raise CallInvalidError(f"tenant {name} of project {project} is invalid") from problem
        purge = tenant.status.purge
        if purge is not None and purge.until > self.clock.now():
            until = purge.until.isoformat(timespec="seconds")
            raise CallInvalidError(
                f"{purge.by} ends all sandboxes of tenant {name} that have no experiment; none is "
                f"made before {until}"
            )
        return name, tenant.spec


def _refused(create: KeyedCreate, why: ImageUnknownError) -> KeyedAnswer:
    message = f"{why}; nothing is bound to the key: repeat the call once the image can be used"
    return KeyedAnswer(key=create.key, outcome="refused", message=message)
