"""References, retention, merging, keys and routes: what each promises, and by properties."""

import asyncio
import json
import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from dsec.api.replication import ReplicationDestination, ReplicationPolicySpec
from dsec.api.snapshot import SnapshotRef
from dsec.rules.replication import mistakes
from dsec.snapshots.homes import Home, root_of, take_home
from dsec.snapshots.keys import (
    FileKeys,
    KeyAwayError,
    KeyFileError,
    KeyUnknownError,
    KmsKeys,
    fresh_key,
    make_key_file,
    read_key_file,
)
from dsec.snapshots.layout import bound_to, parse_name, prefix_of, repository_of
from dsec.snapshots.merging import (
    Merged,
    PoolRecord,
    RecordError,
    merge,
    read_lines,
    write_lines,
)
from dsec.snapshots.refs import (
    FencedError,
    Pin,
    TakenError,
    bury,
    in_force,
    list_refs,
    newest,
    next_seq,
    park,
    pin,
    pins,
    publish,
    ref_key,
    unpin,
)
from dsec.snapshots.retention import Activity, Retention, outlived, sweep
from dsec.snapshots.routing import Residency, routes
from dsec.snapshots.standing import standing, together
from dsec.world.kms import KmsError, KmsRefusedError
from dsec.world.memory import MemoryObjects
from dsec.world.objects import NotFoundError, ObjectStoreError
from fault_objects import Fault, FaultyObjects
from hypothesis import given
from hypothesis import strategies as st
from snapshot_world import LINEAGE, PREFIX, START, SeededRandomness, StepClock, ref_of

# ---------------------------------------------------------------------- references


async def test_of_many_publishers_of_a_number_one_has_it() -> None:
    """Twenty at once; the others learn the next free number."""
    objects = MemoryObjects()

    async def one(number: int) -> SnapshotRef | TakenError:
        try:
            return await publish(objects, PREFIX, ref_of(1, sandbox=f"sb-{number}"))
        except TakenError as problem:
            return problem

    found = await asyncio.gather(*(one(number) for number in range(20)))
    assert sum(isinstance(one, SnapshotRef) for one in found) == 1
    assert {one.free for one in found if isinstance(one, TakenError)} == {2}


async def test_a_replaced_copy_publishes_nothing() -> None:
    """A later incarnation has published: the earlier one is fenced, at every number."""
    objects = MemoryObjects()
    await publish(objects, PREFIX, ref_of(1))
    await publish(objects, PREFIX, ref_of(2, incarnation=2))
    for seq in (2, 3):
        with pytest.raises(FencedError, match=r"incarnation 1 .* is replaced by 2"):
            await publish(objects, PREFIX, ref_of(seq))
    assert await newest(objects, PREFIX, LINEAGE) == ref_of(2, incarnation=2)


async def test_no_number_and_no_home_that_there_cannot_be() -> None:
    """A copy that claims a later home than is recorded would stand above the true one's."""
    objects = MemoryObjects()
    with pytest.raises(ValueError, match="seq 1000000000000: wanted is a number of at most 12"):
        await publish(objects, PREFIX, ref_of(1).model_copy(update={"seq": 10**12}))
    with pytest.raises(ValueError, match="homeEpoch 1: the recorded one is 0"):
        await publish(objects, PREFIX, ref_of(1, home_epoch=1))
    home = Home(root=root_of(LINEAGE), region="b", epoch=1, at=StepClock().now())
    await take_home(objects, PREFIX, home)
    with pytest.raises(ValueError, match="homeEpoch 2: the recorded one is 1"):
        await publish(objects, PREFIX, ref_of(1, home_epoch=2))
    assert await publish(objects, PREFIX, ref_of(1, home_epoch=1)) == ref_of(1, home_epoch=1)


async def test_publishing_again_is_no_error_and_a_number_is_never_given_twice() -> None:
    """Lost answers are repeated; deleted and parked numbers stay taken."""
    clock = StepClock()
    inner = MemoryObjects()
    lossy = FaultyObjects(inner, clock, rate=1.0, faults=(Fault.LOST,))
    ref = ref_of(1)
    assert await publish(lossy, PREFIX, ref) == ref
    assert await publish(inner, PREFIX, ref) == ref
    await bury(inner, PREFIX, ref, why="asked", now=clock.now())
    await park(inner, PREFIX, await publish(inner, PREFIX, ref_of(2)))
    assert await next_seq(inner, PREFIX, LINEAGE) == 3
    for seq in (1, 2):
        with pytest.raises(TakenError):
            await publish(inner, PREFIX, ref_of(seq))


@pytest.mark.parametrize("seed", range(12))
async def test_a_reference_that_was_acknowledged_can_be_read(seed: int) -> None:
    """Through every fault of a store: what `publish` returned is there, whole."""
    clock = StepClock()
    inner = MemoryObjects()
    store = FaultyObjects(inner, clock, seed, 0.25)
    for seq in range(1, 8):
        ref = ref_of(seq)
        try:
            assert await publish(store, PREFIX, ref) == ref
        except (ObjectStoreError, TakenError):
            continue  # nothing was promised
        assert ref in (await list_refs(inner, PREFIX)).refs
        assert await next_seq(inner, PREFIX, LINEAGE) == seq + 1


async def test_pins_hold_and_are_said_to() -> None:
    """A pin of what is gone is an error; an expired one holds nothing."""
    objects = MemoryObjects()
    await publish(objects, PREFIX, ref_of(1))
    wanted = Pin(lineage=LINEAGE, seq=1, who="me", why="paper", at=START)
    await pin(objects, PREFIX, wanted)
    longer = wanted.model_copy(update={"until": START + timedelta(days=1)})
    await pin(objects, PREFIX, longer)
    assert await pins(objects, PREFIX) == [longer]
    assert longer.holds(START)
    assert not longer.holds(START + timedelta(days=1))
    with pytest.raises(NotFoundError):
        await pin(objects, PREFIX, wanted.model_copy(update={"seq": 9}))
    await unpin(objects, PREFIX, LINEAGE, 1)
    await unpin(objects, PREFIX, LINEAGE, 1)
    assert [one.seq for one in await pins(objects, PREFIX, LINEAGE)] == []


def test_names_of_snapshots_and_repositories() -> None:
    """Both ways, and what is none is refused with what is wanted."""
    assert parse_name(f"{LINEAGE}@12") == (LINEAGE, 12)
    for wrong in ("x@1", f"{LINEAGE}@0", LINEAGE, "exp/../x@1", "exp/a//b@1"):
        with pytest.raises(ValueError, match="wanted is"):
            parse_name(wrong)
    assert prefix_of("team-a") == "snapshots/team-a/"
    assert prefix_of("team-a", ["eu"], ["eu"]) == "snapshots/team-a/"
    tight = prefix_of("team-a", ["eu/1", "a+b"], ["eu", "us"])
    assert bound_to(tight) == ("team-a", ("a+b", "eu/1"))
    assert repository_of(ref_key(tight, LINEAGE, 1)) == tight


# ---------------------------------------------------------------------- retention

DATED = st.lists(st.integers(0, 60 * 24), min_size=1, max_size=12, unique=True)


@given(DATED, st.integers(1, 5), st.integers(0, 70 * 24), st.booleans(), st.data())
def test_what_a_rule_never_removes(
    hours: list[int], retain: int, age: int, live: bool, data: st.DataObject
) -> None:
    """Pinned, held, and of a live task the newest good ones; and twice is the same as once."""
    refs = [ref_of(n, created=START + timedelta(hours=h)) for n, h in enumerate(sorted(hours), 1)]
    seqs = [ref.seq for ref in refs]
    pinned = data.draw(st.sets(st.sampled_from(seqs)))
    held = data.draw(st.sets(st.sampled_from(seqs)))
    bad = data.draw(st.sets(st.sampled_from(seqs)))
    kept = [Pin(lineage=LINEAGE, seq=seq, who="me", at=START) for seq in pinned]
    newest_at = max(ref.created for ref in refs)
    now = newest_at + timedelta(hours=age)
    activity = Activity(ended=None if live else newest_at, retain=retain)

    def rule(known: Sequence[SnapshotRef]) -> set[int]:
        found = sweep(known, now=now, activity=activity, pins=kept, held=held, bad=bad)
        return {one.ref.seq for one in found}

    gone = rule(refs)
    assert not gone & (pinned | held)
    good = [seq for seq in reversed(seqs) if seq not in bad]
    if live or age < 7 * 24:
        assert not gone & set(good[:retain])
        assert len(seqs) - len(gone) >= min(1, len(seqs))
    if not live and age >= 30 * 24:
        assert gone == set(seqs) - pinned - held
    if not gone & {ref.seq for ref in refs if ref.created == newest_at}:
        assert rule([ref for ref in refs if ref.seq not in gone]) == set()


def test_five_snapshots_leave_three() -> None:
    """SNAP-07, and a damaged one does not count as kept."""
    refs = [ref_of(n) for n in range(1, 6)]
    now = START + timedelta(hours=1)
    assert [one.ref.seq for one in sweep(refs, now=now)] == [1, 2]
    assert [one.ref.seq for one in sweep(refs, now=now, bad=[5])] == [1, 5]
    assert [one.ref.seq for one in sweep([refs[0]], now=now, bad=[1])] == []
    with pytest.raises(ValueError, match="retain: 0"):
        Retention(retain=0)


async def test_the_last_tombstone_of_a_lineage_stays() -> None:
    """Old ones go, but not the one that keeps the number taken."""
    objects = MemoryObjects()
    for seq in (1, 2):
        ref = await publish(objects, PREFIX, ref_of(seq))
        await bury(objects, PREFIX, ref, why="rule", now=START)
    from dsec.snapshots.refs import tombstones

    stones = await tombstones(objects, PREFIX)
    assert outlived(stones, now=START + timedelta(days=89)) == []
    assert [one.seq for one in outlived(stones, now=START + timedelta(days=90))] == [1]


# ---------------------------------------------------------------------- merging

RECORDS = st.builds(
    PoolRecord,
    seq=st.integers(0, 30),
    body=st.sampled_from([b"a", b"b", b"c"]),
    incarnation=st.integers(0, 2),
)
PIECES = st.lists(
    st.lists(RECORDS, max_size=12).map(lambda run: sorted(run, key=lambda one: one.seq)), max_size=5
)


def _merged(pieces: Sequence[Sequence[PoolRecord]]) -> list[PoolRecord]:
    return list(merge(pieces, Merged()))


@given(PIECES, st.randoms(use_true_random=False))
def test_merging_is_idempotent_and_free_of_order(
    pieces: list[list[PoolRecord]],
    random: "object",
) -> None:
    """Any order, any grouping, twice: one record per number, always the same one."""
    whole = _merged(pieces)
    shuffled = list(pieces)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert _merged(shuffled) == whole
    assert _merged([*pieces, *pieces]) == whole
    assert _merged([whole, whole]) == whole
    half = len(pieces) // 2
    assert _merged([_merged(pieces[:half]), _merged(pieces[half:])]) == whole
    seqs = [one.seq for one in whole]
    assert seqs == sorted({one.seq for piece in pieces for one in piece})


def test_a_merge_says_what_it_found() -> None:
    """Repeats, conflicts, gaps, and where writing resumes."""
    old = [PoolRecord(1, b"1"), PoolRecord(2, b"2"), PoolRecord(3, b"lost")]
    new = [PoolRecord(2, b"2"), PoolRecord(3, b"again", 1), PoolRecord(6, b"6", 1)]
    report = Merged()
    found = list(merge([old, new], report))
    assert [one.body for one in found] == [b"1", b"2", b"again", b"6"]
    assert (report.count, report.repeated, report.conflicts) == (4, 2, [3])
    assert (report.gaps, report.resume, Merged().resume) == ([(4, 5)], 7, 1)


def test_lines_are_records_and_half_a_line_is_none() -> None:
    """The line that was being written is left out; what is no record is named."""
    lines = [b'{"seq": 1, "x": 0}\n', b"\n", b'{"seq": 2, "incarnation": 3}\n', b'{"seq": 3']
    found = list(read_lines(lines, "pool.jsonl"))
    assert [(one.seq, one.incarnation) for one in found] == [(1, 0), (2, 3)]
    assert list(write_lines(found)) == [lines[0], lines[2]]
    for wrong, said in (
        (b"[]\n", "pool:1: seq: None: a whole number"),
        (b'{"seq": true}\n', "seq: True"),
        (b'{"seq": 1, "incarnation": -1}\n', "incarnation: -1"),
        (b"{]\n", "no JSON"),
    ):
        with pytest.raises(RecordError, match=said):
            list(read_lines([wrong]))


# ---------------------------------------------------------------------- keys


async def test_a_wrapped_key_opens_in_its_repository_alone(tmp_path: Path) -> None:
    """Bound to the prefix; the file is its owner's; an old wrapping key still opens."""
    randomness = SeededRandomness(1)
    path = tmp_path / "keys" / "snapshots.json"
    make_key_file(path, randomness)
    before = path.read_text()
    make_key_file(path, randomness)
    assert path.read_text() == before
    source = read_key_file(path, randomness)
    key, wrapped = await fresh_key(source, PREFIX, randomness)
    assert await source.unwrap([wrapped], PREFIX.rstrip("/")) == key
    assert key.hex() not in wrapped.model_dump_json()
    assert "keys" not in repr(source)
    with pytest.raises(KeyUnknownError):
        await source.unwrap([wrapped], "snapshots/team-b/")
    turned = FileKeys((("new", b"n" * 32), *source.keys), randomness)
    assert await turned.unwrap([wrapped], PREFIX) == key
    assert (await turned.wrap(key, PREFIX)).key == "new"
    with pytest.raises(KeyUnknownError, match="no key of the file opens file:"):
        await FileKeys((("new", b"n" * 32),), randomness).unwrap([wrapped], PREFIX)


def test_a_key_file_is_refused_with_what_is_wrong(tmp_path: Path) -> None:
    """Missing, readable by others, or something else."""
    path, randomness = tmp_path / "keys", SeededRandomness(1)
    with pytest.raises(KeyFileError, match="No such file"):
        read_key_file(path, randomness)
    make_key_file(path, randomness)
    path.chmod(0o640)
    with pytest.raises(KeyFileError, match="mode 640: only its owner"):
        read_key_file(path, randomness)
    path.chmod(0o600)
    for text in ("", "{}", '{"keys": []}', json.dumps({"keys": [{"name": "a", "key": "AA=="}]})):
        path.write_text(text)
        with pytest.raises(KeyFileError, match="wanted is"):
            read_key_file(path, randomness)
    path.write_bytes(b"\xff\xfe no text")
    with pytest.raises(KeyFileError, match="wanted is"):
        read_key_file(path, randomness)
    assert oct(os.stat(path).st_mode)[-3:] == "600"  # noqa: PTH116 - the mode is the question


class FakeKms:
    """A key service: reverses bytes, bound to key and context; may be away or refuse."""

    def __init__(self) -> None:
        self.away = False

    async def encrypt(self, key: str, data: bytes, context: dict[str, str]) -> bytes:
        """Encrypt."""
        if self.away:
            raise KmsError("timeout")
        return json.dumps([key, sorted(context.items())]).encode() + b"|" + data[::-1]

    async def decrypt(self, key: str, data: bytes, context: dict[str, str]) -> bytes:
        """Decrypt."""
        if self.away:
            raise KmsError("timeout")
        bound, _, body = data.partition(b"|")
        if bound != json.dumps([key, sorted(context.items())]).encode():
            raise KmsRefusedError("InvalidCiphertextException")
        return body[::-1]


async def test_a_key_service_opens_any_of_several_wrappings() -> None:
    """One for each region; away is another answer than refused."""
    kms = FakeKms()
    east, west = KmsKeys(kms, "east"), KmsKeys(kms, "west")  # type: ignore[arg-type]
    key = b"d" * 32
    both = [await east.wrap(key, PREFIX), await west.wrap(key, PREFIX)]
    assert await west.unwrap(both, PREFIX) == key
    assert await west.unwrap(both[:1], PREFIX) == key
    with pytest.raises(KeyUnknownError, match="KMS opens none of kms:east, kms:west"):
        await west.unwrap(both, "snapshots/team-b/")
    kms.away = True
    with pytest.raises(KeyAwayError):
        await west.unwrap(both, PREFIX)
    with pytest.raises(KeyAwayError):
        await west.wrap(key, PREFIX)


# ---------------------------------------------------------------------- routes, rules, standing

REGIONS = st.lists(st.sampled_from(["a", "b", "c", "d"]), unique=True)


@given(
    residency=REGIONS,
    tighter=st.lists(REGIONS, max_size=3),
    policy=REGIONS,
    own=REGIONS,
    to=st.lists(st.sampled_from("abcd"), min_size=1, unique=True),
    least=st.integers(1, 4),
)
def test_residency_is_never_broken(
    *,
    residency: list[str],
    tighter: list[list[str]],
    policy: list[str],
    own: list[str],
    to: list[str],
    least: int,
) -> None:
    """No copy goes where any rule does not allow it; too few copies are always said."""
    spec = ReplicationPolicySpec(
        destinations=[ReplicationDestination(region=one) for one in to],
        residency=policy,
        min_copies=least,
    )
    prefixes = [prefix_of("t"), prefix_of("t", own, residency), prefix_of("gone")]
    rules = Residency({"t": residency}, {"t": tighter})
    found, barred = routes(spec, prefixes, rules, home="a")
    for route in found:
        assert route.region != "a"
        assert route.region in to
        limits = [residency, policy]
        limits += tighter if route.prefix == prefix_of("t") else [own]
        assert all(route.region in one for one in limits if one)
        assert route.tenant == "t"
    copies = {prefix: sum(route.prefix == prefix for route in found) for prefix in prefixes}
    short = {prefix for prefix, count in copies.items() if count < least}
    assert {one.prefix for one in barred} == short
    assert all(one.why for one in barred)


def test_a_policy_is_refused_with_every_mistake() -> None:
    """Own region, twice the same, plain transport, no copy of nothing, more copies than places."""
    spec = ReplicationPolicySpec.model_validate(
        {
            "destinations": [
                {"region": "a"},
                {"region": "b", "endpoint": "http://s3.b.example"},
                {"region": "b", "endpoint": "ftp://x"},
            ],
            "kinds": ["state", "freeze"],
            "residency": ["b"],
            "minCopies": 4,
        }
    )
    found = {one.path: one.message for one in mistakes(spec, region="a")}
    assert set(found) == {
        "spec.destinations[0].region",
        "spec.destinations[1].endpoint",
        "spec.destinations[2].region",
        "spec.destinations[2].endpoint",
        "spec.kinds[1]",
        "spec.minCopies",
    }
    assert "encrypted in transit" in found["spec.destinations[1].endpoint"]
    fine = {"destinations": [{"region": "b", "endpoint": "http://127.0.0.1:8333"}]}
    assert mistakes(ReplicationPolicySpec.model_validate(fine), region="a") == []


def test_lag_and_recovery_point() -> None:
    """Of the lineage that would lose most; without a copy everything is lost."""
    now = START + timedelta(minutes=10)
    other = "exp/uid-2/worker/0"
    source = [ref_of(1), ref_of(2), ref_of(1, lineage=other)]
    found = standing(source, [ref_of(1)], now)
    assert (found.behind, found.lag_seconds) == (2, 540.0)
    assert (found.recovery_point_seconds, found.worst) == (None, other)
    found = standing(source[:2], [ref_of(1)], now)
    assert (found.behind, found.lag_seconds, found.recovery_point_seconds) == (1, 480.0, 540.0)
    assert standing(source, source, now).lag_seconds == 0
    assert standing(source, source, START).recovery_point_seconds == 0
    assert together([found, standing([], [], now)]) == found
    assert in_force([ref_of(3), ref_of(2, home_epoch=1)]) == [ref_of(2, home_epoch=1)]
