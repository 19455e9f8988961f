"""A round that looks at what has changed has the same books as one that looks at all that lives."""

from dsec.controllers.planner import Planner
from dsec.journal.bindings import Bindings, Row
from hypothesis import given
from hypothesis import strategies as st
from test_planner import NOW, binding, machine, tenant

TENANTS = {"t": tenant(cpu_milli=20_000)}
NODES = {name: machine(name) for name in "ab"}

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("bind"), st.integers(0, 5), st.sampled_from(["a", "b"])),
        st.tuples(st.just("move"), st.integers(0, 5), st.sampled_from(["", "a", "b"])),
        st.tuples(st.just("end"), st.integers(0, 5), st.just("")),
        st.tuples(st.just("nodes"), st.integers(0, 0), st.sampled_from(["", "a", "b", "ab"])),
        st.tuples(st.just("look"), st.integers(0, 0), st.just("")),
    ),
    max_size=30,
)


def rows(kind: str, n: int, node: str) -> list[Row]:
    """Return what the log says in a step."""
    one = binding(n, node=node)
    one.bound_at = NOW
    if kind == "bind":
        return [Row(kind="bind", at=NOW, binding=one)]
    if kind == "move":
        return [Row(kind="bind", at=NOW, id=one.id, node=node)]
    return [Row(kind="end", at=NOW, id=one.id)]


@given(STEPS)
def test_following_changes_is_looking_at_all(steps: list[tuple[str, int, str]]) -> None:
    """After any history, and whenever it was looked at."""
    state, planner, nodes = Bindings(), Planner(), "ab"
    changed: set[str] | None = None
    for kind, n, node in [*steps, ("look", 0, "")]:
        if kind == "nodes":
            nodes = node
        elif kind == "look":
            taken, changed = changed, state.follow(changed)
            there = [NODES[name] for name in nodes]
            planner.follow(there, TENANTS, state.bound, changed=taken)
            fresh = Planner()
            fresh.sync(there, TENANTS, state.live())
            assert planner.view.digest() == fresh.view.digest()
            assert planner.ledger.entries.keys() == fresh.ledger.entries.keys()
            assert planner.ledger.used("t") == fresh.ledger.used("t")
            assert planner.ledger.audit() == []
        else:
            state.apply(rows(kind, n, node))
    assert {one.id for one in state.live()} == {
        one.id for name in state.nodes() for one in state.on_node(name)
    }


def test_who_follows_no_more_costs_nothing() -> None:
    """A set that was handed back gets nothing any more."""
    state = Bindings()
    first = state.follow()
    second = state.follow(first)
    state.apply(rows("bind", 1, "a"))
    assert not first
    assert second == {binding(1).id}


def test_a_new_leader_learns_what_is_asked_for_from_what_runs() -> None:
    """Once: what it places itself it has heard of before it is bound."""
    running = [binding(n, node="a", gpu_count=1) for n in range(3)]
    planner = Planner()
    planner.sync([NODES["a"]], TENANTS, [*running, binding(3, node="a")])
    assert planner.mix.seen == 3
    planner.sync([NODES["a"]], TENANTS, [*running, binding(4, node="a", gpu_count=1)])
    assert planner.mix.seen == 3
