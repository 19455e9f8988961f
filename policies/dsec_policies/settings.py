"""What a stack may set for each policy: JSON schemas, and the rules' settings made from them."""

from collections.abc import Mapping
from typing import Any

from dsec.rules import Settings
from pulumi_policy import PolicyConfigSchema

_TEXTS = {"type": "array", "items": {"type": "string"}}

_SCHEMAS: Mapping[str, Mapping[str, dict[str, Any]]] = {
    "limits": {
        "defaultsFillLimits": {
            "type": "boolean",
            "default": False,
            "description": "Every tenant of the stack has default ceilings.",
        }
    },
    "digests": {
        "requireDigests": {
            "type": "boolean",
            "default": False,
            "description": "Tags do not do: every image carries its digest.",
        }
    },
    "budget": {
        "requireBudget": {
            "type": "boolean",
            "default": False,
            "description": "Every experiment declares a budget.",
        }
    },
    "privileged": {
        "platformNamespaces": {
            **_TEXTS,
            "default": list(Settings().platform_namespaces),
            "description": "Namespaces whose workloads may hold the node.",
        }
    },
    "egress": {
        "allowOpenEgress": {
            "type": "boolean",
            "default": False,
            "description": "Experiments may open all of the outside.",
        }
    },
    "tenant": {
        "registries": {
            **_TEXTS,
            "default": [],
            "description": "Image prefixes that may be used; empty: all.",
        }
    },
    "replicas": {
        "maxReplicas": {
            "type": "integer",
            "minimum": 1,
            "default": Settings().max_replicas,
            "description": "Most replicas that one experiment may grow to.",
        }
    },
    "residency": {
        "regions": {
            **_TEXTS,
            "default": [],
            "description": "Regions that data may be in; empty: all.",
        }
    },
    "copy-residency": {
        "regions": {
            **_TEXTS,
            "default": [],
            "description": "Regions that copies may be in; empty: all.",
        }
    },
    "labels": {
        "requiredLabels": {
            **_TEXTS,
            "default": [],
            "description": "Labels that every experiment carries.",
        }
    },
}

_FIELDS: Mapping[str, str] = {
    "defaultsFillLimits": "defaults_fill_limits",
    "requireDigests": "require_digests",
    "requireBudget": "require_budget",
    "platformNamespaces": "platform_namespaces",
    "allowOpenEgress": "allow_open_egress",
    "registries": "registries",
    "maxReplicas": "max_replicas",
    "regions": "regions",
    "requiredLabels": "required_labels",
}


def schema_of(rule: str) -> PolicyConfigSchema | None:
    """Return the configuration schema of a rule's policy, or None where nothing can be set."""
    found = _SCHEMAS.get(rule)
    return PolicyConfigSchema(properties=dict(found)) if found else None


def settings_of(config: Mapping[str, Any]) -> Settings:
    """Return the rules' settings; the engine has checked the configuration by its schema."""
    values: dict[str, Any] = {}
    for name, target in _FIELDS.items():
        value = config.get(name)
        if value is not None:
            values[target] = int(value) if isinstance(value, float) else value
    return Settings(**values)
