"""Standalone mode on the real machine: a first sandbox, a crash of dsec, and nothing left."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from dsec.api import frames
from dsec.client import Client, Context
from dsec.local import cleanup, standalone_state
from dsec.local.standalone import PART
from dsec.local.standalone_state import StandaloneState

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def dsec(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Return a function that runs the command line with a configuration of its own."""
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path_factory.mktemp("config"))}

    def run(*arguments: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "dsec.cli.main", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == code, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def state(
    dsec: Callable[..., str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StandaloneState]:
    """Run a standalone dsec; at its end `down` must count nothing."""
    if os.geteuid() != 0:
        pytest.skip("sandboxes need root")
    directory = tmp_path_factory.mktemp("alone")
    dsec("up", "--standalone", f"--state-dir={directory}")
    state = standalone_state.load(directory)
    assert state is not None
    yield state
    down = json.loads(dsec("down", f"--state-dir={directory}", "--purge", "--output=json"))
    assert down["left"] == 0
    assert not directory.exists()
    assert cleanup.count(state.footprint).total() == 0


def test_the_first_sandbox_prints_one(state: StandaloneState, dsec: Callable[..., str]) -> None:
    """One command after `up`, a real sandbox has run Python."""
    assert state
    command = ["run", "--count", "1", "--output", "json", "--", "python3", "-c", "print(1)"]
    items = json.loads(dsec(*command))["items"]
    assert [item["end"]["stdout"] for item in items] == ["1\n"]


INSIDE = """
import json, os, urllib.error, urllib.request
def call(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(os.environ["DSEC_API_ENDPOINT"] + path, data)
    with urllib.request.urlopen(asked, timeout=50) as answer:
        return json.loads(answer.read())
print(call("/v1/queue/sums/put", {"items": [{"id": "one", "body": "20 + 22"}]})["accepted"])
(item,) = call("/v1/queue/sums/take", {"call": "t1", "waitSeconds": 10})["items"]
print(eval(item["body"]), call("/v1/queue/sums/ack", {"receipts": [item["receipt"]]})["done"])
print(call("/v1/queue/sums")["acknowledged"])
try:
    call("/v1/scale", {"replicas": 9, "role": "trainer"})
except urllib.error.HTTPError as error:
    print(error.code, json.loads(error.read())["code"])
"""


def test_a_sandbox_works_through_a_queue(
    state: StandaloneState, dsec: Callable[..., str], tmp_path: Path
) -> None:
    """From inside, by its own identity: put, take, acknowledge; another role's count is refused."""
    assert state
    task = tmp_path / "sums.yaml"
    role = {
        "name": "worker",
        "replicas": 1,
        "image": "base",
        "command": ["python3", "-c", INSIDE],
        "completion": "run-to-end",
        "resources": {"cpuMilli": 100, "memoryBytes": 128 << 20},
    }
    document = {
        "apiVersion": "dsec.dev/v1alpha1",
        "kind": "Experiment",
        "metadata": {"name": "sums"},
        "spec": {"roles": [role]},
    }
    task.write_text(json.dumps(document))
    dsec("submit", "-f", str(task))
    dsec("wait", "sums")
    (item,) = json.loads(dsec("results", "sums", "--output", "json"))["items"]
    lines = item["end"]["stdout"].splitlines()
    assert lines == ["1", "42 1", "1", "403 denied"], item["end"]


COUNTER = """
import json, os, pathlib, urllib.request
state = pathlib.Path("/workspace/count")
count = int(state.read_text()) if state.exists() else 0
while True:
    count += 1
    print(count, flush=True)
    state.write_text(str(count))
    mark = json.dumps({"step": count}).encode()
    url = os.environ["DSEC_API_ENDPOINT"] + "/v1/snapshot/mark"
    urllib.request.urlopen(urllib.request.Request(url, mark), timeout=60).read()
"""


@pytest.mark.case("E2B#582")
def test_what_hibernates_wakes_at_the_next_step(state: StandaloneState) -> None:
    """Both calls have empty bodies; the id stays, and the counter goes on."""
    base = f"http://127.0.0.1:{state.port}/v1/projects/default/sandboxes"
    create = {
        "key": "sleeper",
        "command": ["python3", "-c", COUNTER],
        "resources": {"cpuMilli": 200, "memoryBytes": 128 << 20},
        "snapshot": {"kinds": ["state"]},
    }
    headers = {"Authorization": f"Bearer {state.api_key}"}
    with httpx2.Client(headers=headers, timeout=60, trust_env=False) as client:
        made = client.post(base, json={"creates": [create]}).json()
        box = f"{base}/{made['answers'][0]['id']}"

        def printed() -> list[int]:
            text = frames_of(client.get(f"{box}/logs").content)
            return [int(line) for line in text.split("\n")[:-1]]

        until("it counts", lambda: printed()[10:])
        assert client.post(f"{box}/hibernate").status_code == 200
        until("it rests", lambda: client.get(box).json()["state"] != "running")
        names = client.get(f"http://127.0.0.1:{state.port}/v1/projects/default/snapshots").json()
        step = names["items"][0]["ref"]["meta"]["step"]
        assert client.post(f"{box}/wake").status_code == 200
        until("it goes on", lambda: client.get(box).json()["state"] == "running" and printed())
        assert printed()[0] == step + 1
        assert client.delete(box).status_code == 202


def frames_of(content: bytes) -> str:
    """Return what a stream of frames has of standard output."""
    found = frames.Decoder().feed(content)
    return b"".join(f.payload for f in found if f.type is frames.FrameType.STDOUT).decode()


def until(what: str, check: Callable[[], object], seconds: float = 60) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, what
        time.sleep(0.2)


def test_a_decision_is_dumped_and_made_again(
    state: StandaloneState, dsec: Callable[..., str], tmp_path: Path
) -> None:
    """Of work that is larger than this machine: the same comes out, and the words say why."""
    assert state
    task, dump = tmp_path / "task.yaml", tmp_path / "round.json"
    task.write_text(
        "metadata: {name: huge}\nspec: {image: base, resources: {cpu: 4000, memory: 64Mi}}\n"
    )
    dsec("submit", "-f", str(task))
    said = json.loads(dsec("explain", str(dump), "--take", "--output", "json"))
    assert (said["same"], said["differences"]) == (True, [])
    (record,) = said["records"]
    assert [one["dimension"] for one in record["rejected"]] == ["cpu"]
    assert "a node with 4000 cores free joins" in record["rejected"][0]["text"]


def test_a_second_process_on_the_same_directory_is_refused(
    state: StandaloneState, dsec: Callable[..., str]
) -> None:
    """Two would lead and bind at once; the error says who serves what."""
    dsec("up", "--standalone", "--foreground", f"--state-dir={state.directory}", code=1)
    assert state.run.running(PART) is not None


def test_the_api_is_on_loopback_and_asks_for_the_key(
    state: StandaloneState, dsec: Callable[..., str]
) -> None:
    """No listener elsewhere, and no answer without the generated key."""
    part = state.run.running(PART)
    assert part is not None
    sockets = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout
    own = [line.split()[3] for line in sockets.splitlines() if f"pid={part.pid}," in line]
    assert own == [f"127.0.0.1:{state.port}"]
    assert (state.directory / "standalone.json").stat().st_mode & 0o077 == 0
    assert dsec("get", "nodes", "--output=json")
    command = [sys.executable, "-m", "dsec.cli.main", "get", "nodes"]
    wrong = {**os.environ, "DSEC_SERVER": state.server, "DSEC_API_KEY": "dsec_local_wrong"}
    done = subprocess.run(command, capture_output=True, text=True, env=wrong, check=False)
    assert done.returncode == 3, done.stderr


def test_sandboxes_outlive_a_crash_of_dsec(state: StandaloneState) -> None:
    """Kill -9 of the process: the supervisor starts another, and the run ends as if nothing was."""
    script = (
        "import os, time\n"
        "while not os.path.exists('/workspace/go'):\n"
        "    time.sleep(0.1)\n"
        "print('done')"
    )
    command = [sys.executable, "-m", "dsec.cli.main"]
    environment = {
        **os.environ,
        "DSEC_SERVER": state.server,
        "DSEC_API_KEY": state.api_key,
        "DSEC_PROJECT": standalone_state.PROJECT,
    }
    run = subprocess.Popen(
        [*command, "run", "--count=2", "--output=json", "--", "python3", "-c", script],
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    deadline = time.monotonic() + 90
    while len(_waiters(state)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    before, part = _waiters(state), state.run.running(PART)
    assert part is not None
    os.kill(part.pid, signal.SIGKILL)
    time.sleep(0.5)
    assert _waiters(state) == before
    with Client(
        Context(server=state.server, api_key=state.api_key, project=standalone_state.PROJECT)
    ) as client:
        while len(found := client.sandboxes(state="running")) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert _waiters(state) == before
        for one in found:
            client.exec_result(one.identity.id, ["touch", "/workspace/go"])
    out, _ = run.communicate(timeout=90)
    ends = [(i["end"]["reason"], i["end"]["stdout"]) for i in json.loads(out)["items"]]
    assert ends == [("completed", "done\n")] * 2


def _waiters(state: StandaloneState) -> set[int]:
    """Return the commands that run in sandboxes."""
    return {pid for pid in cleanup.processes(state.footprint) if _waits(pid)}


def _waits(pid: int) -> bool:
    try:
        return b"path.exists('/workspace/go')" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
