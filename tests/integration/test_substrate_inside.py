"""Calls of a program in a real sandbox: through dsec-init and the agent's link, and back."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from dsec.agent import initlink
from substrate_world import World, world

pytestmark = pytest.mark.root

PROGRAM = """
import json, os, threading, urllib.error, urllib.request
def call(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    try:
        asked = urllib.request.Request(os.environ["DSEC_API_ENDPOINT"] + path, data)
        with urllib.request.urlopen(asked, timeout=50) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())
"""


@pytest.fixture
async def w(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """A substrate."""
    images = tmp_path_factory.getbasetemp() / "substrate-images"
    async with world(tmp_path, images) as here:
        yield here


async def test_a_call_goes_there_and_back(w: World) -> None:
    """Method, path and body arrive as sent, large ones too; status and body come back."""
    heard: list[tuple[str, str, str, int]] = []

    async def answer(sandbox: str, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        heard.append((sandbox, method, path, len(body)))
        return 409, json.dumps({"code": "fenced", "long": "y" * (1 << 20)}).encode()

    w.substrate.on_call = answer
    script = f"""{PROGRAM}
status, told = call("/v1/queue/traj/put", {{"items": ["x" * 200_000]}})
print(status, told["code"], len(told["long"]))
print(call("/v1/queue/traj")[0], call("/elsewhere")[0])
"""
    spec = w.spec("python3", "-c", script)
    box = await w.begin(spec)
    end = await w.substrate.wait(box)
    assert end.stdout.splitlines() == [f"409 fenced {1 << 20}", "409 404"], end.stderr
    assert [(one[1], one[2]) for one in heard] == [
        ("POST", "/v1/queue/traj/put"),
        ("GET", "/v1/queue/traj"),
    ]
    assert heard[0][0] == box
    assert heard[0][3] > 200_000


async def test_a_gateway_that_hangs_holds_nothing_up(w: World) -> None:
    """Eight calls wait; the ninth is told to, and the program's own heartbeat is taken at once."""
    hanging = asyncio.Event()

    async def answer(_sandbox: str, _method: str, _path: str, _body: bytes) -> tuple[int, bytes]:
        await hanging.wait()
        return 200, b"{}"

    w.substrate.on_call = answer
    script = f"""{PROGRAM}
import time
waiting = [threading.Thread(target=call, args=("/v1/queue/traj",)) for _ in range(8)]
for one in waiting: one.start()
time.sleep(1)
print(call("/v1/queue/traj")[0])
who = {{"task_id": os.environ["DSEC_TASK_ID"], "role": os.environ["DSEC_ROLE"], "gpu_ids": ""}}
print(call("/heartbeat", who)[0], flush=True)
for one in waiting: one.join()
print("all")
"""
    box = await w.begin(w.spec("python3", "-c", script, entrypoint_registers=True))
    await w.said(box, b"429\n200\n")
    assert len(w.beats) == 1
    hanging.set()
    end = await w.substrate.wait(box)
    assert end.stdout.splitlines()[-1] == "all", end.stderr


async def test_an_agent_of_the_version_before_is_told_of(
    w: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the agent has not said that it passes calls on, a program learns so at once."""
    monkeypatch.setattr(initlink, "CALLS_SINCE", 1_000)
    box = await w.begin(w.spec("python3", "-c", f'{PROGRAM}\nprint(call("/v1/queue/a"))'))
    end = await w.substrate.wait(box)
    assert end.stdout.startswith("(501, {'code': 'not-implemented'"), end.stdout + end.stderr
