"""STS as it judges a signed URL: moto looks at no signature, so this does it before moto sees one.

Signature version 4 in the query, as the API documents it: canonical request, string to sign, the
key derived from date, region and service.
"""

import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl, quote, urlsplit


def _mac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def refusal(path: str, headers: Mapping[str, str], secrets: Mapping[str, str]) -> str:
    """Return the code with which AWS refuses a signed GET, or nothing where it is good."""
    place = urlsplit(path)
    query = dict(parse_qsl(place.query, keep_blank_values=True))
    signature = query.pop("X-Amz-Signature", "")
    key, *scope = query.get("X-Amz-Credential", "").split("/")
    if key not in secrets:
        return "InvalidClientTokenId"
    at = datetime.strptime(query["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    if datetime.now(UTC) > at + timedelta(seconds=int(query["X-Amz-Expires"])):
        return "ExpiredToken"
    names = query["X-Amz-SignedHeaders"].split(";")
    lower = {name.lower(): value for name, value in headers.items()}
    canonical = "\n".join(
        [
            "GET",
            place.path or "/",
            "&".join(f"{quote(k, '~')}={quote(v, '~')}" for k, v in sorted(query.items())),
            *(f"{name}:{' '.join(lower.get(name, '').split())}" for name in names),
            "",
            ";".join(names),
            hashlib.sha256(b"").hexdigest(),
        ]
    )
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = "\n".join(["AWS4-HMAC-SHA256", query["X-Amz-Date"], "/".join(scope), digest])
    derived = f"AWS4{secrets[key]}".encode()
    for part in scope:
        derived = _mac(derived, part)
    good = hmac.compare_digest(_mac(derived, text).hex(), signature)
    return "" if good else "SignatureDoesNotMatch"
