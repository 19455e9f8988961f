"""An agent among faults: kill and restart, lost messages, stale leaders, fenced copies."""

import dataclasses
import json
import random
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from agent_world import GATEWAY_URL, PROFILE, World, eventually, sandbox_id, spec
from dsec.agent.config import AgentConfig
from dsec.agent.nodeinfo import node_inventory, offered
from dsec.agent.register import Registrar
from dsec.agent.spool import decode
from dsec.agent.uplink import AwayError
from dsec.world.inprocess import Call, Fault
from test_agent_life import STOPPED, WHOLE


@pytest.fixture
def world(tmp_path: Path) -> World:
    """One node with its gateway; its spool is synced, as on a real node."""
    return World(tmp_path, settings={"durable": True})


async def test_sandboxes_outlive_the_agent(world: World) -> None:
    """Kill -9 with running sandboxes: a new agent goes on; each transition is journalled once."""
    agent = await world.start()
    await world.create(*(spec(number, None) for number in range(5)), spec(9, 0.3))
    await eventually(lambda: all(e.status.state == "running" for e in agent.core))
    await world.kill(agent)
    # one of them ends while nobody looks
    await eventually(world.substrate._runs[sandbox_id(9)].ended.done)
    again = await world.start()
    assert again.core.incarnation > agent.core.incarnation
    assert again.core.seq > agent.core.seq
    assert again.core.live == 6
    await eventually(lambda: world.gateway.history(sandbox_id(9)) == WHOLE)
    assert world.gateway.history(sandbox_id(0)) == WHOLE[:5]
    ids = [sandbox_id(number) for number in range(5)]
    await world.post("stop", {"epoch": 1, "ids": ids})
    await eventually(lambda: all(world.gateway.history(one) == STOPPED for one in ids))
    assert again.core.live == 0
    await again.close()


@pytest.mark.parametrize("step", range(1, 12))
async def test_kill_at_any_moment_of_a_life(world: World, step: int) -> None:
    """Killed again and again at another moment, a sandbox ends once with a whole history."""
    agent = await world.start()
    await world.create(spec(1, 0.15))
    for _ in range(40):
        await world.clock.sleep(0.009 * step)
        if "sandbox-ended" in world.gateway.history(sandbox_id(1)):
            break
        await world.kill(agent)
        agent = await world.start()
    await eventually(lambda: "sandbox-ended" in world.gateway.history(sandbox_id(1)))
    history = world.gateway.history(sandbox_id(1))
    assert history == WHOLE, history
    (status,) = (await world.state()).sandboxes
    assert status.end is not None
    assert status.end.reason == "completed"
    await agent.close()


async def test_a_restarted_machine_closes_what_it_lost(world: World) -> None:
    """Sandboxes that are gone with the machine end as infrastructure: never the task's fault."""
    agent = await world.start()
    await world.create(spec(1, None))
    await eventually(lambda: agent.core.get(sandbox_id(1)).status.state == "running")
    await world.kill(agent)
    world.substrate._runs.clear()
    again = await world.start()
    await eventually(lambda: again.core.live == 0)
    (status,) = (await world.state()).sandboxes
    assert status.end is not None
    assert status.end.reason == "infrastructure"
    assert "lost" in status.end.message
    await again.close()


async def test_a_lost_state_directory_adopts_what_runs(world: World) -> None:
    """Without its files the agent still takes over the sandboxes that the kernel has."""
    agent = await world.start()
    await world.create(spec(1, None))
    await eventually(lambda: agent.core.get(sandbox_id(1)).status.state == "running")
    await world.kill(agent)
    world.directory = world.directory / "new"
    again = await world.start()
    assert again.core.used.cpu_milli == 100
    await world.post("stop", {"epoch": 1, "ids": [sandbox_id(1)]})
    await eventually(lambda: again.core.live == 0)
    await again.close()


async def test_deadlines_survive_a_restart(world: World) -> None:
    """The run time counts from the stored start, not from the restart."""
    agent = await world.start()
    await world.create(spec(1, 60, max_run_seconds=6.0))
    await eventually(lambda: agent.core.get(sandbox_id(1)).status.state == "running")
    began = agent.core.get(sandbox_id(1)).status.times["running"]
    await world.kill(agent)
    await world.clock.sleep(3.0)
    restarted = world.clock.now()
    again = await world.start()
    await eventually(lambda: again.core.live == 0)
    stopping = again.core.get(sandbox_id(1)).status.times["stopping"]
    assert (stopping - began).total_seconds() >= 6.0
    # three seconds had passed; a busy machine takes some of the other three
    assert (stopping - restarted).total_seconds() < 6.0
    await again.close()


async def test_stale_leaders_are_refused_for_ever(world: World) -> None:
    """Once a higher epoch was seen, lower ones are refused, also by the next process."""
    agent = await world.start()
    assert (await world.post("epoch", {"epoch": 5})).json() == {"epoch": 5}
    await agent.close()
    agent = await world.start()
    for path, body in {
        "sandboxes": {"specs": [spec(1).wire()]},
        "stop": {"ids": []},
        "ack": {"ids": []},
        "epoch": {},
        f"sandboxes/{sandbox_id(1)}/pause": {},
    }.items():
        answer = await world.post(path, {"epoch": 4, **body})
        assert (answer.status_code, answer.json()["code"]) == (409, "stale-epoch"), path
    assert agent.core.live == 0
    await world.create(spec(1), epoch=6)
    assert agent.files.load_epoch() == 6
    await agent.close()


async def test_repeats_and_lost_replies_make_one_sandbox(world: World) -> None:
    """With a third of all messages lost or doubled, each create runs once and is whole."""
    agent = await world.start()
    dice = random.Random(3)  # noqa: S311 - a seeded test

    def fault(call: Call) -> Fault:
        if call.method == "GET":
            return Fault.NONE
        kinds = [Fault.LOSE_REQUEST, Fault.LOSE_REPLY, Fault.REPEAT]
        return dice.choice([*kinds, *[Fault.NONE] * 6])

    world.fault = fault
    wanted = [spec(number, 0.05) for number in range(20)]
    body = {"epoch": 1, "specs": [one.wire() for one in wanted]}
    for _ in range(20):
        try:
            answer = await world.post("sandboxes", body)
            assert answer.status_code == 200
            break
        except Exception:  # noqa: BLE001, S112 - whatever was lost, it is asked again
            continue
    await eventually(lambda: agent.core.live == 0)
    await eventually(
        lambda: all(world.gateway.history(one.identity.id) == WHOLE for one in wanted), 20
    )
    assert all(
        f"research-a/exp/{one.identity.id}/result.json" in world.gateway.artifacts for one in wanted
    )
    await agent.close()


async def test_the_gateway_fences_an_old_copy(world: World) -> None:
    """409 at an artifact: the copy ends as fenced, and uploads nothing more."""
    agent = await world.start()
    world.gateway.fenced.add(sandbox_id(1))
    await world.create(spec(1))
    await eventually(lambda: "sandbox-ended" in world.gateway.history(sandbox_id(1)))
    (status,) = (await world.state()).sandboxes
    assert status.end is not None
    assert (status.end.reason, status.end.archive, status.end.stdout) == ("fenced", None, "")
    assert world.gateway.artifacts == {}
    await agent.close()


async def test_the_controller_fences_an_old_copy(world: World) -> None:
    """Stop with reason fenced: nothing of it becomes visible, even when it had ended already."""
    agent = await world.start()
    await world.create(spec(1, None), spec(2, 0.0))
    await eventually(lambda: agent.core.get(sandbox_id(1)).status.state == "running")
    world.gateway.artifacts.clear()
    await world.post("stop", {"epoch": 1, "ids": [sandbox_id(1)], "reason": "fenced"})
    await eventually(lambda: not agent.core.get(sandbox_id(1)).live)
    assert agent.core.get(sandbox_id(1)).status.end.reason == "fenced"
    assert not any(sandbox_id(1) in path for path in world.gateway.artifacts)

    world.gateway.away = True
    await world.create(spec(3, 0.0))
    await eventually(lambda: agent.core.get(sandbox_id(3)).status.state == "archiving")
    await world.post("stop", {"epoch": 1, "ids": [sandbox_id(3)], "reason": "fenced"})
    world.gateway.away = False
    await eventually(lambda: not agent.core.get(sandbox_id(3)).live)
    assert agent.core.get(sandbox_id(3)).status.end.reason == "fenced"
    assert not any(sandbox_id(3) in path for path in world.gateway.artifacts)
    await agent.close()


async def test_a_newer_incarnation_fences_the_older_on_the_node(world: World) -> None:
    """Two copies of a replica on one node: the older ends as fenced by itself."""
    agent = await world.start()
    await world.create(spec(1, None, experiment_uid="u", index=0, incarnation=1))
    await world.create(spec(2, None, experiment_uid="u", index=0, incarnation=2))
    await eventually(lambda: not agent.core.get(sandbox_id(1)).live)
    assert agent.core.get(sandbox_id(1)).status.end.reason == "fenced"
    assert agent.core.get(sandbox_id(2)).live
    await agent.close()


async def test_registration_is_the_heartbeat(world: World) -> None:
    """It repeats, carries what the node has, takes the epoch over, and survives an absence."""
    agent = await world.start()
    agent.config = agent.config.model_copy(update={"heartbeat_seconds": 0.05})
    world.gateway.away = True
    registrar = Registrar(agent, "https://10.0.0.1:7443/n/node-1", world.randomness)
    with pytest.raises(AwayError):
        await registrar.begin(0.2)
    world.gateway.away = False
    world.gateway.epoch = 9
    task = await registrar.begin(5)
    await eventually(lambda: len(world.gateway.registrations) >= 3)
    assert agent.files.load_epoch() == 9
    first = world.gateway.registrations[0]
    assert (first.name, first.endpoint) == ("node-1", "https://10.0.0.1:7443/n/node-1")
    assert first.inventory.cpu_milli == 8000
    world.gateway.clock_offset = -3.0
    await eventually(lambda: agent.core.refusing.startswith("clock: "))
    (answer,) = await world.create(spec(1), epoch=9)
    assert (answer["accepted"], answer["reason"][:6]) == (False, "clock:")
    # a right clock says nothing about the disk
    agent.core.refuse("disk", "full")
    world.gateway.clock_offset = 0.1
    await eventually(lambda: agent.core.refusing == "disk: full")
    world.gateway.clock_offset = -3.0
    await world.clock.sleep(0.2)
    assert agent.core.refusing == "disk: full"
    task.cancel()
    await agent.close()


async def test_long_poll_returns_with_the_change(world: World) -> None:
    """A poll at the newest number waits; a change ends the wait; time ends it too."""
    agent = await world.start()
    state = await world.state()
    began = world.clock.monotonic()
    assert (await world.state(state.seq, 0.2)).sandboxes == []
    assert world.clock.monotonic() - began >= 0.2
    await world.create(spec(1, None))
    changed = await world.state(state.seq, 5)
    assert not changed.full
    assert [one.identity.id for one in changed.sandboxes] == [sandbox_id(1)]
    other = await world.client.get("state", params={"since": state.seq, "boot": "other"})
    assert other.json()["full"] is True
    await agent.close()


async def test_acknowledged_ends_are_not_told_again(world: World) -> None:
    """After an ack a full answer leaves the end out; before it, also after a restart, not."""
    agent = await world.start()
    await world.create(spec(1))
    await eventually(lambda: agent.core.live == 0)
    await agent.close()
    agent = await world.start()
    assert len((await world.state()).sandboxes) == 1
    await world.post("ack", {"epoch": 1, "ids": [sandbox_id(1)]})
    assert (await world.state()).sandboxes == []
    await agent.close()
    agent = await world.start()
    assert (await world.state()).sandboxes == []
    (answer,) = await world.create(spec(1))
    assert (answer["accepted"], answer["state"]) == (True, "ended")
    await agent.close()


async def test_bad_calls_are_refused_with_every_mistake(world: World) -> None:
    """A malformed body, an unknown reason and an unknown node say what is wrong."""
    agent = await world.start()
    answer = await world.client.post("sandboxes", content=b'{"specs": [{}]}')
    assert answer.status_code == 400
    paths = {detail["path"] for detail in answer.json()["details"]}
    assert {"epoch", "specs.0.identity", "specs.0.image"} <= paths
    answer = await world.post("stop", {"epoch": 1, "ids": [], "reason": "boredom"})
    assert (answer.status_code, answer.json()["details"][0]["value"]) == (400, "boredom")
    answer = await world.client.get("state", params={"since": "soon"})
    assert answer.status_code == 400
    world.routes["http://agents/n/none"] = world.routes["http://agents/n/node-1"]
    assert (await world.client.get("http://agents/n/none/v1/state")).status_code == 404
    await agent.close()


async def test_settings_of_the_pool_are_kept(tmp_path: Path) -> None:
    """Reserve, over-commitment and limits are what the node registers and what it enforces."""
    settings = {
        "max_sandboxes": 2,
        "reserved_cpu_milli": 2000,
        "reserved_memory_bytes": 1 << 30,
        "cpu_overcommit": 1.5,
        "sandbox_heartbeat_seconds": 3.0,
        "start_deadline_seconds": 0.3,
    }
    silent = dataclasses.replace(PROFILE, never_registers=1.0)
    world = World(tmp_path, settings=settings, profile=silent)
    agent = await world.start()
    await Registrar(agent, "https://10.0.0.1:7443/n/node-1", world.randomness).once()
    told = world.gateway.registrations[0].inventory
    assert (told.cpu_milli, told.memory_bytes, told.max_sandboxes) == (9000, 15 << 30, 2)
    assert told.features["cpu-overcommit"] == "1.5"
    first, second, third = await world.create(*(spec(number, None) for number in range(3)))
    assert (first["accepted"], second["accepted"], third["accepted"]) == (True, True, False)
    assert third["reason"].startswith("capacity: sandboxes")
    assert agent.core.get(sandbox_id(0)).spec.heartbeat_seconds == 3.0
    await eventually(lambda: agent.core.live == 0)
    assert agent.core.get(sandbox_id(0)).status.end.reason == "start-deadline"
    await agent.close()


def test_the_disk_of_live_sandboxes_is_not_counted_twice() -> None:
    """What sandboxes hold is part of what the node has: after a restart they are booked again."""
    # in memory, where hardly anybody else writes meanwhile
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        state = Path(folder)
        before = node_inventory(state, cgroup=2, runtime="crun", disk="loop")
        (state / "sandboxes" / "one").mkdir(parents=True)
        (state / "sandboxes" / "one" / "disk.img").write_bytes(b"x" * (64 << 20))
        after = node_inventory(state, cgroup=2, runtime="crun", disk="loop")
    assert after.disk_bytes > before.disk_bytes - (32 << 20)


def test_a_part_of_the_memory_is_the_nodes_own(tmp_path: Path) -> None:
    """Nobody said how much: some is kept all the same. A reserve of everything is refused."""
    found = node_inventory(tmp_path, cgroup=2, runtime="crun", disk="loop")
    values = {"state_dir": tmp_path, "gateway": GATEWAY_URL, "node_name": "n"}
    kept = found.memory_bytes - offered(found, AgentConfig(**values)).memory_bytes
    assert kept == min(found.memory_bytes // 16, 1 << 30)
    with pytest.raises(ValueError, match="reserved_memory_bytes"):
        offered(found, AgentConfig(**values, reserved_memory_bytes=found.memory_bytes))


def test_settings_need_an_url(tmp_path: Path) -> None:
    """A gateway is an URL."""
    with pytest.raises(ValueError, match="URL is wanted"):
        AgentConfig(state_dir=tmp_path, gateway="gw", node_name="n")


@pytest.mark.parametrize("error", [TimeoutError("in D state"), OSError(16, "busy")])
async def test_a_failing_destroy_is_repeated_and_the_node_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    """A process that cannot be killed yet holds up its own sandbox alone."""
    agent = await world.start()
    real, failures = world.substrate.destroy, [error] * 3

    async def destroy(sandbox: str) -> None:
        if sandbox == sandbox_id(1) and failures:
            raise failures.pop()
        await real(sandbox)

    monkeypatch.setattr(world.substrate, "destroy", destroy)
    await world.create(spec(1, 0.0))
    await eventually(lambda: len(failures) < 3)
    assert agent.core.refusing == ""
    (answer,) = await world.create(spec(2, 0.0))
    assert answer["accepted"]
    await eventually(lambda: agent.core.live == 0)
    await eventually(lambda: world.gateway.history(sandbox_id(1)) == WHOLE)
    await agent.close()


async def test_a_broken_archive_is_partial(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fails while a scene is read, the sandbox ends and its result is stored."""
    agent = await world.start()

    async def archive(_sandbox: str) -> AsyncIterator[tuple[str, bytes]]:
        yield "stdout.log", b"kept"
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(world.substrate, "archive", archive)
    await world.create(spec(1, 0.0))
    await eventually(lambda: agent.core.live == 0)
    (status,) = (await world.state()).sandboxes
    assert status.end is not None
    assert (status.end.reason, status.end.archive_partial) == ("completed", True)
    assert {path.rsplit("/", 1)[1] for path in world.gateway.artifacts} == {
        "stdout.log",
        "result.json",
    }
    assert agent.core.refusing == ""
    await agent.close()


async def test_a_refused_file_leaves_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file that the gateway refuses is named in the manifest; all others are stored."""
    agent = await world.start()
    world.gateway.refused.add("collect/odd")

    async def archive(_sandbox: str) -> AsyncIterator[tuple[str, bytes]]:
        for name in ("stdout.log", "collect/odd", "collect/plain"):
            yield name, b"x"
        yield "manifest.json", b'{"files": []}'

    monkeypatch.setattr(world.substrate, "archive", archive)
    await world.create(spec(1, 0.0))
    await eventually(lambda: agent.core.live == 0)
    prefix = f"research-a/exp/{sandbox_id(1)}/"
    stored = {path.removeprefix(prefix) for path in world.gateway.artifacts}
    assert stored == {"stdout.log", "collect/plain", "manifest.json", "result.json"}
    manifest = json.loads(world.gateway.artifacts[prefix + "manifest.json"])
    assert [one["path"] for one in manifest["refused"]] == ["collect/odd"]
    (status,) = (await world.state()).sandboxes
    assert status.end is not None
    assert (status.end.archive_partial, status.end.archive) == (True, f"artifacts/{prefix}")
    await agent.close()


async def test_an_ended_sandbox_that_resists_does_not_keep_the_agent_down(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a start, what cannot be removed yet is removed later; the node serves meanwhile."""
    agent = await world.start()
    await world.create(spec(1, 0.0))
    await eventually(lambda: agent.core.live == 0)
    await agent.close()
    await world.substrate.create(spec(1))
    real, failures = world.substrate.destroy, [TimeoutError("in D state")] * 2

    async def destroy(sandbox: str) -> None:
        if failures:
            raise failures.pop()
        await real(sandbox)

    monkeypatch.setattr(world.substrate, "destroy", destroy)
    agent = await world.start()
    await eventually(lambda: not world.substrate._runs)
    assert agent.core.refusing == ""
    await agent.close()


async def test_a_lost_state_directory_gives_out_new_row_numbers(world: World) -> None:
    """Rows written after the loss are other rows: none of them is taken for an old one."""
    agent = await world.start()
    await world.create(spec(1, 0.0))
    await eventually(lambda: "sandbox-ended" in world.gateway.history(sandbox_id(1)))
    last = max(seq for _, _, seq in world.gateway.rows)
    await agent.close()
    world.directory = world.directory / "new"
    await world.clock.sleep(3.0)
    agent = await world.start()
    await world.create(spec(2, 0.0))
    await eventually(lambda: world.gateway.history(sandbox_id(2)) == WHOLE)
    mine = [
        key[2] for key, row in world.gateway.rows.items() if row.get("sandbox") == sandbox_id(2)
    ]
    assert min(mine) > last
    await agent.close()


@pytest.mark.parametrize("status", [403, 413, 422])
async def test_a_refused_row_is_set_aside_and_the_others_are_shipped(
    world: World, status: int
) -> None:
    """One row that the gateway never takes costs that row alone; it is kept in a side file."""
    world.gateway.refused_rows[f"sandbox-creating {sandbox_id(3)}"] = status
    agent = await world.start()
    await world.create(*(spec(number, 0.0) for number in range(6)))
    without = [kind for kind in WHOLE if kind != "sandbox-creating"]
    for number in range(6):
        wanted = without if number == 3 else WHOLE
        await eventually(lambda n=number, w=wanted: world.gateway.history(sandbox_id(n)) == w)
    (line,) = (world.directory / "spool" / "refused.lines").read_bytes().splitlines()
    kept = decode(line)
    assert kept is not None
    assert (kept["row"]["sandbox"], kept["row"]["kind"]) == (sandbox_id(3), "sandbox-creating")
    await agent.close()


async def test_a_node_that_is_not_known_yet_loses_no_row(world: World) -> None:
    """Refused for who it is, the node repeats: nothing is set aside."""
    world.gateway.stranger = True
    agent = await world.start()
    await world.create(spec(1, 0.0))
    await world.clock.sleep(3.0)
    assert not (world.directory / "spool" / "refused.lines").exists()
    world.gateway.stranger = False
    await eventually(lambda: world.gateway.history(sandbox_id(1)) == WHOLE)
    await agent.close()
