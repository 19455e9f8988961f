"""CustomResourceDefinitions made from the record models: structural schemas with descriptions.

A structural schema has no $ref, no anyOf around null, no defaults (what is left out must stay
visible as left out: status.resolved lists what filled it) and names the kind of each list.
"""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from dsec.api.meta import GROUP, VERSION
from dsec.api.records import RECORDS, RecordModel

Schema = dict[str, Any]

_READY = '.status.conditions[?(@.type=="Ready")].status'

# kubectl columns per kind: name, type, JSON path; "+" marks those shown with -o wide alone
_COLUMNS: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    "Experiment": (
        ("Ready", "string", _READY),
        ("Wanted", "integer", ".status.desired"),
        ("Running", "integer", ".status.ready"),
        ("Pending", "integer", ".status.pending"),
        ("Ended", "integer", ".status.ended"),
        ("Waits for", "string", ".status.pendingReasons[0].reason"),
        ("Tenant+", "string", ".status.resolved.tenant"),
        ("Why+", "string", ".status.pendingReasons[0].message"),
    ),
    "SandboxImage": (
        ("Ready", "string", _READY),
        ("Reference", "string", ".spec.reference"),
        ("Digest+", "string", ".status.digest"),
    ),
    "Tenant": (
        ("Ready", "string", _READY),
        ("Sandboxes", "integer", ".status.used.sandboxes"),
        ("CPU (milli)", "integer", ".status.used.cpuMilli"),
        ("Memory", "integer", ".status.used.memoryBytes"),
        ("GPUs", "integer", ".status.used.gpuCount"),
        ("Quota CPU+", "integer", ".spec.quota.nominal.cpuMilli"),
        ("Quota GPUs+", "integer", ".spec.quota.nominal.gpuCount"),
    ),
    "SandboxNodePool": (
        ("Ready", "integer", ".status.ready"),
        ("Nodes", "integer", ".status.nodes"),
        ("Kind", "string", ".spec.kind"),
    ),
    "SandboxNode": (
        ("Ready", "string", _READY),
        ("Pool", "string", ".spec.pool"),
        ("Live", "integer", ".status.live"),
        ("CPU (milli)", "integer", ".status.inventory.cpuMilli"),
        ("Memory", "integer", ".status.inventory.memoryBytes"),
        ("Endpoint+", "string", ".status.endpoint"),
    ),
    "Budget": (
        ("Scope", "string", ".spec.scope"),
        ("Limit", "string", ".spec.limit"),
        ("Unit", "string", ".spec.unit"),
        ("Currency", "string", ".spec.currency"),
        ("Spent", "string", ".status.spent"),
        ("Left", "string", ".status.left"),
        ("Forecast+", "string", ".status.forecast"),
        ("In force+", "string", ".status.action"),
        ("Until+", "date", ".status.periodEnd"),
    ),
    "ReplicationPolicy": (
        ("Ready", "string", _READY),
        ("In sync", "string", '.status.conditions[?(@.type=="InSync")].status'),
        ("Protected", "string", '.status.conditions[?(@.type=="Protected")].status'),
        ("To", "string", ".spec.destinations[*].region"),
        ("Recovery point (s)", "integer", ".status.destinations[0].recoveryPointSeconds"),
        ("Behind", "integer", ".status.destinations[0].behind"),
        ("Last cycle+", "date", ".status.lastCycle"),
    ),
}

# lists that are maps by a key of their items: Kubernetes refuses a repeated key
_LIST_KEYS: Mapping[str, str] = {"roles": "name", "mounts": "name", "conditions": "type"}

_BOUNDS_MESSAGE = "replicas must lie between min and max"
# what no single field can say; (path of the object below the kind, CEL rule, message)
_RULES: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    "Experiment": (
        (
            "spec.roles[]",
            "!has(self.min) || !has(self.max) || self.min <= self.max",
            "min must not be above max",
        ),
        (
            "spec.roles[]",
            "!has(self.replicas) || !has(self.max) || self.replicas <= self.max",
            _BOUNDS_MESSAGE,
        ),
        (
            "spec.roles[]",
            "!has(self.replicas) || !has(self.min) || self.replicas >= self.min",
            _BOUNDS_MESSAGE,
        ),
    ),
}


def definitions() -> list[Schema]:
    """Return one CustomResourceDefinition per record kind, in a stable order."""
    return [_definition(record) for record in RECORDS]


def _definition(record: type[RecordModel]) -> Schema:
    kind = record.__name__
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{record.PLURAL}.{GROUP}",
            "labels": {"app.kubernetes.io/part-of": "dsec"},
        },
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": record.PLURAL,
                "singular": kind.lower(),
                "shortNames": [record.SHORT],
                "categories": ["dsec"],
            },
            "scope": "Namespaced" if record.NAMESPACED else "Cluster",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [_column(*one) for one in _COLUMNS[kind]]
                    + [_column("Age", "date", ".metadata.creationTimestamp")],
                    "schema": {"openAPIV3Schema": _record_schema(record)},
                }
            ],
        },
    }


def _column(name: str, kind: str, path: str) -> Schema:
    column: Schema = {"name": name.removesuffix("+"), "type": kind, "jsonPath": path}
    if name.endswith("+"):
        column["priority"] = 1
    return column


def _record_schema(record: type[RecordModel]) -> Schema:
    fields = record.model_fields
    schema: Schema = {
        "type": "object",
        "description": _one_line(record.__doc__ or ""),
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
        },
        "required": [name for name in ("spec",) if fields[name].is_required()],
    }
    for part in ("spec", "status"):
        model = fields[part].annotation
        if not (isinstance(model, type) and issubclass(model, BaseModel)):  # pragma: no cover
            raise TypeError(f"{record.__name__}.{part} is no model")
        schema["properties"][part] = structural(model)
    _forbid_changes(schema["properties"]["spec"], "spec")
    for path, rule, message in _RULES.get(record.__name__, ()):
        _at(schema, path).setdefault("x-kubernetes-validations", []).append(
            {"rule": rule, "message": message}
        )
    _strip_marks(schema)
    if not schema["required"]:
        del schema["required"]
    return schema


def structural(model: type[BaseModel]) -> Schema:
    """Return the structural schema of a model, with camelCase names."""
    raw = model.model_json_schema(by_alias=True)
    return _inline(raw, raw.get("$defs", {}))


def _inline(node: Schema, defs: Mapping[str, Schema]) -> Schema:
    if "$ref" in node:
        target = defs[node["$ref"].rsplit("/", 1)[1]]
        own = {key: value for key, value in node.items() if key != "$ref"}
        return _inline({**target, **own}, defs)
    if "allOf" in node and len(node["allOf"]) == 1:
        own = {key: value for key, value in node.items() if key != "allOf"}
        return _inline({**node["allOf"][0], **own}, defs)
    if "anyOf" in node:
        return _nullable(node, defs)
    out: Schema = {}
    for key, value in node.items():
        out.update(_keyword(key, value, defs))
    if out.get("type") == "integer":
        out["format"] = "int64"
    return out


def _keyword(key: str, value: Any, defs: Mapping[str, Schema]) -> Schema:
    """Translate one JSON Schema keyword to what OpenAPI 3.0 and Kubernetes call it."""
    if key in {"title", "default", "$defs", "propertyNames"}:
        # names of a map's keys have no place in a structural schema: the model checks them
        return {}
    if key == "properties":
        return {key: {name: _property(name, one, defs) for name, one in value.items()}}
    if key == "patternProperties":
        # a map whose keys are names: its one pattern is that of the names
        key, (value,) = "additionalProperties", value.values()
    if key in {"items", "additionalProperties"}:
        # true and false are no structural schemas: the server prunes unknown keys itself
        return {key: _inline(value, defs)} if isinstance(value, dict) else {}
    if key in {"exclusiveMinimum", "exclusiveMaximum"}:
        # JSON Schema says the bound, OpenAPI 3.0 says that the bound is excluded
        return {"minimum" if key == "exclusiveMinimum" else "maximum": value, key: True}
    if key == "description":
        return {key: _one_line(value)}
    return {key: value}


def _nullable(node: Schema, defs: Mapping[str, Schema]) -> Schema:
    choices = [one for one in node["anyOf"] if one.get("type") != "null"]
    if len(choices) != 1:
        raise TypeError(f"a field of two types has no structural schema: {json.dumps(node)}")
    own = {key: value for key, value in node.items() if key != "anyOf"}
    merged = _inline({**choices[0], **own}, defs)
    if "enum" not in merged:
        # the server compares null with the words of an enum and refuses it, nullable or not
        merged["nullable"] = True
    return merged


def _property(name: str, node: Schema, defs: Mapping[str, Schema]) -> Schema:
    out = _inline(node, defs)
    if out.get("type") == "array":
        key = _LIST_KEYS.get(name)
        if key and out["items"].get("type") == "object":
            out["x-kubernetes-list-type"] = "map"
            out["x-kubernetes-list-map-keys"] = [key]
        else:
            out["x-kubernetes-list-type"] = "atomic"
    if "change" in out:
        out["description"] = f"{out.get('description', '')} ({out['change']})".strip()
    return out


def _forbid_changes(node: Schema, path: str, key: str = "") -> None:
    """Turn every `replace` field into a transition rule of its object.

    `key` is the field that tells the items of a list apart: it cannot change by definition.
    """
    rules = []
    for name, one in node.get("properties", {}).items():
        if one.get("change") == "replace" and name != key:
            same = f"self.{name} == oldSelf.{name}"
            if name not in node.get("required", []):
                kept = f"has(self.{name}) == has(oldSelf.{name})"
                same = f"{kept} && (!has(self.{name}) || {same})"
            rules.append(
                {
                    "rule": same,
                    "message": f"{path}.{name} cannot change: delete the record and create another",
                    "fieldPath": f".{name}",
                }
            )
        if one.get("type") == "object":
            _forbid_changes(one, f"{path}.{name}")
        elif one.get("x-kubernetes-list-type") == "map":
            _forbid_changes(one["items"], f"{path}.{name}[]", _LIST_KEYS[name])
    if rules:
        node.setdefault("x-kubernetes-validations", []).extend(rules)


def _at(schema: Schema, path: str) -> Schema:
    for step in path.split("."):
        schema = schema["properties"][step.removesuffix("[]")]
        if step.endswith("[]"):
            schema = schema["items"]
    return schema


def _strip_marks(node: Any) -> None:
    if isinstance(node, dict):
        if isinstance(node.get("change"), str):
            del node["change"]
        for one in node.values():
            _strip_marks(one)
    elif isinstance(node, list):
        for one in node:
            _strip_marks(one)


def _one_line(text: str) -> str:
    return " ".join(text.split())
