"""Quota leases: granted out of free quota, spent by gateways, never more than there is."""

from dataclasses import replace

import pytest
from dsec.api.reasons import PendingReason
from dsec.placement.accounts import Account, QuotaError
from dsec.placement.entries import Entry
from dsec.placement.leases import DURATION_S, MARGIN_S, SAFETY_S, Lease, LeaseBook, Purse
from dsec.placement.ledger import Ledger
from dsec.placement.quota_words import Limit
from quota_make import GUARANTEED, PAUSABLE, cpu, entry, tenants


def lease(name: str, cores: int, account: str = "a/p", cls: object = PAUSABLE) -> Lease:
    """Build what a gateway asks for."""
    return Lease(name, "gw", account, cpu(cores), cls, epoch=0)  # type: ignore[arg-type]


def book(ledger: Ledger | None = None) -> LeaseBook:
    """Return the book of a first leader."""
    return LeaseBook(ledger or tenants(8, 8, "a"), 1, 0.0, first=True)


def granted(books: LeaseBook, asked: Lease, now: float = 0.0) -> Lease:
    """Return a lease that has to be granted."""
    found = books.grant(asked, now)
    assert isinstance(found, Lease)
    return found


def test_a_slice_is_booked_when_granted() -> None:
    """Used by nobody yet, free for nobody else; refused above what is free, with the figures."""
    books = book()
    assert granted(books, lease("l", 5)).epoch == 1
    assert books.ledger.leased("a") == cpu(5)
    assert books.ledger.used("a") == {}
    refusals = books.grant(lease("m", 4), 0.0)
    assert not isinstance(refusals, Lease)
    assert (refusals[0].limit, refusals[0].free) == (Limit.CEILING, 3000)
    assert books.ledger.admit(entry("x", 4)).refusals
    assert books.ledger.admit(entry("x", 3)).booked


def test_spending_moves_from_lease_to_use() -> None:
    """Reported twice, told by the agent as well: counted once; its end frees it for the tenant."""
    books, purse = book(), Purse("gw")
    purse.put(granted(books, lease("l", 5)), sent_at=0.0)
    one = entry("s", 2)
    assert purse.spend(one, 1.0) == "l"
    assert purse.left("l") == cpu(3)
    sent = list(purse.unreported["l"])
    renewed = books.renew("l", sent, 1.0)
    assert renewed is not None
    purse.put(renewed, sent_at=1.0)
    purse.reported("l", sent)
    assert purse.unreported["l"] == []
    books.report("l", sent)
    books.seen(one, "l", live=True)
    assert (books.ledger.used("a"), books.ledger.leased("a")) == (cpu(2), cpu(3))
    books.seen(one, "l", live=False)
    assert (books.ledger.used("a"), books.ledger.leased("a")) == ({}, cpu(3))
    books.report("l", sent)
    assert books.ledger.used("a") == {}
    assert books.ledger.audit() == []


def test_what_ended_before_the_report_is_not_booked_again() -> None:
    """The agent's word comes first, the holder's late: the sandbox is gone, its price is free."""
    books = book()
    granted(books, lease("l", 5))
    books.seen(entry("s", 2), "l", live=False)
    books.report("l", [entry("s", 2)])
    assert (books.ledger.used("a"), books.ledger.leased("a")) == ({}, cpu(3))


def test_an_expired_lease_buys_nothing() -> None:
    """The holder stops early by its own clock, whatever that clock shows."""
    books, purse = book(), Purse("gw")
    purse.put(granted(books, lease("l", 5)), sent_at=5000.0)
    last = 5000.0 + DURATION_S * 0.99 - SAFETY_S
    assert purse.spend(entry("s", 1), last - 0.001) == "l"
    refusals = purse.spend(entry("t", 1), last)
    assert not isinstance(refusals, str)
    assert refusals[0].reason is PendingReason.CONTROL_PLANE
    assert purse.due(5004.0) == ["l"]


def test_the_leader_keeps_a_slice_until_agents_have_been_heard() -> None:
    """Not at its end, not with the margin while an agent is silent; then at once."""
    books = book()
    granted(books, lease("l", 5))
    assert books.expire(DURATION_S, DURATION_S) == []
    assert books.expire(DURATION_S + MARGIN_S, DURATION_S) == []
    assert books.ledger.leased("a") == cpu(5)
    books.seen(entry("s", 2), "l", live=True)
    assert books.expire(DURATION_S + MARGIN_S, DURATION_S + MARGIN_S) == ["l"]
    assert (books.ledger.used("a"), books.ledger.leased("a")) == (cpu(2), {})
    # a report that comes later than that is old news
    books.report("l", [entry("s", 2), entry("ended", 3)])
    assert books.renew("l", [], 13.0) is None
    assert books.ledger.used("a") == cpu(2)


def test_a_grant_asked_again_is_a_renewal() -> None:
    """The first answer was lost; the holder counts from its second request."""
    books = book()
    granted(books, lease("l", 5))
    granted(books, lease("l", 5), now=6.0)
    assert books.ledger.leased("a") == cpu(5)
    assert books.expire(13.0, 13.0) == []
    assert books.expire(18.0, 18.0) == ["l"]


def test_a_borrowed_lease_is_not_renewed_when_its_owner_asks() -> None:
    """The owner's room is there within one term."""
    books = book(tenants(8, 12))
    granted(books, lease("l", 12))
    granted(books, lease("own", 2, "b/p"))
    assert books.borrowed() == ["l"]
    books.revoke(books.borrowed())
    assert books.renew("l", [], 1.0) is None
    assert isinstance(books.renew("own", [], 1.0), Lease)


def test_a_lease_handed_back_is_free_at_once() -> None:
    """With its last report."""
    books = book()
    granted(books, lease("l", 5))
    books.hand_back("l", [entry("s", 1)], 1.0)
    assert (books.ledger.used("a"), books.ledger.leased("a")) == (cpu(1), {})
    books.hand_back("l", [], 1.0)


def test_an_id_is_for_one_slice() -> None:
    """A request or an answer that comes once more after it was handed back buys nothing."""
    books, purse = book(), Purse("gw")
    answer = granted(books, lease("l", 5))
    purse.put(answer, sent_at=0.0)
    purse.drop("l")
    purse.put(answer, sent_at=0.0)
    assert purse.spend(entry("s", 1), 1.0) != "l"
    books.hand_back("l", [], 1.0)
    assert not isinstance(books.grant(lease("l", 5), 2.0), Lease)
    assert books.ledger.leased("a") == {}
    books.expire(700.0, 700.0)
    purse.due(700.0)
    assert isinstance(books.grant(lease("l", 5), 700.0), Lease)


def test_a_new_leader_waits_for_the_leases_of_the_old() -> None:
    """It grants nothing until they can no longer be spent, or all have been shown and read."""
    books = LeaseBook(tenants(8, 8, "a"), 2, 100.0)
    refusals = books.grant(lease("l", 1), 100.0)
    assert not isinstance(refusals, Lease)
    assert refusals[0].reason is PendingReason.CONTROL_PLANE
    assert books.restore([lease("old", 5), lease("more", 9)], 100.0, complete=True) == ["more"]
    books.restore([lease("old", 5)], 100.0, complete=True)
    assert books.ledger.leased("a") == cpu(5)
    books.expire(104.0, 103.0)
    assert not books.open(104.0)
    books.expire(104.0, 104.0)
    assert granted(books, lease("l", 3), 104.0).epoch == 2


def test_a_holder_forgets_leaders_that_rule_no_more() -> None:
    """A renewal of an older epoch that comes late changes nothing."""
    purse = Purse("gw")
    purse.put(replace(lease("l", 5), epoch=2), sent_at=0.0)
    purse.put(replace(lease("m", 5), epoch=1), sent_at=0.0)
    assert list(purse.leases) == ["l"]


def test_a_refund_is_for_calls_that_were_never_made() -> None:
    """It is spendable again, and not reported; one that was answered for stays paid."""
    purse = Purse("gw")
    purse.put(replace(lease("l", 5), epoch=1), sent_at=0.0)
    one = entry("s", 4)
    assert purse.spend(one, 0.0) == "l"
    refusals = purse.spend(entry("t", 2), 0.0)
    assert not isinstance(refusals, str)
    assert (refusals[0].limit, refusals[0].free, refusals[0].whose) == (Limit.LEASE, 1000, "gw")
    purse.refund("l", one)
    assert purse.left("l") == cpu(5)
    assert purse.unreported["l"] == []
    purse.refund("l", one)
    assert purse.left("l") == cpu(5)
    purse.drop("l")
    assert purse.spend(one, 0.0) != "l"


@pytest.mark.parametrize(
    ("spent", "message"),
    [
        (entry("s", 1, "b/p"), "lease l is for a/p"),
        (entry("s", 1, "a/p/t"), "needs a lease of its own"),
        (entry("s", 1, cls=GUARANTEED), "lease l is for pausable work"),
        (entry("s", 6), "lease l has 5000 left"),
    ],
)
def test_a_lease_pays_only_for_what_it_is_for(spent: Entry, message: str) -> None:
    """The field and the lease are named; an agent's fact is counted all the same."""
    books = book()
    books.ledger.put(Account("a/p/t", cpu(1)))
    granted(books, lease("l", 5))
    with pytest.raises(QuotaError, match=message):
        books.ledger.spend("l", spent)
    assert books.ledger.leased("a") == cpu(5)
    books.seen(spent, "l", live=True)
    assert spent.id in books.ledger.entries
    assert books.ledger.audit() == []


def test_a_slice_is_a_part_of_what_is_free_and_never_too_small_to_use() -> None:
    """A quarter at most; below what one create takes nothing is lent at all."""
    ledger = Ledger()
    ledger.put(Account("team", {"sandboxes": 40, "cpu_milli": 10_000}))
    book = LeaseBook(ledger, 1, 0.0, first=True)
    wanted = Lease("l1", "gw", "team/lab", {"sandboxes": 30, "cpu_milli": 1000}, GUARANTEED, 1)
    found = book.lend(wanted, {"sandboxes": 1, "cpu_milli": 100}, 1.0)
    assert isinstance(found, Lease)
    assert found.amounts == {"sandboxes": 10, "cpu_milli": 1000}
    assert book.shown() == [found]
    refused = book.lend(replace(wanted, id="l2"), {"sandboxes": 8}, 1.0)
    assert not isinstance(refused, Lease)
    assert ledger.leased("team") == {"sandboxes": 10, "cpu_milli": 1000}
