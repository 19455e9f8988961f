"""Keyed creates as bindings: what leader and gateways make of one that was asked for. Pure."""

import hashlib
import json
from datetime import datetime
from functools import lru_cache

from ulid import ULID

from dsec.api.documents.resolve import mirrored
from dsec.api.reasons import EndReason
from dsec.api.sandbox import Identity, Mount, SandboxSpec
from dsec.api.tenant import TenantSpec
from dsec.api.wire import KeyedCreate
from dsec.journal.bindings import Binding, Needs
from dsec.world.clock import Clock, Randomness
from dsec.world.registry import ImageUnknownError

WORKSPACE = "/workspace"
SIMULATED_LABEL = "dsec.dev/simulated"
"""What asks for this label with the value "true" runs on simulated nodes only."""


def new_id(clock: Clock, randomness: Randomness) -> str:
    """Return a fresh sandbox id; sorts by time of creation."""
    milliseconds = int(clock.now().timestamp() * 1000)
    raw = milliseconds.to_bytes(6, "big") + randomness.randbytes(10)
    return f"sb-{str(ULID.from_bytes(raw)).lower()}"


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
    spec = SandboxSpec(
        identity=Identity(id=sandbox, tenant=tenant, project=project, correlation_id=correlation),
        image=image,
        command=create.command,
        env=create.env,
        isolation=create.isolation,
        resources=create.resources,
        mounts=[Mount(path=WORKSPACE)],
        stdin=create.stdin,
        item=create.item,
        max_run_seconds=create.max_run_seconds,
        devices=[],
    )
    asked = create.labels.get(SIMULATED_LABEL)
    return Binding(
        tenant=tenant,
        key=create.key,
        body_hash=_digest(project, create.model_dump_json(exclude={"key"})),
        id=sandbox,
        spec=spec,
        at=now,
        needs=Needs(
            pools=list(rights.pools),
            gpu_model=create.labels.get("gpu-type", ""),
            simulated=asked == "true",
        ),
    )


@lru_cache(maxsize=256)
def _digest(project: str, create: str) -> str:
    """Return what a repeat of a key must have asked again; a batch asks the same many times."""
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
