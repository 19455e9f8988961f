"""Keyed creates beside experiments: their images, and a purge that ends them all."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from dsec.journal.results import ResultReader
from dsec.world.records import Record
from dsec.world.registry import SimulatedRegistry
from sim_world import Sim, create

FIRST, SECOND = (f"sha256:{digit * 64}" for digit in "12")
WHERE = "/v1/projects/lab/sandboxes"
EXPERIMENT = """
name: stays
roles:
  - {role: sim, replicas: 2, image: "hub/base:1", resource: {cpu: 1, mem: 256M}}
"""


async def world(sim: Sim, **spec: Any) -> SimulatedRegistry:
    """Start a controller and a node; `spec` changes the tenant."""
    sim.registry = SimulatedRegistry({"hub/base:1": FIRST, "mirror/deep:1": SECOND})
    tenant = await sim.records.get("Tenant", "research")
    tenant["spec"] = {**tenant["spec"], **spec}
    await sim.records.replace(tenant)
    sim.start_controller()
    await sim.add_node("n0")
    await sim.ready(nodes=1)
    return sim.registry


async def ask(sim: Sim, *creates: dict[str, Any]) -> list[dict[str, Any]]:
    """Make keyed creates; return the answers."""
    answer = await sim.client.post(WHERE, json={"creates": list(creates)})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["answers"])


async def image_of(sim: Sim, sandbox: str) -> str:
    """Return the image that a sandbox uses."""
    return str((await sim.client.get(f"{WHERE}/{sandbox}")).json()["image"])


async def tenant_status(sim: Sim) -> dict[str, Any]:
    """Return the status of the tenant."""
    return dict((await sim.records.get("Tenant", "research")).get("status", {}))


async def purge(sim: Sim, seconds: float) -> Record:
    """Ask for the end of all keyed sandboxes, as the deletion guard does."""
    record = await sim.records.get("Tenant", "research")
    until = (sim.clock.now() + timedelta(seconds=seconds)).isoformat()
    record["status"] = {
        **record.get("status", {}),
        "purge": {"by": "purge", "until": until, "observed": False},
    }
    return await sim.records.replace_status(record)


def test_keyed_creates_get_images_as_experiments_do(simulate: Callable[..., None]) -> None:
    """Default image, mirror and digest of the tenant; a known key keeps its digest."""

    async def scenario() -> None:
        async with Sim() as sim:
            defaults = {
                "image": "hub/base:1",
                "imageMirrors": [{"prefix": "far/", "mirror": "mirror/"}],
            }
            registry = await world(sim, defaults=defaults)
            asked = [create("default", image=""), create("mirrored", image="far/deep:1")]
            answers = await ask(sim, *asked)
            assert [one["outcome"] for one in answers] == ["bound", "bound"], answers
            images = [await image_of(sim, one["id"]) for one in answers]
            assert images == [f"hub/base:1@{FIRST}", f"mirror/deep:1@{SECOND}"]
            questions = registry.asked
            registry.images = {"hub/base:1": SECOND}
            again = await ask(sim, *asked)
            assert [one["outcome"] for one in again] == ["exists", "exists"]
            assert [one["id"] for one in again] == [one["id"] for one in answers]
            assert registry.asked == questions, "a known key asks nobody"
            await sim.clock.sleep(70)
            (later,) = await ask(sim, create("later", image="hub/base:1"))
            assert await image_of(sim, later["id"]) == f"hub/base:1@{SECOND}"

    simulate(scenario)


def test_a_run_limit_that_is_none_is_refused_by_its_name(simulate: Callable[..., None]) -> None:
    """Neither 0 nor less is a time to run: the caller is told, not the leader's log."""

    async def scenario() -> None:
        async with Sim() as sim:
            await world(sim)
            for wrong in (0, -5):
                body = {"creates": [{**create("k"), "maxRunSeconds": wrong}]}
                answer = await sim.client.post(WHERE, json=body)
                assert answer.status_code == 422, answer.text
                assert "maxRunSeconds" in answer.text

    simulate(scenario)


def test_absurd_resources_are_refused_before_the_leader_counts(
    simulate: Callable[..., None],
) -> None:
    """Figures without end are whole numbers, too; as fractions of a machine they overflow."""

    async def scenario() -> None:
        async with Sim() as sim:
            await world(sim)
            for field in ("cpuMilli", "gpuCount"):
                asked = create("k")
                asked["resources"][field] = 10**400
                answer = await sim.client.post(WHERE, json={"creates": [asked]})
                assert answer.status_code == 422, answer.text
                assert f"{field}: at most 9007199254740992" in answer.text

    simulate(scenario)


def test_a_create_without_a_usable_image_is_refused_in_words(simulate: Callable[..., None]) -> None:
    """Nothing is bound to the key; the others of the batch are served, in order."""

    async def scenario() -> None:
        async with Sim() as sim:
            registry = await world(sim, registries=["hub/"])
            answers = await ask(
                sim,
                create("none", image=""),
                create("good", image="hub/base:1"),
                create("absent", image="hub/absent:1"),
                create("foreign", image="evil/base:1"),
            )
            assert [one["key"] for one in answers] == ["none", "good", "absent", "foreign"]
            assert [one["outcome"] for one in answers] == ["refused", "bound", "refused", "refused"]
            assert "the tenant has a default image" in answers[0]["message"]
            assert "has no hub/absent:1" in answers[2]["message"]
            assert "none of the tenant's registries: hub/" in answers[3]["message"]
            registry.images["hub/absent:1"] = SECOND
            await sim.clock.sleep(20)
            (late,) = await ask(sim, create("absent", image="hub/absent:1"))
            assert late["outcome"] == "bound"
            registry.away = True
            (tag,) = await ask(sim, create("silent", image="hub/silent:1"))
            assert (tag["outcome"], await image_of(sim, tag["id"])) == ("bound", "hub/silent:1")

    simulate(scenario)


def test_purge_ends_what_no_experiment_owns(simulate: Callable[..., None]) -> None:
    """Running and waiting ones end as stopped, archived; experiments live; the call lapses."""

    async def scenario() -> None:
        async with Sim() as sim:
            await world(sim)
            made = await sim.client.post("/v1/projects/lab/experiments", content=EXPERIMENT)
            assert made.status_code == 201, made.text
            answers = await ask(
                sim,
                *(create(f"k{n}", image="hub/base:1") for n in range(3)),
                create("waits", image="hub/base:1", labels={"gpu-type": "none"}),
            )
            assert [one["outcome"] for one in answers] == ["bound"] * 3 + ["pending"]
            await sim.clock.sleep(15)
            status = await tenant_status(sim)
            assert (status["keyed"], status["used"]["sandboxes"]) == (4, 5)
            asked = (await purge(sim, 100))["status"]["purge"]["until"]
            await sim.clock.sleep(20)
            status = await tenant_status(sim)
            assert (status["keyed"], status["used"]["sandboxes"]) == (0, 2), status
            assert status["purge"]["observed"] is True
            assert status["purge"]["until"] == asked.replace("+00:00", "Z")
            assert len(sim.live()) == 2
            leader = sim.leader()
            assert leader is not None
            state = leader.controller.term.bind_log.state
            for answer in answers:
                binding = state.by_id[answer["id"]]
                assert binding.reason == "stopped"
                end = await ResultReader(sim.objects).read(binding.result)
                assert end is not None
                assert end.end is not None
                assert "are ended by purge" in end.end.message, "typed, and in words"
                if answer["outcome"] == "bound":
                    assert end.end.archive == f"artifacts/lab/-/{answer['id']}/"
            refused = await sim.client.post(WHERE, json={"creates": [create("new")]})
            assert refused.status_code == 422
            assert "purge ends all sandboxes of tenant research" in refused.json()["message"]
            await sim.clock.sleep(100)
            assert "purge" not in await tenant_status(sim), "a purge that went no further lapses"
            (new,) = await ask(sim, create("new", image="hub/base:1"))
            assert new["outcome"] == "bound"

    simulate(scenario)
