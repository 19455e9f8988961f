"""Task documents on the real cluster, through the commands that people use.

The sources' own documents wait for true reasons on a small machine and run on simulated nodes;
their lowered copies really run. Tests run in order, on the platform that the whole session shares.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from dsec.cli.main import run
from platform_stack import Stack, same, wait
from pulumi_folder import ROOT

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.pulumi,
    pytest.mark.root,
    pytest.mark.timeout(600),
]

ORIGINALS = Path(os.environ.get("DSEC_TASK_DOCUMENTS", ROOT.parent / "shared" / "data" / "tasks"))
OF_THE_STACK = {"walk", "example-roles", "example-elastic"}
LOWERED = ROOT / "stacks" / "documents"
TENANT = "/apis/dsec.dev/v1alpha1/tenants/demo"
NODES = "/apis/dsec.dev/v1alpha1/sandboxnodes"
SIZE = r"[\d.]+( cores?| [KMGT]i?B| B)?"
LACKS = (
    rf"asked {SIZE}, free at most {SIZE} on the node"
    rf"( \(the largest has {SIZE} in all\); starts when a node with {SIZE} free joins"
    rf"|; starts when {SIZE} on one node are free again)"
)
NO_CLAIM = (
    "pvc: asked a node that offers it, free 0: the only node does not offer it; "
    "starts when a node that does joins"
)
NO_A100 = (
    "label gpu-type=a100: asked a node that carries it, free 0: the only node does not carry it; "
    "starts when a node with that label joins"
)
NO_MICROVM = (
    "isolation: asked microvm, free 0: the only node does not offer it; "
    "starts when a node that does joins"
)
TABLE = [
    # document, role, why it waits: each sentence, and those that must be among them
    ("A", "trainer", rf"(CPU|memory|disk|GPUs): {LACKS}", ["CPU: asked 8 cores", "GPUs: asked 1"]),
    ("A", "sim", rf"(CPU|memory|disk): {LACKS}", ["CPU: asked 4 cores", "disk: asked 200 GB"]),
    ("B", "worker", re.escape(NO_CLAIM), [NO_CLAIM]),
    ("C", "worker", re.escape(NO_A100), [NO_A100]),
    ("D", "sampling", re.escape(NO_MICROVM), [NO_MICROVM]),
    ("D", "policy", re.escape(NO_MICROVM), [NO_MICROVM]),
    ("D", "params", re.escape(NO_MICROVM), [NO_MICROVM]),
]
GIVEN = {
    "A": "ppo_walk",
    "B": "agent-exp-20250614-01",
    "C": "multi_agent_eval_v3",
    "D": "multi-agent-cooperation",
}
BROKEN = """
metadata: {name: broken}
spec:
  image: base
  gpu: {mode: most}
  resources: {cpu: lots, memory: 64Mi}
  nonsense: 1
  restartPolicy: perhaps
  priority: extreme
"""
SMALL = """
metadata: {{name: {name}}}
spec:
  entrypoint: [sleep, '600']
  resources: {{cpu: 100m, memory: 64Mi}}
"""
BEAT = """
import json, os, urllib.request
who = {"task_id": os.environ["DSEC_TASK_ID"], "role": os.environ["DSEC_ROLE"], "gpu_ids": ""}
kind = {"Content-Type": "application/json"}
asked = urllib.request.Request(os.environ["DSEC_HB_ENDPOINT"], json.dumps(who).encode(), kind)
with urllib.request.urlopen(asked, timeout=5) as answer:
    print(answer.status, who["task_id"], who["role"])
"""
WHO = "cat /workspace/.dsec/identity.json; echo; env | grep ^DSEC_; cat /etc/hosts"


@dataclass
class Shell:
    """Runs dsec commands in this process as a user of the platform."""

    stack: Stack
    capfd: pytest.CaptureFixture[str]

    def dsec(self, *words: str, code: int = 0) -> tuple[str, str]:
        """Run a command and return what it said on stdout and stderr."""
        self.capfd.readouterr()
        ended = run(list(words))
        out, err = self.capfd.readouterr()
        assert ended == code, f"dsec {' '.join(words)}: exit {ended}\n{out}\n{err}"
        assert "Traceback" not in err
        return out, err

    def data(self, *words: str) -> dict[str, Any]:
        """Run a command and return its JSON."""
        return dict(json.loads(self.dsec(*words, "--output", "json")[0]))

    def task(self, name: str) -> dict[str, Any]:
        """Return an experiment."""
        return self.data("get", "tasks", name)

    def status(self, name: str) -> dict[str, Any]:
        """Return the status of an experiment; empty before the first."""
        return dict(self.task(name).get("status", {}))

    def names(self) -> set[str]:
        """Return the names of all experiments."""
        return {one["metadata"]["name"] for one in self.data("get", "tasks")["items"]}

    def ready(self, name: str) -> bool:
        """Say whether every wanted replica runs."""
        now = self.status(name)
        return bool(now.get("desired")) and now["ready"] == now["desired"]

    def used_milli(self) -> int:
        """Return the CPU of the tenant's sandboxes that are not over."""
        found = self.data("get", "sandboxes")["items"]
        return sum(one["resources"]["cpuMilli"] for one in found if one["state"] != "ended")

    def listed(self, count: int, *words: str) -> list[dict[str, Any]]:
        """Return the sandboxes of a query, once the gateway sees so many of them run."""
        found: list[dict[str, Any]] = []

        def there() -> bool:
            items = self.data("get", "sandboxes", *words)["items"]
            found[:] = [one for one in items if one["state"] == "running"]
            return len(found) == count

        wait(f"{count} sandboxes of {words}", there)
        return found

    def calm_milli(self) -> int:
        """Return what the sandboxes of the stack use, once the gateway sees no others."""
        wait("only the stack's own are left", lambda: self.owners() == OF_THE_STACK, 240)
        return self.used_milli()

    def owners(self) -> set[str]:
        """Return the experiments whose sandboxes are not over."""
        found = self.data("get", "sandboxes")["items"]
        return {one["identity"]["experiment"] for one in found if one["state"] != "ended"}

    def gone(self, *names: str) -> None:
        """Delete experiments and wait until nothing is left of them."""
        records = {self.task(name)["metadata"]["name"] for name in names}
        for name in names:
            self.dsec("delete", name)
        wait(f"{records} are gone", lambda: not records & self.names(), 240)


@pytest.fixture(scope="module")
def user(stack: Stack) -> Iterator[None]:
    """Be a user of the platform, which is brought up where it is not yet."""
    stack.bring_up()
    context = stack.context()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "DSEC_SERVER": context.server,
            "DSEC_API_KEY": context.api_key,
            "DSEC_CA_FILE": context.ca_file,
            "DSEC_PROJECT": context.project,
        }.items():
            patch.setenv(name, value)
        yield


@pytest.fixture
def shell(user: None, stack: Stack, capfd: pytest.CaptureFixture[str]) -> Shell:
    """Return a shell of the user."""
    del user
    return Shell(stack, capfd)


def test_five_mistakes_are_five_errors(shell: Shell, tmp_path: Path) -> None:
    """Each with its path, exit code 2 for both verbs, and nothing is made."""
    before = shell.names()
    file = tmp_path / "broken.yaml"
    file.write_text(BROKEN)
    for verb in ("submit", "apply"):
        out, err = shell.dsec(verb, "-f", str(file), code=2)
        assert out == ""
        lines = [line.strip() for line in err.splitlines() if line.startswith("  spec.")]
        paths = {line.partition(":")[0] for line in lines}
        assert len(lines) == len(paths) == 5, err
        wanted = ("gpu.mode", "resources.cpu", "nonsense", "restartPolicy", "priority")
        assert paths == {f"spec.{path}" for path in wanted}
    assert shell.names() == before


def test_lowered_copies_really_run(shell: Shell) -> None:
    """Roles, heartbeat and identity are visible inside; a submit of a taken name is a new one."""
    walk = shell.data("submit", "-f", str(LOWERED / "walk.yaml"))["metadata"]
    first = shell.task("walk")["metadata"]
    assert walk["name"].startswith("walk-")
    assert walk["uid"] != first["uid"]
    cooperation = shell.data("apply", "-f", str(LOWERED / "cooperation.yaml"))["metadata"]["name"]
    evaluation = shell.data("submit", "-f", str(LOWERED / "evaluation.yaml"))["metadata"]["name"]
    shares = shell.data("submit", "-f", str(LOWERED / "shares.yaml"))["metadata"]["name"]
    tasks = (walk["name"], cooperation, evaluation, shares)
    for name in tasks:
        wait(f"{name} runs", lambda n=name: shell.ready(n), 90)
    (found,) = shell.listed(1, "--experiment", walk["name"], "--role", "trainer")
    assert found["lastHeartbeat"], "its own program has registered it"
    trainer = found["identity"]["id"]
    out, _ = shell.dsec("exec", trainer, "--", "python3", "-c", BEAT)
    assert out.split() == ["200", "walk", "trainer"]
    parts = {"sampling": "worker", "policy": "trainer", "params": "parameter-server"}
    for role, part in parts.items():
        count = 2 if role == "sampling" else 1
        one = shell.listed(count, "--experiment", cooperation, "--role", role)[0]["identity"]
        out, _ = shell.dsec("exec", one["id"], "--", "sh", "-c", WHO)
        told, end = json.JSONDecoder().raw_decode(out)
        assert (told["sandbox_id"], told["task_id"]) == (one["id"], cooperation)
        assert (told["tenant"], told["experiment"], told["role"]) == ("demo", cooperation, role)
        assert {f"DSEC_ROLE={part}", f"DSEC_GROUP={role}", f"DSEC_SANDBOX_ID={one['id']}"} <= set(
            out[end:].splitlines()
        )
        assert "DSEC_HB_ENDPOINT=http://ctrl-plane:8080/heartbeat" in out
        assert re.search(r"^127\.0\.0\.1\s.*ctrl-plane", out, re.MULTILINE)
    images = shell.status(walk["name"])["resolved"]["images"]
    assert all(one["digest"].startswith("sha256:") for one in images)
    words, _ = shell.dsec("describe", "task", walk["name"])
    assert "Running: all 3 replicas" in words


def test_an_edit_is_shown_field_by_field(shell: Shell, tmp_path: Path) -> None:
    """API-21: before it is done, when it is done, and nothing where nothing differs."""
    file = tmp_path / "cooperation.yaml"
    text = (LOWERED / "cooperation.yaml").read_text()
    file.write_text(text.replace("replicas: 2, max: 3", "replicas: 1, max: 2"))
    wanted = ["roles[sampling].replicas: 2 -> 1 (live)", "roles[sampling].max: 3 -> 2 (live)"]
    for flags in (["--dry-run"], []):
        out, _ = shell.dsec("apply", "-f", str(file), *flags)
        lines = [line.strip() for line in out.splitlines()[1:]]
        # beside them, what it may cost
        assert [one for one in lines if not one.startswith("cost: ")] == wanted
    told = shell.data("apply", "-f", str(file))
    assert told["changes"] == []
    wait("one of the two has gone", lambda: shell.status("cooperation").get("desired") == 3)
    names = shell.names() - OF_THE_STACK
    shell.gone(*sorted(names))
    assert shell.names() == OF_THE_STACK


def test_a_tag_is_pinned_by_the_registry(shell: Shell, tmp_path: Path) -> None:
    """The digest is the registry's; an image that it does not have is waited for, in words."""
    registry = shell.stack.cluster.registry
    with httpx2.Client(base_url=f"http://{registry}", trust_env=False) as client:
        tag = client.get("/v2/dsec/sandbox-base/tags/list").json()["tags"][0]
        answer = client.head(
            f"/v2/dsec/sandbox-base/manifests/{tag}",
            headers={"Accept": "application/vnd.oci.image.manifest.v1+json"},
        )
    digest = answer.headers["docker-content-digest"]
    tagged, absent = f"{registry}/dsec/sandbox-base:{tag}", f"{registry}/dsec/absent:1"
    for name, image in (("tagged", tagged), ("absent", absent)):
        file = tmp_path / f"{name}.yaml"
        file.write_text(SMALL.format(name=name) + f"  image: {image}\n")
        shell.dsec("submit", "-f", str(file))
    wait("the tagged one runs", lambda: shell.ready("tagged"))
    assert shell.status("tagged")["resolved"]["images"] == [
        {"role": "worker", "reference": f"{tagged}@{digest}", "digest": digest}
    ]
    (sandbox,) = shell.listed(1, "--experiment", "tagged")
    assert sandbox["image"] == f"{tagged}@{digest}"
    words = f"image: asked {absent}, free 0: it cannot be resolved; starts when the registry has it"
    assert _reasons(shell, "absent", "worker") == [f"{words} and answers"]
    shell.gone("tagged", "absent")


def test_a_quota_edited_live_is_the_limit(shell: Shell, tmp_path: Path) -> None:
    """TEN-01: what is above the rest waits, and starts when another ends or there is more."""
    quota = shell.stack.get(TENANT)["spec"].get("quota")
    limit = shell.calm_milli() + 150

    def limited(milli: int) -> None:
        amounts = {"quota": {"nominal": {"cpuMilli": milli}}}
        shell.stack.patch(TENANT, {"spec": amounts})

    def submit(name: str) -> None:
        file = tmp_path / f"{name}.yaml"
        file.write_text(SMALL.format(name=name))
        shell.dsec("submit", "-f", str(file))

    def waits(name: str) -> bool:
        reasons = shell.status(name).get("pendingReasons", [])
        left = f": asked 0.1 cores, free 0.05 cores of {limit / 1000:g} cores;"
        return any(
            one["message"].startswith("quota of CPU, own share of ") and left in one["message"]
            for one in reasons
            if one["reason"] == "quota"
        )

    try:
        limited(limit)
        submit("first")
        wait("the first runs", lambda: shell.ready("first"))
        submit("second")
        wait("the second waits for the quota", lambda: waits("second"))
        shell.dsec("delete", "first", "--wait")
        wait("the second runs in its place", lambda: shell.ready("second"))
        submit("third")
        wait("the third waits for the quota", lambda: waits("third"))
        limited(limit + 100)
        wait("the third runs: there is more", lambda: shell.ready("third"))
    finally:
        shell.stack.patch(TENANT, {"spec": {"quota": quota}})
    shell.gone("second", "third")


def test_the_four_documents(shell: Shell) -> None:
    """Unmodified: they wait for true reasons, run on simulated nodes, and leave nothing."""
    if not ORIGINALS.is_dir():
        pytest.skip("the sources' documents are not here; set DSEC_TASK_DOCUMENTS to their folder")
    before = shell.calm_milli()
    for letter, name in GIVEN.items():
        verb = "submit" if letter in "AC" else "apply"
        shell.dsec(verb, "-f", str(ORIGINALS / f"{letter}.yaml"))
        resolved = _resolved(shell, name)
        filled = {one["path"]: one["from"] for one in resolved["defaulted"]}
        assert any(source.startswith("mirror of ") for source in filled.values()) == (letter != "D")
        assert all(one["digest"] for one in resolved["images"])
    for letter, role, sentence, among in TABLE:
        told = _reasons(shell, GIVEN[letter], role)
        assert all(re.fullmatch(sentence, one) for one in told), (letter, role, told)
        assert all(any(one.startswith(part) for one in told) for part in among), (letter, told)
    words, _ = shell.dsec("describe", "task", "multi-agent-cooperation")
    assert "is Pending, 514 of 514 replicas wait: isolation: asked microvm" in words
    sim = ("sim", "nodes")
    cluster = ("--name", shell.stack.cluster.name)
    try:
        for profile in ("8xa100", "cpu"):
            shell.dsec(*sim, "add", "--profile", profile, "--count", "40", *cluster)
        for name in GIVEN.values():
            wait(f"{name} runs", lambda n=name: shell.ready(n), 180)
        roles = shell.status(GIVEN["D"])["roles"]
        counts = {one["name"]: one["ready"] for one in roles}
        assert counts == {"sampling": 512, "policy": 1, "params": 1}
        shell.gone(*GIVEN.values())
        wait("the gateway sees what it did", lambda: shell.used_milli() == before)
        wait("the tenant uses what it did", lambda: _used(shell.stack) == before, 60)
    finally:
        shell.dsec(*sim, "remove", "--all", *cluster)

    def nodes() -> set[str]:
        return {one["metadata"]["name"] for one in shell.stack.get(NODES)["items"]}

    same(nodes, {shell.stack.cluster.node_name})


def _resolved(shell: Shell, name: str) -> dict[str, Any]:
    wait(f"{name} is resolved", lambda: "resolved" in shell.status(name))
    return dict(shell.status(name)["resolved"])


def _reasons(shell: Shell, name: str, role: str) -> list[str]:
    """Return the sentences about a role, once placement has looked at it."""
    found: list[str] = []

    def told() -> bool:
        reasons = shell.status(name).get("pendingReasons", [])
        found[:] = [one["message"] for one in reasons if one["role"] == role]
        return bool(found) and "control plane" not in found[0]

    wait(f"why {role} of {name} waits", told)
    return found[0].split("; also ")


def _used(stack: Stack) -> int:
    return int(stack.get(TENANT)["status"]["used"]["cpuMilli"])
