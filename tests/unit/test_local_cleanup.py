"""What a local stack left is found, whatever the directory is called."""

import os
from pathlib import Path

import pytest
from dsec.local import cleanup


def test_mounts_of_any_path_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel escapes space, tab, line feed and backslash, and writes the rest as it is."""
    points = ["/home/jos\N{LATIN SMALL LETTER E WITH ACUTE}/a b/\\c", "/home/\udcff/d"]
    escaped = [point.replace("\\", "\\134").replace(" ", "\\040") for point in points]
    lines = [f"1 2 0:3 / {point} rw - tmpfs tmpfs rw\n" for point in (*escaped, "/other")]
    text = os.fsencode("".join(lines))
    monkeypatch.setattr(Path, "read_bytes", lambda _: text)
    assert cleanup.mounts(Path("/home")) == points
