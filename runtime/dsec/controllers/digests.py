"""Pins the images of an experiment to the content that their tags name when it is submitted.

One per term; keeps answers for a while, so that a thousand experiments on one image are one
question. Losing it repeats a question. A registry that is away holds nothing up: sandboxes then use
the tag, with a warning, until an answer comes.
"""

import asyncio
from dataclasses import dataclass, field

import structlog

from dsec.api import imageref
from dsec.api.reasons import PendingReason
from dsec.api.status import Resolved, RoleImage
from dsec.placement.refusal import Refusal
from dsec.world.clock import Clock
from dsec.world.registry import ImageUnknownError, Registry, RegistryAwayError

KEEP_SECONDS = 60.0
"""How long a known digest of a tag holds for further experiments."""
AGAIN_SECONDS = 15.0
"""When an unknown image or a silent registry is asked for again."""
NOT_PINNED = "image not pinned: "
"""Start of the warning about an image that runs by its tag."""
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

    async def pin(self, resolved: Resolved) -> Pinned:
        """Return a resolved form whose images have digests, as far as they can be known now.

        An image once pinned stays so: the form is of one generation, and a tag that moves later
        changes nothing.
        """
        registry = self._registry
        if registry is None or all(one.digest for one in resolved.images):
            return Pinned(resolved)
        images: list[RoleImage] = []
        missing: dict[str, Refusal] = {}
        warnings = [one for one in resolved.warnings if not one.startswith(NOT_PINNED)]
        for image in resolved.images:
            if image.digest or image.reference.startswith(LOCAL):
                images.append(image)
                continue
            answer = await self._ask(registry, image.reference)
            images.append(_pinned(image, answer.digest) if answer.digest else image)
            if answer.unknown:
                missing[image.role] = Refusal(PendingReason.IMAGE, "image", image.reference)
            elif not answer.digest:
                told = f"{NOT_PINNED}{image.reference} of role {image.role} runs by its tag until "
                warnings.append(f"{told}its registry tells the digest ({answer.why})")
        # the condition says which; one long list of silent roles must not make the status invalid
        fresh = resolved.model_copy(update={"images": images, "warnings": warnings[:64]})
        open_ = any(not one.digest and not one.reference.startswith(LOCAL) for one in images)
        return Pinned(fresh, missing, AGAIN_SECONDS if open_ else None)

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


def _pinned(image: RoleImage, digest: str) -> RoleImage:
    """Return an image with its digest in the reference: what sandboxes use."""
    parsed = imageref.parse(image.reference)
    tag = f":{parsed.tag}" if parsed.tag else ""
    reference = f"{parsed.name}{tag}@{digest}"
    return image.model_copy(update={"reference": reference, "digest": digest})
