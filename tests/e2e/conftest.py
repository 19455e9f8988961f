"""One local cluster for all end-to-end tests, shared by every worker of a test run."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
from dsec.local import cluster
from dsec.local.cluster_state import ClusterState, default_root
from platform_stack import Stack, new_stack

NAME = "e2e"
FIRST = ("test_documents.py", "test_platform_rollout.py", "test_platform_stack.py")
"""Files that share the platform; the last one takes it away, before others count what is left."""


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


@pytest.fixture(scope="session")
def stack(local_cluster: ClusterState, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Return the stack `local`, up once somebody calls `bring_up`; destroys what is left of it.

    One test run at a time has it: the cluster holds one platform.
    """
    with (default_root() / f"{NAME}.platform").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = new_stack(local_cluster, tmp_path_factory.mktemp("platform"))
        yield made
        made.destroy()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the files that share the platform one after the other."""
    items.sort(
        key=lambda item: FIRST.index(name) if (name := item.path.name) in FIRST else len(FIRST)
    )


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
