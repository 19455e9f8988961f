"""Images are pinned at submission; unknown ones wait, and a silent registry holds nothing up."""

from collections.abc import Callable
from typing import Any

from dsec.api.reasons import EndReason, PendingReason
from dsec.placement.refusal import Refusal
from dsec.placement.words import sentence
from dsec.world.registry import SimulatedRegistry
from dsec.world.substrate import SubstrateError
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


def refuse(sim: Sim, *nodes: str) -> dict[str, list[str]]:
    """Let these nodes use no image; returns which sandboxes each was asked for it by."""
    asked: dict[str, list[str]] = {name: [] for name in nodes}
    for name in nodes:

        async def prepare(image: str, name: str = name) -> None:
            asked[name].append(image)
            raise SubstrateError(
                EndReason.IMAGE_PULL_FAILED, f"image {image}: for ELF machine 183, not for {name}"
            )

        sim.substrates[name].prepare_image = prepare  # type: ignore[method-assign]
    return asked


SMALL = """
metadata: {name: small}
spec:
  image: hub/base:1
  resources: {cpu: 1, memory: 256Mi}
  restartPolicy: %s
"""


def test_an_image_that_nodes_refuse_fails_what_is_never_restarted(
    simulate: Callable[..., None],
) -> None:
    """Three different nodes are tried, then the typed failure stands; nothing is tried again."""

    async def scenario() -> None:
        async with Sim() as sim:
            sim.registry = SimulatedRegistry({"hub/base:1": FIRST})
            sim.start_controller()
            for n in range(5):
                await sim.add_node(f"n{n}")
            await sim.ready(nodes=5)
            asked = refuse(sim, *(f"n{n}" for n in range(5)))
            where = "/v1/projects/lab/experiments"
            made = await sim.client.post(where, content=SMALL % "never")
            assert made.status_code == 201, made.text
            await sim.clock.sleep(60)
            now = await status(sim, "small")
            assert sorted(len(one) for one in asked.values()) == [0, 0, 1, 1, 1]
            assert now["roles"][0]["ended"] == [{"reason": "image-pull-failed", "count": 1}]
            assert (now["pending"], now["ready"]) == (0, 0)
            conditions = {one["type"]: one for one in now["conditions"]}
            assert conditions["Completed"]["status"] == "True"
            assert conditions["Completed"]["message"].endswith("1 image-pull-failed")
            await sim.clock.sleep(600)
            assert sum(len(one) for one in asked.values()) == 3
            answer = await sim.client.get(f"{where}/small/results")
            assert "ELF machine 183" in answer.text

    simulate(scenario)


def test_an_image_that_nodes_refuse_is_waited_for_by_others(simulate: Callable[..., None]) -> None:
    """Pending with the node's own words; it starts on the first node that can use the image."""

    async def scenario() -> None:
        async with Sim() as sim:
            sim.registry = SimulatedRegistry({"hub/base:1": FIRST})
            sim.start_controller()
            await sim.add_node("n0")
            await sim.ready(nodes=1)
            asked = refuse(sim, "n0")
            made = await sim.client.post(
                "/v1/projects/lab/experiments", content=SMALL % "on-failure"
            )
            assert made.status_code == 201, made.text
            await sim.clock.sleep(200)
            assert len(asked["n0"]) > 3, "tried again and again, also where there is no other node"
            now = await status(sim, "small")
            assert (now["pending"], now["ready"]) == (1, 0)
            (why,) = now["pendingReasons"]
            assert why["reason"] == "image"
            assert f"asked hub/base:1@{FIRST}, free 0: node n0 could not use it" in why["message"]
            assert "for ELF machine 183, not for n0" in why["message"]
            await sim.add_node("n1")
            await sim.clock.sleep(90)
            now = await status(sim, "small")
            assert (now["pending"], now["ready"]) == (0, 1), now["pendingReasons"]
            assert next(iter(sim.live().values()))[0][0] == "n1"

    simulate(scenario)


def test_warnings_stay_with_the_experiment(simulate: Callable[..., None]) -> None:
    """What a dry run tells its caller is in status.resolved.warnings of what was submitted."""

    async def scenario() -> None:
        async with Sim() as sim:
            registry = SimulatedRegistry({"hub/base": FIRST, "hub/other:1": SECOND})
            text = DOCUMENT.replace("hub/base:1", "hub/base")
            await submitted(sim, registry, text)
            dry = await sim.client.post("/v1/projects/lab/experiments?dryRun=true", content=text)
            told = dry.json()["status"]["resolved"]["warnings"]
            assert len(told) == 1
            assert "hub/base moves with the registry" in told[0]
            assert (await status(sim))["resolved"]["warnings"] == told
            words = await sim.client.get("/v1/projects/lab/experiments/pair/describe")
            sections = {one["title"]: one["lines"] for one in words.json()["sections"]}
            assert [line["text"] for line in sections["Warnings"]] == told

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
