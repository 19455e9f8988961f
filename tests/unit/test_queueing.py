"""The order of waiting work: weights, kinds, phases, priority and stable ties."""

import pytest
from dsec.placement.queueing import (
    HEAD_START_S,
    KIND_PRESETS,
    Queue,
    QueueError,
    QueuePolicy,
    Waiting,
    ordered,
)
from hypothesis import given
from hypothesis import strategies as st

PLAIN = QueuePolicy()


def work(name: str, arrived: float = 0.0, number: int = 0, **more: object) -> Waiting:
    """Build waiting work."""
    return Waiting(name, arrived, number, **more)  # type: ignore[arg-type]


def names(waiting: list[Waiting], policy: QueuePolicy = PLAIN) -> list[str]:
    """Return the order."""
    return [one.id for one in ordered(waiting, policy)]


def test_evaluation_first_or_fourth() -> None:
    """TEN-13: behind three trainings of equal age, placed first with the preset, fourth without."""
    waiting = [work(f"t{n}", 50.0, n, kind="training") for n in range(3)]
    waiting.append(work("e", 50.0, 3, kind="evaluation"))
    assert names(waiting) == ["t0", "t1", "t2", "e"]
    recommended = QueuePolicy(kinds=KIND_PRESETS["evaluation-first"])
    assert names(waiting, recommended) == ["e", "t0", "t1", "t2"]


def test_training_is_not_starved() -> None:
    """A doubled weight is worth an hour: a training that waits longer goes first."""
    recommended = QueuePolicy(kinds=KIND_PRESETS["evaluation-first"])
    old = work("t", 0.0, 0, kind="training")
    young = work("e", HEAD_START_S + 1, 1, kind="evaluation")
    assert names([young, old], recommended) == ["t", "e"]


def test_higher_priority_first() -> None:
    """TEN-08: submitted later, started first."""
    assert names([work("low", 0.0, 0), work("high", 9.0, 1, priority=1)]) == ["high", "low"]


def test_debug_before_earlier_training() -> None:
    """SCHED-16: by its queue's weight, and not with equal weights."""
    waiting = [work("t", 0.0, 0, queue="training"), work("d", 600.0, 1, queue="debug")]
    assert names(waiting) == ["d", "t"]
    equal = QueuePolicy(queues={"training": Queue(), "debug": Queue()})
    assert names(waiting, equal) == ["t", "d"]


def test_phase_first() -> None:
    """TEN-23: with the order `phase` an evaluation overtakes an older exploration."""
    waiting = [
        work("x", 0.0, 0, kind="exploration"),
        work("t", 1.0, 1, kind="training"),
        work("e", 2.0, 2, kind="evaluation"),
        work("none", 0.0, 3),
    ]
    assert names(waiting, QueuePolicy(order="phase")) == ["e", "t", "x", "none"]
    assert names(waiting) == ["x", "none", "t", "e"]


def test_displaced_work_stands_behind_its_preemptor() -> None:
    """Also where its queue has a head start; once that is gone it stands for itself."""
    victim = work("v", 100.0, 9, queue="debug", behind="p")
    preemptor = work("p", 90.0, 1, queue="training")
    third = work("z", 95.0, 2, queue="training")
    assert names([victim, third, preemptor]) == ["p", "v", "z"]
    assert names([victim, third]) == ["v", "z"]


def test_a_ring_of_displaced_work_still_has_an_order() -> None:
    """Each behind the other: nobody is lost and nothing hangs."""
    ring = [work("a", 0.0, 0, behind="b"), work("b", 1.0, 1, behind="a"), work("c", 2.0, 2)]
    assert sorted(names(ring)) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: QueuePolicy(order="random"), "order: 'random'; arrival and phase are allowed"),
        (lambda: QueuePolicy(kinds={"x": 1}), "kinds.x: no such kind; known are evaluation"),
        (lambda: QueuePolicy(queues={"q": Queue(weight=-1)}), "queues.q.weight: -1; 0 .last."),
        (lambda: QueuePolicy(kinds={"training": float("nan")}), "kinds.training: nan"),
        (lambda: ordered([work("a", queue="nope")], PLAIN), "queue: 'nope'.*known are debug"),
    ],
)
def test_bad_policies_are_refused_by_name(make: object, message: str) -> None:
    """The field, the value and what is allowed."""
    with pytest.raises(QueueError, match=message):
        make()  # type: ignore[operator]


@given(
    st.lists(
        st.builds(
            work,
            st.uuids().map(str),
            st.floats(0, 1e5),
            st.integers(0, 5),
            queue=st.sampled_from(["default", "debug", "eval", "training"]),
            kind=st.sampled_from(["", "training", "evaluation"]),
            priority=st.integers(-1, 2),
            size=st.integers(0, 2),
            behind=st.sampled_from(["", "gone"]),
        ),
        max_size=12,
    ),
    st.randoms(use_true_random=False),
)
def test_the_order_is_one_order(waiting: list[Waiting], chance: object) -> None:
    """It does not depend on how the work is listed, and loses nothing but what starts nothing."""
    before = names(waiting)
    chance.shuffle(waiting)  # type: ignore[attr-defined]
    assert names(waiting) == before
    assert sorted(before) == sorted(one.id for one in waiting if one.size)
