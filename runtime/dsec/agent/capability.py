"""Per-sandbox capabilities: a gateway authorises a caller once, an agent verifies it alone.

A capability is a JWT signed with the gateways' Ed25519 key: {sandbox, project, tenant, verbs, exp}.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

import jwt

from dsec.api.sandbox import Identity

HEADER = "X-Dsec-Capability"
LONGEST = timedelta(minutes=15)
SKEW = timedelta(seconds=5)
"""Clocks differ by at most 0.5 s on nodes that get work; the rest is for a slow handshake."""


class CapabilityError(Exception):
    """The capability does not allow this call; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What a capability allows."""

    sandbox: str
    project: str
    tenant: str
    verbs: frozenset[str]
    expires: datetime


def verify(token: str, public_key_pem: str, now: datetime) -> Grant:
    """Check signature, life time and shape. Raises CapabilityError."""
    if not public_key_pem:
        raise CapabilityError("this node knows no key to verify capabilities with")
    try:
        claims = jwt.decode(
            token,
            public_key_pem,
            algorithms=["EdDSA"],
            # times are checked below, against the clock that was passed in
            options={"verify_exp": False, "verify_iat": False, "require": ["exp"]},
        )
        expires = datetime.fromtimestamp(float(claims["exp"]), tz=now.tzinfo)
        grant = Grant(
            sandbox=str(claims["sandbox"]),
            project=str(claims["project"]),
            tenant=str(claims["tenant"]),
            verbs=frozenset(map(str, claims["verbs"])),
            expires=expires,
        )
    except (jwt.PyJWTError, KeyError, TypeError, ValueError) as error:
        raise CapabilityError(f"capability: {error}") from error
    if expires + SKEW <= now:
        raise CapabilityError("capability: expired")
    if expires > now + LONGEST + SKEW:
        raise CapabilityError("capability: it may live 15 minutes at most")
    return grant


def check(grant: Grant, identity: Identity, verb: str) -> None:
    """Check that a grant is for this sandbox and verb. Raises CapabilityError."""
    if (grant.sandbox, grant.project, grant.tenant) != (
        identity.id,
        identity.project,
        identity.tenant,
    ):
        raise CapabilityError("capability: it is for another sandbox")
    if verb not in grant.verbs:
        raise CapabilityError(f"capability: it does not allow {verb}")
