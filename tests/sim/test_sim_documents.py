"""The four task documents: Pending with reasons on a small real node, Running on simulated ones."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dsec.agent.substrates.simulated import PROFILES, SimulatedSubstrate
from dsec.api.sandbox import IsolationLevel
from dsec.api.wire import NodeInventory
from sim_world import Sim

ORIGINALS = Path(
    os.environ.get("DSEC_TASK_DOCUMENTS", Path(__file__).parents[3] / "shared" / "data" / "tasks")
)
DEMO = {
    "kind": "Tenant",
    "metadata": {"name": "demo"},
    "spec": {
        "projects": ["demo"],
        "documentTenants": ["research_a"],
        "defaults": {
            "resources": {
                "cpuMilli": 1000,
                "memoryBytes": 1 << 30,
                "gpuMemoryBytes": 4 << 30,
            },
            "image": "base",
            "currency": "USD",
            "imageMirrors": [
                {"prefix": "registry.internal/", "mirror": "base"},
                {"prefix": "dsec-registry/", "mirror": "base"},
            ],
        },
    },
}
QUICK = {
    name: replace(profile, boot=(0.01, 0.02), register=(0.01, 0.02))
    for name, profile in PROFILES.items()
}
SMALL = replace(QUICK["cpu"], name="small", cpu_milli=2000, memory_bytes=8 << 30)


@pytest.fixture
def small_real_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the profile named small report what a real machine without GPU or microVM has."""
    told = SimulatedSubstrate.inventory

    async def inventory(self: Any) -> NodeInventory:
        found = await told(self)
        if found.features["profile"] != "small":
            return found
        update = {"simulated": False, "isolation": [IsolationLevel.CONTAINER], "features": {}}
        return found.model_copy(update=update)

    monkeypatch.setattr(SimulatedSubstrate, "inventory", inventory)


@pytest.mark.usefixtures("small_real_node")
def test_the_four_documents(simulate: Callable[..., None]) -> None:
    """Each is Pending for a true reason, and runs once simulated nodes have joined."""
    if not ORIGINALS.is_dir():
        pytest.skip("the sources' documents are not here; set DSEC_TASK_DOCUMENTS to their folder")

    async def scenario() -> None:
        async with Sim(seed=5) as sim:
            await sim.records.create(DEMO)
            sim.start_controller()
            await sim.add_node("real", SMALL)
            await sim.ready(nodes=1)
            await sim.clock.sleep(2)
            names = {}
            for letter in "ABCD":
                text = (ORIGINALS / f"{letter}.yaml").read_text()
                made = await sim.client.post("/v1/projects/demo/experiments", content=text)
                assert made.status_code == 201, made.text
                names[letter] = made.json()["metadata"]["name"]

            async def status(letter: str) -> dict[str, Any]:
                return (await sim.records.get("Experiment", names[letter], "demo"))["status"]

            await sim.clock.sleep(10)
            told = {letter: (await status(letter)).get("pendingReasons", []) for letter in names}
            for letter, reasons in told.items():
                assert reasons, letter
                for reason in reasons:
                    words = reason["message"]
                    assert all(p in words for p in ("asked", "free", "; starts ")), words
            first = {letter: told[letter][0]["message"].split(":")[0] for letter in told}
            assert first["B"] == "pvc", told["B"]
            assert first["C"] == "label gpu-type=a100", told["C"]
            assert any("isolation: asked microvm" in r["message"] for r in told["D"]), told["D"]
            assert [(await status(letter))["ready"] for letter in names] == [0, 0, 0, 0]
            for n in range(40):
                await sim.add_node(f"cpu-{n:02}", QUICK["cpu"])
                await sim.add_node(f"gpu-{n:02}", QUICK["8xa100"])
            wanted = {"A": 9, "B": 1, "C": 4, "D": 514}
            await sim.clock.sleep(90)
            for letter, count in wanted.items():
                now = await status(letter)
                assert now["ready"] == count, (letter, now["pendingReasons"], now["roles"])
            resolved = (await status("A"))["resolved"]
            assert any("mirror" in one["from"] for one in resolved["defaulted"])
            words = await sim.client.get(f"/v1/projects/demo/experiments/{names['D']}/describe")
            assert "all 514 replicas" in words.json()["headline"]

    simulate(scenario)
