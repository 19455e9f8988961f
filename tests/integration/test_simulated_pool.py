"""Machines of the simulated provider really join: bought, booted, registered, noticed, gone."""

import asyncio
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from agent_world import eventually
from dsec.agent import simnodes
from dsec.providers.simulated import SimulatedProvider
from dsec.providers.weather import Weather
from dsec.world.clock import SystemClock
from dsec.world.files import FileObjects
from provider_make import Buy, Offer
from test_agent_tls import Authority, Served, authority, served  # noqa: F401 - fixtures

QUICK = Weather(out={}, boot=(0.2, 0.4), hazard_per_hour=0.0)


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The folder of a pool's process."""
    known: Served = request.getfixturevalue("served")
    trusted: Authority = request.getfixturevalue("authority")
    folder = tmp_path / "pool"
    folder.mkdir()
    (tmp_path / "key").write_text("dsec_test_0123456789")
    (tmp_path / "objects").mkdir()
    settings: dict[str, Any] = {
        "gateway": known.url,
        "ca": str(trusted.path),
        "apiKeyFile": str(tmp_path / "key"),
        "profiles": {"burst": "8xa100"},
        "files": str(tmp_path / "objects"),
    }
    (folder / "pool.json").write_text(json.dumps(settings))
    return folder


async def test_a_purchase_becomes_nodes(place: Path, tmp_path: Path, request: Any) -> None:
    """Two machines join with their pool and profile, and one that ends is gone from the process."""
    gateway = request.getfixturevalue("served").gateway
    provider = SimulatedProvider(FileObjects(tmp_path / "objects"), SystemClock(), QUICK)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dsec.agent.simpool", str(place), env=os.environ
    )
    try:
        until = datetime.now(UTC).timestamp() + 3600
        answer = await provider.buy(Buy(Offer(market="spot"), 2, "t"), epoch=1, run_until=until)
        one, two = (node.id for node in answer.nodes)

        def registered() -> set[str]:
            return {node.name for node in simnodes.read_report(place) if node.registered}

        await eventually(lambda: registered() == {one, two})
        told = {each.name: each for each in gateway.registrations}
        assert told[one].pool == "burst"
        assert len(told[one].inventory.devices) == 8
        assert told[one].labels["market"] == "spot"
        await provider.end([one], epoch=1)
        await eventually(lambda: registered() == {two})
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 20) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_wrong_settings_are_a_sentence(place: Path) -> None:
    """A profile that does not exist is named with those that do."""
    settings = json.loads((place / "pool.json").read_text())
    (place / "pool.json").write_text(json.dumps(settings | {"profiles": {"burst": "cray"}}))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dsec.agent.simpool", str(place)), stderr=asyncio.subprocess.PIPE
    )
    _, told = await process.communicate()
    assert process.returncode == 1
    assert told.decode().startswith("simulated pool: profiles: cray; known: 8xa100")
