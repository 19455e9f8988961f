"""The policies: each runs one rule of dsec.rules over what Pulumi is about to create.

A value that is not known at preview defers the rule to the update, and says so; at the update it
is known and the rule blocks. A rule that fails itself names policy and resource and blocks too.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dsec.api.meta import API_VERSION
from dsec.rules import (
    BUCKET_KINDS,
    BUCKET_RULES,
    COPY_RULES,
    EXPERIMENT_RULES,
    HOST,
    POOL_RULES,
    WORKLOAD_KINDS,
    Facts,
    Finding,
    Rule,
    Subject,
)
from dsec.rules import Severity as Weight
from pulumi_policy import (
    EnforcementLevel,
    ReportViolation,
    ResourceValidationArgs,
    ResourceValidationPolicy,
    Severity,
)
from pulumi_policy.proxy import UnknownValueError

from dsec_policies.settings import schema_of, settings_of

EXPERIMENT_TYPE = f"kubernetes:{API_VERSION}:Experiment"
"""The type of an Experiment record in a Pulumi program."""
POOL_TYPE = f"kubernetes:{API_VERSION}:SandboxNodePool"
"""The type of a pool of nodes."""
COPIES_TYPE = f"kubernetes:{API_VERSION}:ReplicationPolicy"
"""The type of a policy of copies."""
_TYPES = {
    **{rule.name: EXPERIMENT_TYPE for rule in EXPERIMENT_RULES},
    **{rule.name: POOL_TYPE for rule in POOL_RULES},
    **{rule.name: COPIES_TYPE for rule in COPY_RULES},
}
"""Which records each rule judges."""

_SEVERITY: Mapping[str, Severity] = {
    "privileged": Severity.CRITICAL,
    "secrets": Severity.CRITICAL,
    "limits": Severity.HIGH,
    "egress": Severity.HIGH,
    "tenant": Severity.HIGH,
    "residency": Severity.HIGH,
    "budget": Severity.MEDIUM,
    "digests": Severity.MEDIUM,
    "replicas": Severity.MEDIUM,
    "elasticity": Severity.MEDIUM,
    "scaling": Severity.MEDIUM,
    "spending": Severity.MEDIUM,
    "labels": Severity.LOW,
    "copies": Severity.HIGH,
    "transit": Severity.HIGH,
    "copy-residency": Severity.HIGH,
    "closed-buckets": Severity.CRITICAL,
    "sealed-buckets": Severity.HIGH,
}

_ADVISORY = frozenset({"digests", "spending"})
"""Accepted and said: a tag is pinned to its digest at submission, and a pool may have a Budget."""


def policies() -> list[ResourceValidationPolicy]:
    """Return one policy per rule, in the order of the rules."""
    return [
        *(_policy(rule, "Experiments") for rule in EXPERIMENT_RULES),
        *(_policy(rule, "Node pools") for rule in POOL_RULES),
        *(_policy(rule, "Replication policies") for rule in COPY_RULES),
        *(_policy(rule, "Buckets") for rule in BUCKET_RULES),
    ]


def _policy(rule: Rule, whose: str) -> ResourceValidationPolicy:
    name = f"dsec-{rule.name}"
    level = EnforcementLevel.ADVISORY if rule.name in _ADVISORY else EnforcementLevel.MANDATORY
    return ResourceValidationPolicy(
        name=name,
        display_name=f"{whose}: {rule.name}",
        description=f"{whose} must {rule.must}. {rule.why}",
        enforcement_level=level,
        severity=_SEVERITY[rule.name],
        config_schema=schema_of(rule.name),
        remediation_steps=rule.remedy,
        tags=["dsec"],
        validate=_validation(name, rule),
    )


def _validation(
    policy: str, rule: Rule
) -> Callable[[ResourceValidationArgs, ReportViolation], None]:
    def validate(args: ResourceValidationArgs, report: ReportViolation) -> None:
        try:
            for finding in _findings(rule, args):
                if finding.severity is Weight.WARNING and rule.name not in _ADVISORY:
                    continue  # what admission accepts with a warning must not stop an update
                report(f"{finding.message} {finding.remedy} ({finding.path})", None)
        except UnknownValueError as unknown:
            # the engine shows this as an advisory at preview; at the update the value is there
            unknown.message = f"{policy} on {args.name} is deferred to update: {unknown.message}"
            raise
        except Exception as error:  # noqa: BLE001 - a mute failure of a pack hangs the engine
            report(
                f"The policy {policy} could not judge {args.urn or args.name}: {error!r}. "
                "This is a fault of the policy; the resource is not accepted unchecked.",
                None,
            )

    return validate


def _findings(rule: Rule, args: ResourceValidationArgs) -> Iterator[Finding]:
    """Run a rule where it applies. Red lines about privilege hold for ordinary workloads too."""
    kind = args.resource_type.rpartition(":")[2]
    if rule in BUCKET_RULES:
        if _bucket_kind(args.resource_type) in BUCKET_KINDS[rule.name]:
            settings = settings_of(args.get_config())
            kind = _bucket_kind(args.resource_type)
            yield from rule.check(Subject(kind, args.name, args.props, settings=settings))
    elif args.resource_type == _TYPES[rule.name]:
        spec = _value(args.props, "spec")
        name = _value(spec, "name") or _value(_value(args.props, "metadata"), "name") or args.name
        yield from rule.check(
            Subject(kind, str(name), spec, settings=settings_of(args.get_config()))
        )
    elif (
        rule.name == "privileged"
        and args.resource_type.startswith("kubernetes:")
        and kind in WORKLOAD_KINDS
    ):
        namespace = _value(_value(args.props, "metadata"), "namespace")
        facts = Facts(namespace=namespace or "default")
        spec = _value(args.props, "spec")
        settings = settings_of(args.get_config())
        yield from HOST.check(Subject(kind, args.name, spec, facts, settings))


def _bucket_kind(resource_type: str) -> str:
    """Return what of a bucket it is; the SDK's older types end in V2. Empty: nothing of one."""
    if not resource_type.startswith("aws:s3/"):
        return ""
    return resource_type.rpartition(":")[2].removesuffix("V2")


def _value(data: Any, key: str) -> Any:
    return data[key] if isinstance(data, Mapping) and key in data else None
