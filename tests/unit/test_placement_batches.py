"""A batch of equal requests decides exactly as the same requests one at a time, in any cluster."""

from dataclasses import fields, replace
from random import Random

import pytest
from dsec.api.experiment import TaskClass
from dsec.api.sandbox import GpuMode, Resources
from dsec.placement.accelerators import Accelerator, slicing_for
from dsec.placement.asked import Asked
from dsec.placement.engine import demand_of, place
from dsec.placement.mix import TURNOVER_LEVELS, Mix
from dsec.placement.request import Node, Request
from dsec.placement.scores import Weights
from dsec.placement.view import ClusterView

GIB = 1 << 30
MODES = (
    (GpuMode.WHOLE, GpuMode.SHARES, GpuMode.MPS),
    (GpuMode.WHOLE,),
    (GpuMode.WHOLE, GpuMode.SHARES, GpuMode.MIG),
)
GPUS = (
    {},
    {"gpu_count": 1, "gpu_milli": 470},
    {"gpu_count": 2, "gpu_milli": 100},
    {"gpu_count": 1},
    {"gpu_count": 8},
    {"gpu_count": 2, "gpu_mode": GpuMode.MIG},
    {"gpu_count": 1, "gpu_mode": GpuMode.SHARES, "gpu_memory_bytes": 4 * GIB},
    {"gpu_count": 1, "gpu_shares": 100},
)


def cluster(random: Random, count: int) -> list[Node]:
    """Return nodes that differ in everything that placement looks at."""
    found = []
    for number in range(count):
        model, gib = random.choice((("A100", 80), ("T4", 16)))
        modes, gpus = random.choice(MODES), random.choice((0, 1, 2, 4, 8))
        devices = tuple(
            Accelerator(
                f"g{number}-{card}",
                # now and then a node of mixed models
                model if random.random() < 0.95 else "T4",
                gib * GIB,
                modes,
                slicing=slicing_for(model, gib * GIB),
            )
            for card in range(gpus)
        )
        found.append(
            Node(
                f"n{number}",
                random.choice((16_000, 96_000)),
                random.choice((64, 512)) * GIB,
                disk_bytes=2 << 40,
                devices=devices,
                sandboxes=random.choice((10, 2000)),
                cpus=tuple(range(16)),
                safe_percent=random.choice((100, 60)),
                limit_percent=random.choice((100, 90)),
                overcommit_milli=random.choice((1000, 1000, 2000)),
                images=frozenset(random.choice("abc")),
                labels=(("x", random.choice("ab")),),
            )
        )
    return found


def batch(random: Random, prefix: str, count: int) -> list[Request]:
    """Return equal requests with some wishes."""
    gpu = random.choice(GPUS)
    wishes = {
        "stage": random.choice(("", "", "training", "exploration")),
        "spread": random.choice(("", "", "", "group")),
        "exclusive_cpus": random.random() < 0.2,
        "image": random.choice(("", "", "a", "b")),
        "labels": random.choice(((), (("x", "a"),))),
        "task_class": random.choice((TaskClass.GUARANTEED, TaskClass.PAUSABLE)),
        "gpu_slices": "1g.10gb" if gpu.get("gpu_mode") is GpuMode.MIG else "",
    }
    resources = Resources(cpu_milli=random.choice((500, 2000, 4000)), memory_bytes=4 * GIB, **gpu)
    return [Request(f"{prefix}-{number}", resources, **wishes) for number in range(count)]


LATER = (2, 3, 4, *range(6, 60))
# nodes by seed: 20, 3, 600; the others are much the same
SEEDS = (0, 1, 5, *(pytest.param(seed, marks=pytest.mark.soak) for seed in LATER))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("weights", [Weights(), Weights(balance=200.0, stranding=0.7)])
@pytest.mark.parametrize("level", [0, TURNOVER_LEVELS])
def test_a_batch_decides_as_single_requests_do(seed: int, weights: Weights, level: int) -> None:
    """Same nodes, cards, CPUs and refusals, whatever came and went before, to the last bit."""
    random = Random(seed)  # noqa: S311  test data, no secret
    nodes = cluster(random, random.choice((3, 20, 600)))
    together, singly = ClusterView(nodes), ClusterView(nodes[::-1])
    ended = level * 1000.0
    turnover = {"asked": ended, "ended": ended, "level": level}
    state = {"seen": 0, "turnover": turnover, "classes": []}
    first, second = Mix.from_state(state), Mix.from_state(state)
    for number in range(5):
        requests = batch(random, str(number), random.choice((5, 60, 300)))
        found = place(together, requests, mix=first, weights=weights)
        asked = Asked.of(requests[0])
        if asked.gpus:
            second.observe(demand_of(requests[0], asked), len(requests))
        for request, decision in zip(requests, found, strict=True):
            options = {"mix": second, "weights": weights, "learn": False}
            assert [decision] == place(singly, [request], **options)
        placed = [decision.id for decision in found if decision.node]
        for id_ in random.sample(placed, len(placed) // 3):
            together.release(id_)
            singly.release(id_)
    assert together.digest() == singly.digest()


@pytest.mark.parametrize("gpu", [*GPUS[2:4], *GPUS[5:]])
def test_a_class_that_comes_again_decides_as_single_requests_do(gpu: dict[str, object]) -> None:
    """What became of nodes is remembered between batches, and only for what it is true of."""
    random = Random(5)  # noqa: S311  test data, no secret
    nodes, mix = cluster(random, 24), Mix()
    together, singly = ClusterView(nodes), ClusterView(nodes)
    slices = "1g.10gb" if gpu.get("gpu_mode") is GpuMode.MIG else ""
    kinds = [
        Request("", Resources(cpu_milli=cpu, memory_bytes=GIB, **gpu), gpu_slices=slices)
        for cpu in (500, 7000)
    ]
    # learned once, so that the tables stay
    mix.observe(demand_of(kinds[0], Asked.of(kinds[0])), 100)
    for number in range(12):
        kind = random.choice(kinds)
        requests = [replace(kind, id=f"{number}-{one}") for one in range(25)]
        found = place(together, requests, mix=mix, learn=False)
        for request, decision in zip(requests, found, strict=True):
            assert [decision] == place(singly, [request], mix=mix, learn=False)
        for id_ in random.sample(list(together.bookings()), len(together.bookings()) // 2):
            together.release(id_)
            singly.release(id_)
    assert together.digest() == singly.digest()


def test_a_record_of_scores_sums_to_the_cost() -> None:
    """The parts that are told are the parts that decided."""
    random = Random(1)  # noqa: S311  test data, no secret
    view = ClusterView(cluster(random, 30))
    for number in range(12):
        (request,) = batch(random, str(number), 1)
        (decision,) = place(view, [request], mix=Mix(), record=True)
        if decision.node:
            parts = dict(decision.scores)
            cost = parts.pop("cost")
            assert cost == pytest.approx(sum(parts.values()))


def test_what_a_client_takes_follows_a_card_that_is_replaced() -> None:
    """A part of a larger card is a smaller part; figures of the old card are not kept."""
    resources = Resources(cpu_milli=500, memory_bytes=GIB, gpu_count=1, gpu_memory_bytes=4 * GIB)
    resources = resources.model_copy(update={"gpu_mode": GpuMode.SHARES})
    milli = {}
    view = ClusterView()
    for gib in (16, 80):
        card = Accelerator("card", "T4", gib * GIB, (GpuMode.SHARES,))
        view.put(Node("n", 16_000, 64 * GIB, devices=(card,), cpus=tuple(range(16))))
        for number in range(2):
            (decision,) = place(view, [Request(f"{gib}-{number}", resources)])
            assert decision.devices == ("card",)
            milli[gib] = view.bookings()[decision.id].claims[0].milli
            view.release(decision.id)
    fresh = Accelerator("card", "T4", 80 * GIB, (GpuMode.SHARES,)).allocatable_bytes
    assert milli[80] == 4 * GIB * 1000 // fresh < milli[16]


def test_the_key_of_a_class_has_every_field_but_the_id() -> None:
    """A field that is left out would place unlike requests as one class."""
    request = Request("a", Resources(cpu_milli=1, memory_bytes=GIB))
    rest = tuple(getattr(request, one.name) for one in fields(Request) if one.name != "id")
    assert request.class_key() == rest
    assert Request("b", *request.class_key()) == replace(request, id="b")
