"""The rules of dsec as pure functions: what an experiment or workload must not ask for.

`check` runs every rule for experiments. Components, the policy pack and admission share it.
"""

from collections.abc import Sequence
from typing import Any

from dsec.rules.experiments import EXPERIMENT_RULES
from dsec.rules.model import Facts, Finding, Rule, Settings, Severity, Subject
from dsec.rules.pools import POOL_RULES
from dsec.rules.stores import BUCKET_KINDS, BUCKET_RULES, COPY_RULES
from dsec.rules.workloads import HOST, WORKLOAD_KINDS

__all__ = [
    "BUCKET_KINDS",
    "BUCKET_RULES",
    "COPY_RULES",
    "EXPERIMENT_RULES",
    "HOST",
    "POOL_RULES",
    "WORKLOAD_KINDS",
    "Facts",
    "Finding",
    "Rule",
    "Settings",
    "Severity",
    "Subject",
    "check",
]

_NO_FACTS = Facts()
_DEFAULT = Settings()


def check(
    spec: Any,
    *,
    name: str,
    facts: Facts = _NO_FACTS,
    settings: Settings = _DEFAULT,
    rules: Sequence[Rule] = EXPERIMENT_RULES,
    kind: str = "Experiment",
) -> list[Finding]:
    """Return every finding about a record's spec (plain data in wire names)."""
    subject = Subject(kind, name, spec, facts, settings)
    return [finding for rule in rules for finding in rule.check(subject)]
