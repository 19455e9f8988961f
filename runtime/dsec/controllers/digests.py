"""Pins the images of experiments and keyed creates to the content that their tags name now.

One per term; keeps answers for a while, so that a thousand experiments on one image are one
question. Losing it repeats a question. A registry that is away holds nothing up: sandboxes then use
the tag, with a warning, until an answer comes.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import structlog

from dsec.api import imageref
from dsec.api.reasons import PendingReason
from dsec.api.status import Resolved, RoleImage
from dsec.placement.refusal import Refusal
from dsec.world.cache import first_of
from dsec.world.clock import Clock
from dsec.world.registry import ImageUnknownError, Registry, RegistryAwayError

KEEP_SECONDS = 60.0
"""How long a known digest of a tag holds for further experiments."""
AGAIN_SECONDS = 15.0
"""When an unknown image or a silent registry is asked for again."""
NOT_PINNED = "image not pinned: "
"""Start of the warning about an image that runs by its tag."""
PIN_SECONDS = 6.0
"""How long keyed creates wait for registries; what is not known then runs by its tag."""
ASKED_AT_ONCE = 32
LOCAL = "rootfs:"
"""Images of standalone mode: a file of this machine, which no registry knows."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Answer:
    until: float
    digest: str = ""
    unknown: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class Pinned:
    """A resolved experiment with what is known of its images now.

    `missing` has, by role, why it cannot start; `again` is when to look again, None for never.
    """

    resolved: Resolved
    missing: dict[str, Refusal] = field(default_factory=dict)
    again: float | None = None


class Digests:
    """The cache in front of the registry. Without a registry nothing is pinned."""

    def __init__(self, registry: Registry | None, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock
        self._known: dict[str, _Answer] = {}
        self._asking: dict[str, asyncio.Lock] = {}

    async def pin(self, resolved: Resolved, declared: Mapping[str, str]) -> Pinned:
        """Return a resolved form whose images have digests, as far as they can be known now.

        An image once pinned stays so: the form is of one generation, and a tag that moves later
        changes nothing. `declared` has the digests of references that the project pins itself.
        """
        registry = self._registry
        if all(one.digest for one in resolved.images):
            return Pinned(resolved)
        images: list[RoleImage] = []
        missing: dict[str, Refusal] = {}
        warnings = [one for one in resolved.warnings if not one.startswith(NOT_PINNED)]
        for image in resolved.images:
            if image.digest or image.reference.startswith(LOCAL):
                images.append(image)
                continue
            answer = await self._answer(registry, image.reference, declared)
            if answer.digest:
                pinned = {
                    "reference": pinned_to(image.reference, answer.digest),
                    "digest": answer.digest,
                }
                images.append(image.model_copy(update=pinned))
                continue
            images.append(image)
            if answer.unknown:
                missing[image.role] = Refusal(PendingReason.IMAGE, "image", image.reference)
            elif registry is not None:
                told = f"{NOT_PINNED}{image.reference} of role {image.role} runs by its tag until "
                warnings.append(f"{told}its registry tells the digest ({answer.why})")
        # the condition says which; one long list of silent roles must not make the status invalid
        fresh = resolved.model_copy(update={"images": images, "warnings": warnings[:64]})
        open_ = any(not one.digest and not one.reference.startswith(LOCAL) for one in images)
        return Pinned(fresh, missing, AGAIN_SECONDS if open_ and registry is not None else None)

    async def references(
        self, images: Iterable[str], declared: Mapping[str, str]
    ) -> dict[str, str | ImageUnknownError]:
        """Return, by reference, what sandboxes use, or that the registry has no such image.

        Takes at most PIN_SECONDS: an image whose registry is silent keeps its tag.
        """
        found: dict[str, str | ImageUnknownError] = {}
        slots = asyncio.Semaphore(ASKED_AT_ONCE)

        async def one(image: str) -> None:
            async with slots:
                answer = await self._answer(self._registry, image, declared)
            if answer.unknown:
                found[image] = ImageUnknownError(answer.why)
            elif answer.digest:
                found[image] = pinned_to(image, answer.digest)

        wanted = dict.fromkeys(images)
        asked = [i for i in wanted if "@" not in i and not i.startswith(LOCAL)]
        if asked:
            together = asyncio.gather(*(one(image) for image in asked))
            await first_of(together, self._clock.sleep(PIN_SECONDS))
        return {image: found.get(image, image) for image in wanted}

    async def _answer(
        self, registry: Registry | None, reference: str, declared: Mapping[str, str]
    ) -> _Answer:
        """Return what is known of a reference: the project's own word first."""
        if digest := declared.get(reference):
            return _Answer(0.0, digest=digest)
        if registry is None:
            return _Answer(0.0)
        return await self._ask(registry, reference)

    async def _ask(self, registry: Registry, reference: str) -> _Answer:
        async with self._asking.setdefault(reference, asyncio.Lock()):
            known = self._known.get(reference)
            if known is not None and known.until > self._clock.monotonic():
                return known
            answer = await self._fresh(registry, reference)
            self._known[reference] = answer
        self._forget()
        return answer

    async def _fresh(self, registry: Registry, reference: str) -> _Answer:
        try:
            digest = await registry.digest(reference)
        except ImageUnknownError as problem:
            log.warning("image unknown", image=reference, why=str(problem))
            return _Answer(self._clock.monotonic() + AGAIN_SECONDS, unknown=True, why=str(problem))
        except RegistryAwayError as problem:
            log.warning("image not pinned", image=reference, why=str(problem))
            return _Answer(self._clock.monotonic() + AGAIN_SECONDS, why=str(problem))
        return _Answer(self._clock.monotonic() + KEEP_SECONDS, digest=digest)

    def _forget(self) -> None:
        """Drop what has run out; an image that is asked for now is kept."""
        now = self._clock.monotonic()
        self._known = {name: one for name, one in self._known.items() if one.until > now}
        self._asking = {
            name: lock
            for name, lock in self._asking.items()
            if name in self._known or lock.locked()
        }


def pinned_to(reference: str, digest: str) -> str:
    """Return a reference with that digest: what sandboxes use."""
    parsed = imageref.parse(reference)
    tag = f":{parsed.tag}" if parsed.tag else ""
    return f"{parsed.name}{tag}@{digest}"
