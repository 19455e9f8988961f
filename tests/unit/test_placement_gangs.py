"""Gangs are placed whole or not at all, groups of gangs together, near members packed."""

from collections import Counter
from dataclasses import replace

import pytest
from dsec.api.reasons import PendingReason
from dsec.placement.engine import place
from dsec.placement.request import Node, Request
from dsec.placement.view import ClusterView
from hypothesis import given
from hypothesis import strategies as st
from placement_make import gpu, node, request, view


def gang(
    name: str, count: int, *, group: str = "", cores: float = 1, **fields: object
) -> list[Request]:
    """Return equal members of a gang."""
    return [
        request(f"{name}-{n}", cores, gang=name, gang_group=group, **fields) for n in range(count)
    ]


def racks(*hosts: tuple[str, str, str], gpus: int = 8) -> ClusterView:
    """Return hosts as (name, rack, zone)."""
    return view(
        *(node(name, 64, 512, gpus, rack=rack, zone=zone, region="r") for name, rack, zone in hosts)
    )


@pytest.mark.case("volcano#3373")
@pytest.mark.case("kube-batch#158")
def test_one_of_two_gangs_runs_whole_and_the_other_holds_nothing() -> None:
    """Two gangs of 100 on 100 nodes of one place each: never half of both."""
    cluster = view(*(node(f"n{n}", 1, 4) for n in range(100)))
    first, second = gang("a", 100), gang("b", 100)
    mixed = [one for pair in zip(first, second, strict=True) for one in pair]
    found = {one.id: one for one in place(cluster, mixed)}
    assert all(found[one.id].node for one in first)
    assert not any(found[one.id].node for one in second)
    assert {found[one.id].refusals[0].reason for one in second} <= {
        PendingReason.GANG,
        PendingReason.CAPACITY,
    }
    assert len(cluster.bookings()) == 100


@pytest.mark.case("koordinator#872")
def test_a_group_whose_second_gang_has_no_room_gives_back_its_first() -> None:
    """Groups {A, B} and {C, D} in the order A, C, B, D: when B lacks room, C and D get all."""
    cluster = view(*(node(f"n{n}", 1, 4) for n in range(4)))
    a, b = gang("a", 2, group="ab"), gang("b", 3, group="ab")
    c, d = gang("c", 2, group="cd"), gang("d", 2, group="cd")
    found = {one.id: one for one in place(cluster, [*a, *c, *b, *d])}
    assert not any(found[one.id].node for one in [*a, *b])
    assert all(found[one.id].node for one in [*c, *d])


@pytest.mark.case("KAI#924")
def test_every_role_of_a_gang_has_to_fit() -> None:
    """Workers alone are of no use without their server."""
    cluster = view(node("n", 8, 64))
    members = [*gang("g", 4), request("server", 16, gang="g")]
    found = place(cluster, members)
    assert not any(one.node for one in found)
    assert any("cpu" in {r.dimension for r in one.refusals} for one in found)
    assert not cluster.bookings()


@pytest.mark.case("kueue#13766")
def test_the_leader_goes_where_workers_leave_room() -> None:
    """Leader 1 CPU, workers 4 x 2 CPU, hosts of 2, 4 and 3: the leader goes to the third."""
    cluster = view(node("two", 2), node("four", 4), node("three", 3))
    members = [request("leader", 1, gang="g"), *gang("g", 4, cores=2)]
    found = place(cluster, members)
    assert found[0].node == "three"
    assert Counter(one.node for one in found[1:]) == {"two": 1, "four": 2, "three": 1}


@pytest.mark.case("k8s-test-infra#886")
def test_the_larger_slice_is_placed_first() -> None:
    """A 3g slice at the start of a card would leave no place for a 4g one."""
    cluster = view(node("n", 16, 64, 1))
    members = [
        request("small", gang="g", gpu_slices="3g.40gb"),
        request("large", gang="g", gpu_slices="4g.40gb"),
    ]
    assert all(one.node for one in place(cluster, members))


def test_a_near_group_that_fits_one_host_is_on_it() -> None:
    """Eight cards that exchange often go to one host, also where others come first in the order."""
    cluster = racks(*((f"h{n}", f"r{n // 4}", "z") for n in range(16)))
    place(cluster, [gpu(f"x{n}", spread="x") for n in range(15)])
    found = place(cluster, [gpu(f"g{n}", gang="g", near="ring") for n in range(8)])
    assert len({one.node for one in found}) == 1


def test_a_near_group_stays_in_one_rack_while_one_has_room() -> None:
    """With at most four cards free on a host, eight go to one rack, never across two."""
    cluster = racks(*((f"h{n}", f"r{n // 2}", "z") for n in range(8)))
    place(cluster, [gpu(f"x{n}", 4, spread="x") for n in range(8)])
    found = place(cluster, [gpu(f"g{n}", near="ring") for n in range(8)])
    assert len({one.node for one in found}) == 2
    assert len({cluster.nodes[one.node].rack for one in found}) == 1


@pytest.mark.case("kueue#14452")
@pytest.mark.case("kueue#14232")
def test_domains_are_compared_by_their_whole_path() -> None:
    """rack-1 is no part of rack-10, and rack-1 of one zone is not rack-1 of another."""
    cluster = racks(("a", "rack-1", "z1"), ("b", "rack-10", "z1"), ("z1", "rack-1", "z2"), gpus=4)
    members = [gpu(f"g{n}", near="ring", required_level="rack", gang="g") for n in range(8)]
    found = place(cluster, members)
    assert not any(one.node for one in found)
    assert found[0].refusals[0].reason is PendingReason.TOPOLOGY
    wider = [replace(one, required_level="zone") for one in members]
    assert {one.node for one in place(cluster, wider)} == {"a", "b"}


def test_a_replacement_goes_back_to_its_group() -> None:
    """One member that comes later goes to the host of the others, or to their rack."""
    cluster = racks(*((f"h{n}", f"r{n // 2}", "z") for n in range(8)))
    found = place(cluster, [gpu(f"g{n}", near="ring") for n in range(7)])
    (late,) = place(cluster, [gpu("late", near="ring")])
    assert late.node == found[0].node
    (later,) = place(cluster, [gpu("later", near="ring")])
    assert cluster.nodes[later.node].rack == cluster.nodes[late.node].rack


NODES = st.lists(
    st.builds(
        lambda name, cores, gpus, rack: node(f"n{name}", cores, 64, gpus, rack=f"r{rack}"),
        st.integers(0, 9),
        st.integers(1, 8),
        st.integers(0, 4),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda one: one.name,
)
MEMBERS = st.lists(
    st.tuples(
        st.sampled_from(["", "g1", "g2", "g3"]),
        st.integers(1, 6),
        st.integers(0, 2),
        st.sampled_from(["", "ring"]),
        st.sampled_from(["", "both"]),
    ),
    max_size=20,
)


@given(NODES, MEMBERS)
def test_no_unit_is_ever_partial(
    nodes: list[Node], asked: list[tuple[str, int, int, str, str]]
) -> None:
    """Whatever is asked: all of a unit or none, and what was refused holds nothing."""
    requests = [
        request(
            f"s{n}", cores, gpu_count=gpus, gang=name, near=near, gang_group=group if name else ""
        )
        for n, (name, cores, gpus, near, group) in enumerate(asked)
    ]
    cluster = ClusterView(nodes)
    found = place(cluster, requests)
    assert [one.id for one in found] == [one.id for one in requests]
    units: dict[str, set[bool]] = {}
    for one, decision in zip(requests, found, strict=True):
        if one.gang:
            units.setdefault(one.gang_group or one.gang, set()).add(bool(decision.node))
        assert bool(decision.node) != bool(decision.refusals)
    assert all(len(one) == 1 for one in units.values())
    assert set(cluster.bookings()) == {one.id for one in found if one.node}
    again = ClusterView(nodes)
    assert place(again, requests) == found
    assert again.digest() == cluster.digest()
