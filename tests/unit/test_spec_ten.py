"""What the catalogue of tenancy (TEN) promises, as far as ledger and pure core decide it."""

from typing import Any

import pytest
from dsec.api.experiment import TaskClass
from dsec.api.sandbox import GpuMode
from dsec.placement.accounts import Account, QuotaError, amounts_of
from dsec.placement.dimensions import ShareScale, cpu_shares_of
from dsec.placement.engine import place
from dsec.placement.entries import Entry
from dsec.placement.ledger import Ledger
from dsec.placement.plans import Plan, PreemptionPolicy, Step
from dsec.placement.preemption import plan
from dsec.placement.queueing import KIND_PRESETS, QueuePolicy, Waiting, ordered
from dsec.placement.words import explain
from hypothesis import given
from hypothesis import strategies as st
from placement_make import GIB, cards, gpu, node, nodes_of, one, request, view
from test_cases_preemption import POLICY, World

PAUSABLE, PREEMPTIBLE = TaskClass.PAUSABLE, TaskClass.PREEMPTIBLE


def entry(name: str, account: str = "t/p", cores: int = 1, **fields: Any) -> Entry:
    """Return an entry that takes cores."""
    return Entry(name, account, {"cpu_milli": cores * 1000, "sandboxes": 1}, **fields)


def ledger(**cores: Any) -> Ledger:
    """Return a ledger of tenants: `name=nominal` or `name=(nominal, ceiling)`, in cores."""
    made = Ledger()
    for name, share in cores.items():
        nominal, ceiling = share if isinstance(share, tuple) else (share, None)
        limits = None if ceiling is None else {"cpu_milli": ceiling * 1000}
        made.put(Account(name, {"cpu_milli": nominal * 1000}, limits))
    return made


def test_ten_01_above_the_quota_it_waits_until_another_ends() -> None:
    """The reason is quota, and it starts with the room that the end leaves."""
    books = ledger(t=4)
    books.admit(entry("old", cores=3))
    late = entry("late", cores=2)
    waits = books.admit(late)
    assert {one.reason.value for one in waits.refusals} == {"quota"}
    books.end("old")
    assert books.admit(late).booked


def test_ten_02_nominal_8_ceiling_12() -> None:
    """Twelve while the neighbours idle; the thirteenth waits; owners get theirs back."""
    books = ledger(t=(8, 12), owner=8)
    for n in range(8):
        assert books.admit(entry(f"own{n}")).booked
    for n in range(4):
        assert books.admit(entry(f"borrowed{n}", task_class=PAUSABLE)).booked
    assert books.used("t")["cpu_milli"] == 12_000
    assert books.borrowed("t")["cpu_milli"] == 4000
    assert books.admit(entry("late", task_class=PAUSABLE)).refusals[0].limit == "ceiling"
    # the owner's own share is lent to others: that is what its refusal says
    for n in range(4):
        assert books.admit(entry(f"o{n}", "owner/p")).booked
    assert books.admit(entry("o4", "owner/p")).refusals[0].limit == "lent"
    for n in range(4):
        books.end(f"borrowed{n}")
    assert all(books.admit(entry(f"o{n}", "owner/p")).booked for n in range(4, 8))
    assert books.used("t")["cpu_milli"] == 8000


def test_ten_02_what_is_borrowed_is_never_guaranteed() -> None:
    """Guaranteed work is admitted within the nominal share only (CONF-16)."""
    books = ledger(t=(8, 12), owner=8)
    books.admit(entry("own", cores=8))
    refusal = books.admit(entry("more")).refusals[0]
    assert refusal.limit == "nominal"
    assert "may be paused or preempted" in explain([refusal])


def test_ten_03_what_a_task_did_not_use_returns() -> None:
    """Allowed 100, used 60: after its end the project has 40 more, and 60 as they end."""
    books = ledger(t=200)
    books.put(Account("t/p", {"cpu_milli": 150_000}))
    books.put(Account("t/p/task", {"cpu_milli": 100_000}))
    books.admit(entry("s", "t/p/task", cores=60))
    before = books.free("t/p")["cpu_milli"]
    books.close("t/p/task")
    assert books.free("t/p")["cpu_milli"] - before == 40_000
    books.end("s")
    assert books.free("t/p")["cpu_milli"] - before == 100_000


def test_ten_03_upper_levels_bound_lower_ones() -> None:
    """A project cannot give its tasks more than it has."""
    books = ledger(t=200)
    books.put(Account("t/p", {"cpu_milli": 150_000}))
    books.put(Account("t/p/a", {"cpu_milli": 100_000}))
    with pytest.raises(QuotaError, match="t/p/b: nominal"):
        books.put(Account("t/p/b", {"cpu_milli": 51_000}))


def test_ten_04_a_space_uses_its_own_pools() -> None:
    """Work of a space goes to its pools only; no room there is said, and others stay closed."""
    seen = view(node("a", 1, pool="mine"), node("b", 64, pool="theirs"))
    found = place(seen, [request(f"s{n}", pools=("mine",)) for n in range(2)])
    assert nodes_of(found) == ["a", ""]
    waits = one(view(node("b", 64, pool="theirs")), request("s", pools=("mine",)))
    assert "pool=mine" in explain(waits.refusals)


def test_ten_05_32_of_80_cores_are_400_shares() -> None:
    """They book 400 and leave 600; a share is 1/1000 of any machine, or 80 milli-cores."""
    for machine, relative in ((80_000, 400), (40_000, 800)):
        assert cpu_shares_of(32_000, ShareScale.RELATIVE, machine) == relative
        assert cpu_shares_of(32_000, ShareScale.ABSOLUTE, machine) == 400
    seen = view(node("a", 80, 400), node("b", 40, 400))
    for scale, free in ((ShareScale.ABSOLUTE, 48_000), (ShareScale.RELATIVE, 16_000)):
        asked = request(f"s-{scale.value}", cores=0.001, cpu_shares=400, cpu_share_scale=scale)
        assert one(seen.fork(), asked).node
        trial = view(node("a", 80, 400)) if scale is ShareScale.ABSOLUTE else view(node("b", 40))
        one(trial, asked)
        (name,) = trial.nodes
        total = 80_000 if name == "a" else 40_000
        taken = total - trial.room(name)["cpu"]
        assert taken == (32_000 if scale is ShareScale.ABSOLUTE else 16_000), (scale, free)


def test_ten_06_two_halves_share_a_card_and_a_third_waits() -> None:
    """400 of the 800 shares of an 80 GB card each; a second card takes the third."""
    halves = [gpu(f"h{n}", mode=GpuMode.SHARES, gpu_shares=400) for n in range(3)]
    found = place(view(node("a", gpus=1)), halves)
    assert nodes_of(found) == ["a", "a", ""]
    assert found[0].devices == found[1].devices
    wider = place(view(node("a", gpus=2)), halves)
    assert nodes_of(wider) == ["a"] * 3
    assert len({decision.devices for decision in wider}) == 2
    forty = place(view(node("a", devices=cards(1, gib=40))), halves)
    assert nodes_of(forty) == ["a", "", ""]


def waiting(name: str, number: int, **fields: Any) -> Waiting:
    """Return waiting work that arrived one second after the one before."""
    return Waiting(name, float(number), number, **fields)


def line(work: list[Waiting], policy: QueuePolicy | None = None) -> list[str]:
    """Return the order in which work is tried."""
    return [one.id for one in ordered(work, policy or QueuePolicy())]


def test_ten_08_the_higher_priority_starts_first() -> None:
    """With one slot free, though it was submitted later."""
    work = [waiting("early", 1), waiting("high", 2, priority=2)]
    assert line(work) == ["high", "early"]
    seen = view(node("a", 1))
    tried = place(seen, [request(name) for name in line(work)])
    assert {d.id: d.node for d in tried} == {"high": "a", "early": ""}


def test_ten_09_nothing_before_the_threshold() -> None:
    """60 s: nobody leaves at 59, and the victim does at the next cycle after 60."""
    world = World(node("a", 4))
    world.run("victim", 4, PAUSABLE)
    high = world.ask("high", 4)
    early = plan(world.view, world.ledger, high, POLICY, 59.0)
    assert not isinstance(early, Plan)
    assert [one.id for one in world.plan(high, 60.0).displacements] == ["victim"]


def test_ten_11_and_12_state_first_then_a_pause_rather_than_an_end() -> None:
    """Paused where that makes enough room; stopped where memory is what lacks."""
    for gib, last in ((1, Step.PAUSE), (60, Step.STOP)):
        world = World(node("a", 4, 64))
        world.run("victim", 4, PAUSABLE, gib=60)
        (victim,) = world.plan(world.ask("high", 4, gib=gib)).displacements
        assert victim.steps == (Step.SYNC, last)


def test_ten_15_only_the_small_pool_gives_way_by_priority() -> None:
    """Its lowest task is displaced for a higher one that waits; other pools are left alone."""
    small = PreemptionPolicy(pools=frozenset({"small"}))
    for pool, victims in (("small", ["low"]), ("large", None)):
        world = World(node("a", 8, pool=pool))
        world.run("low", 4, priority=-1)
        world.run("mid", 4)
        found = plan(world.view, world.ledger, world.ask("high", 4), small, 60.0)
        left = [one.id for one in found.displacements] if isinstance(found, Plan) else None
        assert left == victims


def test_ten_13_evaluation_counts_double_with_the_preset() -> None:
    """Behind three trainings of equal age: first with it, fourth with the default."""
    work = [waiting(f"train{n}", n, kind="training") for n in range(3)]
    work.append(waiting("eval", 3, kind="evaluation"))
    assert line(work) == ["train0", "train1", "train2", "eval"]
    preset = QueuePolicy(kinds=KIND_PRESETS["evaluation-first"])
    assert line(work, preset) == ["eval", "train0", "train1", "train2"]


def test_ten_23_phase_before_age() -> None:
    """With the order on, an evaluation overtakes an older exploration."""
    work = [waiting("explore", 1, kind="exploration"), waiting("eval", 2, kind="evaluation")]
    assert line(work) == ["explore", "eval"]
    assert line(work, QueuePolicy(order="phase")) == ["eval", "explore"]


def test_ten_22_quota_and_cluster_are_told_apart() -> None:
    """The same request, two causes: two reasons."""
    asked = request("s", cores=8)
    full = one(view(node("a", 4)), asked)
    over = ledger(t=4).admit(Entry("s", "t/p", amounts_of(asked.resources)))
    reasons = {full.refusals[0].reason.value, over.refusals[0].reason.value}
    assert reasons == {"capacity", "quota"}
    assert "quota of CPU, own share of t" in explain(over.refusals)


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 5), st.booleans()), max_size=40)
)
def test_ten_24_used_is_the_sum_over_live_sandboxes(steps: list[tuple[str, int, bool]]) -> None:
    """At every step, whatever starts, is refused, ends or ends twice."""
    books = ledger(t=(8, 12), owner=8)
    live: dict[str, int] = {}
    for name, cores, ends in steps:
        if ends:
            books.end(name)
            live.pop(name, None)
        elif books.admit(entry(name, cores=cores, task_class=PREEMPTIBLE)).booked:
            live.setdefault(name, cores)
        assert books.used("t").get("cpu_milli", 0) == 1000 * sum(live.values())
    assert books.audit() == []


def test_ten_14_what_is_guaranteed_counts_as_such_to_the_end() -> None:
    """A ledger made anew from what agents report has the same classes and the same sums."""
    books = ledger(t=(8, 12), owner=8)
    wanted = [entry("g", cores=4), entry("p", cores=4, task_class=PAUSABLE)]
    for one_ in wanted:
        books.admit(one_)
    again = books.fork()
    again.rebuild(reversed(wanted))
    assert again.entries == books.entries
    assert again.audit() == []
    assert again.used("t") == books.used("t")


def test_bad_quantities_change_nothing() -> None:
    """Negative, fractional, unknown and absurd amounts are refused in words."""
    books = ledger(t=4)
    for bad in ({"cpu_milli": -1}, {"cpu_milli": 0.5}, {"cpus": 1}, {"cpu_milli": True}):
        with pytest.raises(QuotaError, match="s"):
            books.admit(Entry("s", "t/p", bad))
    assert books.admit(Entry("huge", "t/p", {"cpu_milli": 1 << 80})).refusals
    assert books.used("t") == {}
    assert books.audit() == []


def test_shares_of_memory_do_not_leak_into_other_dimensions() -> None:
    """A half card counts 500 milli and its memory; an unplaced client counts as a whole card."""
    half = gpu("h", mode=GpuMode.SHARES, gpu_shares=400).resources
    booked = amounts_of(half, card_bytes=80 * GIB)
    assert (booked["gpu_milli"], booked["gpu_shares"]) == (500, 400)
    assert amounts_of(half)["gpu_milli"] == 1000
