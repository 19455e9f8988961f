"""Inputs are checked at construction, with every mistake and its path; unknown values later."""

import json
from pathlib import Path
from typing import Any

import pulumi
import pytest
from conftest import Run, plain
from dsec_components.experiment import Experiment
from dsec_components.node_pool import OnPremNodePool
from dsec_components.tenant import Tenant

ROLE = {"name": "w", "image": "i:1", "resources": {"cpu_milli": 100, "memory_bytes": 1 << 26}}


def refused(run: Run, program: Any) -> pulumi.InputPropertiesError:
    """Run a program that must be refused, and return the error."""
    with pytest.raises(pulumi.InputPropertiesError) as error:
        run(program)
    return error.value


def test_every_mistake_of_a_typed_experiment_is_named(run: Run) -> None:
    """Unknown names, wrong values and contradictions, each with path and what is allowed."""
    spec = {
        "priority": "hihg",
        "roles": [
            {**ROLE, "replicas": -1, "imag": "x"},
            {"name": "v", "resources": {"memory_bytes": 1}},
        ],
    }
    error = refused(run, lambda o: Experiment("e", {"project": "demo", "spec": spec}, o))
    paths = {one["property_path"] for one in error.errors or []}
    assert paths == {
        "priority",
        "roles[0].imag",
        "roles[0].replicas",
        "roles[1].resources.memoryBytes",
    }
    assert "did you mean image?" in error.message


def test_a_value_known_later_is_checked_later_and_sent_checked(run: Run) -> None:
    """An Output inside gates the whole spec on its check."""
    seen: list[Any] = []

    def program(opts: pulumi.ResourceOptions, replicas: int) -> None:
        role = {**ROLE, "replicas": pulumi.Output.from_input(replicas)}
        Experiment("e", {"project": "demo", "spec": {"roles": [role]}}, opts)

    made = run(lambda opts: program(opts, 3))
    (record,) = made.of("Experiment")[1:] or made.of("v1alpha1:Experiment")
    seen.append(record.inputs["spec"]["roles"][0]["replicas"])
    assert seen == [3]
    with pytest.raises(pulumi.InputPropertiesError, match="must be at least 0, not -3"):
        run(lambda opts: program(opts, -3))


def test_a_preview_with_an_unknown_value_still_shows_the_record(run: Run) -> None:
    """The record is planned although its spec is not known yet."""

    def program(opts: pulumi.ResourceOptions) -> None:
        async def value(result: Any) -> Any:
            return result

        pending: Any = pulumi.Output(value(set()), value(None), value(False), value(False))
        spec: Any = {"roles": [{**ROLE, "replicas": pending}]}
        Experiment("e", {"project": "demo", "spec": spec}, opts)

    made = run(program, preview=True)
    assert [one.name for one in made.of("v1alpha1:Experiment")] == ["e-experiment"]


def test_exactly_one_source_is_wanted(run: Run) -> None:
    """None and two are refused."""
    for args in ({}, {"spec": {"roles": [ROLE]}, "document": "x"}):
        with pytest.raises(pulumi.InputPropertyError) as error:
            run(lambda o, a=args: Experiment("e", {"project": "demo", **a}, o))
        assert "exactly one of spec, document and documentFile" in error.value.reason


def test_a_document_is_read_like_any_other(run: Run, tmp_path: Path) -> None:
    """The record is what the parser of documents makes; mistakes keep their paths and lines."""
    good = "metadata: {name: my_eval}\nspec:\n  image: i:1\n  resources: {cpu: 1, memory: 64Mi}\n"
    file = tmp_path / "task.yaml"
    file.write_text(good)
    made = run(lambda o: Experiment("e", {"project": "demo", "document_file": str(file)}, o))
    (record,) = made.of("v1alpha1:Experiment")
    assert record.inputs["metadata"]["name"].startswith("my-eval-")
    assert record.inputs["spec"]["dialect"] == "spec"
    assert record.inputs["spec"]["roles"][0]["resources"]["memoryBytes"] == 64 << 20
    bad = good.replace("memory: 64Mi", "memry: 64Mi")
    error = refused(run, lambda o: Experiment("e", {"project": "demo", "document": bad}, o))
    assert "spec.resources.memry" in error.message
    assert "line 4" in error.message


def test_an_absent_document_is_named(run: Run) -> None:
    """The path is in the message, and no traceback of open()."""
    with pytest.raises(pulumi.InputPropertyError) as error:
        run(lambda o: Experiment("e", {"project": "demo", "document_file": "gone.yaml"}, o))
    assert error.value.property_path == "documentFile"
    assert "gone.yaml" in error.value.reason


def test_waiting_is_chosen(run: Run) -> None:
    """What `up` waits for is an annotation that the provider reads."""
    found = {}
    for wait in ("none", "accepted", "ready"):
        args = {"project": "demo", "spec": {"roles": [ROLE]}, "wait": wait}
        made = run(lambda o, a=args: Experiment("e", a, o))
        (record,) = made.of("v1alpha1:Experiment")
        found[wait] = plain(record.inputs["metadata"])["annotations"].get("pulumi.com/waitFor")
    assert found == {
        "none": None,
        "accepted": "condition=Accepted",
        "ready": "condition=Ready",
    }


def test_spelled_out_defaults_change_nothing(run: Run) -> None:
    """What is not set is not sent, so a default given by hand is the only difference."""
    bare = run(lambda o: OnPremNodePool("p", {}, o)).of("v1alpha1:SandboxNodePool")[0]
    assert bare.inputs["spec"] == {}


def test_a_pool_with_a_wrong_kind_is_refused(run: Run) -> None:
    """The words that are allowed are in the message."""
    error = refused(run, lambda o: OnPremNodePool("p", {"spec": {"kind": "gpuu"}}, o))
    assert "must be one of" in error.message


def test_a_tenant_labels_no_namespace_as_its_own(run: Run) -> None:
    """The labels dsec.dev/tenant and dsec.dev/project are the Tenant controller's."""
    made = run(lambda o: Tenant("t", {"spec": {"projects": ["a"]}, "editors": ["ada"]}, o))
    (namespace,) = made.of("core/v1:Namespace")
    labels = plain(namespace.inputs["metadata"])["labels"]
    assert not {"dsec.dev/tenant", "dsec.dev/project"} & set(labels)
    (binding,) = made.of("RoleBinding")
    assert binding.inputs["metadata"]["namespace"] == "a"
    assert binding.inputs["roleRef"]["name"] == "dsec-editor"


def test_projects_that_only_an_update_knows_are_refused(run: Run) -> None:
    """Namespaces cannot hang on a value that a preview does not know."""

    def program(opts: pulumi.ResourceOptions) -> None:
        spec: Any = {"projects": pulumi.Output.from_input(["a"])}
        Tenant("t", {"spec": spec}, opts)

    with pytest.raises(pulumi.InputPropertyError) as error:
        run(program)
    assert error.value.property_path == "spec.projects"


def test_a_changed_quota_is_one_changed_field(run: Run) -> None:
    """Nothing is replaced or renamed by it."""
    specs = []
    for cores in (4000, 8000):
        spec: Any = {"projects": ["a"], "quota": {"nominal": {"cpu_milli": cores}}}
        made = run(lambda o, s=spec: Tenant("t", {"spec": s}, o))
        specs.append(
            json.dumps([(one.name, plain(one.inputs)) for one in made.resources], default=str)
        )
    assert specs[0].replace("4000", "8000") == specs[1]
