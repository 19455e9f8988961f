"""One local cluster for all end-to-end tests, shared by every worker of a test run."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
from dsec.local import cluster
from dsec.local.cluster_state import ClusterState, default_root

NAME = "e2e"


def quiet(step: str, state: str) -> None:
    """Take a progress report and show nothing."""


@pytest.fixture(scope="session")
def local_cluster() -> Iterator[ClusterState]:
    """Return a running cluster with all images; the last test process to leave takes it down.

    Set DSEC_E2E_KEEP to keep it for the next run, which then starts at once.
    """
    if os.geteuid() != 0:
        pytest.skip("a local cluster needs root")
    directory = default_root() / NAME
    with _shared(directory.with_suffix(".users")) as alone:
        yield cluster.up(NAME, directory, quiet)
        if alone() and not os.environ.get("DSEC_E2E_KEEP"):
            left = cluster.down(NAME, directory, quiet, purge=True)
            assert left.total() == 0, left.sentence()


class _shared:  # noqa: N801 - used as a context manager, like a function
    """A lock that many hold; `alone` says whether the caller is the last one."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w")

    def __enter__(self) -> Self:
        fcntl.flock(self._file, fcntl.LOCK_SH)
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __call__(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
