"""The quota ledger: accounts with bounded delegation, nominal and ceiling, and what is refused."""

import pytest
from dsec.api.experiment import TaskClass
from dsec.api.reasons import PendingReason
from dsec.api.sandbox import GpuMode, Resources
from dsec.placement.accounts import (
    Account,
    QuotaError,
    amounts,
    amounts_of,
    limits,
)
from dsec.placement.dimensions import (
    GIB,
    MACHINE_SHARES,
    ShareScale,
    cpu_milli_of_shares,
    cpu_shares_of,
)
from dsec.placement.entries import Entry
from dsec.placement.ledger import Ledger
from dsec.placement.quota_words import Limit
from dsec.placement.refusal import Refusal
from dsec.placement.words import explain, sentence

GUARANTEED, PAUSABLE, PREEMPTIBLE = TaskClass
HUGE = 10**30


def cpu(n: int) -> dict[str, int]:
    """Return n cores."""
    return {"cpu_milli": n * 1000}


def entry(
    name: str, cores: int, account: str = "a/p", cls: TaskClass = PAUSABLE, **more: object
) -> Entry:
    """Build an entry of so many cores."""
    return Entry(name, account, cpu(cores), cls, **more)  # type: ignore[arg-type]


def two_tenants(nominal: int = 8, ceiling: int = 12) -> Ledger:
    """Return tenants a and b, each with a nominal amount and a ceiling, in cores."""
    ledger = Ledger()
    for name in ("a", "b"):
        ledger.put(Account(name, cpu(nominal), cpu(ceiling)))
    return ledger


def refused(ledger: Ledger, *wanted: Entry) -> Refusal:
    """Return the first reason of a request that must be refused whole."""
    before = {path: ledger.used(path) for path in ("a", "b")}
    admission = ledger.admit(*wanted)
    assert admission.booked == ()
    assert {path: ledger.used(path) for path in ("a", "b")} == before
    assert ledger.audit() == []
    return admission.refusals[0]


def test_a_tenant_borrows_what_is_idle_up_to_its_ceiling() -> None:
    """TEN-02: nominal 8, ceiling 12, idle neighbours: 12, and not 13."""
    ledger = two_tenants()
    assert len(ledger.admit(*[entry(f"x{n}", 1) for n in range(12)]).booked) == 12
    assert ledger.borrowed("a") == cpu(4)
    reason = refused(ledger, entry("more", 1))
    assert (reason.limit, reason.whose, reason.free, reason.largest) == (
        Limit.CEILING,
        "a",
        0,
        12000,
    )


def test_nobody_borrows_what_its_owner_uses() -> None:
    """With 6 of b's 8 in use only 2 are left to lend."""
    ledger = two_tenants()
    ledger.admit(entry("own", 6, "b/p", GUARANTEED))
    ledger.admit(entry("ten", 10))
    reason = refused(ledger, entry("eleven", 1))
    assert (reason.limit, reason.free) == (Limit.IDLE, 0)


def test_guaranteed_work_stays_within_nominal() -> None:
    """Nine guaranteed cores of nominal 8 are refused though 12 are allowed; pausable ones pass."""
    ledger = two_tenants()
    assert ledger.admit(entry("g", 8, cls=GUARANTEED)).booked
    reason = refused(ledger, entry("h", 1, cls=GUARANTEED))
    assert (reason.limit, reason.free, reason.largest) == (Limit.NOMINAL, 0, 8000)
    assert ledger.admit(entry("i", 4, cls=PREEMPTIBLE)).booked


def test_a_tenant_may_turn_guaranteed_work_pausable_above_nominal() -> None:
    """The default `guaranteed up to nominal, pausable above`; a gang gets one class."""
    ledger = two_tenants()
    ledger.put(Account("a", cpu(8), cpu(12), above_nominal=PAUSABLE))
    assert ledger.admit(entry("g", 8, cls=GUARANTEED)).booked[0].guaranteed
    gang = ledger.admit(*[entry(f"h{n}", 2, cls=GUARANTEED, gang="h") for n in range(2)]).booked
    assert {one.task_class for one in gang} == {PAUSABLE}
    assert refused(ledger, entry("i", 1, cls=GUARANTEED)).limit == Limit.CEILING


def test_guaranteed_work_goes_first_within_nominal() -> None:
    """Pausable work fills nominal; guaranteed work still gets it, the rest then is borrowed."""
    ledger = two_tenants()
    ledger.admit(entry("soft", 8))
    assert ledger.admit(entry("hard", 4, cls=GUARANTEED)).booked
    assert ledger.borrowed("a") == cpu(4)


def test_delegation_is_bounded_and_the_unused_part_returns() -> None:
    """TEN-03: allowed 100, used 60; after the task's end its project has 40 more free."""
    ledger = Ledger()
    ledger.put(Account("a", {"sandboxes": 1000}))
    ledger.put(Account("a/p", {"sandboxes": 300}))
    ledger.put(Account("a/p/t", {"sandboxes": 100}))
    used = [Entry(f"s{n}", "a/p/t", {"sandboxes": 1}) for n in range(60)]
    ledger.admit(*used)
    before = ledger.free("a/p")["sandboxes"]
    assert before == 200
    ledger.close("a/p/t")
    assert ledger.free("a/p")["sandboxes"] - before == 40
    assert ledger.admit(Entry("late", "a/p/t", {"sandboxes": 1})).refusals[0].limit == Limit.CLOSED
    for one in used:
        ledger.end(one.id)
    assert ledger.free("a/p")["sandboxes"] == 300
    assert ledger.free("a")["sandboxes"] == 700
    assert ledger.audit() == []


def test_children_are_given_no_more_than_the_parent_has() -> None:
    """200 + 150 of 300 is refused with the figures; what was is still so."""
    ledger = Ledger()
    ledger.put(Account("a", cpu(300)))
    ledger.put(Account("a/p", cpu(200)))
    with pytest.raises(
        QuotaError, match=r"a/q: nominal.cpu_milli: 150000 .* only 100000 of 300000"
    ):
        ledger.put(Account("a/q", cpu(150)))
    ledger.put(Account("a/q", cpu(100)))
    with pytest.raises(QuotaError, match=r"a/p: .* 1000 more than before"):
        ledger.put(Account("a/p", cpu(201)))
    ledger.put(Account("a/p", cpu(100)))
    ledger.put(Account("a/q/t", cpu(100)))
    with pytest.raises(QuotaError, match="only 0 of 100000"):
        ledger.put(Account("a/q/u", cpu(1)))
    assert ledger.audit() == []


def test_a_delegated_share_is_kept_from_guaranteed_work_of_others() -> None:
    """60 of 100 are project q's: guaranteed work beside it gets 40, pausable may use all."""
    ledger = Ledger()
    ledger.put(Account("a", cpu(100)))
    ledger.put(Account("a/q", cpu(60)))
    assert ledger.check(entry("g", 41, cls=GUARANTEED))[0].limit == Limit.NOMINAL
    assert ledger.check(entry("g", 40, cls=GUARANTEED)) == ()
    assert ledger.check(entry("s", 100)) == ()
    assert ledger.used("a") == {}


def test_lowering_nominal_evicts_nobody() -> None:
    """From 8 to 2: all stay, nothing new comes in, and what is above is borrowed."""
    ledger = two_tenants()
    ledger.admit(entry("g", 4, cls=GUARANTEED), entry("s", 4))
    ledger.put(Account("a", cpu(2), cpu(12)))
    assert ledger.used("a") == cpu(8)
    assert ledger.borrowed("a") == cpu(6)
    assert refused(ledger, entry("h", 1, cls=GUARANTEED)).limit == Limit.NOMINAL
    assert ledger.audit() == []


def test_unset_is_unlimited_and_a_lone_ceiling_is_owned() -> None:
    """No figure, no limit; a ceiling without nominal bounds and is owned up to it."""
    ledger = Ledger()
    ledger.put(Account("a"))
    assert ledger.admit(entry("x", HUGE, cls=GUARANTEED)).booked
    ledger.put(Account("b", ceiling=cpu(2)))
    assert ledger.admit(entry("y", 2, "b/p", GUARANTEED)).booked
    assert ledger.check(entry("z", 1, "b/p"))[0].limit == Limit.CEILING


def test_an_unknown_tenant_has_no_quota() -> None:
    """No limit known is not without limit; a removed tenant's work is still counted."""
    ledger = two_tenants()
    assert "no such Tenant" in explain(ledger.admit(entry("x", 1, "c/p")).refusals)
    ledger.admit(entry("y", 2))
    ledger.remove("a")
    assert ledger.used("a") == cpu(2)
    assert "no such Tenant" in explain(ledger.admit(entry("z", 1)).refusals)
    ledger.end("y")
    assert ledger.used("a") == {}
    assert ledger.audit() == []


def test_room_that_nobody_owns_can_be_lent() -> None:
    """A cohort's spare room adds to what may be borrowed."""
    ledger = two_tenants()
    ledger.put_cohort("cluster", cpu(1))
    ledger.admit(
        entry("b", 8, "b/p"),
    )
    assert ledger.check(entry("x", 10))[0].limit == Limit.IDLE
    assert ledger.check(entry("x", 9)) == ()


def test_a_pause_gives_back_cpu_and_keeps_memory() -> None:
    """A paused sandbox counts its memory; resuming needs the CPU to be free."""
    ledger = Ledger()
    ledger.put(Account("a", {"cpu_milli": 8000, "memory_bytes": 64}))
    ledger.admit(Entry("x", "a/p", {"cpu_milli": 6000, "memory_bytes": 40}, PAUSABLE))
    ledger.pause("x")
    ledger.pause("x")
    assert ledger.used("a") == {"memory_bytes": 40}
    ledger.admit(Entry("y", "a/p", {"cpu_milli": 4000}, PAUSABLE))
    assert ledger.resume("x")[0].dimension == "cpu_milli"
    assert ledger.entries["x"].paused
    ledger.end("y")
    assert ledger.resume("x") == ()
    assert ledger.used("a") == {"cpu_milli": 6000, "memory_bytes": 40}


def test_growing_needs_elasticity_and_room() -> None:
    """CONF-33: within the ceiling, with vertical elasticity; devices never; shrinking always."""
    ledger = two_tenants()
    ledger.admit(entry("x", 4, cls=GUARANTEED))
    with pytest.raises(QuotaError, match="no vertical elasticity"):
        ledger.resize("x", cpu(5), vertical=False)
    with pytest.raises(QuotaError, match="fixed at the start"):
        ledger.resize("x", {**cpu(1), "gpu_memory_bytes": 1}, vertical=True)
    assert ledger.resize("x", cpu(9), vertical=True)[0].limit == Limit.NOMINAL
    assert ledger.used("a") == cpu(4)
    assert ledger.resize("x", cpu(8), vertical=True) == ()
    ledger.put(Account("a", cpu(1), cpu(1)))
    assert ledger.resize("x", cpu(7), vertical=True) == ()
    assert ledger.used("a") == cpu(7)


def test_a_hold_keeps_room_for_its_owner_alone() -> None:
    """Others are refused what is held; the owner gets it; it ends by itself."""
    ledger = two_tenants(8, 8)
    ledger.hold(entry("h", 6), until=100.0)
    assert ledger.used("a") == {}
    assert refused(ledger, entry("x", 3)).free == 2000
    assert ledger.admit(entry("h", 6)).booked
    assert ledger.holds == {}
    ledger.hold(entry("i", 2), until=100.0)
    assert ledger.expire_holds(99.0) == []
    assert ledger.expire_holds(100.0) == ["i"]
    assert ledger.admit(entry("x", 2)).booked
    ledger.hold(entry("big", 3), until=200.0)
    assert ledger.admit(entry("big", 3)).refusals
    assert "big" in ledger.holds
    assert ledger.audit() == []


def test_rebuild_from_agents_gives_the_same_books() -> None:
    """Whatever was counted before, the live sandboxes of the agents are what counts."""
    ledger = two_tenants()
    ledger.admit(entry("g", 4, cls=GUARANTEED), entry("s", 4))
    ledger.end("g")
    agents = [entry("s", 4), entry("unknown", 2, "b/q/t", GUARANTEED)]
    ledger.rebuild(agents)
    assert (ledger.used("a"), ledger.used("b")) == (cpu(4), cpu(2))
    assert ledger.audit() == []
    ledger.rebuild([])
    assert ledger.used("a") == {}


def test_a_fork_is_apart() -> None:
    """What is tried on a copy changes nothing."""
    ledger = two_tenants()
    ledger.admit(entry("x", 4))
    fork = ledger.fork()
    fork.end("x")
    fork.admit(entry("y", 8, cls=GUARANTEED))
    assert (ledger.used("a"), fork.used("a")) == (cpu(4), cpu(8))
    assert fork.audit() == ledger.audit() == []


def test_room_is_what_admission_would_grant() -> None:
    """The figure is the least over all levels, per class."""
    ledger = two_tenants()
    ledger.admit(entry("x", 3), entry("g", 2, cls=GUARANTEED))
    assert ledger.room(entry("?", 0)) == cpu(7)
    assert ledger.room(entry("?", 0, cls=GUARANTEED)) == cpu(6)


def test_shares_of_a_machine_are_whole_and_exact() -> None:
    """TEN-05, CONF-08: 32 of 80 cores are 400 shares of 1,000; 80 single cores are all of them."""
    used = [cpu_shares_of(32_000, ShareScale.RELATIVE, machine) for machine in (80_000, 40_000)]
    assert used == [400, 800]
    assert cpu_shares_of(32_000, ShareScale.ABSOLUTE) == 400
    assert cpu_shares_of(80 * 1000, ShareScale.RELATIVE, 80_000) == MACHINE_SHARES
    relative = [cpu_milli_of_shares(800, ShareScale.RELATIVE, n) for n in (80_000, 40_000)]
    assert relative == [64_000, 32_000]
    assert cpu_milli_of_shares(400, ShareScale.ABSOLUTE) == 32_000
    assert limits({"cpu_shares": 400, "cpu_milli": 40_000}) == {"cpu_milli": 32_000}
    assert limits({"cpu_shares": 400}, unit="relative") == {"cpu_shares": 400}


def test_gpu_memory_shares_are_ten_a_gigabyte() -> None:
    """TEN-06: half an 80 GB card is 400 shares; a share limit of 800 takes two and not three."""
    half = Resources(
        cpu_milli=1000, memory_bytes=GIB, gpu_count=1, gpu_mode=GpuMode.SHARES, gpu_shares=400
    )
    found = amounts_of(half, card_bytes=80 * GIB)
    assert (found["gpu_shares"], found["gpu_milli"]) == (400, 500)
    assert found["gpu_memory_bytes"] == 40 * GIB
    ledger = Ledger()
    ledger.put(Account("a", {"gpu_shares": 800}))
    assert len(ledger.admit(Entry("x", "a/p", found), Entry("y", "a/p", found)).booked) == 2
    assert ledger.check(Entry("z", "a/p", found))[0].dimension == "gpu_shares"
    whole = Resources(cpu_milli=1000, memory_bytes=GIB, gpu_count=2)
    assert amounts_of(whole, machine_cpu_milli=80_000)["gpu_milli"] == 2000
    assert amounts_of(whole, machine_cpu_milli=80_000)["cpu_shares"] == 13


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cpu": 1}, "cpu: no such dimension; known are gpu_memory_bytes"),
        ({"cpu_milli": -1}, "cpu_milli: -1 is negative"),
        ({"cpu_milli": 1.0}, "cpu_milli: 1.0 is no whole number"),
        ({"cpu_milli": True}, "True is no whole number"),
        ({"cpu_milli": "1"}, "'1' is no whole number"),
        ({"cpu_milli": float("nan")}, "nan is no whole number"),
    ],
)
def test_bad_amounts_are_refused_by_name(given: dict[str, object], message: str) -> None:
    """The field, the value and what is allowed are in the message; nothing is booked."""
    with pytest.raises(QuotaError, match=message):
        amounts(given)
    with pytest.raises(QuotaError, match=message):
        Account("a", given)  # type: ignore[arg-type]
    with pytest.raises(QuotaError, match=message):
        Entry("x", "a/p", given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Account("a/b/c/d"), "tenant/project/task"),
        (lambda: Account("a//t"), "tenant/project/task"),
        (lambda: Account("a", cpu(8), cpu(4)), r"ceiling.cpu_milli: 4000 is below nominal 8000"),
        (lambda: Account("a", above_nominal=GUARANTEED), "pausable and preemptible are allowed"),
        (lambda: Account("a/p", above_nominal=PAUSABLE), "is set on tenants"),
        (lambda: Account("a", closed=True), "only a task ends"),
        (lambda: Entry("", "a/p", {}), "id: empty"),
        (lambda: limits({}, unit="percent"), "absolute and relative are allowed"),
    ],
)
def test_accounts_that_make_no_sense_are_refused(make: object, message: str) -> None:
    """Each says what is allowed."""
    with pytest.raises(QuotaError, match=message):
        make()  # type: ignore[operator]


Q = PendingReason.QUOTA
WORDS = [
    (
        Refusal(Q, "cpu_milli", 8000, 2000, largest=12000, whose="team-a", limit=Limit.CEILING),
        (
            "quota of CPU, ceiling of team-a: asked 8 cores, free 2 cores of 12 cores; starts when "
            "other work of team-a ends or its ceiling is raised"
        ),
    ),
    (
        Refusal(Q, "gpu_milli", 1500, 0, largest=8000, whose="team-a/p", limit=Limit.NOMINAL),
        (
            "quota of GPUs, own share of team-a/p: asked 1.5, free 0 of 8; starts when guaranteed "
            "work of team-a/p ends, its share is raised, or this may be paused or preempted"
        ),
    ),
    (
        Refusal(Q, "memory_bytes", 4 << 30, 0, largest=8 << 30, whose="team-a", limit=Limit.LENT),
        (
            "quota of memory, own share of team-a, lent to others: asked 4 GiB, free 0 B of 8 GiB; "
            "starts when those who borrowed it have given it back, which is asked of them"
        ),
    ),
    (
        Refusal(Q, "sandboxes", 3, 1, largest=20, whose="cohort cluster", limit=Limit.IDLE),
        (
            "quota of sandboxes, idle shares of cohort cluster: asked 3, free 1 of 20; starts when "
            "others leave more of their shares idle or the tenant's own share is raised"
        ),
    ),
    (
        Refusal(Q, "sandboxes", 1, whose="team-a/p/t", limit=Limit.CLOSED),
        (
            "quota of team-a/p/t: asked 1 more, free 0: the task has ended; starts when it is "
            "submitted again"
        ),
    ),
    (
        Refusal(Q, "cpu_milli", 2000, 1000, largest=4000, whose="gateway-1", limit=Limit.LEASE),
        (
            "quota of CPU, slice lent to gateway-1: asked 2 cores, free 1 core of 4 cores; starts "
            "when the controller lends more, which is asked of it"
        ),
    ),
]


@pytest.mark.parametrize(("refusal", "words"), WORDS, ids=[str(w[0].limit) for w in WORDS])
def test_the_table_of_quota_sentences(refusal: Refusal, words: str) -> None:
    """Which quota, whose, asked, free, and what would start it."""
    assert sentence(refusal) == words


def test_every_limit_has_a_sentence() -> None:
    """No limit is left without words."""
    assert {refusal.limit for refusal, _ in WORDS} == set(Limit)


def test_quota_and_cluster_shortage_are_two_reasons() -> None:
    """TEN-22: the same request, two causes."""
    ledger = two_tenants(1, 1)
    quota = ledger.check(entry("x", 2))[0]
    cluster = Refusal(PendingReason.CAPACITY, "cpu", 2000, 1000, 1, 1, 1000)
    assert quota.reason is not cluster.reason
    assert sentence(quota).startswith("quota of CPU, ceiling of a: asked 2 cores")
    assert "quota" not in sentence(cluster)


def test_a_batch_is_counted_in_runs_with_the_same_answers() -> None:
    """Equal entries are admitted as far as there is room, each on its own, as one by one."""
    wanted = [
        *[entry(f"g{n}", 1, cls=GUARANTEED) for n in range(6)],
        *[entry(f"p{n}", 1) for n in range(8)],
        *[entry(f"h{n}", 1, cls=GUARANTEED) for n in range(6)],
        entry("g0", 1, cls=GUARANTEED),
        entry("alone", 1, "b/p"),
        *[entry("twice", 1, "b/q"), entry("twice", 1, "b/q")],
    ]
    batch, single = two_tenants(), two_tenants()
    for ledger in (batch, single):
        ledger.put(Account("a", cpu(8), cpu(12), above_nominal=PREEMPTIBLE))
    answers = batch.admit_each(wanted)
    assert answers == [single.admit(one) for one in wanted]
    assert batch.entries == single.entries
    assert batch.audit() == []


def test_a_long_run_above_what_is_owned_is_counted_in_steps_as_few() -> None:
    """Thousands of equal entries pass from guaranteed to softer work and to refusals."""
    ledger = two_tenants()
    ledger.put(Account("a", cpu(8), cpu(12), above_nominal=PREEMPTIBLE))
    answers = ledger.admit_each([entry(f"g{n}", 1, cls=GUARANTEED) for n in range(3000)])
    classes = [one.booked[0].task_class for one in answers if one.booked]
    assert classes == [GUARANTEED] * 8 + [PREEMPTIBLE] * 4
    assert all(one.refusals for one in answers[12:])
    assert ledger.audit() == []
