"""Names that Kubernetes can hold, made from the names that people give."""

import hashlib
import re

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LONGEST = 63
_HASH = 8


def dns_name(given: str) -> str:
    """Return the record name of a given name.

    A DNS label stays as it is. Any other becomes `<dns form>-<hash>`, where the hash covers the
    whole given name: two names that look alike, or share their first 63 characters, stay apart.
    """
    if _DNS_LABEL.fullmatch(given):
        return given
    digest = hashlib.sha256(given.encode()).hexdigest()[:_HASH]
    form = re.sub(r"[^a-z0-9]+", "-", given.lower()).strip("-")
    form = form[: _LONGEST - _HASH - 1].rstrip("-") or "x"
    return f"{form}-{digest}"
