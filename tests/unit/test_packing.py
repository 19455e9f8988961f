"""Segments of the bind log: whatever rows there are come back as they were, of every version."""

import json
import zlib
from datetime import UTC, datetime, timedelta

import pytest
from dsec.api.sandbox import Identity, Resources, SandboxSpec
from dsec.journal.bindings import Binding, Needs, Row, row_of
from dsec.journal.bindlog import Segment, SegmentError, decode, encode
from hypothesis import given, settings
from hypothesis import strategies as st

START = datetime(2026, 1, 1, tzinfo=UTC)
LANES = {"lane-a": 3}


def bind(
    number: int,
    *,
    image: str = "i",
    queue: str = "default",
    item: str | None = None,
    env: str = "",
    devices: tuple[str, ...] = (),
    odd: bool = False,
) -> Row:
    """Return the row of a new binding; an `odd` one says more than other rows do."""
    name = f"sb-{number:026d}"
    identity = Identity(
        id=name, tenant="t", project="p", index=number % 7, correlation_id=f"c{number % 2}"
    )
    spec = SandboxSpec(
        identity=identity,
        image=image,
        env={"A": env} if env else {},
        resources=Resources(cpu_milli=1, memory_bytes=1 << 20),
        item=item,
        devices=list(devices),
        cpus=[number] if devices else [],
    )
    at = START + timedelta(seconds=number % 3)
    made = Binding(
        tenant="t",
        key=f"k{number}",
        body_hash="h",
        id=name,
        spec=spec,
        node="" if number % 5 == 0 else f"n{number % 2}",
        order=number,
        at=at,
        bound_at=None if number % 5 == 0 else at,
        needs=Needs(queue=queue),
    )
    if odd:
        return Row(kind="bind", at=at, binding=made, behind="t/other")
    return row_of(made, at, "bind" if made.node else "want")


ROWS = st.lists(
    st.builds(
        bind,
        st.integers(0, 50),
        image=st.sampled_from(["i", "j"]),
        queue=st.sampled_from(["default", "eval"]),
        item=st.sampled_from([None, "", "line"]),
        env=st.sampled_from(["", "x", "y"]),
        devices=st.sampled_from([(), ("gpu-1",), ("gpu-1", "gpu-2")]),
        odd=st.booleans(),
    )
    | st.builds(Row, kind=st.just("bind"), at=st.just(START), id=st.just("sb"), node=st.just("n9"))
    | st.builds(Row, kind=st.just("forget"), at=st.just(START), experiment_uid=st.just("u")),
    max_size=30,
)


@settings(max_examples=60)
@given(ROWS)
def test_rows_come_back_as_they_were(rows: list[Row]) -> None:
    """Whatever is shared, in whatever order: the same rows, lanes and epoch."""
    found = decode(encode(Segment(3, "w", rows, LANES)))
    assert list(found.rows) == rows
    assert (found.epoch, found.writer, found.lanes) == (3, "w", LANES)


def test_what_came_back_is_each_ones_own() -> None:
    """Who changes a binding that was read changes no other one."""
    first, second = decode(encode(Segment(1, "w", [bind(1), bind(3)]))).rows
    assert first.binding is not None
    assert second.binding is not None
    first.binding.node, first.binding.spec.devices = "elsewhere", ["gpu-9"]
    first.binding.spec.identity.incarnation = 7
    assert second == bind(3)


def test_alike_bindings_are_written_once() -> None:
    """A batch of equal requests takes a tenth of what as many different ones do."""
    same = len(zlib.decompress(encode(Segment(1, "w", [bind(n) for n in range(500)]))))
    plain = sum(len(bind(n).model_dump_json(by_alias=True)) for n in range(500))
    assert same < plain / 10


def stored(**content: object) -> bytes:
    """Return an object of the log as somebody else may have written it."""
    return zlib.compress(json.dumps({"epoch": 1, "writer": "w", **content}).encode(), 1)


def test_segments_of_the_version_before_are_read() -> None:
    """They have all rows in full."""
    rows = [bind(1), bind(2), Row(kind="end", at=START, id="sb")]
    assert decode(stored(rows=[row.wire() for row in rows])).rows == rows


@pytest.mark.parametrize("wrong", ["neither", "like", "short", "garbage"])
def test_a_segment_that_cannot_be_read_is_not_taken_for_an_empty_one(wrong: str) -> None:
    """It would leave out what was decided: the reader stops instead."""
    raw = json.loads(zlib.decompress(encode(Segment(1, "w", [bind(n) for n in (1, 2, 3)]))))
    if wrong == "neither":
        del raw["packed"]
    elif wrong == "like":
        raw["packed"]["likes"] = []
    else:
        raw["packed"]["parts"][0]["columns"]["key"] = ["k1", "k2"]
    data = zlib.compress(json.dumps(raw).encode(), 1)
    with pytest.raises(SegmentError, match=r"neither rows|bindings|values|unreadable"):
        decode(data[9:] if wrong == "garbage" else data)
