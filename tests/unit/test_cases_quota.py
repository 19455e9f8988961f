"""Field reports about quotas, reclaim and queues, each with the figures of the report."""

import json
from itertools import pairwise

import pytest
from dsec.api.experiment import TaskClass
from dsec.api.sandbox import Resources
from dsec.placement import asked
from dsec.placement.accounts import Account, QuotaError, amounts, amounts_of
from dsec.placement.entries import Entry
from dsec.placement.ledger import Ledger
from dsec.placement.mix import Demand, Group, Mix
from dsec.placement.queueing import Queue, QueuePolicy, Waiting, ordered
from dsec.placement.reclaim import give_back
from dsec.placement.request import Request
from placement_make import node, request
from quota_make import GUARANTEED, PREEMPTIBLE, cpu, entry, tenants, used


def names(returns: object) -> list[str]:
    """Return the ids of victims."""
    assert isinstance(returns, list), "asking back does not help"
    return [one.entry.id for one in returns]


# ---- preemption and reclaim


@pytest.mark.case("kueue#6947")
def test_case_kueue_6947() -> None:
    """Nominal 3 and 0: the borrower of 1 goes once for the 3; the 4 is parked, and nobody loops."""
    ledger = Ledger()
    ledger.put(Account("a", cpu(3)))
    ledger.put(Account("b", cpu(0), cpu(3)))
    small, large, owner = entry("wl1", 1, "b/p"), entry("wl4", 4), entry("wl3", 3)
    assert ledger.admit(small).booked
    assert ledger.admit(large).refusals
    assert give_back(ledger, [large]) is None
    assert names(give_back(ledger, [owner])) == ["wl1"]
    ledger.end("wl1")
    assert ledger.admit(owner).booked
    assert ledger.admit(small).refusals
    assert give_back(ledger, [small]) is None


@pytest.mark.case("kueue#3779")
def test_case_kueue_3779() -> None:
    """100 guaranteed asks, two victims of 50 are made anew at once: they wait behind it."""
    ledger = Ledger()
    ledger.put(Account("guaranteed", cpu(300)))
    for name in "ab":
        ledger.put(Account(name, cpu(0), cpu(300)))
    for number, (account, cores) in enumerate((("a", 100), ("a", 100), ("b", 50), ("b", 50))):
        assert ledger.admit(entry(f"w{number}", cores, f"{account}/p")).booked
    asking = entry("g", 150, "guaranteed/p", GUARANTEED, since=9.0)
    victims = names(give_back(ledger, [asking]))
    assert sum(ledger.entries[one].amounts["cpu_milli"] for one in victims) >= 150_000
    line = [Waiting("g", 9.0, 9)]
    for one in victims:
        ledger.end(one)
        line.append(Waiting(one, 10.0, 10, behind="g"))
    first, *rest = ordered(line, QueuePolicy())
    assert first.id == "g"
    assert ledger.admit(asking).booked
    for again in rest:
        back = entry(again.id, 50, "b/p")
        assert give_back(ledger, [back]) in ([], None)


@pytest.mark.case("kueue#2821")
def test_case_kueue_2821() -> None:
    """The victim is older by a day; the work it made room for still goes first."""
    preemptor = Waiting("young", 86_400.0, 2, queue="training")
    victim = Waiting("old", 0.0, 1, queue="debug", behind="young")
    assert [one.id for one in ordered([victim, preemptor], QueuePolicy())] == ["young", "old"]


@pytest.mark.case("kueue#4165")
def test_case_kueue_4165() -> None:
    """Guaranteed above nominal with borrowing is refused; two borrowers never ask each other."""
    with pytest.raises(QuotaError, match="aboveNominal: guaranteed"):
        Account("a", cpu(8), cpu(12), above_nominal=TaskClass.GUARANTEED)
    ledger = tenants(8, 12)
    for account in "ab":
        for number in range(8):
            assert ledger.admit(entry(f"{account}{number}", 1, f"{account}/p")).booked
    for account in "ab":
        assert give_back(ledger, [entry("more", 1, f"{account}/p", priority=9)]) is None


@pytest.mark.case("volcano#5994")
def test_case_volcano_5994() -> None:
    """Eleven members of one CPU with a minimum of 1; one CPU is asked back: one goes."""
    ledger = Ledger()
    ledger.put(Account("a", cpu(10)))
    ledger.put(Account("b", cpu(1), cpu(11)))
    for number in range(11):
        assert ledger.admit(
            entry(f"v{number}", 1, "b/p", PREEMPTIBLE, gang="g", group="w", group_min=1)
        ).booked
    assert len(names(give_back(ledger, [entry("asks", 1)]))) == 1


@pytest.mark.case("volcano#561")
def test_case_volcano_561() -> None:
    """Whoever gave back cannot take back: the test of who is over and who may ask is one."""
    ledger = tenants(8, 16)
    for number in range(16):
        assert ledger.admit(entry(f"b{number}", 1, "b/p", PREEMPTIBLE)).booked
    gone = names(give_back(ledger, [entry("a0", 8, cls=PREEMPTIBLE)]))
    assert len(gone) == 8
    for one in gone:
        ledger.end(one)
    assert ledger.admit(entry("a0", 8, cls=PREEMPTIBLE)).booked
    assert give_back(ledger, [entry("again", 1, "b/p", PREEMPTIBLE, priority=99)]) is None


@pytest.mark.case("volcano#3003")
def test_case_volcano_3003() -> None:
    """The first entry of a queue has nothing to start; the next one is tried."""
    line = [Waiting("empty", 1.0, 1, size=0), Waiting("next", 2.0, 2)]
    assert [one.id for one in ordered(line, QueuePolicy())] == ["next"]


@pytest.mark.case("KAI#1565")
def test_case_kai_1565_by_quota() -> None:
    """48 GPUs asked by who has its share already: nobody of the 376 goes."""
    ledger = Ledger()
    ledger.put(Account("a", {"gpu_count": 8}, {"gpu_count": 64}))
    ledger.put(Account("b", {"gpu_count": 400}))
    for number in range(47):
        ledger.admit(Entry(f"b{number}", "b/p", {"gpu_count": 8}, PREEMPTIBLE))
    ledger.admit(Entry("a0", "a/p", {"gpu_count": 8}, PREEMPTIBLE))
    assert give_back(ledger, [Entry("a1", "a/p", {"gpu_count": 48}, PREEMPTIBLE)]) is None


@pytest.mark.case("KAI#1750")
def test_case_kai_1750() -> None:
    """The sibling that is over gives; the protected bystander of low priority does not stop it."""
    ledger = tenants(4, 12, "starved", "sibling", "bystander")
    for number in range(8):
        assert ledger.admit(entry(f"s{number}", 1, "sibling/p", priority=5)).booked
    for number in range(4):
        assert ledger.admit(entry(f"p{number}", 1, "bystander/p", GUARANTEED, priority=-9)).booked
    gone = names(give_back(ledger, [entry("asks", 4, "starved/p", GUARANTEED)]))
    assert len(gone) == 4
    assert {one[0] for one in gone} == {"s"}


@pytest.mark.case("yunikorn-core#639", "yunikorn-core#636")
def test_case_yunikorn_core_639() -> None:
    """Without a guarantee nobody is asked; who is over in another dimension only is no victim."""
    ledger = Ledger()
    ledger.put(Account("none", {}, {}))
    ledger.put(Account("owner", {"memory_bytes": 200, "cpu_milli": 1000}))
    ledger.put(Account("odd", {"memory_bytes": 200, "sandboxes": 0}, {"sandboxes": 5}))
    odd = Entry("odd", "odd/p", {"memory_bytes": 100, "sandboxes": 1}, PREEMPTIBLE)
    assert ledger.admit(odd).booked
    ledger.put(Account("none", {"sandboxes": 0}, {"sandboxes": 9}))
    without_right = Entry("x", "none/p", {"memory_bytes": 300}, PREEMPTIBLE)
    assert give_back(ledger, [without_right]) in ([], None)
    asks = Entry("y", "owner/p", {"memory_bytes": 200}, PREEMPTIBLE)
    assert give_back(ledger, [asks]) == []


# ---- quota accounting


@pytest.mark.case("kubernetes#117663")
def test_case_kubernetes_117663() -> None:
    """Ended sandboxes free their quota; a second end frees nothing more."""
    ledger = tenants(2, 2)
    ledger.admit(entry("s", 2))
    assert ledger.end("s")
    assert not ledger.end("s")
    assert used(ledger, "a") == [0]
    assert ledger.admit(entry("t", 2)).booked


@pytest.mark.case("kubernetes#76787")
def test_case_kubernetes_76787() -> None:
    """A repeat, a refusal and a conflict leave the sums as they were."""
    ledger = tenants(2, 2)
    ledger.admit(entry("s", 1))
    assert ledger.admit(entry("s", 1)).booked
    assert ledger.admit(entry("t", 5)).refusals
    with pytest.raises(QuotaError, match="an id is for one account"):
        ledger.admit(entry("s", 1, "b/p"))
    assert used(ledger, "a", "b") == [1, 0]
    assert ledger.audit() == []


@pytest.mark.case("kueue#11195", "kueue#11198", "kueue#11553")
def test_case_kueue_11195() -> None:
    """From three to five: at each step the sum is that of the live; equal times keep one order."""
    ledger = tenants(5, 5)
    for live in range(1, 6):
        assert ledger.admit(entry(f"s{live}", 1)).booked
        assert used(ledger, "a") == [live]
    assert ledger.admit(entry("s6", 1)).refusals
    assert used(ledger, "a") == [5]
    line = [Waiting(name, 7.0, number) for number, name in enumerate("cab")]
    assert [one.id for one in ordered(reversed(line), QueuePolicy())] == ["c", "a", "b"]


@pytest.mark.case("kueue#13717")
def test_case_kueue_13717() -> None:
    """One index of a gang failed for good: its part is free while the others run."""
    ledger = tenants(3, 3)
    ledger.admit(*(entry(f"i{n}", 1, gang="g", group="w") for n in range(3)))
    ledger.end("i1")
    assert used(ledger, "a") == [2]
    assert ledger.admit(entry("other", 1)).booked


@pytest.mark.case("kueue#14200")
def test_case_kueue_14200() -> None:
    """Two names of one device are summed."""
    assert amounts({"gpu_count": 1, "gpu_milli": 500}) == {"gpu_milli": 1500}
    ledger = Ledger()
    ledger.put(Account("a", {"gpu_count": 1}))
    assert ledger.admit(Entry("s", "a/p", {"gpu_count": 1, "gpu_milli": 1})).refusals


@pytest.mark.case("kueue#11137", "kueue#11139", "kueue#11182", "kueue#12901", "kueue#14112")
def test_case_kueue_11137() -> None:
    """Near 2^63 sums are exact and never negative; no limit lets nothing absurd through."""
    near = (1 << 63) - 1
    ledger = Ledger()
    ledger.put(Account("a", {"cpu_milli": near}))
    assert ledger.admit(Entry("s", "a/p", {"cpu_milli": near})).booked
    (refusal,) = ledger.admit(Entry("t", "a/p", {"cpu_milli": near})).refusals
    assert (refusal.asked, refusal.free) == (near, 0)
    ledger.put(Account("free", {}))
    for number in range(3):
        ledger.admit(Entry(f"f{number}", "free/p", {"cpu_milli": near}))
    assert ledger.used("free") == {"cpu_milli": 3 * near}
    assert json.loads(json.dumps(ledger.used("free"))) == ledger.used("free")
    for huge in (1 << 63, 1 << 70):
        big = Request("s", Resources(cpu_milli=huge, memory_bytes=1 << 30))
        (mistake,) = asked.mistakes(big, asked.Asked.of(big))
        assert (mistake.dimension, mistake.largest) == ("cpu", near)


@pytest.mark.case("kueue#14200-kin")
def test_case_kueue_14200_kin_in_the_ledger() -> None:
    """A negative amount of one dimension cannot pay for another sandbox."""
    with pytest.raises(QuotaError, match="negative"):
        Entry("s", "a/p", {"gpu_count": -1, "gpu_milli": 1000})


@pytest.mark.case("kueue#13761")
def test_case_kueue_13761() -> None:
    """One request in ten thousand adds up over a long half-life instead of vanishing each time."""
    mix, rare = Mix(), Demand(1000, 1, 77)
    for _ in range(8):
        mix.observe(Demand(1000, 1, 500), 9_999)
        mix.observe(rare)
    weights = {s.milli: s.weight for s in mix.shapes(Group("", "", 64_000, 8, 80 << 30))}
    assert weights[77] == pytest.approx(1 / 10_000, rel=0.5)


@pytest.mark.case("kueue#13559")
def test_case_kueue_13559() -> None:
    """Weight 0 is last, also with high priority and long wait."""
    policy = QueuePolicy(queues={"none": Queue(weight=0.0), "default": Queue()})
    line = [
        Waiting("zero", 0.0, 0, queue="none", priority=9),
        Waiting("late", 1e9, 1, priority=-9),
    ]
    assert [one.id for one in ordered(line, policy)] == ["late", "zero"]


@pytest.mark.case("kueue#5985", "kueue#2873")
def test_case_kueue_5985() -> None:
    """The share is taken away; what its holder has beyond what it owns now is asked back."""
    ledger = tenants(8, 16)
    for number in range(12):
        assert ledger.admit(entry(f"b{number}", 1, "b/p", PREEMPTIBLE)).booked
    ledger.put(Account("b", cpu(2), cpu(16)))
    assert ledger.borrowed("b") == cpu(10)
    assert ledger.audit() == []
    assert len(names(give_back(ledger, [entry("owner", 8)]))) == 10


@pytest.mark.case("kueue#14630")
def test_case_kueue_14630() -> None:
    """Who names a foreign gang joins nothing of it, and pays itself."""
    ledger = tenants(8, 8)
    mine = entry("mine", 1, gang="shared")
    with pytest.raises(QuotaError, match="belong to one tenant"):
        ledger.admit(mine, entry("theirs", 1, "b/p", gang="shared"))
    assert used(ledger, "a", "b") == [0, 0]
    assert ledger.admit(entry("theirs", 1, "b/p", gang="shared")).booked
    assert used(ledger, "a", "b") == [0, 1]


@pytest.mark.case("koordinator#2391", "koordinator#2393", "koordinator#2432", "koordinator#2443")
def test_case_koordinator_2391() -> None:
    """Never 12 of 10; all of an owned 8 are had; what was lent comes back when it is asked for."""
    ledger = Ledger()
    ledger.put(Account("a", {"gpu_count": 8}, {"gpu_count": 10}))
    ledger.put(Account("b", {"gpu_count": 8}))
    had = [
        bool(ledger.admit(Entry(f"a{n}", "a/p", {"gpu_count": 1}, PREEMPTIBLE)).booked)
        for n in range(12)
    ]
    assert had == [True] * 10 + [False] * 2
    asks = [Entry(f"b{n}", "b/p", {"gpu_count": 1}, GUARANTEED) for n in range(9)]
    victims = names(give_back(ledger, asks[:8]))
    assert len(victims) == 2
    for one in victims:
        ledger.end(one)
    assert all(ledger.admit(one).booked for one in asks[:8])
    assert ledger.admit(asks[8]).refusals
    assert ledger.used("b") == {"gpu_milli": 8000}


@pytest.mark.case("HAMi#2535")
def test_case_hami_2535() -> None:
    """Node and quota count the same figures of the same sandbox."""
    wanted = request("s", cores=2.5, gib=3, disk_bytes=5 << 30)
    quota = amounts_of(wanted.resources)
    memory, _, disk, sandboxes, _, _, cpu_milli, _ = asked.amounts_of(
        asked.Asked.of(wanted), node("a")
    )
    assert quota == {
        "memory_bytes": memory,
        "disk_bytes": disk,
        "sandboxes": sandboxes,
        "cpu_milli": cpu_milli,
    }


@pytest.mark.case("kueue#11195")
def test_priorities_fall_along_the_line() -> None:
    """Whatever the arrivals, the order is the same each time."""
    line = [Waiting(f"w{n}", float(n % 3), n, priority=n % 4) for n in range(40)]
    first = ordered(line, QueuePolicy())
    assert first == ordered(reversed(line), QueuePolicy())
    assert all(a.priority >= b.priority for a, b in pairwise(first))
