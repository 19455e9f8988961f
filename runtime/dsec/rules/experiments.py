"""The rules for experiments, one function each; `EXPERIMENT_RULES` is the table of contents.

Every function is pure, reads few fields, takes shapes that it does not know as absent, and yields
one finding per breach. The same functions run in Pulumi components, in the policy pack and at
admission, so that a preview says what the cluster would say.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from dsec.api.meta import GROUP
from dsec.rules.elasticity import ELASTICITY
from dsec.rules.model import Finding, Rule, Severity, Subject, each, get, number

_SHARED_GPU = {"mps", "shares"}
_SECRET_NAME = re.compile(
    r"(^|_)(PASSWORD|PASSWD|SECRET|TOKEN|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|CREDENTIALS?)$",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"AKIA[0-9A-Z]{16}"  # AWS access key id
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|gh[pousr]_[A-Za-z0-9]{36}"  # GitHub token
    r"|sk-[A-Za-z0-9_-]{32,}"  # keys of model services
    r"|[a-z][a-z0-9+.-]*://[^/\s:@]+:[^/\s@]+@"  # user and password in a URL
)
_DOMAIN = re.compile(r"(?:[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?\.)*[a-z0-9-]{1,63}", re.IGNORECASE)
_SERVICE = re.compile(r"[^\s:/*]+:[0-9]{1,5}")


def limits(subject: Subject) -> Iterator[Finding]:
    """Every role has hard ceilings for CPU, memory and shared GPU memory."""
    rights = subject.facts.rights
    ours = rights.defaults.resources if rights else None
    filled = subject.settings.defaults_fill_limits
    for at, role in each(subject.spec, "roles"):
        declared = get(role, "resources")
        gpu = get(role, "gpu")
        wanted = [
            ("cpuMilli", get(declared, "cpuMilli"), ours and ours.cpu_milli, "resources"),
            ("memoryBytes", get(declared, "memoryBytes"), ours and ours.memory_bytes, "resources"),
        ]
        if get(gpu, "mode") in _SHARED_GPU:
            default = ours and ours.gpu_memory_bytes
            wanted.append(("memoryBytes", get(gpu, "memoryBytes"), default, "gpu"))
        for name, value, default, part in wanted:
            if not number(value) and not default and not filled:
                path = f"spec.roles[{at}].{part}.{name}"
                what = f"role {get(role, 'name')} declares no {part}.{name}"
                yield _breach(LIMITS, subject, path, what)


def digests(subject: Subject) -> Iterator[Finding]:
    """Images are named by what cannot move."""
    strict = subject.settings.require_digests
    for at, role in each(subject.spec, "roles"):
        image = get(role, "image")
        if not isinstance(image, str) or not image:
            continue
        name, _, digest = image.partition("@")
        tag = name.rsplit("/", 1)[-1].partition(":")[2]
        path = f"spec.roles[{at}].image"
        if strict and not digest.startswith("sha256:"):
            yield _breach(DIGESTS, subject, path, f"{image} has no digest", value=image)
        elif not digest and tag in {"", "latest"}:
            what = f"{image} moves with the registry"
            yield _breach(DIGESTS, subject, path, what, value=image, severity=Severity.WARNING)


def budget(subject: Subject) -> Iterator[Finding]:
    """A budget is an amount above zero, in a currency."""
    asked = get(subject.spec, "budget")
    if asked is None:
        if subject.settings.require_budget:
            yield _breach(BUDGET, subject, "spec.budget", "none is declared")
        return
    limit = get(asked, "limit")
    if not re.fullmatch(r"\d+(\.\d+)?", str(limit)) or not str(limit).strip("0."):
        yield _breach(BUDGET, subject, "spec.budget.limit", f"{limit} buys nothing", value=limit)
    rights = subject.facts.rights
    if not get(asked, "currency") and rights and not rights.defaults.currency:
        what = "neither the budget nor the tenant names a currency"
        yield _breach(BUDGET, subject, "spec.budget.currency", what)


def privileged(subject: Subject) -> Iterator[Finding]:
    """No role is privileged."""
    for at, role in each(subject.spec, "roles"):
        if get(role, "privileged"):
            path = f"spec.roles[{at}].privileged"
            yield _breach(
                PRIVILEGED, subject, path, f"role {get(role, 'name')} asks for it", value=True
            )


def egress(subject: Subject) -> Iterator[Finding]:
    """What is reached outside is named, exactly."""
    network = get(subject.spec, "network")
    policy = get(network, "egress")
    rights = subject.facts.rights
    allowed = subject.settings.allow_open_egress or (
        rights is not None and rights.allow_open_egress
    )
    if policy == "open" and not allowed:
        path = "spec.network.egress"
        yield _breach(EGRESS, subject, path, "it opens all of the outside", value=policy)
    for key, form in (("allowedDomains", _DOMAIN), ("services", _SERVICE)):
        for at, target in each(network, key):
            if not isinstance(target, str) or not form.fullmatch(target):
                path = f"spec.network.{key}[{at}]"
                yield _breach(
                    EGRESS, subject, path, f"{target} names no single target", value=target
                )


def tenant(subject: Subject) -> Iterator[Finding]:
    """What is asked for belongs to the tenant of the namespace."""
    spec, facts = subject.spec, subject.facts
    if facts.namespace is not None and facts.tenant == "":
        what = f"namespace {facts.namespace} belongs to no tenant"
        yield _breach(TENANT, subject, "metadata.namespace", what, value=facts.namespace)
    named, project = get(spec, "tenant"), get(spec, "project")
    rights = facts.rights
    if named and facts.tenant and named != facts.tenant:
        aliases = rights.document_tenants if rights else []
        if named not in aliases:
            known = ", ".join([facts.tenant, *aliases])
            what = f"{named} is not the tenant of {facts.namespace}, which answers to {known}"
            yield _breach(TENANT, subject, "spec.tenant", what, value=named)
    if project and facts.namespace and project != facts.namespace:
        what = f"project {project} is not the namespace {facts.namespace}"
        yield _breach(TENANT, subject, "spec.project", what, value=project)
    registries = [*subject.settings.registries, *(rights.registries if rights else [])]
    mirrors = [one.prefix for one in rights.defaults.image_mirrors] if rights else []
    for at, role in each(spec, "roles") if registries else ():
        image = get(role, "image")
        if image and not any(str(image).startswith(one) for one in [*registries, *mirrors]):
            what = f"{image} is in none of its registries ({', '.join(registries)})"
            yield _breach(TENANT, subject, f"spec.roles[{at}].image", what, value=image)


def replicas(subject: Subject) -> Iterator[Finding]:
    """Counts are within their bounds and names are unique."""
    total = 0
    names: set[Any] = set()
    most = subject.settings.max_replicas
    for at, role in each(subject.spec, "roles"):
        name = get(role, "name")
        if name in names:
            path = f"spec.roles[{at}].name"
            yield _breach(REPLICAS, subject, path, f"two roles are named {name}", value=name)
        names.add(name)
        low, start, high = (number(get(role, key)) for key in ("min", "replicas", "max"))
        total += max(
            one for one in (start, low, high, 1 if start is None else 0) if one is not None
        )
        given = [one for one in (low, start, high) if one is not None]
        if given != sorted(given):
            path = f"spec.roles[{at}].replicas"
            what = f"role {name} has min {low}, replicas {start}, max {high}"
            yield _breach(REPLICAS, subject, path, what, value=start)
    if total > most:
        what = f"its roles may grow to {total} replicas, and {most} are allowed"
        yield _breach(REPLICAS, subject, "spec.roles", what, value=total)


def secrets(subject: Subject) -> Iterator[Finding]:
    """No secret is written in clear."""
    for at, role in each(subject.spec, "roles"):
        env = get(role, "env")
        for key in env if isinstance(env, Mapping) else ():
            value = get(env, key)
            if not isinstance(value, str) or not value:
                continue
            if _SECRET_NAME.search(key) or _SECRET_VALUE.search(value):
                path = f"spec.roles[{at}].env.{key}"
                yield _breach(SECRETS, subject, path, f"{key} looks like one")
        for word_at, word in each(role, "command"):
            if isinstance(word, str) and _SECRET_VALUE.search(word):
                path = f"spec.roles[{at}].command[{word_at}]"
                yield _breach(SECRETS, subject, path, f"argument {word_at} looks like one")


def residency(subject: Subject) -> Iterator[Finding]:
    """Data stays where tenant and stack allow it."""
    rights = subject.facts.rights
    bounds = [
        (subject.settings.regions, "the stack"),
        (rights.residency if rights else (), "the tenant"),
    ]
    for at, region in each(subject.spec, "residency"):
        for allowed, whose in bounds:
            if allowed and region not in allowed:
                what = f"{region} is none of the regions of {whose} ({', '.join(allowed)})"
                yield _breach(RESIDENCY, subject, f"spec.residency[{at}]", what, value=region)


def labels(subject: Subject) -> Iterator[Finding]:
    """Labels that reports need are there, and names that dsec owns are left to it."""
    given = get(subject.spec, "labels")
    present = given if isinstance(given, Mapping) else {}
    for key in subject.settings.required_labels:
        if not get(present, key):
            yield _breach(LABELS, subject, f"spec.labels.{key}", f"the label {key} is missing")
    for key in present:
        if key == GROUP or key.partition("/")[0].endswith(GROUP):
            path = f"spec.labels.{key}"
            yield _breach(LABELS, subject, path, f"{key} is a name that dsec gives itself")


def _breach(
    rule: Rule,
    subject: Subject,
    path: str,
    what: str,
    *,
    value: Any = None,
    severity: Severity = Severity.ERROR,
) -> Finding:
    message = f"The {subject} must {rule.must}: {what} (rule {rule.name})."
    return Finding(rule.name, path, message, rule.remedy, severity, value)


LIMITS = Rule(
    "limits",
    "declare hard ceilings of CPU, memory and shared GPU memory for every role",
    "Without a ceiling one sandbox takes down its neighbours on the node (API-17).",
    "Set resources.cpuMilli and resources.memoryBytes of the role (and gpu.memoryBytes for mps or "
    "shares), or give the tenant defaults.",
    limits,
)
DIGESTS = Rule(
    "digests",
    "name images by digest or by a tag that does not move",
    "A moved tag gives two replicas of one role two programs (IMG-08).",
    "Append @sha256:... to the image, or use a version tag instead of latest.",
    digests,
)
BUDGET = Rule(
    "budget",
    "have a budget above zero in a currency",
    "An amount without currency, or of zero, is no ceiling (COST-03).",
    "Set budget.limit to an exact amount and budget.currency to an ISO 4217 code.",
    budget,
)
PRIVILEGED = Rule(
    "privileged",
    "not run privileged",
    "A privileged sandbox owns the node and every tenant on it.",
    "Remove privileged; isolationLevel microvm gives a kernel of its own where one is needed.",
    privileged,
)
EGRESS = Rule(
    "egress",
    "name each target outside that it may reach",
    "Code that is not trusted must not reach what nobody named (CONF-12).",
    "Use egress allow-list with exact domains and host:port services, or deny.",
    egress,
)
TENANT = Rule(
    "tenant",
    "stay within the tenant of its namespace",
    "Cross-tenant access is denied by default (TEN-04, TEN-16).",
    "Submit to a project of the tenant, and use images of its registries.",
    tenant,
)
REPLICAS = Rule(
    "replicas",
    "keep replicas within min, max and the allowed total, in roles of unique names",
    "A count outside its own bounds can never be reached.",
    "Order min <= replicas <= max, name each role once, and lower the total.",
    replicas,
)
SECRETS = Rule(
    "secrets",
    "carry no secret in clear",
    "Records, logs and archives are read by more people than the secret is meant for (CONF-27).",
    "Remove the value; mount a secret of the project in memory instead.",
    secrets,
)
RESIDENCY = Rule(
    "residency",
    "keep its data in the allowed regions",
    "Some data may not leave its region (CONF-29).",
    "Use regions of the tenant and the stack, or leave residency out.",
    residency,
)
LABELS = Rule(
    "labels",
    f"carry the required labels and leave names of {GROUP} alone",
    "Reports and ownership hang on labels; dsec's own decide the tenant.",
    "Add the missing label, or rename the one that dsec owns.",
    labels,
)

EXPERIMENT_RULES: tuple[Rule, ...] = (
    LIMITS,
    DIGESTS,
    BUDGET,
    PRIVILEGED,
    EGRESS,
    TENANT,
    REPLICAS,
    ELASTICITY,
    SECRETS,
    RESIDENCY,
    LABELS,
)
"""Every rule, in the order in which findings are shown."""
