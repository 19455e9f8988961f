"""What a rule is, what it may know, and what it finds."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from dsec.api.tenant import TenantSpec


class Severity(StrEnum):
    """How bad a finding is."""

    ERROR = "error"
    """Refused at admission; mandatory in the policy pack."""
    WARNING = "warning"
    """Accepted, and said."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One breach of a rule.

    `path` is the field below the resource (spec.roles[0].resources.memoryBytes); `message` is a
    sentence that names resource and rule; `remedy` says what to write instead.
    """

    rule: str
    path: str
    message: str
    remedy: str
    severity: Severity = Severity.ERROR
    value: Any = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known beside the record itself. Each part may be unknown (None).

    `tenant` and `rights` are those of the namespace; at a preview without a cluster neither is
    known, and rules that need them find nothing.
    """

    namespace: str | None = None
    tenant: str | None = None
    rights: TenantSpec | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """What a stack may tighten or loosen."""

    require_digests: bool = False
    require_budget: bool = False
    required_labels: Sequence[str] = ()
    allow_open_egress: bool = False
    defaults_fill_limits: bool = False
    max_replicas: int = 100_000
    regions: Sequence[str] = ()
    registries: Sequence[str] = ()
    platform_namespaces: Sequence[str] = ("dsec-system", "kube-system")


@dataclass(frozen=True, slots=True)
class Subject:
    """A record under test: its spec as plain data, read sparsely and never changed."""

    kind: str
    name: str
    spec: Any
    facts: Facts = field(default_factory=Facts)
    settings: Settings = field(default_factory=Settings)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


Check = Callable[[Subject], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: what must hold, why, and the function that finds breaches."""

    name: str
    must: str
    why: str
    remedy: str
    check: Check


def get(data: Any, key: str) -> Any:
    """Return a value of a mapping; None where it is absent or `data` is no mapping.

    Mappings of the Pulumi policy SDK are no dicts, and raise where a value is not known yet.
    """
    return data[key] if isinstance(data, Mapping) and key in data else None


def each(data: Any, key: str) -> Iterable[tuple[int, Any]]:
    """Return the entries of a list with their indices; nothing where there is no list."""
    value = get(data, key)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [(at, value[at]) for at in range(len(value))]
    return []


def number(value: Any) -> int | None:
    """Return a whole number; None for anything else. Pulumi hands 3 over as 3.0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value)
