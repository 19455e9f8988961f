"""Frames: what is encoded comes back, in whatever pieces it arrives."""

import pytest
from dsec.api import frames
from dsec.api.frames import Decoder, ExecCall, ExecEnd, Frame, FrameError, FrameType
from hypothesis import given
from hypothesis import strategies as st

FRAMES = st.lists(st.builds(Frame, st.sampled_from(FrameType), st.binary(max_size=300)))


@given(sent=FRAMES, cuts=st.lists(st.integers(min_value=1, max_value=50)))
def test_any_cut_gives_the_same_frames(sent: list[Frame], cuts: list[int]) -> None:
    """Pieces of any size decode to what was sent, and nothing is left over."""
    data = b"".join(frames.encode(frame.type, frame.payload) for frame in sent)
    decoder, got = Decoder(), []
    for size in cuts:
        got += decoder.feed(data[:size])
        data = data[size:]
    got += decoder.feed(data)
    assert sent == got
    assert decoder.pending == 0


@given(sent=FRAMES.filter(bool), missing=st.integers(min_value=1, max_value=5))
def test_a_cut_stream_is_seen(sent: list[Frame], missing: int) -> None:
    """A stream that stops within a frame leaves bytes pending: its outcome is unknown."""
    data = b"".join(frames.encode(frame.type, frame.payload) for frame in sent)
    decoder = Decoder()
    got = decoder.feed(data[:-missing])
    assert got == sent[: len(got)]
    assert len(got) < len(sent)
    assert decoder.pending > 0 or missing == len(frames.encode(sent[-1].type, sent[-1].payload))


@given(st.binary(max_size=3 << 20))
def test_data_of_any_length_is_split(data: bytes) -> None:
    """Long data becomes several frames that together are the data."""
    decoder = Decoder()
    got = [f for piece in frames.encode_all(FrameType.STDOUT, data) for f in decoder.feed(piece)]
    assert data == b"".join(frame.payload for frame in got)


@pytest.mark.parametrize("data", [b"\x05\x00\x00\x00\x00", b"\x00\xff\xff\xff\xff"])
def test_nonsense_is_refused_at_its_header(data: bytes) -> None:
    """An unknown type or an absurd length is an error at once: nothing is buffered for it."""
    with pytest.raises(FrameError, match="allowed"):
        Decoder().feed(data)
    with pytest.raises(FrameError):
        frames.encode(FrameType.STDIN, bytes(frames.MAX_PAYLOAD + 1))


def test_a_request_reads_back() -> None:
    """A request body is the call, its input and an empty frame for its end."""
    call = ExecCall(command=["a", "b c"], env={"X": "1"}, timeout=2.5, output_cap=10)
    got = Decoder().feed(frames.encode_request(call, b"in"))
    assert [frame.type for frame in got] == [FrameType.REQUEST, FrameType.STDIN, FrameType.STDIN]
    assert ExecCall.model_validate_json(got[0].payload) == call
    assert [frame.payload for frame in got[1:]] == [b"in", b""]
    assert [f.type for f in Decoder().feed(frames.encode_request(call, None))] == [
        FrameType.REQUEST
    ]
    end = ExecEnd(exit_code=1, dropped_bytes=7)
    (frame,) = Decoder().feed(frames.encode_end(end))
    assert ExecEnd.model_validate_json(frame.payload) == end
