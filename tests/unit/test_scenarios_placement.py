"""The worked scenarios of the catalogue, with their numbers, as far as placement and ledger go."""

from collections import Counter

from dsec.api.experiment import TaskClass
from dsec.api.sandbox import GpuMode
from dsec.placement.accounts import Account, amounts_of
from dsec.placement.engine import place
from dsec.placement.entries import Entry
from dsec.placement.ledger import Ledger
from dsec.placement.request import Request
from dsec.placement.view import ClusterView
from dsec.placement.words import explain
from placement_make import GIB, counts_of, gpu, many, node, nodes_of, one, request, view, why

GB = 10**9
TB = 10**12


def booked(seen: ClusterView, prefix: str) -> tuple[float, float]:
    """Return (cores, GB) that the sandboxes of a prefix hold."""
    held = [b.request.resources for i, b in seen.bookings().items() if i.startswith(prefix)]
    return sum(r.cpu_milli for r in held) / 1000, sum(r.memory_bytes for r in held) / GB


def entries(requests: list[Request], account: str = "lab/boxes/carry") -> list[Entry]:
    """Return the ledger's entries of requests."""
    return [Entry(r.id, account, amounts_of(r.resources), r.task_class) for r in requests]


def test_w_01_512_to_768_to_200() -> None:
    """Quota of step 2, growth of step 6 beside an untouched trainer, room of step 7 for others."""
    seen = view(
        *(node(f"cpu{n:02}", 80, 320) for n in range(20)),
        node("gpu", 80, 512, gpus=8),
    )
    workers = many(768, "w", cores=2, gib=4 * GB / GIB, gang="start")
    trainer = gpu("trainer", 8, cores=16, gib=64, gang="start", stage="training")
    server = request("ps", cores=16, gib=64, gang="start")
    first = [*workers[:512], trainer, server]

    books = Ledger()
    asked = {"cpu_milli": 1_056_000, "memory_bytes": 2_200 * GB, "gpu_count": 8}
    books.put(Account("lab", asked))
    assert books.check(*entries(first)) == ()
    books.put(Account("lab", {**asked, "cpu_milli": 1_055_000}))
    (short,) = books.check(*entries(first))
    assert (short.dimension, short.whose) == ("cpu_milli", "lab")

    assert all(nodes_of(place(seen, first)))
    assert booked(seen, "w") == (1024, 2048)
    assert len(seen.bookings()["trainer"].devices) == 8

    held = seen.bookings()["trainer"]
    grown = [Request(r.id, r.resources) for r in workers[512:]]
    assert all(nodes_of(place(seen, grown)))
    assert booked(seen, "w") == (1536, 3072)
    assert seen.bookings()["trainer"] == held

    for worker in workers[200:]:
        assert seen.release(worker.id)
    assert booked(seen, "w") == (400, 800)
    others = many(568, "other", cores=2, gib=4 * GB / GIB)
    assert all(nodes_of(place(seen, others)))
    assert seen.bookings()["trainer"] == held


def test_w_07_debug_train_evaluate() -> None:
    """Debug where data lie, sims over nodes, 8 to 12 without a restart, eval in the gaps."""
    nodes = [node(f"n{n}", 16, 64, gpus=1, datasets={"walks": 100 * (n == 2)}) for n in range(4)]
    seen = view(*nodes)
    debug = [
        request("debug-sim", cores=2, datasets=("walks",), queue="debug"),
        gpu("debug-trainer", cores=2, datasets=("walks",), queue="debug"),
    ]
    assert nodes_of(place(seen, debug)) == ["n2", "n2"]
    for asked in debug:
        seen.release(asked.id)

    sims = many(12, "sim", cores=4, spread="sims", stage="exploration")
    trainer = gpu("trainer", cores=2, stage="training")
    assert all(nodes_of(place(seen, [trainer, *sims[:8]])))
    before = dict(seen.bookings())
    spread = Counter(b.node for i, b in before.items() if i.startswith("sim"))
    assert sorted(spread.values()) == [2, 2, 2, 2]

    assert all(nodes_of(place(seen, sims[8:])))
    assert {i: seen.bookings()[i] for i in before} == before

    evals = many(30, "eval", cores=1, stage="evaluation", queue="eval")
    placed = [decision.id for decision in place(seen, evals) if decision.node]
    assert len(placed) == 14  # 64 cores, less 2 of the trainer and 48 of twelve sims
    for name in placed:
        seen.release(name)
    assert set(seen.bookings()) == {"trainer", *(sim.id for sim in sims)}


def test_w_09_dense_evaluation_service() -> None:
    """Twenty would fit a card by memory, twelve go there, 96 a node; the 97th goes on or waits."""
    assert 80 // 4 == 20
    dense = {"overcommit_milli": 2400, "sandboxes": 96}
    instances = [
        gpu(f"e{n}", mode=GpuMode.MPS, gpu_memory_bytes=4 * GIB, cores=2, gib=4) for n in range(97)
    ]
    single = view(node("a", 80, 512, gpus=8, **dense))
    found = place(single, instances)
    assert counts_of(found) == {"a": 96}
    assert Counter(d.devices for d in found[:96]).most_common(1)[0][1] == 12
    assert "density" in why(found[96])
    assert "sandboxes on the node" in explain(found[96].refusals)
    pair = view(*(node(name, 80, 512, gpus=8, **dense) for name in "ab"))
    assert sorted(counts_of(place(pair, instances)).values()) == [1, 96]
    # without over-commit CPU is used up first: 80 cores bear 40 instances of two
    plain = place(view(node("a", 80, 512, gpus=8)), instances)
    assert counts_of(plain) == {"a": 40}
    assert why(plain[40])[0] == "cpu"


def test_w_11_eight_communicators_on_one_machine() -> None:
    """Where one machine has room for all, racks are not crossed."""
    seen = view(
        *(node(f"r1-{n}", 32, 128, gpus=4, rack="r1") for n in range(2)),
        node("r2-0", 64, 256, gpus=8, rack="r2"),
    )
    ranks = [gpu(f"rank{n}", near="nccl", gang="nccl") for n in range(8)]
    assert counts_of(place(seen, ranks)) == {"r2-0": 8}


def test_w_06_room_that_a_smaller_sampler_leaves_is_used() -> None:
    """Four servers of four cards, 8 sims and a trainer; shrunk to 4, another team's eval fits."""
    seen = view(*(node(f"s{n}", 32, 128, gpus=4) for n in range(4)))
    sims = many(8, "sim", cores=14, spread="sims")
    place(seen, [*sims, gpu("trainer", cores=2)])
    evals = many(4, "eval", cores=14, gib=8, tenant="other", task_class=TaskClass.PREEMPTIBLE)
    assert nodes_of(place(seen, evals)) == [""] * 4
    for sim in sims[4:]:
        seen.release(sim.id)
    assert all(nodes_of(place(seen, evals)))


def test_w_17_watermarks_one_by_one() -> None:
    """Under safe everything, above it pausable or low, at the limit nothing more."""
    seen = view(node("a", 100, 400, safe_percent=70, limit_percent=90))
    assert one(seen, request("first", cores=70)).node == "a"
    assert not one(seen, request("late", cores=1)).node
    assert one(seen, request("pausable", cores=10, task_class=TaskClass.PAUSABLE)).node == "a"
    assert one(seen, request("low", cores=10, priority=-1)).node == "a"
    assert not one(seen, request("more", cores=1, task_class=TaskClass.PAUSABLE)).node
