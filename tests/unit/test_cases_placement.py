"""Field reports about caches, races, topology, GPU shares and slices, with their figures."""

from dataclasses import replace

import pytest
from dsec.api.sandbox import GpuMode
from dsec.placement.accounts import Account
from dsec.placement.asked import OverCapacityError
from dsec.placement.engine import place
from dsec.placement.ledger import Ledger
from dsec.placement.mix import Mix
from dsec.placement.request import Health
from dsec.placement.scores import distance
from dsec.placement.view import ClusterView
from dsec.placement.words import explain
from placement_make import (
    GIB,
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
from quota_make import cpu, entry, used


def shares(*free: int) -> ClusterView:
    """Return a node whose cards have so many thousandths free."""
    seen = view(node("a", 64, 256, devices=cards(len(free))))
    for number, left in enumerate(free):
        # one card at a time: the others are held whole meanwhile
        held = [gpu(f"hold{n}") for n in range(len(free) - number)]
        placed = {decision.devices[0]: decision.id for decision in place(seen, held)}
        seen.release(placed[f"gpu-{number}"])
        taken = one(seen, gpu(f"fill{number}", mode=GpuMode.SHARES, gpu_milli=1000 - left))
        assert taken.devices == (f"gpu-{number}",)
        for id_ in placed.values():
            seen.release(id_)
    return seen


def part(name: str, milli: int) -> object:
    """Return a request for thousandths of one card."""
    return gpu(name, mode=GpuMode.SHARES, gpu_milli=milli)


def slice_of(name: str, profile: str) -> object:
    """Return a request for one MIG slice."""
    return gpu(name, mode=GpuMode.MIG, gpu_slices=profile)


# ---- cache and races


@pytest.mark.case("kubernetes#106361")
def test_case_kubernetes_106361() -> None:
    """A bind takes longer than anything else: its room stays taken until it is released."""
    seen = view(node("a", 1), node("b", 1))
    slow = one(seen, request("slow"))
    for round_ in range(50):
        seen.put(node("b", 1, labels={"round": str(round_)}))
        one(seen, request(f"r{round_}"))
        seen.release(f"r{round_}")
    one(seen, request("other"))
    assert why(one(seen, request("second"))) == ["cpu"]
    assert seen.bookings()["slow"].node == slow.node
    assert seen.release("slow")
    assert one(seen, request("second")).node == slow.node


@pytest.mark.case("kubernetes#63262")
def test_case_kubernetes_63262() -> None:
    """Deleted and added under the same name: no generation of any node comes twice."""
    seen = view(node("a"), node("b"))
    generations = [seen.generation]
    for _ in range(3):
        seen.remove("a")
        generations.append(seen.generation)
        seen.put(node("a"))
        generations.append(seen.generation)
        seen.put(node("b", labels={"n": str(len(generations))}))
        generations.append(seen.generation)
    assert len(set(generations)) == len(generations)
    assert generations == sorted(generations)


@pytest.mark.case("kubernetes#102339")
def test_case_kubernetes_102339() -> None:
    """The node goes with a booking on it and returns: nothing of it is left."""
    seen = view(node("a", 4, gpus=1))
    empty = seen.digest()
    one(seen, gpu("ghost", cores=4))
    seen.remove("a")
    seen.put(node("a", 4, gpus=1))
    assert seen.digest() == empty
    assert not seen.release("ghost")
    assert one(seen, gpu("next", cores=4)).node == "a"


@pytest.mark.case("kubernetes#106545")
def test_case_kubernetes_106545() -> None:
    """Replacing is one step: bookings are kept, and what was forked before sees the old node."""
    seen = view(node("a", 4, labels={"v": "1"}))
    one(seen, request("s", cores=2))
    before = seen.fork()
    seen.put(node("a", 8, labels={"v": "2"}))
    assert seen.room("a")["cpu"] == 6000
    assert before.room("a")["cpu"] == 2000
    assert one(seen, request("t", labels={"v": "2"})).node == "a"
    assert not one(before, request("t", labels={"v": "2"})).node


@pytest.mark.case("kubernetes#67243")
def test_case_kubernetes_67243() -> None:
    """Cordoned between decision and binding: the binding is refused and changes nothing."""
    seen = view(node("a"))
    wanted = request("s")
    decision = one(seen.fork(), wanted)
    seen.put(node("a", health=Health.CORDONED))
    before = seen.digest()
    with pytest.raises(OverCapacityError, match="cordoned"):
        seen.book(wanted, decision)
    assert seen.digest() == before


@pytest.mark.case("kueue#14647")
def test_case_kueue_14647() -> None:
    """Two replacements in one round, room for one: the second goes elsewhere or waits."""
    seen = view(node("spare", 2), node("far", 2, labels={"far": "yes"}))
    first, second, third = place(seen, many(3, "replacement", cores=2))
    assert {first.node, second.node} == {"spare", "far"}
    assert not third.node


@pytest.mark.case("kueue#13612")
def test_case_kueue_13612() -> None:
    """Limits deleted and made again find what runs: nobody is let in above them."""
    ledger = Ledger()
    ledger.put(Account("a", cpu(8)))
    ledger.admit(entry("s", 6))
    ledger.remove("a")
    assert used(ledger, "a") == [6]
    ledger.put(Account("a", cpu(8)))
    assert used(ledger, "a") == [6]
    assert ledger.admit(entry("t", 3)).refusals
    again = Ledger()
    again.put(Account("a", cpu(8)))
    again.rebuild(ledger.entries.values())
    assert used(again, "a") == [6]


@pytest.mark.case("kueue#13822")
def test_case_kueue_13822() -> None:
    """What is left for sandboxes shrinks under foreign load: the next decision sees it."""
    seen = view(node("a", 8))
    one(seen, request("s", cores=4))
    seen.put(node("a", 6))
    assert seen.room("a")["cpu"] == 2000
    assert not one(seen, request("t", cores=3)).node
    ledger = Ledger()
    ledger.put(Account("a", cpu(8)))
    ledger.admit(entry("s", 4))
    assert ledger.resize("s", cpu(6), vertical=True) == ()
    assert ledger.admit(entry("t", 3)).refusals


# ---- topology


@pytest.mark.case("kueue#14452")
def test_case_kueue_14452() -> None:
    """rack-1 is full; rack-10 is another rack, where its group must not go."""
    seen = view(node("x", 2, rack="rack-1"), node("y", 2, rack="rack-10"))
    group = {"near": "g", "required_level": "rack", "cores": 2}
    first = one(seen, request("first", **group))
    second = one(seen, request("second", **group))
    assert first.node
    assert not second.node
    assert "topology" in explain(second.refusals)
    assert distance(seen.nodes["x"], [seen.nodes["y"]]) == 4


@pytest.mark.case("kueue#14232")
def test_case_kueue_14232() -> None:
    """A host named like its zone and region is a host: neither its own parent nor gone."""
    same, other = node("z1", 2, zone="z1", region="z1"), node("b", 2, zone="z1", region="z1")
    assert distance(same, [same]) == 0
    assert distance(same, [other]) == 2
    found = place(view(same, other), many(4, near="g"))
    assert counts_of(found) == {"b": 2, "z1": 2}
    assert distance(node("a", zone="a"), [node("b", zone="b", rack="a")]) == 4


@pytest.mark.case("kueue#13530")
def test_case_kueue_13530() -> None:
    """Millions of GiB beside single bytes: nothing wraps, and watermarks stay exact."""
    large = replace(node("a", 1000, safe_percent=50, limit_percent=90), memory_bytes=1 << 60)
    seen = view(large)
    tiny = many(3, gib=1 / 1024)
    assert nodes_of(place(seen, tiny)) == ["a"] * 3
    assert seen.room("a")["memory"] == (1 << 60) - 3 * (1 << 20)
    half = replace(tiny[0], id="half")
    half.resources.memory_bytes = 1 << 59
    assert one(seen, half).node == "a"
    assert "watermark" in why(one(seen, request("late")))


@pytest.mark.case("kueue#14119")
def test_case_kueue_14119() -> None:
    """The replacement is not put back on the sick node, were it the only one."""
    sick = node("sick", health=Health.UNHEALTHY)
    assert one(view(sick, node("well")), request("s")).node == "well"
    assert not one(view(sick), request("s")).node
    avoiding = request("s", avoid=("sick",))
    assert one(view(node("sick"), node("well")), avoiding).node == "well"
    assert not one(view(node("sick")), avoiding).node


@pytest.mark.case("kueue#13956")
def test_case_kueue_13956() -> None:
    """The first kind is full; whatever events come in between, the second kind is reached."""
    h100 = cards(1, model="h100", prefix="h")
    seen = view(
        node("first", devices=h100, labels={"gpu-type": "h100"}),
        node("second", gpus=1, labels={"gpu-type": "a100"}),
    )
    one(seen, gpu("old", gpu_model="h100"))
    wanted = gpu("s", gpu_model="h100|a100")
    for number in range(5):
        seen.put(replace(seen.nodes["first"], images=frozenset({f"i{number}"})))
        trial = seen.fork()
        assert one(trial, wanted).node == "second"
        assert not one(trial, replace(wanted, id="t", avoid=("second",))).node


# ---- GPU shares and slices


@pytest.mark.case("backend.ai#85")
def test_case_backend_ai_85() -> None:
    """.15 goes to the .2 card; .7 of .6 is too much; .4 is not made of two halves."""
    assert one(shares(300, 200, 100), part("s", 150), mix=Mix(), learn=False).devices == ("gpu-1",)
    assert not one(shares(300, 200, 100), part("s", 700)).node
    assert not one(shares(300, 300), part("s", 700)).node
    assert not one(shares(300, 300), part("s", 400)).node


@pytest.mark.case("alnair#98")
def test_case_alnair_98() -> None:
    """Two cards with .3 free do not make .4, and the refusal says that it is about one card."""
    waits = one(shares(300, 300), part("s", 400))
    assert why(waits) == ["gpu share"]
    text = explain(waits.refusals)
    assert "thousandths of one GPU: asked 400, free at most 300" in text


@pytest.mark.case("HAMi#404")
def test_case_hami_404() -> None:
    """Another sandbox restarts while one is placed: each keeps what it asked for, by its id."""
    seen = view(node("a", 64, 256, gpus=1))
    large = gpu("large", mode=GpuMode.MPS, gpu_memory_bytes=30_480 << 20)
    small = gpu("small", mode=GpuMode.MPS, gpu_memory_bytes=1024 << 20)
    one(seen, large)
    seen.release("large")
    place(seen, [small, large])
    assert {i: b.claims[0].memory for i, b in seen.bookings().items()} == {
        "small": 1024 << 20,
        "large": 30_480 << 20,
    }


@pytest.mark.case("HAMi#2724", "HAMi#2403")
def test_case_hami_2724() -> None:
    """Two slices on the only card are two slices, not two cards."""
    found = place(view(node("a", gpus=1)), [slice_of("x", "3g.40gb"), slice_of("y", "3g.40gb")])
    assert nodes_of(found) == ["a", "a"]
    assert len({decision.devices for decision in found}) == 2


@pytest.mark.case("k8s-test-infra#886")
def test_case_k8s_test_infra_886() -> None:
    """Seven compute slices that need eleven memory slices do not fit; 3g leaves 4g its place."""
    forty = node("a", 64, 256, devices=cards(1, gib=40))
    wide = [slice_of(f"w{n}", "1g.10gb") for n in range(4)]
    thin = [slice_of(f"t{n}", "1g.5gb") for n in range(3)]
    assert nodes_of(place(view(forty), [*wide, *thin])) == ["a"] * 4 + [""] * 3
    both = place(view(node("a", gpus=1)), [slice_of("x", "3g.40gb"), slice_of("y", "4g.40gb")])
    assert nodes_of(both) == ["a", "a"]
    assert both[1].devices == ("a-gpu-0/4g.40gb@0",)


@pytest.mark.case("dra-driver#933", "HAMi#2831")
def test_case_dra_driver_933() -> None:
    """After three 1g, wherever they came from, a run for 3g is left."""
    seen = view(node("a", gpus=1))
    place(seen, [slice_of(f"s{n}", "1g.10gb") for n in range(3)])
    assert one(seen, slice_of("large", "3g.40gb")).node == "a"
    again = view(node("a", gpus=1))
    place(again, [slice_of(f"s{n}", "1g.10gb") for n in range(7)])
    for number in range(3, 7):
        again.release(f"s{number}")
    assert one(again, slice_of("large", "3g.40gb")).node == "a"


@pytest.mark.case("KAI#2212")
@pytest.mark.parametrize(("gib", "reserve"), [(16, 16 * GIB * 3 // 100), (4, 256 << 20)])
def test_case_kai_2212(gib: int, reserve: int) -> None:
    """Shares that sum to the whole card leave the driver its part."""
    seen = view(node("a", devices=cards(1, model="Tesla T4", gib=gib)))
    found = place(seen, [part(f"s{n}", 250) for n in range(4)])
    assert nodes_of(found) == ["a"] * 4
    given = sum(booking.claims[0].memory for booking in seen.bookings().values())
    assert gib * GIB - given >= reserve
    assert gib * GIB - given < reserve + 8


@pytest.mark.case("KAI@0.8.2", "KAI@0.7.5")
def test_case_kai_0_8_2() -> None:
    """Memory is bytes on the card; what is stopping is not idle until it has gone."""
    seen = view(node("a", 4, 64, gpus=1))
    wanted = gpu("s", mode=GpuMode.MPS, gpu_memory_bytes=4096 << 20, cores=4)
    one(seen, wanted)
    (claim,) = seen.bookings()["s"].claims
    assert claim.memory == 4 * GIB
    share = gpu("t", mode=GpuMode.MPS, gpu_memory_bytes=4 * GIB, cores=1)
    assert why(one(seen, share)) == ["cpu"]
    seen.release("s")
    assert one(seen, share).node == "a"


@pytest.mark.case("KAI#49")
def test_case_kai_49() -> None:
    """Every client's claim carries the memory cap that the agent enforces; caps fit the card."""
    seen = view(node("a", 64, 256, gpus=1))
    place(seen, [part("x", 300), gpu("y", mode=GpuMode.SHARES, gpu_shares=100)])
    caps = [booking.claims[0].memory for booking in seen.bookings().values()]
    (card,) = seen.nodes["a"].devices
    assert all(caps)
    assert sum(caps) <= card.allocatable_bytes
    assert not one(seen, gpu("z", mode=GpuMode.SHARES, gpu_shares=600)).node
