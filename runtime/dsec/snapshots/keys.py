"""Keys of tenants: each repository has one data key, stored only wrapped.

A `KeySource` wraps and unwraps: a local file of keys (standalone, on-prem), or KMS. A wrapped key
is bound to its repository, so that one that is moved to another does not open. `repo.json` may hold
several wrappings of the same key: one for each region that may restore, and old and new ones while
a wrapping key is replaced. The data key itself is never written, logged or shown.
"""

import base64
import binascii
import json
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import Field

from dsec.api.base import WireModel
from dsec.world.clock import Randomness
from dsec.world.kms import Kms, KmsError, KmsRefusedError

KEY_BYTES = 32
NONCE_BYTES = 12
PURPOSE = "dsec-snapshots"


class KeyUnknownError(Exception):
    """No source here can open any of the wrappings; the message names them."""


class KeyAwayError(Exception):
    """The key service did not answer. Safe to retry."""


class KeyFileError(Exception):
    """A key file is missing, readable by others, or no key file."""


class WrappedKey(WireModel):
    """A data key that only its source opens."""

    source: str = Field(description="file or kms.")
    key: str = Field(description="Name of the wrapping key in its source.")
    data: str = Field(description="Base64 of the wrapped key.")


class KeySource(Protocol):
    """What wraps data keys. `repository` is the prefix that a key belongs to."""

    async def wrap(self, key: bytes, repository: str) -> WrappedKey:
        """Wrap a data key. Raises KeyAwayError, KeyUnknownError."""
        ...

    async def unwrap(self, wrapped: Sequence[WrappedKey], repository: str) -> bytes:
        """Open the first of several wrappings that this source can open.

        Raises KeyUnknownError, KeyAwayError.
        """
        ...


async def fresh_key(
    source: KeySource, repository: str, randomness: Randomness
) -> tuple[bytes, WrappedKey]:
    """Return a new data key and its wrapping. Raises KeyAwayError, KeyUnknownError."""
    key = randomness.randbytes(KEY_BYTES)
    return key, await source.wrap(key, repository)


@dataclass(frozen=True, slots=True)
class FileKeys:
    """Wrapping keys of a local file: the first one wraps, all of them open."""

    keys: tuple[tuple[str, bytes], ...] = field(repr=False)
    randomness: Randomness

    async def wrap(self, key: bytes, repository: str) -> WrappedKey:
        """Wrap a data key by AES-256-GCM, bound to its repository."""
        name, wrapping = self.keys[0]
        nonce = self.randomness.randbytes(NONCE_BYTES)
        sealed = nonce + AESGCM(wrapping).encrypt(nonce, key, _bound(repository))
        return WrappedKey(source="file", key=name, data=base64.b64encode(sealed).decode())

    async def unwrap(self, wrapped: Sequence[WrappedKey], repository: str) -> bytes:
        """Open the first wrapping that a key of the file opens. Raises KeyUnknownError."""
        known = dict(self.keys)
        for one in wrapped:
            if one.source == "file" and one.key in known:
                try:
                    sealed = base64.b64decode(one.data, validate=True)
                    return AESGCM(known[one.key]).decrypt(
                        sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], _bound(repository)
                    )
                except (InvalidTag, ValueError):
                    continue
        raise KeyUnknownError(f"{repository}: no key of the file opens {_names(wrapped)}")


@dataclass(frozen=True, slots=True)
class KmsKeys:
    """A key of KMS; the context of each wrapping names the repository."""

    kms: Kms
    key: str

    async def wrap(self, key: bytes, repository: str) -> WrappedKey:
        """Wrap a data key. Raises KeyAwayError, KeyUnknownError where the service refuses."""
        try:
            sealed = await self.kms.encrypt(self.key, key, _context(repository))
        except KmsError as problem:
            raise KeyAwayError(f"{repository}: {problem}") from problem
        except KmsRefusedError as problem:
            raise KeyUnknownError(f"{repository}: {problem}") from problem
        return WrappedKey(source="kms", key=self.key, data=base64.b64encode(sealed).decode())

    async def unwrap(self, wrapped: Sequence[WrappedKey], repository: str) -> bytes:
        """Open the wrapping of this key, or any other that the service opens."""
        why: list[str] = []
        mine_first = sorted(wrapped, key=lambda one: one.key != self.key)
        for one in mine_first:
            if one.source != "kms":
                continue
            try:
                sealed = base64.b64decode(one.data, validate=True)
                return await self.kms.decrypt(one.key, sealed, _context(repository))
            except KmsError as problem:
                raise KeyAwayError(f"{repository}: {problem}") from problem
            except (KmsRefusedError, binascii.Error) as problem:
                why.append(str(problem))
        said = f" ({'; '.join(why)})" if why else ""
        raise KeyUnknownError(f"{repository}: KMS opens none of {_names(wrapped)}{said}")


def read_key_file(path: Path, randomness: Randomness, *, mounted: bool = False) -> FileKeys:
    """Read a file of wrapping keys: JSON `{"keys": [{"name": ..., "key": base64}, ...]}`.

    Raises KeyFileError, also where others may read the file, unless it is `mounted` into a pod:
    the kubelet then decides who may, and gives it to the pod's group.
    """
    try:
        mode = path.stat().st_mode
        data = path.read_bytes()
    except OSError as problem:
        raise KeyFileError(f"{path}: {problem.strerror}") from problem
    if not mounted and stat.S_IMODE(mode) & (stat.S_IRWXG | stat.S_IRWXO):
        raise KeyFileError(f"{path}: mode {stat.S_IMODE(mode):o}: only its owner may read it (600)")
    return FileKeys(tuple(_entries(path, data)), randomness)


def make_key_file(path: Path, randomness: Randomness) -> None:
    """Make a file with one new key; one that is there stays. Raises KeyFileError."""
    name = randomness.randbytes(4).hex()
    key = base64.b64encode(randomness.randbytes(KEY_BYTES)).decode()
    text = json.dumps({"keys": [{"name": name, "key": key}]}) + "\n"
    temporary = path.with_name(f".{path.name}.{name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            # whole or not at all, and never over another process's
            os.link(temporary, path)
        except FileExistsError:
            return
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as problem:
        raise KeyFileError(f"{path}: {problem.strerror}") from problem


def _entries(path: Path, data: bytes) -> Iterable[tuple[str, bytes]]:
    wanted = 'wanted is {"keys": [{"name": ..., "key": base64 of 32 bytes}, ...]}'
    try:
        entries = json.loads(data)["keys"]
        found = [(str(one["name"]), base64.b64decode(one["key"], validate=True)) for one in entries]
    except (ValueError, KeyError, TypeError):
        # the cause could hold a key
        raise KeyFileError(f"{path}: {wanted}") from None
    if not found or any(not name or len(key) != KEY_BYTES for name, key in found):
        raise KeyFileError(f"{path}: {wanted}")
    if len({name for name, _ in found}) != len(found):
        raise KeyFileError(f"{path}: two keys have the same name")
    return found


def _bound(repository: str) -> bytes:
    return f"{PURPOSE}\0{repository.rstrip('/')}".encode()


def _context(repository: str) -> dict[str, str]:
    return {"purpose": PURPOSE, "repository": repository.rstrip("/")}


def _names(wrapped: Sequence[WrappedKey]) -> str:
    return ", ".join(f"{one.source}:{one.key}" for one in wrapped) or "nothing"
