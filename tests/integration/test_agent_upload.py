"""How scenes travel to the gateway: small files together, large ones alone, refused ones named."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from agent_world import World, eventually, sandbox_id, spec
from dsec.agent.agent import Agent
from dsec.agent.upload import BATCH_BYTES
from dsec.api.scene import FILES_MOST

PREFIX = f"research-a/exp/{sandbox_id(1)}/"


@pytest.fixture
def world(tmp_path: Path) -> World:
    """One node with its gateway."""
    return World(tmp_path)


async def archived(
    world: World, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> tuple[Agent, bool]:
    """Run a sandbox with such a scene; return the agent, and whether the archive is partial."""

    async def archive(_sandbox: str) -> AsyncIterator[tuple[str, bytes]]:
        for entry in files.items():
            yield entry

    agent = await world.start()
    monkeypatch.setattr(world.substrate, "archive", archive)
    await world.create(spec(1, 0.0))
    await eventually(lambda: agent.core.live == 0)
    (status,) = (await world.state()).sandboxes
    assert status.end is not None
    assert status.end.archive == f"artifacts/{PREFIX}"
    return agent, status.end.archive_partial


def stored(world: World) -> dict[str, bytes]:
    """Return the scene by the names of its files."""
    found = {path.removeprefix(PREFIX): data for path, data in world.gateway.artifacts.items()}
    assert json.loads(found.pop("result.json"))["state"] == "archiving"
    return found


async def test_a_small_scene_is_one_request(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """All files of it, and the result as the last."""
    files = {f"collect/{number}": b"%d" % number for number in range(20)} | {"manifest.json": b"{}"}
    agent, partial = await archived(world, files, monkeypatch)
    assert stored(world) == files
    assert world.gateway.uploads == [[*files, "result.json"]]
    assert not partial
    await agent.close()


async def test_a_large_scene_is_several_requests(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bounded in files and in bytes; a file that fills a request by itself goes by itself."""
    many = {f"collect/{number:04d}": b"x" for number in range(FILES_MOST + 5)}
    files = {"first": b"1", "large": b"y" * (BATCH_BYTES + 1), **many, "half": b"z" * BATCH_BYTES}
    agent, partial = await archived(world, files, monkeypatch)
    assert stored(world) == files
    names = list(many)
    assert world.gateway.uploads == [
        ["first"],
        ["large"],
        names[:FILES_MOST],
        names[FILES_MOST:],
        ["half"],
        ["result.json"],
    ]
    assert not partial
    await agent.close()


async def test_a_gateway_without_batches_takes_file_by_file(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version before this one: nothing is lost while a new version is rolled out."""
    world.gateway.no_batches = True
    files = {"stdout.log": b"out", "stderr.log": b"err", "manifest.json": b"{}"}
    agent, partial = await archived(world, files, monkeypatch)
    assert stored(world) == files
    assert world.gateway.uploads == [[name] for name in (*files, "result.json")]
    assert not partial
    await agent.close()


async def test_a_refused_file_is_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a refused batch all that is not at fault is stored; a later manifest names the rest."""
    world.gateway.refused.add("odd")
    files = {"odd": b"x", "plain": b"x", "large": b"y" * BATCH_BYTES, "manifest.json": b"{}"}
    agent, partial = await archived(world, files, monkeypatch)
    found = stored(world)
    manifest = json.loads(found.pop("manifest.json"))
    assert [one["path"] for one in manifest["refused"]] == ["odd"]
    assert set(found) == {"plain", "large"}
    assert partial
    await agent.close()
