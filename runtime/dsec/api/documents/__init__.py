"""Task documents in four dialects, and the record itself, to one model (CONF-14).

`parse` reads what was asked; `resolve` fills the gaps from the tenant and the presets and lists
each filling; `normalise` does both. No stage stops at the first mistake.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from dsec.api.documents.crosscheck import contradictions
from dsec.api.documents.dialects import FRONTS, detect
from dsec.api.documents.reader import Context, unwrap
from dsec.api.documents.resolve import gaps, resolve
from dsec.api.documents.text import Source, read
from dsec.api.experiment import Dialect, ExperimentSpec
from dsec.api.meta import ObjectMeta
from dsec.api.mistakes import DocumentError, Mistake, mistakes_of
from dsec.api.names import dns_name
from dsec.api.records import Experiment
from dsec.api.status import Defaulted
from dsec.api.tenant import TenantDefaults, TenantSpec

_PARTS = 8
"""Optional parts that are taken out at most, to be able to check the rest."""

__all__ = ["Normalised", "Parsed", "normalise", "parse", "parse_all", "resolve"]


@dataclass(frozen=True, slots=True)
class Parsed:
    """A document as asked: nothing filled in. `name` is the name as given."""

    spec: ExperimentSpec
    warnings: list[str]
    source: Source
    origin: dict[str, str] = field(repr=False)

    @property
    def name(self) -> str:
        """The name as given."""
        return self.spec.name or ""

    def record(self, project: str = "") -> Experiment:
        """Return the record to create in a project's namespace."""
        return Experiment(
            metadata=ObjectMeta(name=dns_name(self.name), namespace=project), spec=self.spec
        )

    def locate(self, mistake: Mistake) -> Mistake:
        """Return a mistake about the model with the path and line that it has in the document."""
        return _located(mistake, self.origin, self.source, self.spec.dialect)


@dataclass(frozen=True, slots=True)
class Normalised:
    """A complete experiment, what was filled in to complete it, and what should be changed."""

    experiment: Experiment
    defaulted: list[Defaulted]
    warnings: list[str]


def parse(text: str) -> Parsed:
    """Read a document of any dialect. Raises DocumentError with every mistake."""
    parsed, mistakes = parse_all(text)
    if mistakes or parsed is None:
        raise DocumentError(mistakes)
    return parsed


def parse_all(text: str) -> tuple[Parsed | None, list[Mistake]]:
    """Read a document as far as it goes: what could be read, and every mistake.

    The first is None where nothing useful could be read; then there are mistakes.
    """
    try:
        source = read(text)
        context = Context(source)
        dialect = detect(context)
        if dialect is None:
            return None, context.mistakes
        origin: dict[str, str] = {}
        wire = unwrap(FRONTS[dialect](context, source.data), origin)
    except DocumentError as error:
        return None, error.mistakes
    wire["dialect"] = dialect.value
    wire["sourceDigest"] = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    spec = _validated(wire, origin, context, dialect)
    if spec is None:
        return None, context.mistakes
    for one in contradictions(spec):
        _add(context.mistakes, _located(one, origin, source, dialect))
    return Parsed(spec, _warnings(spec), source, origin), context.mistakes


def normalise(text: str, *, defaults: TenantDefaults | None = None, tenant: str = "") -> Normalised:
    """Read a document and complete it with a tenant's defaults.

    Raises DocumentError with every mistake; a ceiling that neither the document nor the defaults
    give is one.
    """
    parsed, mistakes = parse_all(text)
    if parsed is None:
        raise DocumentError(mistakes)
    resolved = resolve(parsed.spec, tenant=tenant, rights=_rights(defaults, parsed.spec))
    for one in gaps(resolved.spec):
        _add(mistakes, parsed.locate(one))
    if mistakes:
        raise DocumentError(mistakes)
    experiment = parsed.record().model_copy(update={"spec": resolved.spec})
    return Normalised(experiment, resolved.defaulted, parsed.warnings)


def _rights(defaults: TenantDefaults | None, spec: ExperimentSpec) -> TenantSpec:
    names = [spec.tenant] if spec.tenant else []
    return TenantSpec(defaults=defaults or TenantDefaults(), document_tenants=names)


def _validated(
    wire: dict[str, Any], origin: dict[str, str], context: Context, dialect: Dialect
) -> ExperimentSpec | None:
    """Check the model; what the front end found at a path already is not said twice.

    An optional part that lacks a value which was refused is taken out, so that the rest can still
    be checked.
    """
    for _ in range(_PARTS):
        try:
            return ExperimentSpec.model_validate(wire)
        except ValidationError as error:
            told = {one.path for one in context.mistakes}
            located = [_located(one, origin, context.source, dialect) for one in mistakes_of(error)]
            for one in located:
                _add(context.mistakes, one)
            if any(one.path not in told for one in located):
                return None
            for place in (one["loc"] for one in error.errors()):
                if not _take_out(wire, place):
                    return None
    return None


def _take_out(wire: dict[str, Any], location: tuple[int | str, ...]) -> bool:
    """Remove the mapping that holds a location, where it is the value of a key."""
    *outer, key = location[:-1] or (0,)
    holder: Any = wire
    for step in outer:
        holder = holder[step]
    if not isinstance(key, str) or not isinstance(holder, dict):
        return False
    holder.pop(key, None)
    return True


def _located(mistake: Mistake, origin: dict[str, str], source: Source, dialect: Dialect) -> Mistake:
    path = origin.get(mistake.path)
    if path is None:
        path = f"spec.{mistake.path}" if dialect is Dialect.EXPERIMENT else mistake.path
    return Mistake(path, mistake.value, mistake.allowed, mistake.message, source.line(path))


def _add(mistakes: list[Mistake], new: Mistake) -> None:
    if all(one.path != new.path for one in mistakes):
        mistakes.append(new)


def _warnings(spec: ExperimentSpec) -> list[str]:
    """Say what is accepted but should be changed."""
    found = []
    for role in spec.roles:
        name, _, digest = role.image.partition("@")
        tag = name.rsplit("/", 1)[-1].partition(":")[2]
        if role.image and not digest and tag in {"", "latest"}:
            found.append(
                f"role {role.name}: image {role.image} has no fixed tag; "
                "it is pinned to the digest that it has now"
            )
    return found
