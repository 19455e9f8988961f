"""Tables of expected stranded GPU: against plain simulation, and numbers against arrays."""

import numpy as np
import pytest
from dsec.placement.stranding import (
    CARD,
    NEVER,
    WHOLE,
    Nodes,
    OneNode,
    Shape,
    Tables,
    card_table,
    node_table,
    stack,
)
from hypothesis import given
from hypothesis import strategies as st

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
    made = stack([(card_table(SHAPES), table)], 1)
    codes = np.full((1, max(gpus, 1)), WHOLE if gpus else 0)
    group = np.zeros(1, dtype=np.int64)
    inside = made.potential(group, np.array([cpu]), codes)
    beyond = made.potential(group, np.array([cpu * 2]), codes)
    assert np.isfinite(inside).all()
    assert beyond <= inside + 1e-6


CARDS = st.lists(st.integers(0, WHOLE), min_size=1, max_size=8)


@given(
    cards=CARDS,
    cpu=st.integers(0, 96_000),
    group=st.sampled_from([0, 1]),
    milli=st.integers(1, 999),
    count=st.integers(1, 3),
    asked=st.integers(1, 96_000),
)
def test_numbers_and_arrays_are_equal_to_the_bit(  # noqa: PLR0917  drawn by name
    cards: list[int], cpu: int, group: int, milli: int, count: int, asked: int
) -> None:
    """Scoring one node in plain numbers gives what scoring it among many does."""
    made = TABLES
    codes = [group * CARD + free for free in cards]
    arrays = np.array([group]), np.array([cpu]), np.array([codes])
    usable, stranded = made.state(*arrays)
    assert (usable[0], stranded[0]) == made.state_of(group, cpu, codes)
    nodes = Nodes(*arrays, usable, stranded)
    one = OneNode(group, cpu, codes, float(usable[0]), float(stranded[0]))
    costs, chosen = made.share_costs(nodes, asked, milli, count)
    cost, cards_of_one = made.share_cost(one, asked, milli, count)
    assert (costs[0] >= NEVER / 2) == (sum(free >= milli for free in cards) < count)
    if cost < NEVER / 2:
        assert (costs[0], tuple(chosen[0])) == (cost, cards_of_one)
    full = sum(free == WHOLE for free in cards)
    if full:
        assert made.whole_costs(nodes, asked, full)[0] == made.whole_cost(one, asked, full)
    assert made.cpu_costs(nodes, asked)[0] == made.cpu_cost(one, asked)


TABLES = tables()


@given(cards=CARDS, milli=st.integers(1, 999), cpu=st.integers(0, 90_000))
def test_the_cost_is_the_change_of_the_potential(cards: list[int], milli: int, cpu: int) -> None:
    """What a share costs is what it adds to the expected stranded GPU of the node."""
    if max(cards) < milli:
        return
    codes = np.array([cards])
    group, free = np.zeros(1, dtype=np.int64), np.array([90_000])
    usable, stranded = TABLES.state(group, free, codes)
    costs, chosen = TABLES.share_costs(Nodes(group, free, codes, usable, stranded), cpu, milli)
    after = codes.copy()
    after[0, chosen[0, 0]] -= milli
    change = TABLES.potential(group, free - cpu, after) - TABLES.potential(group, free, codes)
    assert costs[0] == pytest.approx(change[0], abs=1e-6)


def test_a_card_that_gives_no_shares_counts_for_nothing() -> None:
    """Its code says 0 free: it neither attracts nor repels."""
    group, cpu = np.zeros(2, dtype=np.int64), np.array([32_000, 32_000])
    with_it, without = np.array([500, 0]), np.array([500, 0])
    usable, stranded = TABLES.state(group, cpu, np.stack([with_it, without]))
    assert usable[0] == usable[1]
    assert stranded[0] == stranded[1]
