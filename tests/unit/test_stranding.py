"""Tables of expected stranded GPU: against plain simulation, and numbers against arrays."""

from dataclasses import replace

import numpy as np
import pytest
from dsec.placement.accelerators import Card
from dsec.placement.engine import place
from dsec.placement.mix import Demand, Mix
from dsec.placement.potential import Potential, Surface, groups_of
from dsec.placement.stranding import WHOLE, Shape, Tables, card_table, node_table, stack
from dsec.placement.view import ClusterView
from hypothesis import given
from hypothesis import strategies as st
from placement_make import node, request, view

SHAPES = [
    Shape(4000, 1, 470, 3.0),
    Shape(8000, 1, 160, 1.0),
    Shape(3000, 1, 810, 2.0),
    Shape(11_000, 1, WHOLE, 4.0),
    Shape(90_000, 8, WHOLE, 1.0),
]


def tables(shapes: list[Shape] = SHAPES) -> Tables:
    """Return tables of two groups: of these classes, and of none."""
    big = (card_table(shapes), node_table(shapes, 96_000, 8))
    return stack([big, (card_table([]), node_table([], 8000, 2))], 1)


@pytest.mark.parametrize("free", [0, 159, 160, 470, 530, 630, 999, 1000])
def test_the_card_table_is_the_mean_of_random_draws(free: int) -> None:
    """Recursion and simulation agree: both draw, and take what fits."""
    shapes = [one for one in SHAPES if one.milli < WHOLE]
    random = np.random.default_rng(7)
    weights = np.array([one.weight for one in shapes])
    sizes = np.array([one.milli for one in shapes])
    left = np.full(20_000, free)
    for _ in range(4):
        asked = sizes[random.choice(len(sizes), len(left), p=weights / weights.sum())]
        left = np.where(asked <= left, left - asked, left)
    assert card_table(SHAPES, draws=4)[free] == pytest.approx(left.mean(), abs=4.0)


def test_the_card_table_of_one_class_is_exact() -> None:
    """Cards of 1000 hold two of 400; 25 draws are plenty."""
    table = card_table([Shape(1000, 1, 400, 1.0)])
    assert [table[free] for free in (399, 400, 799, 800, 1000)] == [399, 0, 399, 0, 200]


def test_without_shares_a_broken_card_is_lost_and_a_whole_one_is_not() -> None:
    """Nobody will ask for a part of it."""
    table = card_table([Shape(1000, 2, WHOLE, 1.0)])
    assert table[999] == 999
    assert table[1000] == 0
    assert card_table([])[500] == 500


def test_clients_of_two_cards_count_as_two() -> None:
    """A class that takes a share on each of two cards draws twice as often."""
    pairs = card_table([Shape(1, 2, 300, 1.0), Shape(1, 1, 500, 1.0)], draws=3)
    singles = card_table([Shape(1, 1, 300, 2.0), Shape(1, 1, 500, 1.0)], draws=3)
    np.testing.assert_array_equal(pairs, singles)


def test_the_node_table_of_one_class_is_exact() -> None:
    """A class of 1 card with 10 cores, on 25 cores: two flow in whole, the third lacks CPU."""
    table = node_table([Shape(10_000, 1, WHOLE, 1.0)], 25_000, 4)
    assert table.values[25, 40] == pytest.approx(2000)
    assert table.values[25, 20] == pytest.approx(0)
    assert table.values[9, 40] == pytest.approx(4000)


def test_the_node_table_is_the_mean_over_sequences() -> None:
    """The stratified sample of the table is near to a plain one."""
    random = np.random.default_rng(3)
    weights = np.array([one.weight for one in SHAPES])
    cpu, left = np.full(4000, 40.0), np.full(4000, 4000.0)
    for _ in range(20):
        drawn = random.choice(len(SHAPES), 4000, p=weights / weights.sum())
        need_cpu = np.array([one.cpu_milli / 1000 for one in SHAPES])[drawn]
        need = np.array([one.gpus * one.milli for one in SHAPES])[drawn]
        taken = np.where(cpu >= need_cpu, np.minimum(need, left), 0.0)
        left, cpu = left - taken, cpu - taken * need_cpu / need
    table = node_table(SHAPES, 41_000, 4, samples=1000)
    assert table.values[40, 40] == pytest.approx(left.mean(), rel=0.1)
    # what a node of 41 cores is given in practice is made of few sequences, and still near
    assert node_table(SHAPES, 41_000, 4).values[40, 40] == pytest.approx(left.mean(), abs=100)


def test_more_cpu_never_strands_more() -> None:
    """And more free GPU never leaves less."""
    values = node_table(SHAPES, 96_000, 8).values
    assert values[96, 80] < values[20, 80]
    assert (np.diff(values, axis=1) >= -1e-3).all()
    assert (values >= -1e-3).all()


@pytest.mark.parametrize(("cpu", "gpus"), [(256_000, 8), (768_000, 16), (8000, 64), (0, 0)])
def test_large_and_odd_nodes_have_tables(cpu: int, gpus: int) -> None:
    """Grids stay small; beyond their edge the edge holds."""
    table = node_table(SHAPES, cpu, gpus)
    assert table.values.size <= 258 * 258
    surface = Surface(stack([(card_table(SHAPES), table)], 1))
    inside = surface.read_one(0, cpu, 500.0 * gpus, 0)
    assert 0 <= inside <= 500 * gpus
    assert surface.read_one(0, cpu * 2, 500.0 * gpus, 0) <= inside + 1e-6


SURFACES = (
    Surface(tables()),
    # with idle cards that are worth something together
    Surface(replace(tables(), kept=(-np.arange(97.0 * 9).reshape(97, 9), -np.ones((9, 3))))),
)


@given(
    surface=st.sampled_from(SURFACES),
    group=st.sampled_from([0, 1]),
    cpu=st.integers(0, 200_000),
    usable=st.integers(0, 9_000_000).map(lambda grains: grains / 1024),
    idle=st.integers(-1, 12),
)
def test_numbers_and_arrays_are_equal_to_the_bit(
    surface: Surface, group: int, cpu: int, usable: float, idle: int
) -> None:
    """Reading one node in plain numbers gives what reading it among many does."""
    one = surface.read_one(group, cpu, usable, idle)
    arrays = np.array([group, 0]), np.array([cpu, 1]), np.array([usable, 1.0]), np.array([idle, 0])
    assert surface.read(*arrays)[0] == one


def learned(view: ClusterView) -> tuple[Mix, Potential]:
    """Return a mix that has seen `SHAPES`, and what it expects to be stranded on a view."""
    mix = Mix()
    for shape in SHAPES:
        mix.observe(Demand(shape.cpu_milli, shape.gpus, shape.milli), int(100 * shape.weight))
    groups = groups_of(view.profiles, mix)
    return mix, Potential(view, mix.tables(), groups)


def expected(potential: Potential, view: ClusterView) -> float:
    """Return P of the first node: V of its cards and H of what else is free."""
    milli = view.cards[Card.MILLI][0]
    return float(potential.tables.card_values[milli].sum() + potential.stranded[0])


@given(taken=st.lists(st.integers(1, 999), max_size=6), milli=st.integers(1, 999))
def test_the_cost_is_the_change_of_the_potential(taken: list[int], milli: int) -> None:
    """What a share costs is what it adds to the expected stranded GPU of the node."""
    seen = view(node("a", 64, 512, gpus=4))
    seen.settle()
    for number, part in enumerate(taken):
        place(seen, [request(f"t{number}", 3, 1, gpu_count=1, gpu_milli=part)])
    mix, before = learned(seen)
    at_first = expected(before, seen)
    asked = request("new", 7, 1, gpu_count=1, gpu_milli=milli)
    (decision,) = place(seen, [asked], mix=mix, learn=False, record=True)
    if decision.node:
        change = expected(learned(seen)[1], seen) - at_first
        assert dict(decision.scores)["stranding"] == pytest.approx(change, abs=1e-6)


def test_a_card_that_gives_no_shares_counts_for_nothing() -> None:
    """It neither attracts nor repels."""
    with_it, without = (view(node("a", 32, 64, gpus=gpus)) for gpus in (2, 1))
    place(with_it, [request("whole", 1, 1, gpu_count=1)])
    place(without, [request("none", 1, 1)])
    for one in (with_it, without):
        place(one, [request("part", 4, 1, gpu_count=1, gpu_milli=500)])
    table = tables()
    first, second = (Potential(one, table, [0]) for one in (with_it, without))
    assert (first.usable[0], first.stranded[0]) == (second.usable[0], second.stranded[0])
