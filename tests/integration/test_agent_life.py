"""A sandbox's life on a simulated node, over the agent's API: order, ends, archive, history."""

import asyncio
from pathlib import Path

import pytest
from agent_world import World, eventually, sandbox_id, spec
from dsec.agent.serving import Host
from dsec.api.reasons import EndReason
from dsec.api.sandbox import Resources, SandboxState
from dsec.world.inprocess import InProcessNetwork
from dsec.world.substrate import SubstrateError

WHOLE = [
    "sandbox-bound",
    "sandbox-pulling",
    "sandbox-creating",
    "sandbox-starting",
    "sandbox-running",
    "sandbox-archiving",
    "sandbox-ended",
]
STOPPED = [*WHOLE[:5], "sandbox-stopping", *WHOLE[5:]]


@pytest.fixture
def world(tmp_path: Path) -> World:
    """One node with its gateway."""
    return World(tmp_path)


async def test_a_sandbox_completes_and_its_history_is_whole(world: World) -> None:
    """Each state is journalled once, in order; scene and result are stored; nothing is booked."""
    agent = await world.start()
    (answer,) = await world.create(spec(1))
    assert answer["accepted"]
    await eventually(lambda: len(world.gateway.history(sandbox_id(1))) == len(WHOLE))
    assert world.gateway.history(sandbox_id(1)) == WHOLE
    prefix = f"research-a/exp/{sandbox_id(1)}/"
    assert set(world.gateway.artifacts) == {prefix + "stdout.log", prefix + "result.json"}
    state = await world.state()
    (status,) = state.sandboxes
    assert (status.state, status.registered) == (SandboxState.ENDED, True)
    assert status.end is not None
    assert (status.end.reason, status.end.exit_code) == ("completed", 0)
    assert status.end.archive == f"artifacts/{prefix}"
    assert (state.used.cpu_milli, state.live) == (0, 0)
    assert agent.core.gpus._uses["GPU-sim-sim-0"].clients == {}
    await agent.close()


async def test_a_failing_command_fails(world: World) -> None:
    """The exit status decides between completed and failed."""
    agent = await world.start()
    failing = spec(1)
    failing.env["DSEC_SIM_EXIT"] = "3"
    await world.create(failing)
    await eventually(lambda: "sandbox-ended" in world.gateway.history(sandbox_id(1)))
    (status,) = (await world.state()).sandboxes
    assert status.end is not None
    assert (status.end.reason, status.end.exit_code) == ("failed", 3)
    await agent.close()


async def test_stop_gives_its_reason(world: World) -> None:
    """A stop's reason wins over the signal that it causes; a repeat changes nothing."""
    agent = await world.start()
    await world.create(spec(1, None))
    await eventually(lambda: agent.core.get(sandbox_id(1)).status.state == "running")
    call = {"epoch": 1, "ids": [sandbox_id(1), sandbox_id(99)], "reason": "frozen"}
    for _ in range(3):
        assert (await world.post("stop", call)).status_code == 200
    await eventually(lambda: "sandbox-ended" in world.gateway.history(sandbox_id(1)))
    assert world.gateway.history(sandbox_id(1)) == STOPPED
    (status,) = (await world.state()).sandboxes
    assert status.end is not None
    assert (status.end.reason, status.end.signal) == ("frozen", 15)
    await agent.close()


async def test_deadlines(world: World) -> None:
    """A run that is too long and a program that never registers end with their own reasons."""
    agent = await world.start()
    await world.create(spec(1, 60, max_run_seconds=0.2))
    await eventually(lambda: "sandbox-ended" in world.gateway.history(sandbox_id(1)))
    (status,) = (await world.state()).sandboxes
    assert status.end is not None
    assert status.end.reason == "deadline"
    assert "0.2 s" in status.end.message
    world.substrate._profile = type(world.profile)(
        name="silent", cpu_milli=1, memory_bytes=1, never_registers=1.0
    )
    await world.create(spec(2, 60, start_deadline_seconds=0.2))
    await eventually(lambda: "sandbox-ended" in world.gateway.history(sandbox_id(2)))
    status = (await world.state()).sandboxes[-1]
    assert status.end is not None
    assert (status.end.reason, status.registered) == ("start-deadline", False)
    await agent.close()


async def test_a_silent_program_that_exits_has_failed(world: World) -> None:
    """LIFE-03: a program that should register and does not is no success."""
    agent = await world.start()
    world.substrate._profile = type(world.profile)(
        name="silent", cpu_milli=1, memory_bytes=1, never_registers=1.0
    )
    await world.create(spec(1, 0.05, entrypoint_registers=True))
    await eventually(lambda: "sandbox-ended" in world.gateway.history(sandbox_id(1)))
    (status,) = (await world.state()).sandboxes
    assert status.end is not None
    assert status.end.reason == "failed"
    await agent.close()


async def test_a_start_failure_is_typed_and_gives_resources_back(world: World) -> None:
    """What the substrate cannot start ends as start-failed; other sandboxes are not touched."""
    agent = await world.start()
    world.substrate._profile = type(world.profile)(
        name="broken", cpu_milli=1, memory_bytes=1, start_failure=1.0
    )
    await world.create(spec(1))
    await eventually(lambda: "sandbox-ended" in world.gateway.history(sandbox_id(1)))
    (status,) = (await world.state()).sandboxes
    assert status.end is not None
    assert status.end.reason == "start-failed"
    assert agent.core.used.cpu_milli == 0
    await agent.close()


async def test_resources_stay_booked_until_the_scene_is_stored(world: World) -> None:
    """With the gateway away a sandbox runs, ends and waits; when it is back, nothing is missing."""
    agent = await world.start()
    world.gateway.away = True
    await world.create(spec(1))
    await eventually(lambda: agent.core.get(sandbox_id(1)).status.state == "archiving")
    await asyncio.sleep(0.2)
    assert agent.core.used.cpu_milli == 100
    assert (await world.state()).sandboxes[0].end is None
    assert world.gateway.rows == {}
    world.gateway.away = False
    await eventually(lambda: "sandbox-ended" in world.gateway.history(sandbox_id(1)))
    assert world.gateway.history(sandbox_id(1)) == WHOLE
    assert agent.core.used.cpu_milli == 0
    await agent.close()


async def test_a_degraded_archive_says_so(tmp_path: Path) -> None:
    """Past the patience the resources are given back, and the end tells that the scene is not."""
    world = World(tmp_path, settings={"archive_patience": 0.1})
    agent = await world.start()
    world.gateway.away = True
    await world.create(spec(1))
    await eventually(lambda: agent.core.get(sandbox_id(1)).status.state == "ended")
    (status,) = (await world.state()).sandboxes
    assert status.end is not None
    assert (status.end.archive, status.end.archive_partial) == (None, True)
    await agent.close()


async def test_many_creates_at_once(world: World) -> None:
    """Fifty sandboxes in one call all end; at most cores + 1 were being created at a time."""
    agent = await world.start()
    answers = await world.create(*(spec(number) for number in range(50)))
    assert all(answer["accepted"] for answer in answers)
    await eventually(lambda: agent.core.live == 0)
    assert all(entry.status.end.reason == "completed" for entry in agent.core)
    await agent.close()


async def test_pause_and_resume(world: World) -> None:
    """A paused sandbox is not exec'ed into, and goes on after resume."""
    agent = await world.start()
    await world.create(spec(1, None))
    assert (await world.post(f"sandboxes/{sandbox_id(2)}/pause", {"epoch": 1})).status_code == 404
    await eventually(lambda: agent.core.get(sandbox_id(1)).status.state == "running")
    for _ in range(2):
        answer = await world.post(f"sandboxes/{sandbox_id(1)}/pause", {"epoch": 1})
        assert answer.status_code == 200
    assert agent.core.get(sandbox_id(1)).status.state == "paused"
    await world.post(f"sandboxes/{sandbox_id(1)}/resume", {"epoch": 1})
    assert agent.core.get(sandbox_id(1)).status.state == "running"
    await agent.close()


async def test_a_resume_that_fails_is_turned_down_in_words(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller learns why, the sandbox stays paused, and may go on later."""
    agent = await world.start()
    await world.create(spec(1, None))
    await eventually(lambda: agent.core.get(sandbox_id(1)).status.state == "running")
    await world.post(f"sandboxes/{sandbox_id(1)}/pause", {"epoch": 1})

    async def fails(_: str) -> None:
        raise SubstrateError(EndReason.INFRASTRUCTURE, "the freezer does not thaw")

    with monkeypatch.context() as broken:
        broken.setattr(agent.substrate, "resume", fails)
        refused = await world.post(f"sandboxes/{sandbox_id(1)}/resume", {"epoch": 1})
    assert (refused.status_code, refused.json()["code"]) == (409, "cannot-resume")
    assert refused.json()["message"] == "the freezer does not thaw"
    assert agent.core.get(sandbox_id(1)).status.state == "paused"
    await world.post(f"sandboxes/{sandbox_id(1)}/resume", {"epoch": 1})
    assert agent.core.get(sandbox_id(1)).status.state == "running"
    await agent.close()


async def test_a_pause_lends_the_cpu_until_it_goes_on(world: World) -> None:
    """Another sandbox may use it; while it does, the paused one stays paused, over restarts too."""
    agent = await world.start()
    whole = Resources(cpu_milli=8000, memory_bytes=64 << 20, pids=64, disk_bytes=1 << 20)
    await world.create(spec(1, None, resources=whole))
    await eventually(lambda: agent.core.get(sandbox_id(1)).status.state == "running")
    body = {"epoch": 1, "message": "for another"}
    await world.post(f"sandboxes/{sandbox_id(1)}/pause", body)
    assert agent.core.get(sandbox_id(1)).status.message == "for another"
    await agent.close()
    agent = await world.start()
    (answer,) = await world.create(spec(2, None, resources=whole))
    assert answer["accepted"], answer
    refused = await world.post(f"sandboxes/{sandbox_id(1)}/resume", {"epoch": 1})
    assert (refused.status_code, refused.json()["code"]) == (409, "capacity")
    assert refused.json()["message"] == "capacity: cpu: asked 8000, free 0"
    await world.post("stop", {"epoch": 1, "ids": [sandbox_id(2)]})
    await eventually(lambda: not agent.core.get(sandbox_id(2)).live)
    resumed = await world.post(f"sandboxes/{sandbox_id(1)}/resume", {"epoch": 1})
    assert resumed.status_code == 200
    assert agent.core.used.cpu_milli == whole.cpu_milli
    await agent.close()


async def test_metrics_tell_what_the_node_does(world: World) -> None:
    """The names that dashboards rely on, with the figures of what has just happened."""
    agent = await world.start()
    host = Host("127.0.0.1:0", "", world.clock, world.randomness, nodes=world.nodes)
    host.metrics = agent.metrics
    huge = Resources(cpu_milli=1 << 30, memory_bytes=1 << 20)
    await world.create(
        spec(1, None),
        spec(2),
        spec(3, resources=huge),
    )
    await eventually(lambda: agent.core.live == 1 and not agent.spool.backlog)
    network = InProcessNetwork({"http://metrics": host.metrics_app()})
    text = (await network.client("http://metrics").get("/metrics")).text
    for line in (
        'dsec_agent_sandboxes{state="running"} 1.0',
        'dsec_agent_sandboxes{state="ended"} 1.0',
        "dsec_agent_creates_total 2.0",
        'dsec_agent_refusals_total{cause="capacity"} 1.0',
        "dsec_agent_spool_rows 0.0",
        "dsec_agent_create_seconds_count 2.0",
    ):
        assert line in text.splitlines(), text
    await agent.close()
