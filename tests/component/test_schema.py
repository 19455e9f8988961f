"""The package as other languages see it: a snapshot of its schema, every property described."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from dsec_components.host import component_provider
from syrupy.assertion import SnapshotAssertion


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    """Return the schema; inferring it needs no engine."""
    text = component_provider().schema
    assert text
    return dict(json.loads(text))


def properties(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (path, property) of everything that a user can set or read."""
    for token, resource in schema["resources"].items():
        for part in ("inputProperties", "properties"):
            for name, one in resource[part].items():
                yield f"{token}.{part}.{name}", one
    for token, kind in schema["types"].items():
        for name, one in kind.get("properties", {}).items():
            yield f"{token}.{name}", one


def test_every_property_is_described(schema: dict[str, Any]) -> None:
    """A missing description is a mistake in a docstring."""
    silent = [path for path, one in properties(schema) if not one.get("description")]
    assert silent == []


def test_names_suit_every_language(schema: dict[str, Any]) -> None:
    """Words that some SDK cannot use as a property name."""
    for path, _ in properties(schema):
        assert path.rsplit(".", 1)[-1] not in {"provider", "type", "class", "urn", "id"}, path


def test_required_inputs_are_few(schema: dict[str, Any]) -> None:
    """Near a dozen, an abstraction would be too low."""
    for token, resource in schema["resources"].items():
        assert len(resource.get("requiredInputs", [])) <= 2, token


def test_the_contract_changes_only_on_purpose(
    schema: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    """Update with `pytest tests/component/test_schema.py --snapshot-update` and say why."""
    contract = {
        path: {key: value for key, value in one.items() if key != "description"}
        for path, one in properties(schema)
    }
    required = {
        token: resource.get("requiredInputs", []) for token, resource in schema["resources"].items()
    }
    enums = {
        token: [one["value"] for one in kind["enum"]]
        for token, kind in schema["types"].items()
        if "enum" in kind
    }
    assert snapshot == {"properties": contract, "required": required, "enums": enums}
