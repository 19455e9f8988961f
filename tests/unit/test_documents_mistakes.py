"""Bad documents: each mistake has its path, line, value and what is allowed; all come at once."""

import pytest
from dsec.api.documents import parse
from dsec.api.mistakes import DocumentError, Mistake

ROLE = "roles: [{role: a, image: i/a:1, resource: {cpu: 1, mem: 1Gi}}]"
B = "metadata: {name: x}\nspec:\n  image: i/a:1\n  resources: {cpu: 1, memory: 1Gi}\n"
D = "metadata: {name: x}\nspec:\n  image: i/a:1\n  resources: {cpu: 1, memory: 1Gi}\n"
RELATION = "{type: broadcast, from: a, to: b}"
NATIVE = "apiVersion: dsec.dev/v1alpha1\nkind: Experiment\nmetadata: {name: x}\n"


def mistakes(text: str) -> list[Mistake]:
    """Return what is wrong with a document."""
    with pytest.raises(DocumentError) as caught:
        parse(text)
    return caught.value.mistakes


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        # form
        ("", "", "is empty"),
        ("a: [", "", "is not YAML"),
        ("- a\n- b", "", "a mapping at the top level"),
        ("a: 1\na: 2", "a", "given twice, first in line 1"),
        ("a: 1\n---\nb: 2", "", "one document per file"),
        ("x: !!python/name:os.system 1", "x", "tag"),
        ("x: &a [*a, *a]", "", "50000 values"),
        ("[" * 40 + "]" * 40, "[0]" * 33, "levels"),
        ("? [1, 2]\n: 3", "", "a key must be text"),
        ("x: " + "y" * (1 << 20), "", "characters"),
        # dialect
        ("hello: 1", "", "no known dialect"),
        (f"name: x\n{ROLE}\nspec: {{}}", "spec", "roles and spec"),
        ("task: {name: x}\nspec: {}", "task", "spec and task"),
        # keys
        (f"name: x\nprioriti: high\n{ROLE}", "prioriti", "did you mean priority?"),
        ("name: x\nroles: [{role: a, imgae: b}]", "roles[0].imgae", "did you mean image?"),
        (f"{B}  elasic: {{}}\n", "spec.elasic", "did you mean elastic?"),
        ("task: {name: x, resources: {cpu_share: 1}}", "task.resources.cpu_share", "cpu_shares?"),
        (f"{NATIVE}spec: {{rols: []}}", "spec.rols", "did you mean roles?"),
        # required
        (ROLE, "name", "is required"),
        ("name: x\nroles: []", "roles", "at least one entry"),
        (
            f"{D}  experiment: {{groups: [{{role: w}}]}}",
            "spec.experiment.groups[0].name",
            "required",
        ),
        (f"{B}  budget: {{currency: EUR}}\n", "spec.budget.limit", "is required"),
        (f"{B}  elastic: {{minReplicas: 1}}\n", "spec.elastic.scaleMetric", "is required"),
        # values
        ("name: x y\n" + ROLE, "name", "must match"),
        (f"name: x\npriority: hihg\n{ROLE}", "priority", "one of low, normal, high, urgent"),
        ("name: x\nroles: [{role: a, replicas: 1e3}]", "roles[0].replicas", "a whole number"),
        ("name: x\nroles: [{role: a, replicas: 017}]", "roles[0].replicas", "a whole number"),
        ("name: x\nroles: [{role: a, replicas: -1}]", "roles[0].replicas", "from 0"),
        ("name: x\nroles: [{role: a, resource: {mem: 4}}]", "roles[0].resource.mem", "with unit"),
        ("name: x\nroles: [{role: a, resource: {cpu: two}}]", "roles[0].resource.cpu", "cores"),
        (f"{B}  maxRunTime: 12x\n", "spec.maxRunTime", "12h"),
        (f"{B}  budget: {{limit: 0.00001}}\n", "spec.budget.limit", "4 decimals"),
        (f"{B}  logging: {{debug: on}}\n", "spec.logging.debug", "true or false, not on"),
        (f"{B}  isolationLevel: vm\n", "spec.isolationLevel", "one of container"),
        (f"{B}  ports: [70000]\n", "spec.ports", "from 1 to 65535"),
        (f"{B}  env: [A=1]\n", "spec.env", "a map from text to text"),
        (f"{B}  network: open\n", "spec.network", "a mapping"),
        (f"{B}  presets: {{CONF-11: loud}}\n", "spec.presets.CONF-11", "one of stream-all"),
        (
            f"{NATIVE}spec: {{roles: [{{name: a}}], presets: {{CONF-30: x}}}}",
            "spec.presets.CONF-30",
            "one of",
        ),
        (
            f"{NATIVE}spec: {{roles: [{{name: a}}], presets: {{CONF-99: x}}}}",
            "spec.presets.CONF-99",
            "unknown key CONF-99",
        ),
        (f"{B}  workdir: here\n", "spec.workdir", "must match ^/"),
        # combinations
        (f"name: x\npreemptible: true\npausable: true\n{ROLE}", "pausable", "contradicts"),
        (
            f"{B}  gpu: {{mode: passthrough}}\n  isolationLevel: container\n",
            "spec.gpu.mode",
            "microVM",
        ),
        (f"{B}  gpu: {{mode: mps}}\n  isolationLevel: microvm\n", "spec.gpu.mode", "microvm"),
        (
            f"{B}  elastic: {{minReplicas: 5, maxReplicas: 2, scaleMetric: cpu}}\n",
            "spec.elastic.maxReplicas",
            "must not be above max 2",
        ),
        (
            f"{B}  network: {{egressPolicy: deny, allowedDomains: [a.example]}}\n",
            "spec.network.allowedDomains",
            "denies everything",
        ),
        (
            f"{B}  snapshot: {{interval: 60}}\n  checkpointInterval: 300\n",
            "spec.snapshot.interval",
            "both",
        ),
        ("name: x\nroles: [{role: a}, {role: a}]", "roles[1].role", "given twice"),
        (
            f"name: x\n{ROLE}\nauto_scale: {{sim: {{metric: q}}}}",
            "auto_scale.sim",
            "unknown key sim",
        ),
        (
            f"{D}  experiment: {{groups: [{{name: a}}], relations: [{RELATION}]}}\n",
            "spec.experiment.relations[0].to",
            "no role is named b",
        ),
        (
            f"{B}  storages: [{{name: a, mountPath: /d}}, {{name: b, mountPath: /d}}]\n",
            "spec.storages[1].mountPath",
            "too",
        ),
    ],
)
def test_one_mistake(text: str, path: str, words: str) -> None:
    """The path is the document's own, and the words say what would be right."""
    found = mistakes(text)
    match = [one for one in found if one.path == path]
    assert match, [str(one) for one in found]
    assert words in match[0].message
    assert match[0].allowed
    assert match[0].wire()["path"] == path


def test_five_mistakes_give_five_errors_with_paths_and_lines() -> None:
    """Nothing is found only after the first is mended."""
    found = mistakes(
        "name: walk\n"
        "priority: hihg\n"
        "roles:\n"
        "  - role: sim\n"
        "    replicas: many\n"
        "    resource: {cpu: 1, mem: 32Gx}\n"
        "    imgae: registry.example/sim:1\n"
        "checkpoint_interval: often\n"
    )
    assert {(one.line, one.path) for one in found} == {
        (2, "priority"),
        (5, "roles[0].replicas"),
        (6, "roles[0].resource.mem"),
        (7, "roles[0].imgae"),
        (8, "checkpoint_interval"),
    }
    assert str(found[0]).startswith("line ")


def test_a_mistake_in_an_optional_part_hides_nothing_else() -> None:
    """The rest is still checked for contradictions."""
    text = f"{B}  budget: {{limit: lots}}\n  isolationLevel: microvm\n  gpu: {{mode: mps}}\n"
    assert {one.path for one in mistakes(text)} == {"spec.budget.limit", "spec.gpu.mode"}
