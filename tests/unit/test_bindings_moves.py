"""What the bind log says of moves and sleep: it survives the log, and its snapshots."""

import json
from datetime import UTC, datetime

from dsec.api.sandbox import Identity, Resources, SandboxSpec
from dsec.api.snapshot import RestoreFrom, SnapshotKind, SnapshotPlan
from dsec.journal.bindings import Binding, Bindings, Kept, Row
from dsec.journal.bindlog import Segment, decode, encode

NOW = datetime(2026, 1, 1, tzinfo=UTC)
IDS = [f"sb-{'0' * 25}{number}" for number in range(4)]


def binding(id_: str) -> Binding:
    """Return one of a batch, bound to node `n`."""
    spec = SandboxSpec(
        identity=Identity(id=id_, tenant="t", project="p"),
        image="base",
        resources=Resources(cpu_milli=1, memory_bytes=1 << 20),
        snapshot=SnapshotPlan(kinds=[SnapshotKind.STATE]),
    )
    return Binding(tenant="t", key=id_, body_hash="h", id=id_, node="n", at=NOW, spec=spec)


def rows() -> list[Row]:
    """Return a batch, a move of the first, and the sleep of the second."""
    return [
        *(Row(kind="bind", at=NOW, binding=binding(id_)) for id_ in IDS),
        Row(
            kind="bind",
            at=NOW,
            id=IDS[0],
            node="m",
            incarnation=2,
            kept=Kept(node="n", incarnation=1, rested=True),
            restore=RestoreFrom(lineage=f"sb/{IDS[0]}", seq=3),
        ),
        Row(
            kind="bind",
            at=NOW,
            id=IDS[1],
            asleep="ann",
            incarnation=2,
            restore=RestoreFrom(lineage=f"sb/{IDS[1]}", seq=1),
        ),
    ]


def test_a_move_and_a_sleep_survive_segments_and_snapshots() -> None:
    """Every leader that reads the log knows which copy is kept, and who sleeps; others are none."""
    stored = decode(encode(Segment(epoch=1, writer="w", rows=rows())))
    assert [row.wire() for row in stored.rows] == [row.wire() for row in rows()]
    first = Bindings()
    first.apply(stored.rows)
    for state in (first, Bindings.load(json.loads(json.dumps(first.dump())))):
        moved, asleep, third = (state.by_id[id_] for id_ in IDS[:3])
        assert (moved.node, moved.kept) == ("m", Kept(node="n", incarnation=1, rested=True))
        assert moved.spec.restore == RestoreFrom(lineage=f"sb/{IDS[0]}", seq=3)
        assert (asleep.node, asleep.asleep, asleep.live) == ("", "ann", True)
        assert state.waiting() == [], "who sleeps asks for no node"
        assert IDS[1] not in state.bound
        assert (third.spec.restore, third.spec.identity.incarnation) == (None, 1)


def test_a_move_ends_or_is_taken_back_and_no_number_is_used_twice() -> None:
    """Settled it has no other copy; taken back the old one counts, and its number stays used."""
    state = Bindings()
    state.apply(rows())
    state.apply([Row(kind="bind", at=NOW, id=IDS[0], node="m", behind="t/k")])
    assert state.by_id[IDS[0]].kept is not None, "another row to its node changes nothing of it"
    back = Row(kind="bind", at=NOW, id=IDS[0], node="n", incarnation=1)
    state.apply([back])
    one = state.by_id[IDS[0]]
    assert (one.node, one.kept, one.spec.identity.incarnation) == ("n", None, 1)
    assert one.next_incarnation == 3
    kept = Kept(node="n", incarnation=1)
    again = Row(kind="bind", at=NOW, id=IDS[0], node="m", incarnation=3, kept=kept)
    state.apply([again, Row(kind="bind", at=NOW, id=IDS[0], node="m", settled=True)])
    assert (one.kept, one.next_incarnation) == (None, 4)


def test_who_is_woken_asks_for_a_node() -> None:
    """With what it was saved as, and the number that its last copy did not have."""
    state = Bindings()
    state.apply(rows())
    state.apply([Row(kind="bind", at=NOW, id=IDS[1])])
    (woken,) = state.waiting()
    assert (woken.id, woken.spec.identity.incarnation) == (IDS[1], 2)
    assert woken.spec.restore is not None
