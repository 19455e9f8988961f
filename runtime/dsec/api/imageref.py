"""Image references, by the grammar of the OCI distribution project.

`[host[:port]/]path[:tag][@digest]`
"""

import re
from dataclasses import dataclass

_ALNUM = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_HOST = re.compile(rf"(?:{_ALNUM}(?:\.{_ALNUM})*|\[[0-9a-fA-F:]+\])(?::[0-9]+)?")
_PART = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}")
_SHA256_LENGTH = 64
_LONGEST = 255


@dataclass(frozen=True, slots=True)
class ImageRef:
    """A parsed reference. Empty `registry` means that the reference names none."""

    registry: str
    repository: str
    tag: str
    digest: str

    @property
    def name(self) -> str:
        """Registry and repository."""
        return f"{self.registry}/{self.repository}" if self.registry else self.repository

    def __str__(self) -> str:
        """Write it as a reference again."""
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.name}{tag}{digest}"


def _wrong(text: str, what: str) -> ValueError:
    return ValueError(f"image {text!r}: {what}")


def parse(text: str) -> ImageRef:
    """Parse a reference. Raises ValueError that quotes it and says what is wrong."""
    rest, at, digest = text.partition("@")
    _check_digest(text, digest, given=bool(at))
    head, slash, tail = rest.partition("/")
    is_host = "." in head or ":" in head or head == "localhost" or head != head.lower()
    registry, path = (head, tail) if slash and is_host else ("", rest)
    if registry and not _HOST.fullmatch(registry):
        raise _wrong(text, f"registry {registry!r} must be a host name with an optional port")
    tag = ""
    if ":" in path.rpartition("/")[2]:
        path, _, tag = path.rpartition(":")
        if not _TAG.fullmatch(tag):
            raise _wrong(text, f"tag {tag!r} must be up to 128 of letters, digits, '_', '.', '-'")
    _check_name(text, registry, path)
    return ImageRef(registry, path, tag, digest)


def _check_digest(text: str, digest: str, *, given: bool) -> None:
    if given and not _DIGEST.fullmatch(digest):
        raise _wrong(text, f"digest {digest!r} must be algorithm:hex, for example sha256:<64 hex>")
    algorithm, _, value = digest.partition(":")
    if algorithm == "sha256" and (len(value) != _SHA256_LENGTH or value != value.lower()):
        raise _wrong(text, f"a sha256 digest has {_SHA256_LENGTH} lower-case hex digits")


def _check_name(text: str, registry: str, path: str) -> None:
    if not path:
        raise _wrong(text, "the repository is missing")
    for part in path.split("/"):
        if not _PART.fullmatch(part):
            allowed = "lower-case letters and digits, separated by '.', '_', '__' or '-'"
            raise _wrong(text, f"repository part {part!r} must be {allowed}")
    if len(path) + len(registry) > _LONGEST:
        raise _wrong(text, f"the name is longer than {_LONGEST} characters")
    if not registry and re.fullmatch(r"[0-9a-f]{64}", path):
        raise _wrong(text, "64 hex digits alone are an image ID, not a repository")
