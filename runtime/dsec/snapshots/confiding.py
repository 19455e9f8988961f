"""What a reference says only to who has the tenant's key: what a program was given may be secret.

References are copied between regions and read by services that hold no key, while all that a
program wrote is sealed: its variables and its input must be as well.
"""

import base64
import binascii
import json

from dsec.api.sandbox import SandboxSpec
from dsec.api.snapshot import SnapshotRef
from dsec.snapshots.sealing import SALT_BYTES, Keys, SnapshotDamagedError, seal_whole, unseal_whole
from dsec.world.clock import Randomness

SECRET = ("env", "item", "stdin")
PURPOSE = b"spec"


def confide(keys: Keys, randomness: Randomness, spec: SandboxSpec) -> tuple[dict[str, object], str]:
    """Return the part of a spec that anybody may read, and the rest of it, sealed, in base64."""
    said = spec.wire()
    secret = {name: said.pop(name) for name in SECRET if said.get(name)}
    if not secret:
        return said, ""
    salt = randomness.randbytes(SALT_BYTES)
    sealed = seal_whole(keys, salt, json.dumps(secret).encode(), PURPOSE)
    return said, base64.b64encode(sealed).decode()


def reveal(keys: Keys, ref: SnapshotRef) -> SandboxSpec:
    """Return the whole spec of what was saved. Raises SnapshotDamagedError."""
    what = f"spec of {ref.lineage}@{ref.seq}"
    try:
        stored = base64.b64decode(ref.sealed, validate=True)
    except binascii.Error as problem:
        raise SnapshotDamagedError(f"{what} is damaged: {problem}") from problem
    secret = json.loads(unseal_whole(keys, stored, PURPOSE, what))
    return SandboxSpec.model_validate(ref.spec | secret)
