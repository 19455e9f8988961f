"""The body that holds several files: what goes in comes out, and nothing else is taken."""

import pytest
from dsec.api.scene import FILES_MOST, SceneError, pack, unpack
from hypothesis import given
from hypothesis import strategies as st

EMPTY = b'{"path": "a", "size": 0}'


@given(st.dictionaries(st.text(max_size=40), st.binary(max_size=200), min_size=1, max_size=20))
def test_files_come_out_as_they_went_in(files: dict[str, bytes]) -> None:
    """Names with line feeds and contents that look like lists, too; the order stays."""
    assert list(unpack(pack(files)).items()) == list(files.items())


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "no line that lists its files"),
        (b'{"files": [{"path": "a", "size": 0}]}', "no line that lists its files"),
        (b"hello\n", "no list of files"),
        (b'{"files": []}\n', "no list of files"),
        (b'{"files": [{"path": "a", "size": -1}]}\n', "no list of files"),
        (b'{"files": [{"path": "a", "size": 2}]}\nx', "lists 2 bytes of files, and holds 1"),
        (b'{"files": [{"path": "a", "size": 2}]}\nxyz', "lists 2 bytes of files, and holds 3"),
        (b'{"files": [%s]}\n' % b",".join([EMPTY] * (FILES_MOST + 1)), "at most 256 items"),
    ],
)
def test_other_bytes_are_refused(body: bytes, why: str) -> None:
    """Each with a sentence that says what is wrong."""
    with pytest.raises(SceneError, match=why):
        unpack(body)
