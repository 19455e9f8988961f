"""The view and the engine hold their promises under any history: hypothesis plays the history."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from dsec.api.experiment import TaskClass
from dsec.api.sandbox import GpuMode, Resources
from dsec.api.wire import Device, NodeInventory
from dsec.placement.accelerators import Accelerator, Card, slicing_for
from dsec.placement.asked import Asked, OverCapacityError
from dsec.placement.dimensions import LIMIT, Column, ShareScale
from dsec.placement.engine import demand_of, place
from dsec.placement.mix import Mix
from dsec.placement.request import Decision, Node, Request, node_of
from dsec.placement.view import Booking, ClusterView
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from placement_make import GIB, node, one, request, view, why

CARD = Device(uuid="g", index=0, model="a100", memory_bytes=80 * GIB)

MODELS = (("NVIDIA A100-SXM4-80GB", 80), ("Tesla T4", 16))
MODES = (
    (GpuMode.WHOLE,),
    (GpuMode.WHOLE, GpuMode.SHARES, GpuMode.MPS),
    (GpuMode.WHOLE, GpuMode.SHARES, GpuMode.MIG),
)
SOME = settings(
    max_examples=12, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
MANY = settings(SOME, max_examples=1000, stateful_step_count=100)
_A_SECOND = settings(SOME, max_examples=25)


@st.composite
def nodes_(draw: st.DrawFn, name: str) -> Node:
    """Return a node with some cards, watermarks, over-commit and pins."""
    model, gib = draw(st.sampled_from(MODELS))
    modes = draw(st.sampled_from(MODES))
    devices = tuple(
        Accelerator(
            f"{name}-{number}", model, gib * GIB, modes, slicing=slicing_for(model, gib * GIB)
        )
        for number in range(draw(st.sampled_from((0, 1, 2, 8))))
    )
    return Node(
        name,
        draw(st.sampled_from((4000, 16_000, 96_000))),
        draw(st.sampled_from((8, 64, 512))) * GIB,
        disk_bytes=100 * GIB,
        disk_iops=draw(st.sampled_from((500, 1 << 62))),
        pids=draw(st.sampled_from((2048, 1 << 15))),
        sandboxes=draw(st.sampled_from((3, 96, 2000))),
        devices=devices,
        labels=(("x", draw(st.sampled_from("ab"))),),
        images=frozenset(draw(st.sampled_from("ij"))),
        safe_percent=draw(st.sampled_from((100, 70))),
        limit_percent=draw(st.sampled_from((100, 90))),
        overcommit_milli=draw(st.sampled_from((1000, 2000))),
        cpus=tuple(range(4)),
    )


@st.composite
def shapes(draw: st.DrawFn) -> Request:
    """Return a request without a name of its own."""
    gpu = draw(
        st.sampled_from(
            (
                {},
                {"gpu_count": 1},
                {"gpu_count": 2},
                {"gpu_count": 1, "gpu_milli": 470},
                {"gpu_count": 2, "gpu_milli": 250},
                {"gpu_count": 1, "gpu_mode": GpuMode.MPS, "gpu_memory_bytes": 4 * GIB},
                {"gpu_count": 1, "gpu_shares": 60},
                {"gpu_count": 1, "gpu_mode": GpuMode.MIG},
            )
        )
    )
    sliced = gpu.get("gpu_mode") is GpuMode.MIG
    return Request(
        "",
        Resources(
            cpu_milli=draw(st.sampled_from((100, 1000, 3000))),
            memory_bytes=draw(st.sampled_from((1, 4))) * GIB,
            disk_iops=draw(st.sampled_from((0, 200))),
            **gpu,
        ),
        gpu_slices=draw(st.sampled_from(("1g.10gb", "2g.20gb", "3g.40gb"))) if sliced else "",
        labels=draw(st.sampled_from(((), (("x", "a"),)))),
        stage=draw(st.sampled_from(("", "training", "exploration"))),
        spread=draw(st.sampled_from(("", "s"))),
        image=draw(st.sampled_from(("", "i"))),
        exclusive_cpus=draw(st.sampled_from((False, False, True))),
        task_class=draw(st.sampled_from((TaskClass.GUARANTEED, TaskClass.PAUSABLE))),
        cpu_shares=draw(st.sampled_from((0, 0, 0, 50))),
        cpu_share_scale=ShareScale.RELATIVE,
    )


def over(seen: ClusterView) -> list[str]:
    """Recount every node from its bookings, in plain figures; say what is more than there is."""
    found = []
    for described in seen.nodes.values():
        held = [seen.bookings()[id_] for id_ in seen.on(described.name)]
        found += [*_columns_over(seen, described, held), *_cards_over(described, held)]
        pins = [cpu for one in held if not one.paused for cpu in one.cpus]
        if len(pins) != len(set(pins)):
            found.append(f"{described.name}: CPUs pinned twice: {pins}")
    return found


def _columns_over(seen: ClusterView, described: Node, held: Sequence[Booking]) -> Iterator[str]:
    limits = (
        described.memory_bytes,
        described.pids,
        described.disk_bytes,
        described.sandboxes,
        described.disk_iops,
        described.disk_bytes_per_second,
        described.cpu_milli * described.overcommit_milli // 1000,
        len(described.cpus),
    )
    for column, most in enumerate(limits):
        # paused work keeps all but CPU and pins
        kept = [one for one in held if not one.paused or column < Column.CPU]
        total = sum(one.amounts[column] for one in kept)
        free = int(seen.columns[column, seen.row(described.name)])
        if total > most or free != most - total:
            yield f"{described.name}: {Column(column).name} {total} of {most}, said free {free}"


def _cards_over(described: Node, held: Sequence[Booking]) -> Iterator[str]:
    for card in described.devices:
        claims = [claim for one in held for claim in one.claims if claim.uuid == card.uuid]
        if len({claim.mode for claim in claims}) > 1:
            yield f"{card.uuid}: two modes"
        if sum(claim.memory for claim in claims) > card.allocatable_bytes:
            yield f"{card.uuid}: memory"
        if sum(claim.milli for claim in claims) > 1000 or len(claims) > card.clients:
            yield f"{card.uuid}: milli or clients"
        masks = [claim.slices for claim in claims]
        if sum(masks) != _union(masks):
            yield f"{card.uuid}: slices overlap"
        if len(claims) > 1 and not any(claim.milli or claim.slices for claim in claims):
            yield f"{card.uuid}: given whole twice"


def _union(masks: Sequence[int]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found


class Cluster(RuleBasedStateMachine):
    """Nodes come, change and go; sandboxes are placed, paused, resumed and released."""

    @initialize(first=nodes_("n0"))
    def begin(self, first: Node) -> None:
        """Start with one node."""
        self.seen, self.mix, self.count = ClusterView([first]), Mix(), 0

    @rule(data=st.data(), number=st.integers(0, 4))
    def put(self, data: st.DataObject, number: int) -> None:
        """Add a node, or describe one anew while nobody is on it."""
        name = f"n{number}"
        if not self.seen.on(name):
            self.seen.put(data.draw(nodes_(name)))

    @rule(number=st.integers(0, 4))
    def remove(self, number: int) -> None:
        """Take a node away: its bookings go with it, and none comes back with the name."""
        self.seen.remove(f"n{number}")
        assert all(booking.node != f"n{number}" for booking in self.seen.bookings().values())

    @rule(shape=shapes(), many=st.sampled_from((1, 1, 5, 30)))
    def place_some(self, shape: Request, many: int) -> None:
        """Place equal requests: the same as on a copy, one by one, with the nodes put in anew."""
        asked = [replace(shape, id=f"s{self.count + number}") for number in range(many)]
        self.count += many
        apart, learned = self.seen.fork(), self.mix.copy()
        found = place(self.seen, asked, mix=self.mix)
        if Asked.of(shape).gpus:
            learned.observe(demand_of(shape, Asked.of(shape)), many)
        singly = [place(apart, [each], mix=learned, learn=False)[0] for each in asked]
        assert found == singly
        assert self.seen.digest() == apart.digest()
        for decision in found:
            assert bool(decision.node) != bool(decision.refusals)

    @rule(data=st.data())
    def release_and_book(self, data: st.DataObject) -> None:
        """Release one and book the same again: nothing has changed."""
        ids = sorted(self.seen.bookings())
        if not ids:
            return
        booking = self.seen.bookings()[data.draw(st.sampled_from(ids))]
        if booking.paused:
            return
        before = self.seen.digest()
        assert self.seen.release(booking.request.id)
        assert not self.seen.release(booking.request.id)
        again = Decision(booking.request.id, booking.node, booking.devices, cpus=booking.cpus)
        self.seen.book(booking.request, again)
        assert self.seen.digest() == before

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """Give one back."""
        ids = sorted(self.seen.bookings())
        if ids:
            assert self.seen.release(data.draw(st.sampled_from(ids)))

    @rule(data=st.data())
    def pause(self, data: st.DataObject) -> None:
        """Pause one, or resume it where there is room."""
        ids = sorted(self.seen.bookings())
        if not ids:
            return
        id_ = data.draw(st.sampled_from(ids))
        if not self.seen.bookings()[id_].paused:
            self.seen.pause(id_)
            return
        before = self.seen.digest()
        try:
            self.seen.resume(id_)
        except OverCapacityError:
            assert self.seen.digest() == before

    @invariant()
    def nothing_is_exceeded(self) -> None:
        """No node, card, slice or CPU is ever given twice, and free is what is left."""
        assert over(self.seen) == []

    @invariant()
    def copies_are_equal(self) -> None:
        """A view made from the same nodes and bookings in another order is the same."""
        again = ClusterView(reversed(list(self.seen.nodes.values())))
        for id_, booking in sorted(self.seen.bookings().items()):
            decision = Decision(id_, booking.node, booking.devices, cpus=booking.cpus)
            again.book(booking.request, decision, force=True)
            if booking.paused:
                again.pause(id_)
        assert again.digest() == self.seen.digest()


Cluster.TestCase.settings = SOME
TestCluster = Cluster.TestCase


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_cluster_soak() -> None:
    """100,000 steps of the same."""
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(Cluster, settings=MANY)


@_A_SECOND
@given(st.data())
def test_order_of_arrival_of_nodes_does_not_matter(data: st.DataObject) -> None:
    """The same nodes in any order, some of them put twice, decide the same."""
    nodes = [data.draw(nodes_(f"n{number}")) for number in range(4)]
    asked = [replace(data.draw(shapes()), id=f"s{number}") for number in range(6)]
    first, second = ClusterView(nodes), ClusterView(data.draw(st.permutations(nodes)))
    second.remove("n1")
    second.put(nodes[1])
    assert place(first, asked) == place(second, asked)
    assert first.digest() == second.digest()


def test_a_fork_is_apart() -> None:
    """What is done to a copy is not seen in the view, nor the other way round."""
    seen = view(node("a", 8, 8), node("b", 8, 8))
    place(seen, [request("s1", cores=2)])
    apart, before = seen.fork(), seen.digest()
    place(apart, [request("s2", cores=2)])
    apart.remove("b")
    apart.put(node("c", 4, 4))
    assert seen.digest() == before
    place(seen, [request("s3", cores=2)])
    assert set(apart.bookings()) <= {"s1", "s2"}
    assert "s3" not in apart.bookings()


def test_a_smaller_node_keeps_its_bookings_and_takes_no_more() -> None:
    """A description that shrinks never makes room negative for new work, and grows back exactly."""
    seen = view(node("a", 8, 8))
    place(seen, [request("s1", cores=6)])
    before = seen.digest()
    seen.put(node("a", 4, 8))
    assert why(one(seen, request("s2"))) == ["cpu"]
    assert one(seen, request("s2")).refusals[0].free == 0
    seen.put(node("a", 8, 8))
    assert seen.digest() == before


def test_booking_beyond_room_changes_nothing() -> None:
    """A booking is whole or not at all, in every dimension."""
    seen = view(node("a", 2, 2, gpus=1))
    before = seen.digest()
    for wrong, decision in (
        (request("s", cores=3), Decision("s", "a")),
        (request("s", gib=3), Decision("s", "a")),
        (request("s"), Decision("s", "b")),
        (request("s", gpu_count=1), Decision("s", "a", ("none",))),
        (request("s", gpu_count=1), Decision("s", "a")),
        (request("s", gpu_count=2), Decision("s", "a", ("a-gpu-0", "a-gpu-0"))),
        (request("s", exclusive_cpus=True), Decision("s", "a", cpus=(7,))),
    ):
        with pytest.raises(OverCapacityError):
            seen.book(wrong, decision)
        assert seen.digest() == before


@pytest.mark.parametrize("amount", [1 << 63, 1 << 70, 10**30])
@pytest.mark.parametrize("field", ["cpu_milli", "memory_bytes", "disk_bytes", "disk_iops"])
def test_absurd_quantities_are_refused_in_words_and_change_nothing(field: str, amount: int) -> None:
    """No figure wraps around: what no counter holds is a mistake, said as such."""
    seen = view(node("a"))
    before = seen.digest()
    base = {"cpu_milli": 1000, "memory_bytes": GIB}
    decision = one(
        seen, Request("s", Resources.model_construct(**{**_FULL, **base, field: amount}))
    )
    assert [refusal.reason.value for refusal in decision.refusals] == ["invalid"]
    assert decision.refusals[0].largest == LIMIT
    assert seen.digest() == before


_FULL = Resources(cpu_milli=1000, memory_bytes=GIB).model_dump()


@pytest.mark.parametrize("field", ["cpu_milli", "memory_bytes", "disk_bytes", "gpu_shares"])
def test_negative_quantities_are_refused(field: str) -> None:
    """A negative figure never offsets a real one."""
    decision = one(view(node("a")), Request("s", Resources.model_construct(**{**_FULL, field: -1})))
    assert [refusal.reason.value for refusal in decision.refusals] == ["invalid"]


def test_the_largest_figures_do_not_overflow() -> None:
    """Nodes and requests at the edge of 64 bits are compared, not wrapped."""
    seen = view(Node("a", LIMIT, LIMIT, disk_bytes=LIMIT * 4))
    assert why(one(seen, Request("s", Resources(cpu_milli=LIMIT, memory_bytes=LIMIT)))) != []
    big = Resources(cpu_milli=1000, memory_bytes=1 << 61, disk_bytes=1 << 61)
    assert one(seen, Request("s1", big)).node == "a"
    assert one(seen, Request("s2", big)).node == "a"
    assert why(one(seen, Request("s3", big))) == ["disk", "memory"]
    relative = Request(
        "s4", big, cpu_shares=1 << 60, cpu_share_scale=ShareScale.RELATIVE, exclusive_cpus=True
    )
    assert not one(seen, relative).node


def test_clients_beyond_a_card_leave_nothing_free_and_nobody_stumbles() -> None:
    """What runs is booked whatever the card reports by now, for example once ECC took memory."""
    cluster = view(node("a", gpus=1), node("b", gpus=1))
    for number in range(3):
        asked = request(
            f"r{number}", gpu_count=1, gpu_mode=GpuMode.SHARES, gpu_memory_bytes=76 * GIB
        )
        cluster.book(asked, Decision(asked.id, "a", ("a-gpu-0",)), force=True)
    row = cluster.row("a")
    assert cluster.cards[Card.MILLI, row, 0] == 0
    more = request("more", gpu_count=1, gpu_mode=GpuMode.SHARES, gpu_milli=100)
    assert one(cluster, more).node == "b"
    for number in range(3):
        cluster.release(f"r{number}")
    assert cluster.cards[Card.MILLI, row, 0] == 1000


@pytest.mark.parametrize(
    ("field", "figures"),
    [
        ("cpuMilli", {"cpu_milli": 10**12}),
        ("cpuMilli", {"cpu_milli": -1}),
        ("devices", {"devices": [CARD.model_copy(update={"uuid": f"g{n}"}) for n in range(257)]}),
        (
            "devices[0].memoryBytes",
            {"devices": [CARD.model_copy(update={"memory_bytes": 1 << 70})]},
        ),
        ("devices", {"devices": [CARD, CARD]}),
    ],
)
def test_a_node_with_absurd_figures_is_not_described(field: str, figures: dict[str, Any]) -> None:
    """One machine that tells nonsense must not stop the placement on all others."""
    sane: dict[str, Any] = {"cpu_milli": 8000, "memory_bytes": 8 * GIB, "disk_bytes": 8 * GIB}
    assert node_of("n", NodeInventory(**sane, devices=[CARD])).cpu_milli == 8000
    with pytest.raises(ValueError, match=re.escape(f"inventory.{field}: ")):
        node_of("n", NodeInventory(**(sane | figures)))


def test_the_thirteenth_client_is_refused_although_memory_is_free() -> None:
    """An MPS context has its most clients by profile; the reason is density (GPU-04)."""
    seen = view(node("a", 64, 256, gpus=1))
    clients = [
        request(f"s{n}", gpu_count=1, gpu_mode=GpuMode.MPS, gpu_memory_bytes=4 * GIB)
        for n in range(13)
    ]
    found = place(seen, clients)
    assert [bool(decision.node) for decision in found] == [True] * 12 + [False]
    assert why(found[12]) == ["density"]
    assert seen.cards[Card.MEMORY, 0, 0] > 4 * GIB


def test_a_profile_may_bear_fewer_clients() -> None:
    """The least of the clients' limits holds for all of them."""
    seen = view(node("a", 64, 256, gpus=1))
    asked = {"gpu_count": 1, "gpu_mode": GpuMode.MPS, "gpu_memory_bytes": GIB}
    found = place(seen, [request(f"s{n}", gpu_clients=2, **asked) for n in range(3)])
    assert [bool(decision.node) for decision in found] == [True, True, False]
    assert not one(seen, request("other", **asked)).node


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"near": "g", "spread": "h"}, "near g and spread h"),
        ({"labels": {"x": "a"}, "required_level": "planet", "near": "g"}, "planet"),
        ({"required_level": "rack"}, "rack without a group"),
        ({"gpu_mode": GpuMode.MIG, "gpu_count": 1}, "mig without the profile"),
        ({"gpu_mode": GpuMode.PASSTHROUGH, "gpu_count": 1}, "passthrough in a container"),
        ({"gpu_mode": GpuMode.MPS, "gpu_count": 1}, "mps without memory"),
    ],
)
def test_contradictions_are_refused_in_words(wish: dict[str, object], words: str) -> None:
    """Wishes that nothing can serve are told as mistakes, before any node is looked at."""
    decision = one(view(node("a", gpus=1)), request("s", **wish))
    assert words in str(decision.refusals[0].asked)
    assert decision.refusals[0].reason.value == "invalid"


def test_two_values_of_one_label_are_a_contradiction() -> None:
    """No node carries both."""
    decision = one(view(node("a")), request("s", labels=(("x", "a"), ("x", "b"))))
    assert decision.refusals[0].asked == "two values of one label"


def test_an_unknown_gpu_type_is_named() -> None:
    """The label that no node carries is in the reason."""
    decision = one(view(node("a", gpus=1)), request("s", gpu_count=1, gpu_model="h900"))
    assert (decision.refusals[0].dimension, decision.refusals[0].asked) == ("gpu-type", "h900")


def test_the_same_id_twice_is_a_mistake() -> None:
    """An id is booked once; the second is refused and takes nothing."""
    seen = view(node("a"))
    first, second = place(seen, [request("s"), request("s")])
    assert first.node
    assert second.refusals[0].dimension == "id"
    assert not one(seen, request("s")).node
    assert len(seen.bookings()) == 1


def test_descriptions_that_nobody_has_are_forgotten() -> None:
    """Nodes that change their labels for ever do not fill the memory, and decide as new ones."""
    seen = view(node("a", 8, 8), node("b", 8, 8))
    for number in range(300):
        seen.put(node("a", 8, 8, labels={"turn": str(number)}))
        assert one(seen, request(f"s{number}", 0.1, labels={"turn": str(number)})).node == "a"
        seen.release(f"s{number}")
    assert len(seen.profiles) < 100
    assert why(one(seen, request("old", labels={"turn": "7"}))) == ["turn"]
