"""SandboxImage records: what they say of the registry, and what experiments take from them."""

from collections.abc import Callable
from typing import Any

from dsec.world.registry import SimulatedRegistry
from sim_world import Sim, create

FIRST, SECOND = (f"sha256:{digit * 64}" for digit in "12")
DOCUMENT = """
name: one
roles:
  - {role: sim, replicas: 1, image: "hub/base:1", resource: {cpu: 1, mem: 256M}}
"""


async def declare(sim: Sim, name: str, **spec: Any) -> None:
    """Create a SandboxImage."""
    body = {"kind": "SandboxImage", "metadata": {"name": name, "namespace": "lab"}, "spec": spec}
    await sim.records.create(body)


async def status(sim: Sim, name: str) -> dict[str, Any]:
    """Return the status of an image, conditions by type."""
    record = await sim.records.get("SandboxImage", name, "lab")
    found = dict(record["status"])
    generation = record["metadata"]["generation"]
    assert found["observedGeneration"] == generation
    assert {one["observedGeneration"] for one in found["conditions"]} == {generation}
    return {**found, **{one["type"]: one for one in found["conditions"]}}


async def world(sim: Sim, **registry: Any) -> SimulatedRegistry:
    """Start a controller and a node."""
    sim.registry = SimulatedRegistry({"hub/base:1": FIRST}, {FIRST: 700, SECOND: 900}, **registry)
    sim.start_controller()
    await sim.add_node("n0")
    await sim.ready(nodes=1)
    return sim.registry


def test_a_tag_is_resolved_and_stays(simulate: Callable[..., None]) -> None:
    """Digest and size; a tag that moves is told, and the project stays with what it had."""

    async def scenario() -> None:
        async with Sim() as sim:
            registry = await world(sim)
            await declare(sim, "base", reference="hub/base:1", preloadPools=["cpu"])
            await sim.clock.sleep(5)
            now = await status(sim, "base")
            assert (now["ready"], now["digest"], now["sizeBytes"]) == (True, FIRST, 700)
            assert (now["Ready"]["status"], now["Ready"]["reason"]) == ("True", "Ready")
            assert now["Current"]["reason"] == "TagCurrent"
            assert (now["Preloaded"]["status"], now["Preloaded"]["reason"]) == (
                "False",
                "NotOffered",
            )
            before = registry.asked
            version = (await sim.records.get("SandboxImage", "base", "lab"))["metadata"]
            await sim.clock.sleep(500)
            again = (await sim.records.get("SandboxImage", "base", "lab"))["metadata"]
            assert again["resourceVersion"] == version["resourceVersion"], "nothing new, no write"
            assert registry.asked - before <= 1
            registry.images["hub/base:1"] = SECOND
            await sim.clock.sleep(700)
            moved = await status(sim, "base")
            assert (moved["ready"], moved["digest"], moved["sizeBytes"]) == (True, FIRST, 700)
            assert (moved["Current"]["status"], moved["Current"]["reason"]) == ("False", "TagMoved")
            assert SECOND in moved["Current"]["message"]
            made = await sim.client.post("/v1/projects/lab/experiments", content=DOCUMENT)
            assert made.status_code == 201, made.text
            answer = await sim.client.post(
                "/v1/projects/lab/sandboxes", json={"creates": [create("k", image="hub/base:1")]}
            )
            await sim.clock.sleep(10)
            resolved = (await sim.experiment("one"))["status"]["resolved"]
            assert resolved["images"][0]["reference"] == f"hub/base:1@{FIRST}"
            sandbox = answer.json()["answers"][0]["id"]
            found = (await sim.client.get(f"/v1/projects/lab/sandboxes/{sandbox}")).json()
            assert found["image"] == f"hub/base:1@{FIRST}"

    simulate(scenario)


def test_what_is_wrong_with_an_image_is_said(simulate: Callable[..., None]) -> None:
    """Unknown, contradictory, lost and local images each have a reason of their own."""

    async def scenario() -> None:
        async with Sim() as sim:
            registry = await world(sim)
            await declare(sim, "absent", reference="hub/absent:1")
            await declare(sim, "both", reference=f"hub/base@{FIRST}", digest=SECOND)
            await declare(sim, "odd", reference="hub//base:1")
            await declare(sim, "local", reference="rootfs:/base")
            await declare(sim, "wanted", reference="hub/base:1", digest=SECOND)
            await sim.clock.sleep(5)
            told = {}
            for name in ("absent", "both", "odd", "local", "wanted"):
                now = await status(sim, name)
                told[name] = (now["ready"], now["Ready"]["status"], now["Ready"]["reason"])
                assert now["Ready"]["message"]
            assert told == {
                "absent": (False, "False", "ImageUnknown"),
                "both": (False, "False", "Invalid"),
                "odd": (False, "False", "Invalid"),
                "local": (True, "True", "LocalImage"),
                "wanted": (True, "True", "Ready"),
            }
            wanted = await status(sim, "wanted")
            assert (wanted["digest"], wanted["sizeBytes"]) == (SECOND, 900)
            assert wanted["Current"]["reason"] == "TagMoved"
            registry.lost.add(SECOND)
            registry.images["hub/absent:1"] = FIRST
            await sim.clock.sleep(700)
            assert (await status(sim, "wanted"))["Ready"]["reason"] == "ImageUnknown"
            assert (await status(sim, "absent"))["digest"] == FIRST

    simulate(scenario)


def test_a_silent_registry_takes_nothing_away(simulate: Callable[..., None]) -> None:
    """What was never known is Unknown; what was known stays usable, and says that it is not new."""

    async def scenario() -> None:
        async with Sim() as sim:
            registry = await world(sim, away=True)
            await declare(sim, "base", reference="hub/base:1")
            await sim.clock.sleep(5)
            now = await status(sim, "base")
            assert (now["ready"], now["Ready"]["status"]) == (False, "Unknown")
            assert now["Ready"]["reason"] == "RegistryAway"
            registry.away = False
            await sim.clock.sleep(30)
            assert (await status(sim, "base"))["ready"] is True
            registry.away = True
            await sim.clock.sleep(700)
            now = await status(sim, "base")
            assert (now["ready"], now["digest"]) == (True, FIRST)
            assert "not looked for now: the simulated registry is away" in now["Ready"]["message"]
            assert now["Current"]["reason"] == "TagCurrent"

    simulate(scenario)
