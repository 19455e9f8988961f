"""The SDK against a real standalone dsec: lives, batches, keys, and the demo's 200 programs."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from dsec.api.frames import FrameType
from dsec.api.reasons import EndReason
from dsec.api.sandbox import Resources
from dsec.cli import grading
from dsec.cli.demo_report import identities
from dsec.client import Client, ConflictError, Context, InvalidError
from dsec.local import standalone, standalone_state

pytestmark = [pytest.mark.root, pytest.mark.timeout(400)]

SMALL = {"cpu": "200m", "memory": "64Mi", "pids": 32, "disk": "16Mi"}
ECHO = "import os; print(open(os.environ['DSEC_ITEM_FILE']).read().strip())"


def quiet(step: str, state: str) -> None:
    """Take a progress report and show nothing."""


@pytest.fixture(scope="module")
def dsec(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a standalone dsec of its own."""
    if os.geteuid() != 0:
        pytest.skip("sandboxes need root")
    directory: Path = tmp_path_factory.mktemp("sdk")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        state = standalone.up(directory, quiet)
        context = Context(
            server=state.server, api_key=state.api_key, project=standalone_state.PROJECT
        )
        with Client(context) as client:
            yield client
        assert standalone.down(directory, quiet, purge=True).total() == 0


def test_twenty_sandboxes_and_an_ordered_list(dsec: Client) -> None:
    """ORCH-01: count, items and code in; results out, in order, failures among them."""
    items = [{"n": n} for n in range(20)]
    script = (
        ECHO
        + "; import sys; sys.exit(7 if '13' in open(os.environ['DSEC_ITEM_FILE']).read() else 0)"
    )
    results = dsec.run(items=items, command=["python3", "-c", script], timeout_seconds=120, **SMALL)
    assert [json.loads(one.end.stdout) for one in results if one.end] == items
    odd = [one.identity.index for one in results if one.end and one.end.reason != "completed"]
    assert odd == [13]
    assert len({one.identity.id for one in results}) == 20
    assert dsec.list() == [] or all(one["metadata"].get("deletionTimestamp") for one in dsec.list())


def test_a_program_submits_scales_execs_and_ends(dsec: Client) -> None:
    """API-24: a life of an experiment without the command line."""
    role = {
        "name": "worker",
        "command": ["/bin/sh", "-c", "echo up; sleep 1000"],
        "resources": {"cpuMilli": 100, "memoryBytes": 64 << 20, "diskBytes": 16 << 20},
    }
    document = {
        "apiVersion": "dsec.dev/v1alpha1",
        "kind": "Experiment",
        "metadata": {"name": "life"},
        "spec": {"roles": [role]},
    }
    assert dsec.submit(document)["metadata"]["name"] == "life"
    dsec.scale("life", "worker", 3)
    deadline = time.monotonic() + 120
    while dsec.get("life")["status"].get("ready") != 3:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert dsec.describe("life")["headline"] == "life is Running: all 3 replicas."
    # a gateway's view may be a second older than the record that the leader wrote
    while len(running := dsec.sandboxes(experiment="life", state="running")) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert [one.identity.index for one in running] == [0, 1, 2]
    done = dsec.exec_result(
        running[0].identity.id,
        ["sh", "-c", "cat; echo $A >&2; exit 5"],
        stdin=b"in",
        env={"A": "b"},
    )
    assert (done.end.exit_code, done.stdout, done.stderr) == (5, b"in", b"b\n")
    # it counts as running from its registration on, a moment before its command speaks
    while len(said := list(dsec.logs(running[1].identity.id))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    *output, end = said
    assert (b"".join(one.payload for one in output), end.type) == (b"up\n", FrameType.END)
    dsec.delete("life")
    while dsec.sandboxes(experiment="life", state="running"):
        assert time.monotonic() < deadline + 60
        time.sleep(0.2)


def test_a_key_makes_one_sandbox(dsec: Client) -> None:
    """Repeated with the same body it is found again; with another it is a conflict."""
    limits = Resources(cpu_milli=100, memory_bytes=64 << 20, pids=32, disk_bytes=16 << 20)
    (once,) = dsec.run(count=1, command=["true"], **SMALL)
    first = dsec.create(image=once.image, resources=limits, command=["sleep", "1000"], key="k")
    again = dsec.create(image=once.image, resources=limits, command=["sleep", "1000"], key="k")
    assert again.id == first.id
    assert again.outcome == "exists"
    with pytest.raises(ConflictError):
        dsec.create(image=once.image, resources=limits, command=["sleep", "1"], key="k")
    dsec.stop(first.id)
    deadline = time.monotonic() + 90
    while (status := dsec.sandbox(first.id)).end is None:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert status.end.reason is EndReason.STOPPED


def test_every_mistake_of_a_document_is_named(dsec: Client) -> None:
    """Five mistakes, five entries, each with its path."""
    document = """
name: five
prioritt: high
roles:
  - role: w
    replicas: -1
    image: base:1
    resource: {cpu: many, mem: 4}
  - role: w
    image: base:1
    resource: {cpu: 1, mem: 1G}
"""
    with pytest.raises(InvalidError) as caught:
        dsec.submit(document, dry_run=True)
    assert len(caught.value.details) == 5
    assert all(one["path"] and one["message"] for one in caught.value.details)


def test_humaneval(dsec: Client) -> None:
    """All 164 solutions pass, and each of the 36 others fails for its own reason."""
    programs = grading.programs()
    results = dsec.run(
        items=[one.item() for one in programs],
        command=grading.COMMAND,
        timeout_seconds=380,
        **grading.LIMITS,
    )
    grades = grading.grade(programs, results)
    assert [(one.name, status.end) for one, status in grades.surprises] == []
    assert grades.line == "164 passed, 36 failed"
    counts = identities(results)
    assert (counts["sandbox ids"], counts["cgroup paths"]) == (200, 200)
    evidence = [one.end.evidence for one in results if one.end]
    assert all(one.pid_namespace and one.net_namespace for one in evidence)
    if any(one.pid_namespace_id for one in evidence):  # this kernel numbers namespaces
        assert (counts["pid namespaces"], counts["net namespaces"]) == (200, 200)
