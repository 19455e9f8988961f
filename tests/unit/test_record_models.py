"""The models keep the promises that CRDs, components and docs make from them."""

import json
import typing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from dsec.api import generate
from dsec.api.config import PlatformConfig
from dsec.api.crds import definitions, structural
from dsec.api.experiment import ExperimentSpec
from dsec.api.fields import to_wire
from dsec.api.meta import Condition, ConditionStatus, condition_of, with_condition
from dsec.api.records import RECORDS, Experiment, Tenant
from dsec.api.status import ExperimentReason
from pydantic import BaseModel

ROOT = Path(__file__).parents[2]
BANNED = {"provider", "type", "class"}
"""Names that typed clients of CRDs cannot have as properties."""


def models(root: type[BaseModel], seen: set[type[BaseModel]] | None = None) -> set[type[BaseModel]]:
    """Return a model and every model inside it."""
    seen = seen if seen is not None else set()
    if root in seen:
        return seen
    seen.add(root)
    pending: list[Any] = [info.annotation for info in root.model_fields.values()]
    while pending:
        one = pending.pop()
        pending += typing.get_args(one)
        if isinstance(one, type) and issubclass(one, BaseModel):
            models(one, seen)
    return seen


SPECS: list[type[BaseModel]] = [
    typing.cast("type[BaseModel]", one.model_fields["spec"].annotation) for one in RECORDS
]


@pytest.mark.parametrize("root", [*RECORDS, PlatformConfig], ids=lambda one: one.__name__)
def test_every_field_is_described(root: type[BaseModel]) -> None:
    """`kubectl explain`, stack authors and the docs read the descriptions."""
    wire = {"NodeInventory", "Device", "Usage", "ObjectMeta"}
    bare = [
        f"{model.__name__}.{name}"
        for model in models(root)
        for name, info in model.model_fields.items()
        if not info.description and model not in RECORDS and model.__name__ not in wire
    ]
    assert bare == []


@pytest.mark.parametrize("spec", SPECS, ids=lambda one: one.__name__)
def test_specs_have_no_floats_and_no_banned_names(spec: type[BaseModel]) -> None:
    """Binary fractions drift; banned names break typed clients."""
    text = json.dumps(structural(spec))
    assert '"number"' not in text
    for model in models(spec):
        names = {info.alias or name for name, info in model.model_fields.items()}
        assert not names & BANNED, model


@pytest.mark.parametrize("spec", SPECS, ids=lambda one: one.__name__)
def test_top_level_fields_say_what_a_change_does(spec: type[BaseModel]) -> None:
    """live, new replicas only, or replace."""
    for name, info in spec.model_fields.items():
        extra = info.json_schema_extra
        assert isinstance(extra, dict), name
        assert extra["change"] in {"live", "new replicas only", "replace"}, name


def test_lists_and_maps_are_bounded() -> None:
    """Records stay small whatever somebody writes."""

    def walk(node: Any, path: str) -> None:
        if isinstance(node, dict):
            if node.get("type") == "array":
                assert "maxItems" in node, path
            if "additionalProperties" in node:
                assert "maxProperties" in node, path
            for key, one in node.items():
                walk(one, f"{path}.{key}")
        elif isinstance(node, list):
            for one in node:
                walk(one, path)

    for spec in SPECS:
        walk(structural(spec), spec.__name__)


def test_generated_files_are_fresh() -> None:
    """Edit a model, run `make generate`."""
    stale = [
        str(path.relative_to(ROOT))
        for path, text in generate.targets(ROOT).items()
        if not path.exists() or path.read_text() != text
    ]
    assert stale == []


def test_definitions_name_kinds_categories_and_columns() -> None:
    """Short names that nobody else owns, one category, useful columns."""
    short = {
        one["spec"]["names"]["kind"]: one["spec"]["names"]["shortNames"][0] for one in definitions()
    }
    assert short == {
        "Experiment": "dexp",
        "SandboxImage": "dimg",
        "Tenant": "dten",
        "SandboxNodePool": "dpool",
        "SandboxNode": "dnode",
        "Budget": "dbud",
        "ReplicationPolicy": "drep",
    }
    for one in definitions():
        assert one["spec"]["names"]["categories"] == ["dsec"]
        version = one["spec"]["versions"][0]
        assert version["subresources"] == {"status": {}}
        assert len(version["additionalPrinterColumns"]) >= 3


def test_a_field_of_two_types_is_refused() -> None:
    """A structural schema cannot say it."""

    class Odd(BaseModel):
        """A model that no CRD can hold."""

        value: int | str

    with pytest.raises(TypeError, match="two types"):
        structural(Odd)


def test_a_record_keeps_what_was_asked_apart_from_defaults() -> None:
    """The spec that is stored has no values that nobody wrote; the status is whole."""
    spec = {"roles": [{"name": "a"}], "priority": "normal"}
    record = Experiment.model_validate({"metadata": {"name": "x"}, "spec": spec})
    assert record.record()["spec"] == spec
    assert record.record()["status"]["desired"] == 0
    assert Tenant.model_validate({"metadata": {"name": "t"}}).record()["spec"] == {}


def test_records_of_a_newer_server_are_readable() -> None:
    """Unknown keys are ignored on the wire; documents and stacks refuse them elsewhere."""
    record = Experiment.model_validate(
        {"metadata": {"managedFields": []}, "spec": {"roles": [{"name": "a"}], "novel": 1}}
    )
    assert record.spec.roles[0].name == "a"


def test_conditions_keep_their_transition_time() -> None:
    """The time moves with the status alone."""
    start = datetime(2026, 1, 1, tzinfo=UTC)
    one = Condition(type="Ready", status=ConditionStatus.FALSE, reason=ExperimentReason.STARTING)
    conditions = with_condition([], one, now=start)
    later = one.model_copy(update={"reason": ExperimentReason.RUN_OVER})
    conditions = with_condition(conditions, later, now=start + timedelta(hours=1))
    found = condition_of(conditions, "Ready")
    assert found is not None
    assert (found.last_transition_time, found.reason) == (start, "RunOver")
    turned = one.model_copy(update={"status": ConditionStatus.TRUE})
    conditions = with_condition(conditions, turned, now=start + timedelta(hours=2))
    assert conditions[0].last_transition_time == start + timedelta(hours=2)


def test_to_wire_takes_both_spellings_and_pulumi_numbers() -> None:
    """snake_case from Python stacks, 3.0 for 3, free maps untouched, unknown keys named."""
    spec = {
        "max_run_seconds": 60.0,
        "roles": [{"name": "a", "replicas": 3.0, "env": {"my_var": "1"}, "pull_policy": None}],
        "presets": {"CONF-11": "sampled"},
    }
    wire = to_wire(ExperimentSpec, spec)
    assert wire == {
        "maxRunSeconds": 60,
        "roles": [{"name": "a", "replicas": 3, "env": {"my_var": "1"}}],
        "presets": {"CONF-11": "sampled"},
    }
    assert isinstance(wire["roles"][0]["replicas"], int)
    with pytest.raises(ValueError, match=r"roles\[0\].replcas: unknown key replcas; did you mean"):
        to_wire(ExperimentSpec, {"roles": [{"replcas": 1}]})
