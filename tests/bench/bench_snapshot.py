"""Snapshots beside restic, borg, rclone and a plain copy: `make bench-snapshot`.

All tools save the same data to the same local S3 server, in turns whose order changes from round to
round; each case has a server of its own. Figures are medians of the rounds' ratios of wall time;
processor time stands beside them, for machines that others use as well. Stored bytes are those that
the bucket lists. What dsec saved last in a case is verified at its end.

dsec runs in a fresh process each time. Its seconds begin when the interpreter has loaded it, as an
agent has at all times; the field `whole` of a figure is the ratio with that start.
"""

import argparse
import asyncio
import filecmp
import os
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median

import processor
import snapshot_data as data
from dsec.world.objects import ObjectStoreError
from dsec.world.s3 import S3Objects
from dsec.world.s3bytes import S3Bytes
from dsec.world.s3config import S3Config
from figures import figure
from s3_server import s3_server
from snapshot_peers import FIELDS, Borg, Dsec, Python, Rclone, Restic, Took

MIB = data.MIB
CASES = ("new", "tree", "files", "inplace", "scattered", "small", "replicate")
TARGETS = {
    "new_vs_raw": (1.1, True),
    "new_vs_restic": (1.7, False),
    "tree_vs_restic": (2.5, False),
    "tree_vs_other": (1.5, False),
    "files_vs_best": (3.0, False),
    "inplace_vs_best": (5.0, False),
    "scattered_vs_best": (2.0, False),
    "stored_vs_restic": (1.0, True),
    "cpu_vs_restic": (0.35, True),
    "memory_mib": (256, True),
    "restore_vs_raw": (1.5, True),
    "replicate_vs_raw": (1.1, True),
}
NEEDED = 12 << 30
"""Of memory, where all lies in it."""
Step = Callable[[], Took]
Tool = Dsec | Restic | Borg | Rclone


@dataclass(slots=True)
class Sizes:
    """How much data, in bytes and files."""

    new: int = 384 * MIB
    tree: int = 512 * MIB
    large: int = 1024 * MIB
    scattered: int = 384 * MIB
    small: int = 100_000


QUICK = Sizes(64 * MIB, 96 * MIB, 128 * MIB, 64 * MIB, 10_000)
FULL = Sizes(768 * MIB, 1024 * MIB, 2048 * MIB, 1024 * MIB, 100_000)


@dataclass(slots=True)
class Bench:
    """What was measured: for each case and tool the calls in order, and what was stored by each."""

    folder: Path
    runs: int
    sizes: Sizes
    cold: bool
    took: dict[tuple[str, str], list[Took]] = field(default_factory=lambda: defaultdict(list))
    stored: dict[tuple[str, str], list[int]] = field(default_factory=lambda: defaultdict(list))
    server_cpu: dict[tuple[str, str], list[float]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def measure(self, case: str, tool: str, step: Step, world: "World", prefix: str = "") -> None:
        """Take one call down."""
        if self.cold:
            os.sync()
            Path("/proc/sys/vm/drop_caches").write_text("3")
        before = world.stored(prefix) if prefix else 0
        busy = processor.seconds(world.servers)
        took = step()
        self.server_cpu[case, tool].append(processor.seconds(world.servers) - busy)
        self.took[case, tool].append(took)
        text = f"  {case:<10} {tool:<8} {took.seconds:7.2f} s {took.cpu:7.2f} cpu"
        if prefix:
            self.stored[case, tool].append(world.stored(prefix) - before)
            text += f" {self.stored[case, tool][-1] / MIB:9.2f} MiB stored"
        say(f"{text} {took.memory_mib:6.0f} MiB memory")

    def round(self, number: int, steps: Sequence[Callable[[], None]]) -> None:
        """Run the steps of one round in an order of its own."""
        turn = number % len(steps)
        for step in (*steps[turn:], *steps[:turn]):
            step()


@dataclass(slots=True)
class World:
    """One S3 server and a folder."""

    store: S3Config
    folder: Path
    servers: set[int]

    @property
    def python(self) -> Python:
        """What runs dsec's scripts against the server."""
        return Python(self.store)

    def stored(self, prefix: str) -> int:
        """Return how many bytes the bucket lists below a prefix."""
        return sum(info.size for info in asyncio.run(S3Bytes(self.store).list(f"{prefix}/")))


@contextmanager
def world(parent: Path) -> Iterator[World]:
    """Start a server with an empty bucket, and clear it all away afterwards."""
    folder = Path(tempfile.mkdtemp(dir=parent))
    (folder / "s3").mkdir()
    before = processor.children()
    try:
        with s3_server(folder / "s3") as store:
            asyncio.run(ready(store))
            yield World(store, folder, processor.children() - before)
    finally:
        shutil.rmtree(folder)


async def ready(store: S3Config) -> None:
    """Wait for the server and make the bucket."""
    objects = S3Objects(store)
    for attempt in range(300):
        try:
            await objects.ensure_bucket()
            break
        except ObjectStoreError:
            if attempt == 299:
                raise
            await asyncio.sleep(0.2)
    objects.close()


def new(bench: Bench) -> None:
    """Bytes that nobody has seen, each time others; then the same back."""
    with world(bench.folder) as here:
        source, target = here.folder / "source", here.folder / "target"
        ours = Dsec(here.python, "snapshots/new", here.folder / "cache")
        restic = Restic(here.store, "restic", here.folder / "restic")
        for number in range(bench.runs):
            source.mkdir()
            data.random_file(source / "data", bench.sizes.new)
            path, raw = str(source / "data"), f"raw/{number}"

            def up(path: str = path, raw: str = raw) -> Took:
                return here.python.run("snapshot_raw.py", verb="up", file=path, prefix=raw)[0]

            bench.round(
                number,
                (
                    lambda: bench.measure("new", "raw", up, here, "raw"),
                    _saving(bench, "new", ours, source, here),
                    _saving(bench, "new", restic, source, here),
                ),
            )

            def down(raw: str = raw) -> Took:
                path = str(here.folder / "raw")
                return here.python.run(
                    "snapshot_raw.py", verb="down", file=path, prefix=raw, size=bench.sizes.new
                )[0]

            bench.round(
                number,
                (
                    lambda: bench.measure("restore", "raw", down, here),
                    lambda: bench.measure("restore", "dsec", lambda: ours.restore(target), here),
                ),
            )
            if not filecmp.cmp(source / "data", target / "data", shallow=False):
                raise RuntimeError("what was restored is not what was saved")
            shutil.rmtree(source)
            shutil.rmtree(target)
        bench.measure("verify", "dsec", ours.check, here)


def tree(bench: Bench, *, first: bool, changes: bool) -> None:
    """A Python environment as a first snapshot, and with 1 % of its files changed."""
    random = Random(7)  # noqa: S311  the same data each time
    with world(bench.folder) as here:
        source = here.folder / "source"
        source.mkdir()
        files, size = data.python_tree(source, bench.sizes.tree)
        say(f"  {files} files, {size / MIB:.0f} MiB")
        settle()
        rclone = Rclone(here.store, "rclone")
        for number in range(bench.runs if first else 1):
            ours = Dsec(here.python, f"snapshots/t{number}", here.folder / f"cache-{number}")
            restic = Restic(here.store, f"restic{number}", here.folder / "restic")
            borg = Borg(here.store, f"borg{number}", here.folder / "borg")
            tools: list[Tool] = [ours, restic, borg]
            case = "tree" if first else "tree-base"
            some = [*tools, rclone] if number == 0 else tools
            bench.round(number, [_saving(bench, case, one, source, here) for one in some])
        bench.measure("verify", "dsec", ours.check, here)
        if changes:
            every = [*tools, rclone]
            for number in range(bench.runs):
                data.append_to_some(source, 0.01, random)
                settle()
                bench.round(number, [_saving(bench, "files", one, source, here) for one in every])
            bench.measure("verify", "dsec", ours.check, here)


def large(bench: Bench, case: str) -> None:
    """One large random file of which 1 % changes in place, in runs of a MiB or by single pages."""
    random = Random(11)  # noqa: S311  the same data each time
    size = bench.sizes.large if case == "inplace" else bench.sizes.scattered
    length = MIB if case == "inplace" else data.PAGE
    with world(bench.folder) as here:
        source = here.folder / "source"
        source.mkdir()
        data.random_file(source / "data", size)
        ours = Dsec(here.python, f"snapshots/{case}", here.folder / "cache")
        restic = Restic(here.store, "restic", here.folder / "restic")
        borg = Borg(here.store, "borg", here.folder / "borg")
        rclone = Rclone(here.store, "rclone")
        tools: list[Tool] = [ours, restic, borg]
        every = [*tools, rclone]
        bench.round(0, [_saving(bench, f"{case}-base", one, source, here) for one in every])
        for number in range(bench.runs):
            data.change_in_place(source / "data", max(1, size // 100 // length), length, random)
            settle()
            # rclone sends all of it each time: of a large file once tells enough
            some = every if number == 0 or case == "scattered" else tools
            bench.round(number, [_saving(bench, case, one, source, here) for one in some])
        bench.measure("verify", "dsec", ours.check, here)


def small(bench: Bench) -> None:
    """Many small files: once by each tool, and once more by dsec and restic with 1 % changed."""
    random = Random(13)  # noqa: S311  the same data each time
    with world(bench.folder) as here:
        source = here.folder / "source"
        source.mkdir()
        data.small_files(source, bench.sizes.small, random)
        settle()
        ours = Dsec(here.python, "snapshots/small", here.folder / "cache")
        restic = Restic(here.store, "restic", here.folder / "restic")
        borg = Borg(here.store, "borg", here.folder / "borg")
        tools: list[Tool] = [ours, restic, borg]
        bench.round(0, [_saving(bench, "small", one, source, here) for one in tools])
        data.append_to_some(source, 0.01, random)
        settle()
        bench.round(1, [_saving(bench, "small-1%", one, source, here) for one in tools])
        target = here.folder / "target"
        bench.measure("small-back", "dsec", lambda: ours.restore(target), here)
        bench.measure("verify", "dsec", ours.check, here)


def replicate(bench: Bench) -> None:
    """A repository to a second server, by dsec and plainly."""
    with world(bench.folder) as here:
        source = here.folder / "source"
        source.mkdir()
        data.random_file(source / "data", bench.sizes.new)
        ours = Dsec(here.python, "snapshots/a", here.folder / "cache")
        ours.save(source)
        for number in range(bench.runs):
            with world(bench.folder) as there:
                both = World(here.store, here.folder, here.servers | there.servers)
                steps = [
                    _copying(bench, tool, both, there.store)
                    for tool in (("raw", "plain"), ("dsec", "replicate"))
                ]
                bench.round(number, steps)


def _copying(
    bench: Bench, tool: tuple[str, str], both: World, store: S3Config
) -> Callable[[], None]:
    name, verb = tool

    def copy() -> Took:
        target = {one: getattr(store, one) for one in FIELDS}
        if verb == "plain":
            target["bucket"] = "plain"
            asyncio.run(ready(S3Config(**target)))
        order = {"verb": verb, "prefix": "snapshots/a/", "target": target}
        return both.python.run("snapshot_copy.py", **order)[0]

    return lambda: bench.measure("replicate", name, copy, both)


def _saving(bench: Bench, case: str, tool: Tool, source: Path, here: World) -> Callable[[], None]:
    name = type(tool).__name__.lower()
    return lambda: bench.measure(case, name, lambda: tool.save(source), here, tool.prefix)


def ratios(bench: Bench, case: str, over: str, under: str, what: str = "seconds") -> list[float]:
    """Return one tool's cost over another's, round by round."""
    pairs = zip(bench.took[case, over], bench.took[case, under], strict=False)
    return [getattr(one, what) / max(getattr(other, what), 1e-3) for one, other in pairs]


def figures(bench: Bench) -> Iterator[str]:
    """Yield a line for each figure that was measured."""

    def line(name: str, values: list[float], unit: str = "ratio", **more: object) -> str:
        target, at_most = TARGETS[name]
        return figure(name, values, unit=unit, target=target, at_most=at_most, **more)

    def faster(name: str, case: str, peers: Sequence[str]) -> Iterator[str]:
        runs = len(bench.took[case, "dsec"])
        found = [peer for peer in peers if len(bench.took[case, peer]) == runs]
        if not runs or not found:
            return
        best = min(found, key=lambda peer: median(one.seconds for one in bench.took[case, peer]))
        whole = median(ratios(bench, case, best, "dsec", "seconds_whole"))
        cpu = median(ratios(bench, case, best, "dsec", "cpu"))
        values = ratios(bench, case, best, "dsec")
        yield line(name, values, against=best, whole=f"{whole:.2f}", cpu=f"{cpu:.2f}")

    if bench.took["new", "raw"]:
        cpu = median(ratios(bench, "new", "dsec", "raw", "cpu"))
        yield line("new_vs_raw", ratios(bench, "new", "dsec", "raw"), cpu=f"{cpu:.2f}")
        cpu = median(ratios(bench, "restore", "dsec", "raw", "cpu"))
        yield line("restore_vs_raw", ratios(bench, "restore", "dsec", "raw"), cpu=f"{cpu:.2f}")
    yield from faster("new_vs_restic", "new", ["restic"])
    yield from faster("tree_vs_restic", "tree", ["restic"])
    yield from faster("tree_vs_other", "tree", ["borg", "rclone"])
    for case in ("files", "inplace", "scattered"):
        yield from faster(f"{case}_vs_best", case, ["restic", "borg", "rclone"])
    if bench.took["replicate", "raw"]:
        values = ratios(bench, "replicate", "dsec", "raw")
        cpu = median(ratios(bench, "replicate", "dsec", "raw", "cpu"))
        yield line("replicate_vs_raw", values, cpu=f"{cpu:.2f}")
    cases = [
        case
        for case in ("new", "tree", "files", "inplace", "scattered", "small", "small-1%")
        if bench.took[case, "restic"] and bench.took[case, "dsec"]
    ]
    if cases:
        stored = {
            case: sum(bench.stored[case, "dsec"]) / sum(bench.stored[case, "restic"])
            for case in cases
        }
        worst = max(stored, key=lambda case: stored[case])
        told = ",".join(f"{case}:{share:.4f}" for case, share in stored.items())
        yield line("stored_vs_restic", [stored[worst]], worst=worst, cases=told)
        cpus = {case: ratios(bench, case, "dsec", "restic", "cpu") for case in cases}
        worst = max(cpus, key=lambda case: median(cpus[case]))
        told = ",".join(f"{case}:{median(values):.2f}" for case, values in cpus.items())
        yield line("cpu_vs_restic", cpus[worst], worst=worst, cases=told)
    memory = [
        one.memory_mib
        for (case, tool), calls in bench.took.items()
        if tool == "dsec" and case != "replicate"
        for one in calls
    ]
    if memory:
        yield line("memory_mib", [max(memory)], unit="MiB", digits=0)


def place() -> Path:
    """Return where data and servers lie best: in memory, so that no disk is measured."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    (free,) = (int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and free >= NEEDED >> 10 else Path(tempfile.gettempdir())


def settle() -> None:
    """Let time stamps grow old: tools read again what may have changed within one of them."""
    time.sleep(2.5)


def say(line: str) -> None:
    """Print at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def measure(bench: Bench, wanted: Sequence[str]) -> None:
    """Run some cases."""
    for case in wanted:
        say(f"{case}:")
        if case == "new":
            new(bench)
        elif case == "tree":
            tree(bench, first=True, changes="files" in wanted)
        elif case == "files" and "tree" not in wanted:
            tree(bench, first=False, changes=True)
        elif case in {"inplace", "scattered"}:
            large(bench, case)
        elif case == "small":
            small(bench)
        elif case == "replicate":
            replicate(bench)


def main() -> int:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", default=",".join(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--runs", type=int, default=5, help="rounds of each case (default 5)")
    parser.add_argument("--quick", action="store_true", help="an eighth of the data, 2 rounds")
    parser.add_argument("--full", action="store_true", help="2 GiB files: takes twice as long")
    parser.add_argument("--cold", action="store_true", help="empty page cache before each call")
    parser.add_argument("--folder", type=Path, default=None, help="where data and servers lie")
    asked = parser.parse_args()
    wanted = asked.cases.split(",")
    if unknown := set(wanted) - set(CASES):
        sys.stderr.write(f"--cases: {', '.join(sorted(unknown))}: known are {', '.join(CASES)}\n")
        return 2
    if asked.runs < 1:
        sys.stderr.write(f"--runs: {asked.runs}: at least 1\n")
        return 2
    if asked.folder is not None and not asked.folder.is_dir():
        sys.stderr.write(f"--folder: {asked.folder}: is no directory\n")
        return 2
    missing = [tool for tool in ("restic", "borg", "rclone") if shutil.which(tool) is None]
    if missing:
        sys.stderr.write(f"not installed: {', '.join(missing)}\n")
        return 2
    parent = asked.folder or place()
    folder = Path(tempfile.mkdtemp(prefix="bench-snapshot-", dir=parent))
    sizes = QUICK if asked.quick else FULL if asked.full else Sizes()
    bench = Bench(folder, 2 if asked.quick else asked.runs, sizes, asked.cold)
    began = time.monotonic()
    try:
        measure(bench, wanted)
    finally:
        shutil.rmtree(folder)
    say(f"processor seconds; {time.monotonic() - began:.0f} s in all")
    for (case, tool), busy in sorted(bench.server_cpu.items()):
        client = median(one.cpu for one in bench.took[case, tool])
        say(f"  {case:<14} {tool:<8} client {client:7.2f}  server {median(busy):7.2f}")
    for line in figures(bench):
        say(line)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
