"""Who calls, and may they: API keys (hashed), Kubernetes tokens, SubjectAccessReviews.

API keys are entries of the Secret `dsec-api-keys`: `<id>.json` holds {id, sha256, user, groups}. A
key reads `dsec_<id>_<random>`; only its digest is stored. Everything else is a Kubernetes token.
"""

import base64
import binascii
import hashlib
import hmac
import json
from dataclasses import dataclass, field, replace

import structlog
from pydantic import Field, ValidationError

from dsec.api.base import WireModel
from dsec.gateway.errors import ApiError
from dsec.world.clock import Clock
from dsec.world.records import Access, RecordNotFoundError, Records, User

KEYS_SECRET = "dsec-api-keys"  # noqa: S105 - the name of a Secret, not a secret
KEY_PREFIX = "dsec_"
KEYS_SECONDS = 5.0
"""A revoked key works at most this much longer."""
TOKEN_SECONDS = 30.0
ALLOWED_SECONDS = 10.0
"""An answer of the authoriser is reused for this long: a withdrawn right works that much longer."""
CACHE_SIZE = 10_000

log = structlog.get_logger()


class ApiKeyEntry(WireModel):
    """One API key as it is stored: never the key itself."""

    id: str = Field(pattern=r"^[a-z0-9-]{1,63}$")
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    user: str
    groups: list[str] = []


def key_entry(key: str, user: str, groups: list[str]) -> ApiKeyEntry:
    """Return what is stored of a key `dsec_<id>_<random>`. Raises ValueError for another form."""
    parts = key.split("_")
    if len(parts) != 3 or parts[0] != "dsec":  # noqa: PLR2004 - dsec, id, random
        raise ValueError("an API key reads dsec_<id>_<random>")
    return ApiKeyEntry(
        id=parts[1], sha256=hashlib.sha256(key.encode()).hexdigest(), user=user, groups=groups
    )


def keys_secret(entries: list[ApiKeyEntry], namespace: str) -> dict[str, object]:
    """Return the Secret that holds these entries."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": KEYS_SECRET, "namespace": namespace},
        "data": {
            f"{entry.id}.json": base64.b64encode(entry.model_dump_json().encode()).decode()
            for entry in entries
        },
    }


@dataclass(slots=True)
class Authority:
    """Answers for one gateway. Caches are soft and bounded."""

    records: Records
    clock: Clock
    namespace: str
    _keys: dict[str, ApiKeyEntry] = field(default_factory=dict)
    _keys_read: float | None = None
    _users: dict[str, tuple[float, User]] = field(default_factory=dict)
    _granted: dict[tuple[str, tuple[str, ...], Access], float] = field(default_factory=dict)

    async def user(self, header: str) -> User:
        """Return the caller of an Authorization header. Raises ApiError 401, RecordsError."""
        kind, _, token = header.partition(" ")
        if kind.lower() != "bearer" or not token:
            raise ApiError(401, "unauthenticated", "send Authorization: Bearer <API key or token>")
        user = await (
            self._by_key(token) if token.startswith(KEY_PREFIX) else self._by_token(token)
        )
        if user is None:
            raise ApiError(401, "unauthenticated", "the API key or token is not valid")
        return user

    async def require(self, user: User, access: Access) -> None:
        """Ask the authoriser. Raises ApiError 403, RecordsError."""
        if not await self.allows(user, access):
            target = access.resource + (f"/{access.subresource}" if access.subresource else "")
            place = f" in project {access.namespace}" if access.namespace else ""
            raise ApiError(403, "denied", f"{user.name} may not {access.verb} {target}{place}")

    async def allows(self, user: User, access: Access) -> bool:
        """Return whether the authoriser grants it. Raises RecordsError."""
        now = self.clock.monotonic()
        # a name never widens a right that holds for all names: one answer serves a whole project
        question = (user.name, user.groups, replace(access, name=""))
        if self._granted.get(question, -1.0) > now:
            return True
        granted, _ = await self.records.allowed(user, access)
        if granted and not access.name:
            if len(self._granted) >= CACHE_SIZE:
                self._granted.clear()
            self._granted[question] = now + ALLOWED_SECONDS
        return granted

    async def _by_key(self, key: str) -> User | None:
        now = self.clock.monotonic()
        if self._keys_read is None or now - self._keys_read > KEYS_SECONDS:
            self._keys = await self._read_keys()
            self._keys_read = now
        entry = self._keys.get(key.split("_")[1])
        digest = hashlib.sha256(key.encode()).hexdigest()
        if entry is None or not hmac.compare_digest(entry.sha256, digest):
            return None
        return User(entry.user, tuple(entry.groups))

    async def _read_keys(self) -> dict[str, ApiKeyEntry]:
        try:
            secret = await self.records.get("Secret", KEYS_SECRET, self.namespace)
        except RecordNotFoundError:
            return {}
        found = {}
        for name, value in secret.get("data", {}).items():
            try:
                entry = ApiKeyEntry.model_validate(json.loads(base64.b64decode(value)))
            except (ValidationError, ValueError, binascii.Error) as problem:
                log.warning("API key entry is not usable", entry=name, error=str(problem))
                continue
            found[entry.id] = entry
        return found

    async def _by_token(self, token: str) -> User | None:
        digest = hashlib.sha256(token.encode()).hexdigest()
        now = self.clock.monotonic()
        until, known = self._users.get(digest, (0.0, None))
        if known is not None and until > now:
            return known
        user = await self.records.authenticate(token)
        if user is not None:
            if len(self._users) >= CACHE_SIZE:
                self._users.clear()
            self._users[digest] = (now + TOKEN_SECONDS, user)
        return user
