"""Every refusal names the dimension, what was asked, what is free, and what would start it."""

import pytest
from dsec.api.reasons import PendingReason
from dsec.api.sandbox import GpuMode, IsolationLevel, Resources
from dsec.api.wire import NodeInventory
from dsec.placement.engine import place
from dsec.placement.refusal import Refusal
from dsec.placement.request import Request, node_of
from dsec.placement.view import ClusterView
from dsec.placement.words import explain, sentence, size

R = PendingReason
TABLE = [
    (
        Refusal(R.CAPACITY, "memory", 32 * 10**9, 5 << 30, 2, 2, 64 << 30),
        (
            "memory: asked 32 GB, free at most 5 GiB on any of 2 eligible nodes; starts when 32 GB "
            "on one node are free again"
        ),
    ),
    (
        Refusal(R.CAPACITY, "cpu", 16000, 500, 1, 1, 2000),
        (
            "CPU: asked 16 cores, free at most 0.5 cores on the node (the largest has 2 cores in "
            "all); starts when a node with 16 cores free joins"
        ),
    ),
    (
        Refusal(R.CAPACITY, "gpu", 1, 0, 1, 1, 0),
        (
            "GPUs: asked 1, free at most 0 on the node (the largest has 0 in all); starts when a "
            "node with 1 free joins"
        ),
    ),
    (
        Refusal(R.QUOTA, "sandboxes", 1, 0, largest=20),
        (
            "quota of sandboxes: asked 1, free 0 of 20; starts when other sandboxes of the tenant "
            "end or the quota is raised"
        ),
    ),
    (
        Refusal(R.LABEL, "gpu-type", "a100", nodes=1, total_nodes=1),
        (
            "label gpu-type=a100: asked a node that carries it, free 0: the only node does not "
            "carry it; starts when a node with that label joins"
        ),
    ),
    (
        Refusal(R.CAPABILITY, "isolation", "microvm", nodes=3, total_nodes=3),
        (
            "isolation: asked microvm, free 0: none of 3 nodes offers it; starts when a node that "
            "does joins"
        ),
    ),
    (
        Refusal(R.GANG, "replicas together", 514, 200),
        "gang: asked 514 replicas together, free room for 200; starts when the whole gang fits",
    ),
    (
        Refusal(R.NO_NODES, "nodes"),
        "nodes: asked 1, free 0: none is ready; starts when one joins",
    ),
    (
        Refusal(R.IMAGE, "image", "registry.internal/x:1"),
        (
            "image: asked registry.internal/x:1, free 0: it cannot be resolved; starts when the "
            "registry has it and answers"
        ),
    ),
    (
        Refusal(R.INPUT, "they were not uploaded", "0a1b"),
        (
            "items: asked 0a1b, free 0: they were not uploaded; starts when they have been "
            "uploaded as text"
        ),
    ),
    (
        Refusal(R.CONTROL_PLANE, "round", 1),
        (
            "control plane: asked 1 round of placement, free 0: the next looks at it; starts by "
            "itself in seconds"
        ),
    ),
    (
        Refusal(R.CONTROL_PLANE, "leader", 1),
        "control plane: asked 1 leader, free 0: one is being elected; starts by itself in seconds",
    ),
    (
        Refusal(R.INVALID, "cpu", 0, 1),
        "CPU: asked 0, free to ask is 1 or more; starts when more is asked",
    ),
    (
        Refusal(R.INVALID, "memory", 1 << 70, largest=(1 << 63) - 1),
        (
            "memory: asked 1180591620717411303424, free to ask is at most 9223372036854775807; "
            "starts when less is asked"
        ),
    ),
    (
        Refusal(R.INVALID, "affinity", "pool a and pool b"),
        "affinity: asked pool a and pool b, free 0: nothing can serve it; starts when changed",
    ),
    (
        Refusal(R.CAPACITY, "watermark", 2, 1, 4, 4, 2),
        (
            "watermark: asked a node below its safe watermark, free 0 of 4; starts when sandboxes "
            "end there, or it is declared pausable"
        ),
    ),
    (
        Refusal(R.CAPACITY, "watermark", 1, 0, 4, 4, 2),
        (
            "watermark: asked a node below its limit watermark, free 0 of 4; starts when sandboxes "
            "end there, or paused ones are moved away"
        ),
    ),
    (
        Refusal(R.CAPACITY, "disk bandwidth", 200 << 20, 50 << 20, 2, 2, 400 << 20),
        (
            "disk bandwidth: asked 200 MiB/s, free at most 50 MiB/s on any of 2 eligible nodes; "
            "starts when 200 MiB/s on one node are free again"
        ),
    ),
    (
        Refusal(R.HEALTH, "cordoned", nodes=2, total_nodes=5),
        ("node health: asked a ready node, free 0: 2 of 5 are cordoned; starts when one is ready"),
    ),
    (
        Refusal(R.TAINT, "dedicated=team-a", nodes=1, total_nodes=3),
        (
            "taint dedicated=team-a: asked a node without it, free 0: 1 of 3 carries it; starts "
            "when a node without it joins, or the task tolerates it"
        ),
    ),
    (
        Refusal(R.POOL, "pool kind", "data work", nodes=3, total_nodes=3),
        (
            "pool kind: asked data work, free 0: 3 of 3 nodes are for other work; starts when a "
            "node for it joins"
        ),
    ),
    (
        Refusal(R.TOPOLOGY, "rack", 8),
        (
            "topology: asked 8 replicas of a group in one rack, free 0: no rack has room for all "
            "of them; starts when one has"
        ),
    ),
    (
        Refusal(R.RESERVED, "walk", 2),
        (
            "reserved: asked 2, free 0: the room is kept for walk, which has waited longer; starts "
            "when that has started or ended, or when it would end before"
        ),
    ),
    (
        Refusal(R.PREEMPTION, "wait", 60, 59),
        (
            "preemption: asked after 59 s of waiting, free to displace others after 60 s; starts "
            "when it has waited that long or room falls free"
        ),
    ),
]


@pytest.mark.parametrize(("refusal", "words"), TABLE, ids=lambda x: getattr(x, "reason", ""))
def test_the_table_of_sentences(refusal: Refusal, words: str) -> None:
    """Each sentence says asked, free and what would start it."""
    assert sentence(refusal) == words
    for part in ("asked", "free", "; starts "):
        assert part in words


def test_every_reason_has_a_sentence() -> None:
    """No reason is left without words."""
    assert {refusal.reason for refusal, _ in TABLE} | {R.BUDGET} == set(R)


def test_a_spent_budget_speaks_for_itself() -> None:
    """The accountant's sentence says what is spent and until when: it is told as it is."""
    told = "budget lab/april: 10.00 of 10.00 USD are spent; pause is in force until 1 May"
    assert sentence(Refusal(R.BUDGET, "budget", told)) == told


@pytest.mark.parametrize(
    ("value", "words"),
    [(0, "0 B"), (512, "512 B"), (4 << 30, "4 GiB"), (4 * 10**9, "4 GB"), (1536 << 20, "1.5 GiB")],
)
def test_sizes_keep_decimal_and_binary_apart(value: int, words: str) -> None:
    """4 GB and 4 GiB are different figures."""
    assert size(value) == words


@pytest.mark.parametrize(
    ("request_", "start"),
    [
        (
            Request("a", Resources(cpu_milli=8000, memory_bytes=32 * 10**9, gpu_count=1)),
            "CPU: asked 8 cores, free at most 2 cores on the node",
        ),
        (
            Request("b", Resources(cpu_milli=1000, memory_bytes=1 << 30), gpu_model="a100"),
            "label gpu-type=a100: asked",
        ),
        (
            Request(
                "d",
                Resources(cpu_milli=1000, memory_bytes=1 << 30),
                isolation=IsolationLevel.MICROVM,
            ),
            "isolation: asked microvm, free 0: the only node does not offer it",
        ),
        (
            Request(
                "m",
                Resources(
                    cpu_milli=1000,
                    memory_bytes=1 << 30,
                    gpu_count=1,
                    gpu_mode=GpuMode.MPS,
                    gpu_memory_bytes=4 << 30,
                ),
            ),
            "GPUs: asked 1, free at most 0 on the node",
        ),
    ],
)
def test_what_a_small_real_node_answers(request_: Request, start: str) -> None:
    """A node without GPU or microVM says so, dimension by dimension."""
    node = node_of("n", NodeInventory(cpu_milli=2000, memory_bytes=8 << 30, disk_bytes=50 << 30))
    assert explain(place(ClusterView([node]), [request_])[0].refusals).startswith(start)
