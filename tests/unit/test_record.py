"""Decision records and dumps: compact, complete, and the same decision again offline."""

from datetime import UTC, datetime
from math import inf

import pytest
from dsec.api.decisions import LedgerFigure
from dsec.api.experiment import TaskClass
from dsec.placement.accounts import Account, QuotaError, amounts_of
from dsec.placement.backfill import Work, run_round
from dsec.placement.deciding import Wanted, decide
from dsec.placement.dumps import DecisionDump, DumpError, dump, line_of, replay
from dsec.placement.engine import place
from dsec.placement.entries import Entry
from dsec.placement.ledger import Ledger
from dsec.placement.mix import Mix
from dsec.placement.record import InputsDigest, ledger_figures, records
from dsec.placement.request import Decision, Request
from dsec.placement.scores import Weights
from dsec.placement.view import ClusterView
from hypothesis import given
from hypothesis import strategies as st
from placement_make import gpu, many, node, nodes_of, request, view

AT = datetime(2026, 1, 1, tzinfo=UTC)


def wanted(asked: Request, account: str = "t/p", **fields: object) -> Wanted:
    """Return a request with its entry."""
    return Wanted(asked, Entry(asked.id, account, amounts_of(asked.resources), **fields))


def cluster() -> ClusterView:
    """Return three nodes of two kinds, one of them partly used."""
    seen = view(node("a", 8, gpus=2), node("b", 4, labels={"zone": "z1"}), node("c", 4))
    place(seen, [request("old", cores=3), gpu("older", cores=1)])
    return seen


def test_one_record_for_all_that_asked_for_the_same() -> None:
    """A burst of 200 is one record with the counts of its nodes; another class has its own."""
    seen = view(*(node(f"n{n}", 20, 64) for n in range(5)))
    asked = [*many(200, cores=1), request("big", cores=64)]
    inputs = InputsDigest().of(seen)
    found = records(asked, place(seen, asked, record=True), inputs=inputs, at=AT, epoch=7)
    assert len(found) == 201
    assert len({id(one) for one in found.values()}) == 2
    burst, big = found["s0"], found["big"]
    assert (burst.asked, burst.placed, sum(burst.nodes.values())) == (200, 100, 100)
    assert burst.nodes == {f"n{n}": 20 for n in range(5)}
    parts = dict(place(view(node("n0", 20, 64)), asked[:1], record=True)[0].scores)
    assert {score.name for score in burst.scores} >= {"stranding"}
    assert "cost" not in {score.name for score in burst.scores}
    assert parts["cost"] == pytest.approx(sum(v for k, v in parts.items() if k != "cost"))
    assert burst.rejected[0].dimension == "cpu"
    assert (big.asked, big.placed) == (1, 0)
    assert big.rejected[0].nodes == 5
    assert "starts when" in big.rejected[0].text
    assert burst.id != big.id
    assert burst.inputs == inputs
    assert len(burst.model_dump_json()) < 2000


def test_the_record_says_what_was_asked_without_defaults() -> None:
    """Names are those of the wire."""
    asked = request("s", cores=2, gib=4, gpu_model="a100", task_class=TaskClass.PAUSABLE)
    seen = cluster()
    found = records([asked], place(seen, [asked]), inputs="", at=AT)["s"]
    assert found.request == {
        "resources": {"cpuMilli": 2000, "memoryBytes": 4 << 30},
        "gpuModel": "a100",
        "taskClass": "pausable",
    }


def test_the_record_holds_the_quotas_as_they_were() -> None:
    """Each limited dimension of the account and of those above it."""
    books = Ledger()
    books.put(Account("t", {"cpu_milli": 7000}, {"cpu_milli": 9000}))
    asked = wanted(request("s", cores=2))
    seen = cluster()
    found = records(
        [asked.request],
        place(seen, [asked.request]),
        inputs="",
        at=AT,
        figures=lambda _: ledger_figures(books, asked.entry),
    )["s"]
    figures = [one for one in found.ledger if one.account == "t"]
    assert figures == [
        LedgerFigure(
            account="t", dimension="cpu_milli", asked=2000, used=0, nominal=7000, ceiling=9000
        )
    ]
    assert books.audit() == []


def test_the_digest_follows_descriptions_and_figures_only() -> None:
    """The order in which nodes came does not count; any label, size or booking does."""
    nodes = [node("a", 8), node("b", 4, labels={"zone": "z1"})]
    base = InputsDigest().of(view(*nodes))
    assert InputsDigest().of(view(*reversed(nodes))) == base
    assert InputsDigest().of(view(nodes[0], node("b", 4, labels={"zone": "z2"}))) != base
    seen = view(*nodes)
    assert InputsDigest().of(seen) == base
    place(seen, [request("s")])
    assert InputsDigest().of(seen) != base
    seen.release("s")
    assert InputsDigest().of(seen) == base


def test_a_dump_replays_to_the_same_decision_after_json() -> None:
    """With bookings, a paused one, a learned mix, weights and quotas."""
    seen, mix = cluster(), Mix()
    place(seen, [gpu("learn", cores=1)], mix=mix)
    seen.pause("older")
    books = Ledger()
    books.put(Account("t", {"cpu_milli": 7000}, {"cpu_milli": 9000}))
    books.put(Account("other", {"cpu_milli": 4000}))
    asked = [
        *(wanted(one) for one in many(6, cores=1)),
        wanted(request("gang-1", gang="g", labels={"zone": "z1"})),
        wanted(request("gang-2", gang="g", cores=2)),
        wanted(gpu("g1"), "other/p", task_class=TaskClass.PREEMPTIBLE),
        wanted(request("over", cores=4)),
    ]
    weights = Weights(price=0.0)
    taken = dump(
        seen,
        [one.request for one in asked],
        at=AT,
        epoch=3,
        ledger=books,
        entries=[one.entry for one in asked],
        mix=mix,
        weights=weights,
    )
    taken.decisions = decide(seen, books, asked, mix=mix, weights=weights, learn=False)
    found = replay(DecisionDump.model_validate_json(taken.model_dump_json()))
    assert found.differences == []
    assert found.same
    assert {r.dimension for record in found.records for r in record.rejected} >= {"cpu_milli"}


@given(st.lists(st.sampled_from(["s", "m", "g", "h"]), min_size=1, max_size=12))
def test_any_dump_replays_to_the_same(kinds: list[str]) -> None:
    """Whatever mixture is asked for."""
    make = {
        "s": lambda n: request(f"r{n}"),
        "m": lambda n: request(f"r{n}", cores=3, gib=20),
        "g": lambda n: gpu(f"r{n}"),
        "h": lambda n: gpu(f"r{n}", gpu_shares=300, mode="shares"),
    }
    seen, asked = cluster(), [make[kind](n) for n, kind in enumerate(kinds)]
    taken = dump(seen, asked, at=AT)
    taken.decisions = place(seen, asked)
    assert replay(DecisionDump.model_validate_json(taken.model_dump_json())).same


def test_a_dump_of_a_line_keeps_room_as_it_was_kept() -> None:
    """The head waits for the end of what runs; a short one may overtake it, a long one may not."""
    seen, books = view(node("a", 4), node("b", 4)), Ledger()
    books.put(Account("t", {}))
    place(seen, [request("r1", cores=4), request("r2", cores=2)])
    asked = [
        wanted(request("head", cores=4)),
        wanted(request("long", cores=2)),
        wanted(request("short", cores=2)),
    ]
    works = [
        Work(one.request.id, (one.request,), 0.0, 10.0 if one.request.id == "short" else inf)
        for one in asked
    ]
    about = {"now": 100.0, "ends": {"r1": 200.0, "r2": 150.0}, "kept": None, "rested": {}}
    taken = dump(
        seen,
        [one.request for one in asked],
        at=AT,
        ledger=books,
        entries=[one.entry for one in asked],
        line=line_of(works, **about),
    )

    class Start:
        def place(self, requests: list[Request]) -> list[Decision]:
            return decide(seen, books, [wanted(one) for one in requests])

        def undo(self, ids: list[str]) -> None:
            for id_ in ids:
                seen.release(id_)
                books.end(id_)

    done = run_round(seen, works, Start(), **about)
    assert done.kept is not None
    taken.decisions = [done.decisions[one.request.id] for one in asked]
    assert [decision.id for decision in taken.decisions if decision.node] == ["short"]
    found = replay(DecisionDump.model_validate_json(taken.model_dump_json()))
    assert found.differences == []


def test_a_dump_of_another_version_or_with_bad_bookings_is_refused() -> None:
    """In words."""
    taken = dump(cluster(), [request("s")], at=AT)
    taken.decisions = [*place(cluster(), [request("s")])]
    with pytest.raises(DumpError, match="version: 9"):
        replay(taken.model_copy(update={"version": 9}))
    taken.bookings[0].node = "gone"
    with pytest.raises(DumpError, match="bookings: "):
        replay(taken)


def test_what_gets_no_place_gives_its_quota_back() -> None:
    """And what has no quota takes no place."""
    seen, books = view(node("a", 2)), Ledger()
    books.put(Account("t", {"cpu_milli": 3000}))
    asked = [wanted(one) for one in many(4, cores=1)]
    found = decide(seen, books, asked)
    assert nodes_of(found) == ["a", "a", "", ""]
    assert [one.refusals[0].reason.value for one in found[2:]] == ["capacity", "quota"]
    assert books.used("t")["cpu_milli"] == 2000
    assert set(seen.bookings()) == set(books.entries)


def test_a_gang_of_two_tenants_is_refused_and_nothing_changes() -> None:
    """Whoever names a foreign gang would be paid for by it."""
    seen, books = view(node("a", 8)), Ledger()
    for name in ("t", "u"):
        books.put(Account(name, {"cpu_milli": 8000}))
    asked = [
        wanted(request("free")),
        wanted(request("x", gang="g")),
        wanted(request("y", gang="g"), "u/p"),
    ]
    with pytest.raises(QuotaError, match="gang g: members of tenants t, u"):
        decide(seen, books, asked)
    assert not books.entries
    assert not seen.bookings()
