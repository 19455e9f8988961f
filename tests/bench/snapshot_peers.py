"""The tools that `bench_snapshot` compares: dsec, restic, borg, rclone, each with one S3 server.

All write to the same bucket. borg knows no S3: its local repository is copied there by rclone, and
that is part of its time. Each call starts one process tree and tells its time, its processor time
and its largest memory.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsec.world.s3config import S3Config

FIELDS = ("bucket", "endpoint", "region", "access_key", "secret_key")
HERE = Path(__file__).parent
SECRET = "bench"  # noqa: S105  of throw-away repositories


@dataclass(frozen=True, slots=True)
class Took:
    """One call: seconds, processor seconds, MiB; both also with the start of the interpreter."""

    seconds: float
    cpu: float
    memory_mib: float
    seconds_whole: float
    cpu_whole: float


def timed(command: list[str], environment: dict[str, str], order: str = "") -> tuple[Took, str]:
    """Run a command to its end; return what it took and its output. Raises RuntimeError."""
    begin = time.monotonic()
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(order)
        process.stdin.close()
        said = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - begin
    if process.returncode:
        raise RuntimeError(f"{command[:3]} ended with {process.returncode}:\n{said[-2000:]}")
    cpu = used.ru_utime + used.ru_stime
    return Took(seconds, cpu, used.ru_maxrss / 1024, seconds, cpu), said


def added(one: Took, other: Took) -> Took:
    """Return two calls in a row as one."""
    return Took(
        one.seconds + other.seconds,
        one.cpu + other.cpu,
        max(one.memory_mib, other.memory_mib),
        one.seconds_whole + other.seconds_whole,
        one.cpu_whole + other.cpu_whole,
    )


@dataclass(slots=True)
class Python:
    """A script of this folder that reads an order and prints an answer."""

    store: S3Config

    def run(self, script: str, **order: object) -> tuple[Took, dict[str, Any]]:
        """Run it."""
        order["store"] = {name: getattr(self.store, name) for name in FIELDS}
        command = [sys.executable, str(HERE / script)]
        took, said = timed(command, dict(os.environ), json.dumps(order))
        answer: dict[str, Any] = json.loads(said)
        own = (answer["seconds"], answer["cpu"], answer["memory_mib"])
        return Took(*own, took.seconds, took.cpu), answer


@dataclass(slots=True)
class Dsec:
    """dsec's own engine, with a cache file as an agent has it."""

    python: Python
    prefix: str
    cache: Path
    manifest: str = ""

    def save(self, source: Path) -> Took:
        """Save; the manifest is kept for a restore."""
        took, answer = self.python.run(
            "snapshot_ours.py",
            verb="save",
            prefix=self.prefix,
            source=str(source),
            cache=str(self.cache),
        )
        self.manifest = answer["manifest"]
        return took

    def check(self) -> Took:
        """Verify every byte of the last save. Raises RuntimeError."""
        took, answer = self.python.run(
            "snapshot_ours.py", verb="verify", prefix=self.prefix, manifest=self.manifest
        )
        if answer["problems"]:
            raise RuntimeError(f"verification: {answer['problems']}")
        return took

    def restore(self, target: Path) -> Took:
        """Restore the last save."""
        target.mkdir()
        took, _ = self.python.run(
            "snapshot_ours.py",
            verb="restore",
            prefix=self.prefix,
            manifest=self.manifest,
            target=str(target),
        )
        return took


@dataclass(slots=True)
class Restic:
    """restic with its defaults, its cache in a folder of its own."""

    store: S3Config
    prefix: str
    cache: Path

    def __post_init__(self) -> None:
        """Make the repository."""
        self._run("init")

    def save(self, source: Path) -> Took:
        """Back up."""
        return self._run("backup", str(source))

    def _run(self, *arguments: str) -> Took:
        environment = os.environ | {
            "AWS_ACCESS_KEY_ID": self.store.access_key,
            "AWS_SECRET_ACCESS_KEY": self.store.secret_key,
            "RESTIC_PASSWORD": SECRET,
            "RESTIC_CACHE_DIR": str(self.cache),
            "RESTIC_REPOSITORY": f"s3:{self.store.endpoint}/{self.store.bucket}/{self.prefix}",
        }
        return timed(["restic", "--quiet", *arguments], environment)[0]


@dataclass(slots=True)
class Rclone:
    """rclone: a copy of each file, no history; what is newer in the store is not sent again."""

    store: S3Config
    prefix: str

    def save(self, source: Path) -> Took:
        """Copy what changed."""
        return self.copy(source, "--update", "--use-server-modtime")

    def copy(self, source: Path, *how: str) -> Took:
        """Copy a folder."""
        environment = os.environ | {
            "RCLONE_CONFIG": "/dev/null",
            "RCLONE_CONFIG_S_TYPE": "s3",
            "RCLONE_CONFIG_S_PROVIDER": "Other",
            "RCLONE_CONFIG_S_ACCESS_KEY_ID": self.store.access_key,
            "RCLONE_CONFIG_S_SECRET_ACCESS_KEY": self.store.secret_key,
            "RCLONE_CONFIG_S_ENDPOINT": self.store.endpoint,
        }
        # it refuses to start where this is set and no HTTPS is spoken
        environment.pop("AWS_CA_BUNDLE", None)
        target = f"s:{self.store.bucket}/{self.prefix}"
        options = ["--fast-list", "--transfers=8", "--s3-no-check-bucket", "--s3-chunk-size=16M"]
        return timed(["rclone", "copy", str(source), target, *options, *how], environment)[0]


@dataclass(slots=True)
class Borg:
    """borg into a local repository, which rclone copies to the server."""

    store: S3Config
    prefix: str
    folder: Path
    count: int = 0

    def __post_init__(self) -> None:
        """Make the repository."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        self._run("init", "--encryption=repokey-blake2", str(self.repository))

    @property
    def repository(self) -> Path:
        """Where it is."""
        return self.folder / "repository"

    def save(self, source: Path) -> Took:
        """Back up, then copy what the repository has more."""
        self.count += 1
        made = self._run("create", f"{self.repository}::{self.count}", str(source))
        copied = Rclone(self.store, self.prefix).copy(self.repository, "--size-only")
        return added(made, copied)

    def _run(self, *arguments: str) -> Took:
        environment = os.environ | {
            "BORG_PASSPHRASE": SECRET,
            "BORG_BASE_DIR": str(self.folder),
            "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes",
        }
        return timed(["borg", *arguments], environment)[0]
