"""dsec-init's own unit tests, with cargo."""

import shutil
import subprocess
from pathlib import Path

import pytest
from dsec.local.initbin import source_directory


@pytest.mark.timeout(300)
def test_cargo_tests() -> None:
    """Frames, rings, users, heartbeats and the system call filter."""
    cargo = shutil.which("cargo")
    if cargo is None:
        pytest.skip("cargo is not on PATH")
    target = Path.home() / ".cache" / "dsec" / "tests" / "cargo"
    done = subprocess.run(
        [cargo, "test", "--locked", "--target-dir", str(target)],
        cwd=source_directory(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failed" in done.stdout
