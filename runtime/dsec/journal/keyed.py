"""Keyed creates as bindings: what leader and gateways make of one that was asked for. Pure."""

import hashlib
import json
from datetime import UTC, datetime
from functools import lru_cache

from dsec.api.documents.resolve import mirrored
from dsec.api.reasons import EndReason
from dsec.api.sandbox import Identity, Mount, SandboxSpec
from dsec.api.tenant import TenantSpec
from dsec.api.wire import KeyedCreate
from dsec.journal.bindings import Binding, Needs
from dsec.world.clock import Clock, Randomness
from dsec.world.registry import ImageUnknownError

WORKSPACE = "/workspace"
NOBODY = f"sb-{'0' * 26}"
"""The sandbox of a binding that stands for many."""
SIMULATED_LABEL = "dsec.dev/simulated"
"""What asks for this label with the value "true" runs on simulated nodes only."""


_LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"
_DIGITS = [first + second for first in _LETTERS for second in _LETTERS]
"""Two letters of an id at once, by ten bits of its number."""
_SHIFTS = range(120, -1, -10)


def new_id(clock: Clock, randomness: Randomness) -> str:
    """Return a fresh sandbox id; sorts by time of creation."""
    return new_ids(1, clock, randomness)[0]


def new_ids(count: int, clock: Clock, randomness: Randomness) -> list[str]:
    """Return so many fresh sandbox ids."""
    milliseconds = int(clock.now().timestamp() * 1000) << 80
    raw = randomness.randbytes(10 * count)
    numbers = [int.from_bytes(raw[at : at + 10], "big") for at in range(0, 10 * count, 10)]
    return [
        "sb-" + "".join([_DIGITS[number >> at & 1023] for at in _SHIFTS])
        for number in [milliseconds | one for one in numbers]
    ]


def keyed_binding(
    create: KeyedCreate,
    *,
    image: str,
    tenant: str,
    project: str,
    rights: TenantSpec,
    sandbox: str,
    correlation: str,
    now: datetime,
) -> Binding:
    """Return the binding that a keyed create asks for; it has no node yet.

    `image` is what the sandbox uses; a repeat of the key is known by what was asked.
    """
    # what the version before did not know must not change what a repeat is known by
    unsaid = {name for name in ("snapshot", "restore") if getattr(create, name) is None}
    body = create.model_dump_json(exclude={"key", *unsaid})
    where = (project, tenant, image, tuple(rights.pools))
    alone = create.item is not None or create.stdin is not None
    made = _made(create, body, *where) if alone else _again(body, *where)
    identity = made.spec.identity.varied(id=sandbox, correlation_id=correlation)
    spec = made.spec.varied(identity=identity)
    return made.varied(key=create.key, id=sandbox, spec=spec, at=now)


@lru_cache(maxsize=256)
def _again(body: str, project: str, tenant: str, image: str, pools: tuple[str, ...]) -> Binding:
    """Return `_made` of what is likely to be asked for again, as all of a batch."""
    create = KeyedCreate.model_validate({"key": NOBODY, **json.loads(body)})
    return _made(create, body, project, tenant, image, pools)


def _made(  # noqa: PLR0917 - what makes a binding what it is
    create: KeyedCreate, body: str, project: str, tenant: str, image: str, pools: tuple[str, ...]
) -> Binding:
    """Return a binding of all that a create asks for, of no sandbox yet."""
    return Binding(
        tenant=tenant,
        key=create.key,
        body_hash=_digest(project, body),
        id=NOBODY,
        spec=SandboxSpec(
            identity=Identity(id=NOBODY, tenant=tenant, project=project),
            image=image,
            command=create.command,
            env=create.env,
            isolation=create.isolation,
            resources=create.resources,
            mounts=[Mount(path=WORKSPACE)],
            stdin=create.stdin,
            item=create.item,
            max_run_seconds=create.max_run_seconds,
            snapshot=create.snapshot,
            restore=create.restore,
        ),
        at=datetime.min.replace(tzinfo=UTC),
        needs=Needs(
            pools=list(pools),
            gpu_model=create.labels.get("gpu-type", ""),
            simulated=create.labels.get(SIMULATED_LABEL) == "true",
        ),
    )


def _digest(project: str, create: str) -> str:
    """Return what a repeat of a key must have asked again."""
    body = {"project": project, **json.loads(create)}
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def replaceable(binding: Binding) -> bool:
    """True where a key is served anew: its sandbox lost its node, or had to leave it."""
    lost = {EndReason.NODE_LOST, EndReason.FENCED, EndReason.PREEMPTED}
    return not binding.live and binding.reason in lost


def reference_of(asked: str, rights: TenantSpec) -> str | ImageUnknownError:
    """Return the image that a create asks for, or its tenant's, as the tenant's mirrors name it."""
    image = asked or rights.defaults.image
    if not image:
        return ImageUnknownError("image: is required, or the tenant has a default image")
    prefixes = [*rights.registries, *(one.prefix for one in rights.defaults.image_mirrors)]
    if asked and rights.registries and not any(image.startswith(one) for one in prefixes):
        allowed = ", ".join(rights.registries)
        return ImageUnknownError(f"image: {image} is in none of the tenant's registries: {allowed}")
    return mirrored(image, rights)[0]
