"""Borrowed quota goes back to its owner: who is asked, who never is, and in which order."""

from dsec.placement.accounts import Account
from dsec.placement.entries import Entry
from dsec.placement.ledger import Ledger
from dsec.placement.reclaim import Return, borrower, give_back
from quota_make import GUARANTEED, PAUSABLE, PREEMPTIBLE, cpu, entry, tenants, used


def ids(found: list[Return] | None) -> list[str]:
    """Return who is asked; there has to be an answer."""
    assert found is not None
    return [one.entry.id for one in found]


def give(ledger: Ledger, *asking: Entry) -> list[str]:
    """Carry out what is asked back, admit the asker, and return the victims."""
    found = give_back(ledger, asking)
    assert found is not None
    for one in found:
        if one.pause:
            ledger.pause(one.entry.id)
        else:
            ledger.end(one.entry.id)
    assert ledger.admit(*asking).booked
    assert ledger.audit() == []
    return [one.entry.id for one in found]


def borrowed_12() -> Ledger:
    """Return nominal 8 and ceiling 12 in full use by a, one core each, two classes."""
    ledger = tenants()
    for n in range(12):
        cls = PAUSABLE if n % 2 else PREEMPTIBLE
        ledger.admit(entry(f"x{n:02}", 1, cls=cls, since=float(n)))
    return ledger


def test_falls_back_to_nominal_when_the_owners_return() -> None:
    """TEN-02: 12 become 8, pausable work first, the youngest of it first; then it stops."""
    ledger = borrowed_12()
    assert give(ledger, entry("o1", 6, "b/p", GUARANTEED)) == ["x11", "x09"]
    assert give(ledger, entry("o2", 2, "b/p", GUARANTEED)) == ["x07", "x05"]
    assert used(ledger, "a", "b") == [8, 8]
    assert give_back(ledger, [entry("o3", 1, "b/p", GUARANTEED)]) is None


def test_a_pause_is_enough_for_cpu_and_not_for_memory() -> None:
    """TEN-12: paused where that gives back what lacks, stopped where it does not."""
    for dimension, pause in (("cpu_milli", True), ("memory_bytes", False)):
        ledger = Ledger()
        for name in "ab":
            ledger.put(Account(name, {dimension: 4}, {dimension: 8}))
        ledger.admit(Entry("x", "a/p", {"cpu_milli": 6, "memory_bytes": 6}, PAUSABLE))
        found = give_back(ledger, [Entry("o", "b/p", {dimension: 4}, GUARANTEED)])
        assert found is not None
        assert [(one.entry.id, one.pause) for one in found] == [("x", pause)]


def test_preemptible_work_is_stopped() -> None:
    """It consented to lose its place, not to being frozen in it."""
    ledger = tenants()
    ledger.admit(entry("x", 12, cls=PREEMPTIBLE))
    found = give_back(ledger, [entry("o", 8, "b/p")])
    assert found is not None
    assert [one.pause for one in found] == [False]


def test_guaranteed_work_is_never_asked() -> None:
    """Not within nominal, and not above one that was lowered: the owner waits."""
    ledger = tenants()
    ledger.admit(*[entry(f"g{n}", 1, cls=GUARANTEED) for n in range(8)], entry("s", 4))
    ledger.put(Account("a", cpu(2), cpu(12)))
    ledger.put(Account("b", cpu(14), cpu(14)))
    found = give_back(ledger, [entry("o", 8, "b/p")])
    assert ids(found) == ["s"]
    assert give_back(ledger, [entry("o", 9, "b/p")]) is None


def test_a_borrower_asks_nobody() -> None:
    """What is above one's own share has to be idle; else it waits."""
    ledger = tenants(8, 16)
    ledger.admit(entry("x", 12))
    ledger.admit(entry("y", 4, "b/p"))
    assert give_back(ledger, [entry("z", 5, "b/p")]) is None
    assert ids(give_back(ledger, [entry("z", 4, "b/p")])) == ["x"]


def test_within_a_tenant_the_delegated_share_comes_back() -> None:
    """Project q owns 60 of 100; p without a share has used 50: ten come back, from p alone."""
    ledger = Ledger()
    ledger.put(Account("a", cpu(100)))
    ledger.put(Account("a/q", cpu(60)))
    ledger.admit(*[entry(f"p{n}", 5, since=float(n)) for n in range(10)])
    assert give(ledger, entry("q0", 55, "a/q", GUARANTEED)) == ["p9"]
    assert give(ledger, entry("q1", 5, "a/q", PREEMPTIBLE)) == ["p8"]
    assert used(ledger, "a/p", "a/q") == [40, 60]
    # p has no more than what q leaves: guaranteed work of q can only have q's own softer place
    assert ids(give_back(ledger, [entry("q2", 1, "a/q", GUARANTEED)])) == ["q1"]
    assert give_back(ledger, [entry("q3", 6, "a/q", GUARANTEED)]) is None


def test_the_project_that_has_too_much_gives_not_its_neighbour() -> None:
    """Of one tenant above its share, the project within its own part is left alone."""
    ledger = tenants()
    ledger.put(Account("a/p", cpu(4)))
    ledger.put(Account("a/q", cpu(4), cpu(12)))
    ledger.admit(entry("in", 4, "a/p", since=9.0), *[entry(f"q{n}", 2, "a/q") for n in range(4)])
    assert ids(give_back(ledger, [entry("o", 8, "b/p")])) == ["q0", "q1"]


def test_guaranteed_work_gets_its_own_tenants_softer_room() -> None:
    """A share full of pausable work: the reservation is honoured by pausing some of it."""
    ledger = tenants(8, 8)
    ledger.admit(*[entry(f"s{n}", 2, since=float(n)) for n in range(4)])
    assert give(ledger, entry("g", 3, cls=GUARANTEED)) == ["s3", "s2"]
    assert used(ledger, "a") == [7]


def test_what_would_be_softened_above_nominal_is_no_owner() -> None:
    """Guaranteed work above nominal becomes a borrower by its tenant's wish: it asks nobody."""
    ledger = tenants()
    ledger.put(Account("a", cpu(8), cpu(12), above_nominal=PAUSABLE))
    ledger.admit(entry("g", 8, cls=GUARANTEED))
    ledger.admit(entry("b0", 8, "b/p"))
    assert give_back(ledger, [entry("h", 2, cls=GUARANTEED)]) is None


def test_own_work_of_lower_priority_only_when_asked_for() -> None:
    """Within one tenant a higher priority may take the place of a lower one."""
    ledger = tenants(8, 8)
    ledger.admit(entry("low", 4, priority=-1), entry("same", 4))
    asking = [entry("high", 4, priority=0)]
    assert give_back(ledger, asking) is None
    assert ids(give_back(ledger, asking, own_below=0)) == ["low"]


def test_a_trainer_is_not_displaced() -> None:
    """GPU-17: though its class consents."""
    ledger = tenants()
    ledger.admit(entry("t", 6, role="trainer"), entry("s", 6, role="sim"))
    assert ids(give_back(ledger, [entry("o", 8, "b/p")])) == ["s"]
    assert not borrower(ledger, ledger.entries["t"], ["cpu_milli"])
    assert borrower(ledger, ledger.entries["s"], ["cpu_milli"])
    assert not borrower(ledger, ledger.entries["s"], ["memory_bytes"])


def test_a_gang_asks_for_all_or_nothing() -> None:
    """Room for half of a gang displaces nobody."""
    ledger = tenants()
    ledger.admit(entry("x", 12))
    ledger.admit(entry("g", 2, "b/p", GUARANTEED))
    assert give_back(ledger, [entry(f"o{n}", 4, "b/p", GUARANTEED) for n in range(2)]) is None
    assert ids(give_back(ledger, [entry(f"o{n}", 3, "b/p", GUARANTEED) for n in range(2)])) == ["x"]
