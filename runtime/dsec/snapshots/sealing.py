"""Keys, names and ciphers of a repository.

One data key per repository is wrapped outside (a local key file, a KMS). Everything else is derived
from it: the key of the hash that names blobs, so that names tell nothing to who lacks it, and the
key that packs' own keys come from. Each sealed object has a random salt and so an AES-256-GCM key
of its own; inside it the nonce is the place of the frame, which no two frames share. Nonces made
of the content would repeat for different bytes as soon as the compressor changes.
"""

from dataclasses import dataclass

from blake3 import blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
ID_BYTES = 32
"""Length of a blob's name: a keyed BLAKE3 of its content."""
SALT_BYTES = 16
TAG_BYTES = 16
"""What sealing adds to a frame."""

Buffer = bytes | bytearray | memoryview


class SnapshotDamagedError(Exception):
    """Bytes in the store are not what was written there, or are gone."""


@dataclass(frozen=True, slots=True)
class Keys:
    """What is derived from a data key."""

    data: bytes
    names: bytes
    seals: bytes
    seed: int
    """Of the hashes that stay on one node: pages of files, boundaries of manifests."""


def derive(data: bytes) -> Keys:
    """Return the keys of a repository. Raises ValueError for a data key of a wrong length."""
    if len(data) != KEY_BYTES:
        raise ValueError(f"data key: {len(data)} bytes, wanted are {KEY_BYTES}")

    def part(purpose: str) -> bytes:
        return blake3(data, derive_key_context=f"dsec snapshots v1 {purpose}").digest()

    return Keys(data, part("names"), part("seals"), int.from_bytes(part("seed")[:8], "little"))


def name_blob(keys: Keys, data: Buffer) -> bytes:
    """Return the id of a blob."""
    return blake3(data, key=keys.names).digest()


def name_object(data: Buffer) -> str:
    """Return the hash in the name of a stored object: it needs no key to be checked."""
    return blake3(data).hexdigest()


def cipher(keys: Keys, salt: bytes) -> AESGCM:
    """Return the cipher of one object."""
    return AESGCM(blake3(salt, key=keys.seals).digest())


def nonce(place: int) -> bytes:
    """Return the nonce of what lies at a place of an object."""
    return place.to_bytes(12, "big")


def unseal(opener: AESGCM, place: int, sealed: Buffer, purpose: bytes, what: str) -> bytes:
    """Return what was sealed. Raises SnapshotDamagedError, which names `what`."""
    try:
        return opener.decrypt(nonce(place), sealed, purpose)
    except (InvalidTag, ValueError) as problem:
        raise SnapshotDamagedError(f"{what} is damaged: its seal does not fit") from problem


def seal_whole(keys: Keys, salt: bytes, data: bytes, purpose: bytes) -> bytes:
    """Return an object that is one sealed piece, its salt in front."""
    return salt + cipher(keys, salt).encrypt(nonce(0), data, purpose)


def unseal_whole(keys: Keys, stored: bytes, purpose: bytes, what: str) -> bytes:
    """Return the content of an object of `seal_whole`. Raises SnapshotDamagedError."""
    salt, sealed = stored[:SALT_BYTES], stored[SALT_BYTES:]
    return unseal(cipher(keys, salt), 0, sealed, purpose, what)
