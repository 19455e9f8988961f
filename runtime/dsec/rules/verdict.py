"""One verdict about an experiment: contradictions, gaps and rules together, each field once.

The gateway asks it for documents, the admission webhook for records; both then say the same.
"""

from dataclasses import dataclass, field

from dsec.api.documents import Parsed, parse_all, resolve
from dsec.api.documents.crosscheck import contradictions
from dsec.api.documents.resolve import gaps
from dsec.api.experiment import ExperimentSpec
from dsec.api.mistakes import DocumentError, Mistake
from dsec.api.status import Resolved
from dsec.api.tenant import TenantSpec
from dsec.rules import check
from dsec.rules.model import Facts, Settings, Severity


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong (paths of the model), what should change, and what would be run."""

    resolved: Resolved
    mistakes: list[Mistake] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Checked:
    """An acceptable document: as asked, as it would run, and what should change."""

    parsed: Parsed
    resolved: Resolved
    warnings: list[str]


def judge(
    spec: ExperimentSpec, *, name: str, facts: Facts, settings: Settings | None = None
) -> Verdict:
    """Return everything that admission has to say about a spec."""
    resolved = resolve(spec, tenant=facts.tenant or "", rights=facts.rights)
    asked = spec.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)
    findings = check(asked, name=name, facts=facts, settings=settings or Settings())
    by_path: dict[str, Mistake] = {}
    for one in [*contradictions(spec), *gaps(resolved.spec)]:
        by_path.setdefault(one.path, one)
    warnings = []
    for finding in findings:
        if finding.severity is Severity.WARNING:
            warnings.append(f"{finding.message} {finding.remedy}")
            continue
        path = finding.path.removeprefix("spec.")
        message = f"{finding.message} {finding.remedy}"
        if finding.rule == "limits" or path not in by_path:
            by_path[path] = Mistake(path, finding.value, finding.remedy, message)
    return Verdict(resolved, list(by_path.values()), warnings)


def check_document(
    text: str,
    *,
    project: str,
    tenant: str,
    rights: TenantSpec,
    settings: Settings | None = None,
) -> Checked:
    """Read a document for a project of a tenant.

    Raises DocumentError with every mistake: of form, of fields, of combination and of the rules,
    each with the path and line that it has in the document.
    """
    parsed, mistakes = parse_all(text)
    if parsed is None:
        raise DocumentError(mistakes)
    facts = Facts(namespace=project, tenant=tenant, rights=rights)
    verdict = judge(parsed.spec, name=parsed.name, facts=facts, settings=settings)
    told = {one.path for one in mistakes}
    mistakes += [one for one in map(parsed.locate, verdict.mistakes) if one.path not in told]
    if mistakes:
        raise DocumentError(sorted(mistakes, key=lambda one: (one.line or 0, one.path)))
    return Checked(parsed, verdict.resolved, verdict.warnings)
