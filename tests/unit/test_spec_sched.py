"""What the catalogue of scheduling (SCHED) promises, as far as the pure core decides it.

One test per id. Tiny clusters, whole decisions: each shows the smallest case in which the promise
can be seen, and the nearest one in which it must not be.
"""

from dataclasses import replace

import pytest
from dsec.api.sandbox import GpuMode
from dsec.placement.engine import place
from dsec.placement.queueing import Queue, QueuePolicy, Waiting, ordered
from dsec.placement.request import Health, PoolKind, TaskSize
from dsec.placement.scores import Weights
from dsec.placement.words import explain
from placement_make import (
    cards,
    counts_of,
    gpu,
    many,
    node,
    nodes_of,
    one,
    request,
    view,
    why,
)


def test_sched_01_the_table_changes_with_a_start_and_names_owners() -> None:
    """Free figures fall by what was booked, and each booking says who and where."""
    seen = view(node("a", 16, 64, gpus=1))
    before = seen.room("a")
    placed = one(seen, gpu("trainer", cores=4, gib=8))
    after = seen.room("a")
    assert before["cpu"] - after["cpu"] == 4000
    assert before["memory"] - after["memory"] == 8 << 30
    (booking,) = seen.bookings().values()
    assert (booking.request.id, booking.node, booking.devices) == ("trainer", "a", placed.devices)


def test_sched_02_data_decides_among_equals_and_its_weight_is_free() -> None:
    """With two equal nodes the one with the data set wins; weight 0 removes the preference."""
    nodes = (node("a"), node("b", datasets={"walks": 100}))
    asked = request("s", datasets=("walks",))
    assert one(view(*nodes), asked).node == "b"
    assert one(view(*nodes), asked, weights=replace(Weights(), data=0.0)).node == "a"


def test_sched_03_between_the_watermarks_only_pausable_work() -> None:
    """Safe 70, limit 90: at 80 % a guaranteed sandbox waits and a pausable one is taken."""
    seen = view(node("a", 100, 400, safe_percent=70, limit_percent=90))
    assert nodes_of(place(seen, many(1, "full", cores=75, gib=300, priority=1))) == ["a"]
    assert nodes_of(place(seen, many(1, "more", cores=5, gib=20, task_class="pausable"))) == ["a"]
    high = request("high", cores=1, priority=1)
    assert "watermark" in why(one(seen, high))
    assert one(seen, replace(high, id="pausable", task_class="pausable")).node == "a"


def test_sched_03_at_the_limit_nothing_more() -> None:
    """Not even what may be paused."""
    seen = view(node("a", 100, 400, safe_percent=70, limit_percent=90))
    place(seen, many(1, "full", cores=69, gib=40))
    place(seen, many(1, "more", cores=21, gib=40, task_class="pausable"))
    assert "watermark" in why(one(seen, request("late", task_class="pausable")))


def test_sched_05_the_node_whose_prefetch_is_furthest() -> None:
    """90 % beats 10 %, and the record names data as a part of the score."""
    seen = view(node("a", datasets={"walks": 10}), node("b", datasets={"walks": 90}))
    decision = one(seen, request("s", datasets=("walks",)), record=True)
    assert decision.node == "b"
    assert "data" in dict(decision.scores)


def test_sched_06_sims_go_to_the_trainers_segment_then_spill() -> None:
    """All land in the segment while it has room; the spilled one's record shows what it cost."""
    seen = view(
        node("a", 4, segment="slow"), node("b", 2, segment="fast"), node("c", 2, segment="fast")
    )
    found = place(seen, many(6, cores=1, segment="fast"), record=True)
    assert counts_of(found) == {"a": 2, "b": 2, "c": 2}
    assert {decision.node for decision in found[:4]} == {"b", "c"}
    segment = [dict(decision.scores).get("segment", 0.0) for decision in found]
    assert segment == [0.0] * 4 + [Weights().segment] * 2


def test_sched_07_a_group_on_one_machine_else_in_one_rack() -> None:
    """Eight fit one machine: there. Only fours are free: two machines of one rack."""
    racks = [("a", "r1"), ("b", "r2"), ("c", "r1"), ("d", "r2")]
    large = [node(name, 64, 256, gpus=8, rack=rack) for name, rack in racks]
    group = [gpu(f"rank{n}", near="ranks", gang="ranks") for n in range(8)]
    assert len(counts_of(place(view(*large), group))) == 1
    small = [node(name, 64, 256, gpus=4, rack=rack) for name, rack in racks]
    used = counts_of(place(view(*small), group))
    assert sum(used.values()) == 8
    assert {dict(racks)[name] for name in used} in ({"r1"}, {"r2"})


def test_sched_08_loose_groups_are_spread() -> None:
    """A hundred over ten equal nodes: ten each."""
    seen = view(*(node(f"n{n}", 64, 256) for n in range(10)))
    used = counts_of(place(seen, many(100, cores=1, spread="metrics")))
    assert sum(used.values()) == 100
    assert all(9 <= count <= 11 for count in used.values()), used


def test_sched_09_the_declaration_turns_packed_into_spread() -> None:
    """The same eight sandboxes, declared frequent, then rare."""
    nodes = [node(f"n{n}", 16, 64) for n in range(4)]
    packed = counts_of(place(view(*nodes), many(8, cores=1, near="g")))
    spread = counts_of(place(view(*nodes), many(8, cores=1, spread="g")))
    assert list(packed.values()) == [8]
    assert list(spread.values()) == [2, 2, 2, 2]


def test_sched_10_a_missing_label_is_the_reason_and_adding_it_binds() -> None:
    """In the next cycle."""
    seen = view(node("a", labels={"region": "cn-east"}))
    asked = request("s", labels={"region": "cn-east", "gpu-type": "a100"})
    waits = one(seen, asked)
    assert why(waits) == ["gpu-type"]
    assert "label gpu-type=a100" in explain(waits.refusals)
    seen.put(node("a", labels={"region": "cn-east", "gpu-type": "a100"}))
    assert one(seen, asked).node == "a"


def test_sched_11_one_model_before_a_mixed_set() -> None:
    """A mixed node is free earlier in the order, and the one of one model is taken."""
    mixed = cards(1, prefix="m") + cards(1, model="NVIDIA H100", prefix="h")
    seen = view(node("a", devices=mixed), node("b", gpus=2))
    assert one(seen, gpu("trainer", 2)).node == "b"


def test_sched_12_pools_by_kind() -> None:
    """Data work never lands on GPU nodes; a part of a card lands in the mixed pool."""
    seen = view(
        node("gpu", gpus=2, kind=PoolKind.GPU),
        node("mixed", 32, gpus=2, kind=PoolKind.MIXED),
        node("cpu", 2, kind=PoolKind.CPU),
    )
    assert one(seen, request("clean", cores=2)).node == "cpu"
    assert one(seen, request("clean2", cores=16)).node == "mixed"
    assert one(seen, gpu("part", mode=GpuMode.MPS, gpu_memory_bytes=4 << 30)).node == "mixed"
    assert one(seen, gpu("whole", 2, stage="training")).node == "gpu"


def test_sched_13_small_tasks_leave_the_large_pool_whole() -> None:
    """A hundred small ones come and go; a task of eight whole cards binds at once."""
    seen = view(
        *(node(f"small{n}", 64, 256, gpus=8, size=TaskSize.SMALL) for n in range(2)),
        node("large", 64, 256, gpus=8, size=TaskSize.LARGE),
    )
    small = [gpu(f"s{n}", mode=GpuMode.MPS, gpu_memory_bytes=4 << 30) for n in range(100)]
    used = counts_of(place(seen, small))
    assert sum(used.values()) == 100
    assert "large" not in used
    for n in range(50):
        assert seen.release(f"s{2 * n}")
    assert one(seen, gpu("whole", 8)).node == "large"


def test_sched_14_stages_mix() -> None:
    """Two exploration and two training tasks on two nodes: one of each on each."""
    seen = view(node("a", 64, 256), node("b", 64, 256))
    stages = ("exploration", "exploration", "training", "training")
    tasks = [request(f"{stage}{n}", cores=8, stage=stage) for n, stage in enumerate(stages)]
    found = place(seen, tasks)
    by_node = {
        name: {t.stage for t, d in zip(tasks, found, strict=True) if d.node == name}
        for name in ("a", "b")
    }
    assert by_node == {name: {"exploration", "training"} for name in ("a", "b")}


def test_sched_15_cpu_work_beside_bound_gpus() -> None:
    """All cards bound: CPU sandboxes come up to the CPU watermark."""
    seen = view(node("a", 100, 400, gpus=2, limit_percent=90, safe_percent=90))
    assert one(seen, gpu("trainer", 2, cores=10)).node == "a"
    assert counts_of(place(seen, many(200, cores=1))) == {"a": 80}


def test_sched_16_debug_before_earlier_training() -> None:
    """When its queue's weight says so, and not when the weights are equal."""
    work = [Waiting(f"train{n}", float(n), n, queue="training") for n in range(3)]
    work.append(Waiting("debug", 3.0, 3, queue="debug"))
    assert ordered(work, QueuePolicy())[0].id == "debug"
    equal = QueuePolicy(queues={"training": Queue(), "debug": Queue()})
    assert ordered(work, equal)[-1].id == "debug"


def test_sched_19_a_guaranteed_task_keeps_its_reservation_at_full_load() -> None:
    """Work that does not fit waits; nothing of the running task changes."""
    seen = view(node("a", 8, 16))
    one(seen, request("trainer", cores=8, gib=8))
    before = dict(seen.bookings())
    late = place(seen, many(3, "late", priority=9))
    assert nodes_of(late) == ["", "", ""]
    assert seen.bookings() == before


def test_sched_20_gpu_memory_waits_where_cpu_is_shared_out() -> None:
    """Over-asked CPU is taken on an over-committed node; over-asked GPU memory stays pending."""
    seen = view(node("a", 8, 64, gpus=1, overcommit_milli=2000))
    assert nodes_of(place(seen, many(2, cores=8))) == ["a", "a"]
    wide = gpu("wide", mode=GpuMode.MPS, gpu_memory_bytes=90 << 30)
    assert "gpu memory" in " ".join(why(one(seen, wide)))


def test_sched_21_a_thousand_at_once_wait_for_resources_only() -> None:
    """Of 1,000 all are placed, or refused for a dimension; none is forgotten."""
    seen = view(*(node(f"n{n}", 16, 64) for n in range(50)))
    found = place(seen, many(1000, cores=1))
    assert sum(counts_of(found).values()) == 800
    assert {tuple(why(decision)) for decision in found if not decision.node} == {("cpu",)}


def test_sched_22_the_node_that_has_the_image() -> None:
    """Of two equal nodes; where none has it, the pull is a part of the score."""
    seen = view(node("a"), node("b", images=frozenset({"sim:1"})))
    assert one(seen, request("s", image="sim:1")).node == "b"
    cold = one(seen, request("t", image="other:1"), record=True)
    assert dict(cold.scores)["image"] > 0


def test_sched_23_inference_has_cpus_of_its_own() -> None:
    """Its CPUs and those of training do not overlap."""
    seen = view(node("a", 8, 64, gpus=1, cpus=tuple(range(8))))
    part = {"mode": GpuMode.MPS, "gpu_memory_bytes": 8 << 30, "exclusive_cpus": True}
    inference = one(seen, gpu("inference", cores=2, **part))
    training = one(seen, gpu("training", cores=4, **part))
    assert len(inference.cpus) == 2
    assert len(training.cpus) == 4
    assert not set(inference.cpus) & set(training.cpus)


def test_sched_24_disk_operations_are_a_dimension() -> None:
    """Two that together pass a node's budget go to two nodes, a third waits for it."""
    seen = view(*(node(name, disk_iops=1000, disk_bytes=100 << 30) for name in "ab"))
    found = place(seen, many(3, disk_iops=600))
    assert sorted(nodes_of(found[:2])) == ["a", "b"]
    assert why(found[2]) == ["disk iops"]
    full = view(node("full", disk_bytes=1 << 30), node("free", disk_bytes=100 << 30))
    assert one(full, request("s", disk_bytes=10 << 30)).node == "free"


@pytest.mark.parametrize("health", [one for one in Health if one is not Health.READY])
def test_sched_25_only_ready_nodes_take_new_work(health: Health) -> None:
    """Marking a node stops new work there; what runs goes on."""
    seen = view(node("a"))
    place(seen, many(1, "old"))
    seen.put(node("a", health=health))
    assert set(seen.bookings()) == {"old0"}
    waits = one(seen, request("new"))
    assert not waits.node
    assert health.value in explain(waits.refusals)


def test_sched_26_eight_sims_are_not_all_on_one_of_four_nodes() -> None:
    """Unless affinity asks for it."""
    nodes = [node(f"n{n}", 64, 256, datasets={"walks": 100}) for n in range(4)]
    sims = many(8, cores=1, spread="sims", datasets=("walks",))
    assert counts_of(place(view(*nodes), sims)) == {f"n{n}": 2 for n in range(4)}


def test_sched_29_exclusive_sims_have_disjoint_cpus() -> None:
    """And no third one fits where only shared CPU is left."""
    seen = view(node("a", 4, 64, cpus=(0, 1, 2, 3)))
    first, second = place(seen, many(2, cores=2, exclusive_cpus=True))
    assert not set(first.cpus) & set(second.cpus)
    assert not one(seen, request("third", cores=2, exclusive_cpus=True)).node


def test_sched_30_five_thousand_with_every_invariant() -> None:
    """On a cluster of 250 nodes; what is booked adds up, and nothing is past its node."""
    nodes = [node(f"n{n:03}", 20, 40) for n in range(250)]
    seen = view(*nodes)
    found = place(seen, many(5001, cores=1))
    assert sum(counts_of(found).values()) == 5000
    assert max(counts_of(found).values()) == 20
    assert len(seen.bookings()) == 5000
    assert all(seen.room(one.name)["cpu"] == 0 for one in nodes)


def test_sched_31_the_fit_looks_at_every_dimension() -> None:
    """Much CPU and little memory is no place for a memory-heavy task; the reason is memory."""
    seen = view(node("a", 64, 16))
    waits = one(seen, request("knowledge", cores=1, gib=32))
    assert why(waits) == ["memory"]
    assert "memory: asked" in explain(waits.refusals)
