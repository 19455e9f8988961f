"""Images are pinned at submission; unknown ones wait, and a silent registry holds nothing up."""

from collections.abc import Callable
from typing import Any

from dsec.api.reasons import PendingReason
from dsec.placement.refusal import Refusal
from dsec.placement.words import sentence
from dsec.world.registry import SimulatedRegistry
from sim_world import Sim

FIRST, SECOND = (f"sha256:{digit * 64}" for digit in "12")
DOCUMENT = """
name: pair
roles:
  - {role: trainer, replicas: 1, image: "hub/base:1", resource: {cpu: 1, mem: 256M}}
  - {role: sim, replicas: 2, image: "hub/other:1", resource: {cpu: 1, mem: 256M}}
"""


async def submitted(sim: Sim, registry: SimulatedRegistry, document: str = DOCUMENT) -> None:
    """Start a controller and a node, and submit a document."""
    sim.registry = registry
    sim.start_controller()
    await sim.add_node("n0")
    await sim.ready(nodes=1)
    made = await sim.client.post("/v1/projects/lab/experiments", content=document)
    assert made.status_code == 201, made.text
    await sim.clock.sleep(10)


async def status(sim: Sim, name: str = "pair") -> dict[str, Any]:
    """Return the status of the experiment."""
    return dict((await sim.experiment(name))["status"])


async def running(sim: Sim) -> dict[str, str]:
    """Return the image of each role's sandboxes."""
    answer = await sim.client.get("/v1/projects/lab/sandboxes?state=running")
    return {one["identity"]["role"]: one["image"] for one in answer.json()["items"]}


def test_tags_are_pinned_once(simulate: Callable[..., None]) -> None:
    """A tag that moves later changes nothing of what was submitted; one question per image."""

    async def scenario() -> None:
        async with Sim() as sim:
            registry = SimulatedRegistry({"hub/base:1": FIRST, "hub/other:1": SECOND})
            await submitted(sim, registry)
            pinned = {"trainer": f"hub/base:1@{FIRST}", "sim": f"hub/other:1@{SECOND}"}
            assert await running(sim) == pinned
            told = (await status(sim))["resolved"]["images"]
            assert {one["role"]: one["reference"] for one in told} == pinned
            assert [one["digest"] for one in told] == [FIRST, SECOND]
            assert registry.asked == 2
            registry.images = {"hub/base:1": SECOND, "hub/other:1": FIRST}
            answer = await sim.client.post(
                "/v1/projects/lab/experiments/pair/scale", json={"role": "sim", "replicas": 3}
            )
            assert answer.status_code == 200, answer.text
            await sim.clock.sleep(120)
            assert (await status(sim))["ready"] == 4
            assert await running(sim) == pinned
            twice = await sim.client.post("/v1/projects/lab/experiments", content=DOCUMENT)
            await sim.clock.sleep(10)
            later = await status(sim, twice.json()["metadata"]["name"])
            assert [one["digest"] for one in later["resolved"]["images"]] == [SECOND, FIRST]

    simulate(scenario)


def test_an_unknown_image_waits_for_the_registry(simulate: Callable[..., None]) -> None:
    """The whole gang waits, with the image named; it starts once the image is pushed."""

    async def scenario() -> None:
        async with Sim() as sim:
            registry = SimulatedRegistry({"hub/base:1": FIRST})
            await submitted(sim, registry)
            now = await status(sim)
            assert (now["ready"], now["pending"]) == (0, 3)
            assert {one["reason"] for one in now["pendingReasons"]} == {"image"}
            assert {one["message"] for one in now["pendingReasons"]} == {
                sentence(Refusal(PendingReason.IMAGE, "image", "hub/other:1"))
            }
            assert sim.live() == {}
            registry.images["hub/other:1"] = SECOND
            await sim.clock.sleep(40)
            now = await status(sim)
            assert (now["ready"], now["pending"]) == (3, 0), now["pendingReasons"]
            assert (await running(sim))["sim"] == f"hub/other:1@{SECOND}"

    simulate(scenario)


def test_a_silent_registry_is_a_warning(simulate: Callable[..., None]) -> None:
    """Sandboxes start by their tags with a warning, which goes when the registry answers."""

    async def scenario() -> None:
        async with Sim() as sim:
            registry = SimulatedRegistry({"hub/base:1": FIRST, "hub/other:1": SECOND}, away=True)
            await submitted(sim, registry)
            now = await status(sim)
            assert now["ready"] == 3
            assert await running(sim) == {"trainer": "hub/base:1", "sim": "hub/other:1"}
            warnings = now["resolved"]["warnings"]
            assert len(warnings) == 2
            assert all("the simulated registry is away" in one for one in warnings), warnings
            words = await sim.client.get("/v1/projects/lab/experiments/pair/describe")
            titles = [section["title"] for section in words.json()["sections"]]
            assert "Warnings" in titles
            registry.away = False
            await sim.clock.sleep(40)
            resolved = (await status(sim))["resolved"]
            assert "warnings" not in resolved or resolved["warnings"] == []
            assert [one["digest"] for one in resolved["images"]] == [FIRST, SECOND]

    simulate(scenario)


def test_what_needs_no_registry(simulate: Callable[..., None]) -> None:
    """Digests in documents and images of this machine are asked for nowhere."""

    async def scenario() -> None:
        async with Sim() as sim:
            registry = SimulatedRegistry(away=True)
            text = DOCUMENT.replace("hub/base:1", f"hub/base:1@{FIRST}")
            await submitted(sim, registry, text.replace("hub/other:1", "rootfs:/base"))
            now = await status(sim)
            assert now["ready"] == 3
            assert registry.asked == 0
            assert [one["digest"] for one in now["resolved"]["images"]] == [FIRST, ""]

    simulate(scenario)


def test_submit_makes_a_new_name_and_apply_updates(simulate: Callable[..., None]) -> None:
    """API-01, API-21: two experiments from two submits; an edit applied shows its fields."""

    async def scenario() -> None:
        async with Sim() as sim:
            where = "/v1/projects/lab/experiments"
            sim.start_controller()
            await sim.ready()
            await sim.clock.sleep(2)
            same = {"X-Dsec-Correlation-Id": "one-call"}
            made = [
                (await sim.client.post(where, content=DOCUMENT, headers=headers)).json()
                for headers in ({}, {}, same, same)
            ]
            names = [one["metadata"]["name"] for one in made]
            assert names[0] == "pair"
            assert all(name.startswith("pair-") for name in names[1:])
            assert len({one["metadata"]["uid"] for one in made}) == 3
            assert names[2] == names[3], "a call that is repeated is one submit"
            edited = DOCUMENT.replace("replicas: 2", "replicas: 4")
            told = [{"path": "roles[sim].replicas", "old": 2, "new": 4, "effect": "live"}]
            for flags, count in (("&dryRun=true", 2), ("", 4)):
                answer = await sim.client.post(f"{where}?mode=apply{flags}", content=edited)
                assert answer.json()["changes"] == told
                stored = (await sim.experiment("pair"))["spec"]["roles"][1]["replicas"]
                assert stored == count
            again = await sim.client.post(f"{where}?mode=apply", content=edited)
            assert again.json()["changes"] == []
            assert len((await sim.experiments()).items) == 3

    simulate(scenario)
