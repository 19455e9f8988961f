"""What the catalogue of GPUs (GPU) promises, as far as the pure core decides it: fake devices."""

from collections import Counter

import pytest
from dsec.api.sandbox import GpuMode, IsolationLevel, Resources
from dsec.placement.accounts import Account, QuotaError
from dsec.placement.engine import place
from dsec.placement.entries import Entry
from dsec.placement.ledger import Ledger
from dsec.placement.request import Request
from dsec.placement.words import explain
from placement_make import (
    EVERY_LEVEL,
    GIB,
    cards,
    counts_of,
    gpu,
    node,
    nodes_of,
    one,
    request,
    view,
    why,
)

SANE = Resources(cpu_milli=1, memory_bytes=1 << 20).__dict__


def clients(count: int, gib: float = 4, prefix: str = "c", **fields: object) -> list:
    """Return requests for a part of a card by MPS."""
    return [
        gpu(f"{prefix}{n}", mode=GpuMode.MPS, gpu_memory_bytes=int(gib * GIB), **fields)
        for n in range(count)
    ]


def test_gpu_01_the_second_whole_card_waits() -> None:
    """On a node with one card."""
    seen = view(node("a", gpus=1))
    assert nodes_of(place(seen, [gpu("x"), gpu("y")])) == ["a", ""]
    assert seen.release("x")
    assert one(seen, gpu("y")).node == "a"


def test_gpu_02_seven_slices_of_one_card() -> None:
    """Each sees one device of its own; the eighth waits."""
    seen = view(node("a", gpus=1))
    slices = [gpu(f"s{n}", mode=GpuMode.MIG, gpu_slices="1g.10gb") for n in range(8)]
    found = place(seen, slices)
    assert nodes_of(found) == ["a"] * 7 + [""]
    assert all(len(decision.devices) == 1 for decision in found[:7])
    assert len({decision.devices for decision in found[:7]}) == 7


def test_gpu_03_twelve_clients_of_4_gib_share_one_card() -> None:
    """All on the same device."""
    found = place(view(node("a", 64, 256, gpus=1)), clients(12))
    assert nodes_of(found) == ["a"] * 12
    assert len({decision.devices for decision in found}) == 1


def test_gpu_04_the_thirteenth_is_not_placed_though_memory_is_free() -> None:
    """Twelve of 4 GiB leave 32 GiB of an 80 GB card."""
    found = place(view(node("a", 64, 256, gpus=1)), clients(13))
    assert nodes_of(found) == ["a"] * 12 + [""]
    assert "density" in why(found[12])


def test_gpu_04_a_profile_may_bear_fewer() -> None:
    """A context whose application bears four clients takes four."""
    found = place(view(node("a", 64, 256, gpus=1)), clients(5, gpu_clients=4))
    assert nodes_of(found) == ["a"] * 4 + [""]


def test_gpu_05_density_of_96_and_the_97th_is_refused() -> None:
    """Eight cards of twelve; CPU over-committed to 192 cores, as the preset says (CONF-20)."""
    dense = node("a", 80, 512, gpus=8, overcommit_milli=2400, sandboxes=96)
    found = place(view(dense), clients(97, cores=2, gib=4))
    assert counts_of(found) == {"a": 96}
    assert Counter(d.devices for d in found[:96]) == Counter(
        {(f"a-gpu-{n}",): 12 for n in range(8)}
    )
    assert "density" in why(found[96])


def test_gpu_05_without_over_commit_cpu_is_the_limit() -> None:
    """80 cores bear 40 instances of two."""
    found = place(view(node("a", 80, 512, gpus=8)), clients(41, cores=2))
    assert counts_of(found) == {"a": 40}
    assert why(found[40])[0] == "cpu"


def test_gpu_06_passthrough_gives_exactly_one_device() -> None:
    """To a microVM, and to nobody else meanwhile."""
    seen = view(node("a", gpus=2, isolation=EVERY_LEVEL))
    vm = gpu("vm", mode=GpuMode.PASSTHROUGH, isolation=IsolationLevel.MICROVM)
    placed = one(seen, vm)
    assert len(placed.devices) == 1
    other = one(seen, gpu("other"))
    assert len(other.devices) == 1
    assert other.devices != placed.devices
    assert not one(seen, gpu("third")).node


def test_gpu_07_cards_that_are_free_count_not_cards_that_are_there() -> None:
    """Two of four are taken: the third and fourth get the others, the fifth waits."""
    seen = view(node("a", gpus=4))
    found = place(seen, [gpu(f"s{n}") for n in range(5)])
    assert nodes_of(found) == ["a"] * 4 + [""]
    assert {d.devices for d in found[:4]} == {(f"a-gpu-{n}",) for n in range(4)}


def test_gpu_08_lists_of_one_host_are_disjoint() -> None:
    """Two of two cards each."""
    first, second = place(view(node("a", gpus=4)), [gpu("x", 2), gpu("y", 2)])
    assert not set(first.devices) & set(second.devices)
    assert len({*first.devices, *second.devices}) == 4


def test_gpu_11_gpu_memory_is_fixed_at_the_start() -> None:
    """A live change that names it is refused with the advice, and its CPU is not applied either."""
    ledger = Ledger()
    ledger.put(Account("t", {}))
    held = {"cpu_milli": 1000, "gpu_memory_bytes": 4 * GIB}
    ledger.admit(Entry("s", "t/p", held))
    for wanted in ({"cpu_milli": 2000, "gpu_memory_bytes": 8 * GIB}, {"cpu_milli": 2000}):
        with pytest.raises(QuotaError, match="checkpoint it and start it again"):
            ledger.resize("s", wanted, vertical=True)
    assert ledger.used("t") == held


def test_conf_33_growth_needs_elasticity_and_room() -> None:
    """Without vertical elasticity it is refused; with it, up to the head-room and no further."""
    ledger = Ledger()
    ledger.put(Account("t", {"cpu_milli": 4000}))
    ledger.admit(Entry("s", "t/p", {"cpu_milli": 1000}))
    with pytest.raises(QuotaError, match="no vertical elasticity"):
        ledger.resize("s", {"cpu_milli": 2000}, vertical=False)
    assert ledger.resize("s", {"cpu_milli": 4000}, vertical=True) == ()
    assert ledger.resize("s", {"cpu_milli": 4001}, vertical=True)
    assert ledger.used("t") == {"cpu_milli": 4000}


@pytest.mark.parametrize(
    ("mode", "level", "fits"),
    [
        (GpuMode.PASSTHROUGH, IsolationLevel.MICROVM, True),
        (GpuMode.PASSTHROUGH, IsolationLevel.CONTAINER, False),
        (GpuMode.MPS, IsolationLevel.CONTAINER, True),
        (GpuMode.MPS, IsolationLevel.MICROVM, False),
        (GpuMode.SHARES, IsolationLevel.MICROVM, False),
        (GpuMode.WHOLE, IsolationLevel.CONTAINER, True),
    ],
)
def test_conf_07_the_mode_goes_with_the_isolation(
    mode: GpuMode, level: IsolationLevel, fits: bool
) -> None:
    """Passthrough implies a microVM, parts of a card imply containers."""
    seen = view(node("a", gpus=1, isolation=EVERY_LEVEL))
    part = {} if mode in (GpuMode.WHOLE, GpuMode.PASSTHROUGH) else {"gpu_memory_bytes": 4 * GIB}
    assert bool(one(seen, gpu("s", mode=mode, isolation=level, **part)).node) is fits


def test_conf_35_cards_are_named_by_what_never_changes() -> None:
    """By their UUID, not by a number that depends on who counts."""
    seen = view(node("a", gpus=4))
    place(seen, [gpu(f"s{n}") for n in range(4)])
    seen.release("s1")
    (again,) = place(seen, [gpu("t")])
    assert again.devices[0] not in {
        d for b in seen.bookings().values() if b.request.id != "t" for d in b.devices
    }
    assert again.devices[0].startswith("a-gpu-")


def test_gpu_12_the_rebuilt_branch_gets_two_cards() -> None:
    """After its one-card copy is released, in one what-if that changes nothing before."""
    seen = view(node("a", gpus=2))
    one(seen, gpu("branch"))
    trial = seen.fork()
    trial.release("branch")
    (planned,) = place(trial, [gpu("branch-2", 2)])
    assert len(planned.devices) == 2
    assert set(seen.bookings()) == {"branch"}


def test_gpu_18_the_type_binds_to_nodes_so_labelled() -> None:
    """By the label gpu-type; any of several is any of them."""
    h100 = cards(1, model="h100", prefix="h")
    nodes = (
        node("h", devices=h100, labels={"gpu-type": "h100"}),
        node("a", gpus=1, labels={"gpu-type": "a100"}),
    )
    assert one(view(*nodes), gpu("s", gpu_model="a100")).node == "a"
    assert one(view(*nodes), gpu("s", gpu_model="h100")).node == "h"
    assert one(view(*nodes), gpu("s", gpu_model="b200|h100")).node == "h"
    waits = one(view(*nodes), gpu("s", gpu_model="b200"))
    assert "gpu-type=b200" in explain(waits.refusals)


@pytest.mark.parametrize("mode", [GpuMode.MPS, GpuMode.SHARES])
def test_gpu_21_a_card_is_in_one_mode_until_it_is_drained(mode: GpuMode) -> None:
    """A card with clients is offered neither whole nor sliced nor to the other kind of client."""
    seen = view(node("a", 64, 256, gpus=1))
    one(seen, gpu("client", mode=mode, gpu_memory_bytes=4 * GIB))
    other = GpuMode.SHARES if mode is GpuMode.MPS else GpuMode.MPS
    refused = [
        gpu("whole"),
        gpu("slice", mode=GpuMode.MIG, gpu_slices="1g.10gb"),
        gpu("other", mode=other, gpu_memory_bytes=4 * GIB),
    ]
    assert nodes_of(place(seen, refused)) == ["", "", ""]
    seen.release("client")
    assert one(seen, gpu("whole")).node == "a"


def test_bad_requests_get_a_reason_in_words() -> None:
    """Nothing changes: unknown type, too large, unknown slice, an impossible gang, zero, absurd."""
    seen = view(node("a", 64, 256, gpus=1))
    before = seen.digest()
    bad = [
        gpu("type", gpu_model="abacus"),
        gpu("memory", mode=GpuMode.MPS, gpu_memory_bytes=81 * GIB),
        gpu("slice", mode=GpuMode.MIG, gpu_slices="9g.1gb"),
        gpu("count", 2),
        request("shares", gpu_count=1, gpu_mode=GpuMode.SHARES, gpu_shares=900),
        request("affinity", near="a", spread="b"),
        request("level", near="a", required_level="continent"),
        *(gpu(f"gang{n}", gang="g") for n in range(2)),
        *(
            Request(f"{field}{amount}", Resources.model_construct(**{**SANE, field: amount}))
            for field in ("cpu_milli", "memory_bytes")
            for amount in (0, -1, 1 << 63)
        ),
    ]
    for decision in place(seen, bad):
        assert not decision.node, decision
        assert "starts when" in explain(decision.refusals), decision
    assert seen.digest() == before
