"""Four dialects become one model; what was filled in is listed; the sources' own documents pass."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from dsec.api.documents import Normalised, normalise, parse, resolve
from dsec.api.documents.text import read
from dsec.api.experiment import ExperimentSpec
from dsec.api.mistakes import DocumentError
from dsec.api.records import Experiment
from dsec.api.tenant import TenantDefaults, TenantSpec
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

HERE = Path(__file__).parent.parent / "data" / "documents"
ORIGINALS = Path(
    os.environ.get("DSEC_TASK_DOCUMENTS", Path(__file__).parents[3] / "shared" / "data" / "tasks")
)

DEFAULTS = TenantDefaults.model_validate(
    {
        "image": "registry.example/base:1",
        "imageMirrors": [{"prefix": "registry.internal/", "mirror": "mirror.example/internal/"}],
        "resources": {"cpuMilli": 1000, "memoryBytes": 1 << 30},
        "currency": "USD",
        "presets": {"CONF-11": "warn-only"},
    }
)


def original(letter: str) -> Normalised:
    """Normalise one of the documents that the sources print, unmodified, in a tenant `demo`."""
    path = ORIGINALS / f"{letter}.yaml"
    if not path.exists():
        pytest.skip("the sources' documents are not here; set DSEC_TASK_DOCUMENTS to their folder")
    return normalise(path.read_text(), defaults=DEFAULTS, tenant="demo")


@pytest.mark.parametrize("name", ["roles", "spec", "task", "groups", "experiment"])
def test_normal_form(name: str, snapshot: SnapshotAssertion) -> None:
    """The whole normal form, and everything that was filled in."""
    done = normalise((HERE / f"{name}.yaml").read_text(), defaults=DEFAULTS, tenant="lab")
    spec = done.experiment.spec.wire()
    del spec["sourceDigest"]  # covers comments too
    filled = [one.wire() for one in done.defaulted]
    text = json.dumps(
        {"name": done.experiment.metadata.name, "spec": spec, "defaulted": filled}, indent=1
    )
    assert text == snapshot


@pytest.mark.parametrize("name", ["roles", "spec", "task", "groups", "experiment"])
def test_the_asked_spec_holds_only_what_was_asked(name: str) -> None:
    """A record made from a document reads back equal, and normalises to itself."""
    parsed = parse((HERE / f"{name}.yaml").read_text())
    record = parsed.record("lab").record()
    again = Experiment.model_validate(record)
    assert again.spec == parsed.spec
    assert "CONF-11" not in parsed.spec.presets or name == "groups"
    native = yaml.safe_dump(
        {key: record[key] for key in ("apiVersion", "kind", "metadata", "spec")}
    )
    twice = parse(native).spec
    keep = {"dialect", "source_digest"}
    assert twice.model_dump(exclude=keep) == parsed.spec.model_dump(exclude=keep)


def test_a_roles_document() -> None:
    """API-08: one trainer and eight sims, decimal gigabytes, 600 s checkpoints."""
    done = original("A")
    spec = done.experiment.spec
    assert done.experiment.given_name == "ppo_walk"
    assert done.experiment.metadata.name.startswith("ppo-walk-")
    assert [(one.name, one.replicas, one.min, one.max) for one in spec.roles] == [
        ("trainer", 1, None, None),
        ("sim", 8, 4, 12),
    ]
    trainer = spec.roles[0]
    assert (trainer.resources.cpu_milli, trainer.resources.memory_bytes) == (8000, 32 * 10**9)
    assert trainer.gpu is not None
    assert (trainer.gpu.count, trainer.gpu.mode.value) == (1, "whole")
    assert trainer.image == "mirror.example/internal/agent-sim/ppo-trainer:latest"
    assert spec.workspace_bytes == 200 * 10**9
    assert spec.snapshot is not None
    assert spec.snapshot.interval_seconds == 600
    assert spec.presets["CONF-09"] == "ckpt-600"
    assert spec.presets["CONF-02"] == "role-queue"
    assert spec.tenant == "demo"
    assert ("tenant", '"demo"') in {(one.path, one.value) for one in done.defaulted}
    assert len([one for one in done.warnings if ":latest" in one]) == 2


def test_a_spec_document() -> None:
    """API-09: MPS with a 4 GiB cap, 1 to 96 replicas, a 70 % CPU target."""
    spec = original("B").experiment.spec
    (role,) = spec.roles
    assert role.gpu is not None
    assert (role.gpu.mode.value, role.gpu.memory_bytes) == ("mps", 4 << 30)
    assert (role.replicas, role.min, role.max) == (1, 1, 96)
    assert role.elastic is not None
    assert (role.elastic.metric, role.elastic.target) == ("cpu", 70)
    assert spec.presets["CONF-02"] == "cpu-target"
    assert spec.presets["CONF-09"] == "ckpt-300"
    assert role.restart_policy.value == "checkpoint"
    assert (role.mounts[0].claim, role.mounts[0].read_only) == ("pvc-agentdata-ro", True)
    assert spec.workspace_bytes == 8 << 30
    assert spec.network.allowed_domains == ["api.search.example.com", "huggingface.co"]


def test_a_task_document() -> None:
    """API-10: four instances of half a card and 64 cores, a 15-minute timer, three kept."""
    done = original("C")
    spec = done.experiment.spec
    (role,) = spec.roles
    assert (role.replicas, role.max) == (4, 16)
    assert (role.resources.cpu_milli, role.resources.memory_bytes) == (64_000, 128 * 10**9)
    assert role.gpu is not None
    assert (role.gpu.shares, role.gpu.memory_bytes, role.gpu.model) == (400, 40 * 10**9, "a100")
    assert spec.snapshot is not None
    assert (spec.snapshot.interval_seconds, spec.snapshot.retain) == (900, 3)
    assert (spec.network.mode.value, spec.network.egress.value) == ("training", "deny")
    assert spec.presets["CONF-08"] == "absolute"


def test_a_groups_document() -> None:
    """Example D: 512 + 1 + 1; what it leaves out comes from the tenant, listed."""
    done = original("D")
    spec = done.experiment.spec
    assert [one.replicas for one in spec.roles] == [512, 1, 1]
    assert spec.isolation_level is not None
    assert spec.isolation_level.value == "microvm"
    assert spec.max_run_seconds == 43_200
    assert spec.budget is not None
    assert (spec.budget.limit, spec.budget.currency) == ("500", "USD")
    assert {one.image for one in spec.roles} == {"registry.example/base:1"}
    filled = {one.path: one.source for one in done.defaulted}
    assert filled["roles[2].resources.memoryBytes"] == "tenant"
    assert filled["roles[0].image"] == "tenant"
    assert filled["budget.currency"] == "tenant"
    assert [one.kind for one in spec.relations] == ["broadcast", "aggregate"]


def test_without_a_tenant_default_a_missing_limit_is_refused_by_its_path() -> None:
    """API-17: no ceiling, no run."""
    text = (HERE / "spec.yaml").read_text().replace("resources: {cpu: 2, memory: 4Gi}", "")
    with pytest.raises(DocumentError) as caught:
        normalise(text)
    assert [one.path for one in caught.value.mistakes] == [
        "spec.resources.cpu",
        "spec.resources.memory",
    ]
    assert normalise(text, defaults=DEFAULTS).experiment.spec.roles[0].resources.cpu_milli == 1000


def test_shares_say_how_much_gpu_memory_they_are() -> None:
    """TEN-06: ten shares are one decimal gigabyte."""
    text = (HERE / "spec.yaml").read_text()
    text = text.replace("gpu: {mode: mps, memory: 4Gi}", "gpu: {mode: shares, shares: 45}")
    done = normalise(text, defaults=DEFAULTS)
    role = done.experiment.spec.roles[0]
    assert role.gpu is not None
    assert role.gpu.memory_bytes == 4_500_000_000
    assert "gpu.shares" in {one.source for one in done.defaulted}


def test_a_bad_preset_of_a_record_does_not_break_its_controller() -> None:
    """Records can be written around every check; the default holds then."""
    data = {"roles": [{"name": "a"}], "presets": {"CONF-30": "x"}, "data": [{"uri": "dataset://d"}]}
    spec = ExperimentSpec.model_validate(data)
    rights = TenantSpec.model_validate({"defaults": {"presets": {"CONF-10": "y"}}})
    done = resolve(spec, tenant="lab", rights=rights)
    assert done.spec.data[0].path == "/dataset"
    assert done.spec.isolation_level is not None
    assert done.spec.isolation_level.value == "container"


def test_a_huge_experiment_still_fits_its_record() -> None:
    """64 roles with 32 mounts each: the list of defaults is cut, and says so."""
    mounts = [{"name": f"m{at}", "path": f"/m{at}"} for at in range(32)]
    roles = [{"name": f"r{at}", "mounts": mounts} for at in range(64)]
    done = resolve(ExperimentSpec.model_validate({"roles": roles}), tenant="lab")
    assert len(done.defaulted) == 1024
    assert done.defaulted[-1].source == "further values, not listed"


def test_an_edited_document_has_another_digest() -> None:
    """API-21: the stored record says which file it came from."""
    text = (HERE / "task.yaml").read_text()
    one, two = parse(text).spec, parse(text + "# reviewed\n").spec
    assert one.source_digest != two.source_digest
    assert one.source_digest.startswith("sha256:")


def test_plain_words_stay_words() -> None:
    """YAML 1.1 would read other values into these."""
    source = read("a: on\nb: 1e3\nc: 017\nd: 0x1f\ne: 2024-01-01\nf: 1_000\ng: 12:30\nh: No\n")
    assert all(isinstance(one, str) for one in source.data.values()), source.data


def test_json_is_a_document_too() -> None:
    """The API takes both."""
    data = yaml.safe_load((HERE / "experiment.yaml").read_text())
    assert parse(json.dumps(data)).name == "native"


def test_environment_values_keep_their_digits() -> None:
    """0.10 is not 0.1, and true is the text true."""
    role = parse((HERE / "roles.yaml").read_text()).spec.roles[0]
    assert role.env == {"EPOCHS": "10", "FAST": "true", "RATE": "0.10"}


_NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,12}", fullmatch=True)
_ROLES = st.fixed_dictionaries(
    {
        "replicas": st.integers(0, 5000),
        "resource": st.fixed_dictionaries(
            {
                "cpu": st.one_of(st.integers(1, 64), st.integers(1, 9999).map("{}m".format)),
                "mem": st.tuples(st.integers(2, 512), st.sampled_from(["Mi", "Gi", "M", "G"])).map(
                    lambda one: f"{one[0]}{one[1]}"
                ),
            }
        ),
        "image": st.just("registry.example/a:1"),
    }
)


@given(_NAMES, st.dictionaries(_NAMES, _ROLES, min_size=1, max_size=5))
def test_any_roles_document_round_trips(name: str, roles: dict[str, Any]) -> None:
    """What is asked survives the model, the record and the wire."""
    document = {"name": name, "roles": [{"role": key, **one} for key, one in roles.items()]}
    spec = parse(yaml.safe_dump(document)).spec
    assert [(one.name, one.replicas) for one in spec.roles] == [
        (key, one["replicas"]) for key, one in roles.items()
    ]
    assert ExperimentSpec.model_validate_json(json.dumps(spec.wire())) == spec


@given(st.text(max_size=300))
def test_no_text_breaks_the_reader(text: str) -> None:
    """Any text is a document or a DocumentError, never another exception."""
    with contextlib.suppress(DocumentError):
        parse(text)
