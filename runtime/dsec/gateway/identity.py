"""Which machine of AWS calls: it signs a call of STS, the gateway sends it and hears from AWS who.

Of the signed call everything is checked before it is sent: that it goes to STS and asks for nothing
but the caller's identity, that it is meant for this gateway, this node and this certificate
request, and that it is not good for long. The machine must exist, with this installation's tags.
"""

import base64
import binascii
import contextlib
import hashlib
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qs, urlsplit

import httpx2
import structlog

from dsec.api.identity import AUDIENCE_HEADER, NODE_HEADER, PREFIX, REQUEST_HEADER, SECONDS
from dsec.api.wire import NodeRegistration
from dsec.gateway.errors import ApiError
from dsec.providers.provider import ProviderNode
from dsec.world.ec2 import CloudError
from dsec.world.network import Network

STS_SECONDS = 10.0
_LARGEST_TOKEN = 16 << 10
_STS_HOST = re.compile(r"sts\.[a-z0-9-]+\.amazonaws\.com(\.cn)?")
_ARN = re.compile(r"<Arn>arn:aws[a-z-]*:sts::(\d+):assumed-role/([^/<]+)/([^/<]+)</Arn>")
_SIGNED = {"host", AUDIENCE_HEADER, NODE_HEADER, REQUEST_HEADER}
_QUERY = {
    "Action",
    "Version",
    "X-Amz-Algorithm",
    "X-Amz-Credential",
    "X-Amz-Date",
    "X-Amz-Expires",
    "X-Amz-SignedHeaders",
    "X-Amz-Security-Token",
    "X-Amz-Signature",
}

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class AwsIdentity:
    """What AWS vouches for. `find` returns a live machine of this installation by its identifier.

    `endpoint` stands in for STS where it is not the region's own.
    """

    network: Network
    find: Callable[[str], Awaitable[ProviderNode | None]]
    audience: str
    accounts: frozenset[str]
    roles: frozenset[str]
    endpoint: str = ""

    async def vouch(self, token: str, asked: NodeRegistration) -> str:
        """Return the pool of the machine that calls. Raises ApiError 401, 403, 503."""
        url, headers = _read(token)
        place = urlsplit(url)
        self._check_call(place, headers, asked)
        account, role, machine = await self._who(place, url, headers)
        if account not in self.accounts or role not in self.roles:
            raise ApiError(403, "denied", f"role {role} of account {account} may not add nodes")
        if machine != asked.name:
            raise ApiError(403, "denied", f"AWS says that this is {machine}, not {asked.name}")
        try:
            node = await self.find(machine)
        except CloudError as problem:
            log.warning("the machine cannot be looked up", node=machine, error=str(problem))
            raise ApiError(503, "unavailable", "AWS does not say whose machine this is") from None
        if node is None:
            raise ApiError(403, "denied", f"{machine} is no machine of this installation")
        if asked.pool not in ("", node.pool):
            raise ApiError(403, "denied", f"{machine} is of pool {node.pool}, not {asked.pool}")
        return node.pool

    def _check_call(
        self, place: SplitResult, headers: dict[str, str], asked: NodeRegistration
    ) -> None:
        """Refuse a call that is not exactly the one that was agreed on. Raises ApiError 401."""
        if self.endpoint:
            mine = urlsplit(self.endpoint)
            to_sts = (place.scheme, place.netloc) == (mine.scheme, mine.netloc)
        else:
            to_sts = place.scheme == "https" and bool(_STS_HOST.fullmatch(place.netloc))
        query = parse_qs(place.query)
        signed = set(query.get("X-Amz-SignedHeaders", [""])[0].split(";"))
        expires = query.get("X-Amz-Expires", [""])[0]
        request = hashlib.sha256(asked.csr_pem.encode()).hexdigest()
        wrong = (
            (not to_sts, "the signed call does not go to STS"),
            (place.path != "/", "the signed call has a path"),
            (query.get("Action") != ["GetCallerIdentity"], "the call asks for something else"),
            (not set(query) <= _QUERY, "the signed call has more parameters than it needs"),
            (any(len(values) > 1 for values in query.values()), "a parameter is there twice"),
            (signed != _SIGNED, "the signed call does not bind gateway, node and request"),
            (not expires.isdecimal() or int(expires) > SECONDS, "the call is good for too long"),
            (set(headers) != _SIGNED - {"host"}, "other headers than the signed ones"),
            (headers.get(AUDIENCE_HEADER) != self.audience, "it was signed for another gateway"),
            (headers.get(NODE_HEADER) != asked.name, "it was signed for another node"),
            (headers.get(REQUEST_HEADER) != request, "it was signed for another request"),
        )
        for holds, words in wrong:
            if holds:
                raise ApiError(401, "unauthenticated", words)

    async def _who(
        self, place: SplitResult, url: str, headers: dict[str, str]
    ) -> tuple[str, str, str]:
        """Send the call; return account, role and session, as AWS names them. Raises ApiError."""
        client = self.network.client(f"{place.scheme}://{place.netloc}", timeout=STS_SECONDS)
        try:
            answer = await client.get(url, headers={**headers, "Accept": "text/xml"})
        except httpx2.TransportError as problem:
            log.warning("STS does not answer", error=str(problem))
            raise ApiError(503, "unavailable", "AWS does not say who calls") from None
        finally:
            await client.aclose()
        if answer.is_server_error:
            raise ApiError(503, "unavailable", f"AWS does not say who calls: {answer.status_code}")
        found = _ARN.search(answer.text) if answer.is_success else None
        if found is None:
            raise ApiError(401, "unauthenticated", "AWS knows no machine's role behind this call")
        return found[1], found[2], found[3]


def _read(token: str) -> tuple[str, dict[str, str]]:
    """Return URL and headers of a signed call. Raises ApiError 401."""
    told: object = None
    if len(token) <= _LARGEST_TOKEN:
        with contextlib.suppress(binascii.Error, ValueError):
            told = json.loads(base64.urlsafe_b64decode(token.removeprefix(PREFIX)))
    url = told.get("url") if isinstance(told, dict) else None
    headers = told.get("headers") if isinstance(told, dict) else None
    if not isinstance(url, str) or not isinstance(headers, dict):
        raise ApiError(401, "unauthenticated", "the signed call cannot be read")
    return url, {str(key).lower(): str(value) for key, value in headers.items()}
