"""Traces in the CSV format of the openb GPU cluster: nodes and pods, every mistake named.

Node lists have the columns sn, cpu_milli, memory_mib, gpu, model; pod lists have name, cpu_milli,
memory_mib, num_gpu, gpu_milli and optionally gpu_spec ("a|b": any of these models), qos (BE: best
effort), creation_time and deletion_time (seconds). Further columns are skipped.
"""

import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

WHOLE = 1000
"""Milli of one whole card."""
MOST_GPUS = 64
_SHOWN = 20

Named = TypeVar("Named", "Machine", "Job")


@dataclass(frozen=True, slots=True)
class Machine:
    """One node of a trace."""

    name: str
    cpu_milli: int
    memory_bytes: int
    gpus: int = 0
    model: str = ""
    card_memory_bytes: int = 80 << 30


@dataclass(frozen=True, slots=True)
class Job:
    """One request of a trace: what it asks, when, and for how long it runs."""

    name: str
    cpu_milli: int
    memory_bytes: int
    gpus: int = 0
    milli: int = 0
    """Of each card; below 1000 it shares one."""
    models: tuple[str, ...] = ()
    """Device models that will do; empty: any."""
    at: float = 0.0
    """Seconds from the begin of the trace."""
    duration: float | None = None
    """Seconds; None: to the end of the trace."""
    task: str = ""
    """What it belongs to; jobs of one task arrive together."""
    isolation: str = "container"
    image: str = ""
    best_effort: bool = False
    """Whoever asked for it bears interruptions."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """One wrong field."""

    line: int
    field: str
    value: str
    allowed: str


class TraceError(ValueError):
    """A file that is no trace; the message names file, line, field, value and what is allowed."""

    exit_code = 2

    def __init__(self, file: str, mistakes: list[Mistake]) -> None:
        self.file, self.mistakes = file, mistakes
        lines = [
            f"{file}:{one.line}: {one.field}: {one.value!r}; allowed: {one.allowed}"
            for one in mistakes[:_SHOWN]
        ]
        if len(mistakes) > _SHOWN:
            lines.append(f"{file}: {len(mistakes) - _SHOWN} more mistakes")
        super().__init__("\n".join(lines))


class _Row:
    """The fields of one line; what is wrong is collected and read as its least allowed value."""

    def __init__(self, line: int, fields: dict[str, str], mistakes: list[Mistake]) -> None:
        self.line, self.fields, self.mistakes = line, fields, mistakes
        self.right = True

    def wrong(self, field: str, allowed: str) -> None:
        self.right = False
        self.mistakes.append(Mistake(self.line, field, self.fields.get(field) or "", allowed))

    def text(self, field: str) -> str:
        value = (self.fields.get(field) or "").strip()
        if not value:
            self.wrong(field, "a name that is not empty")
        return value

    def whole(self, field: str, most: int, least: int = 0) -> int:
        value = (self.fields.get(field) or "").strip()
        # isdecimal takes digits of any script, and int would read them too
        if not (value.isascii() and value.isdecimal() and least <= int(value[:20]) <= most):
            self.wrong(field, f"a whole number from {least} to {most}")
            return least
        return int(value)

    def seconds(self, field: str) -> float | None:
        value = (self.fields.get(field) or "").strip()
        if not value:
            return None
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0 <= number < 1e12:  # noqa: PLR2004  thirty thousand years: no time in seconds
            self.wrong(field, "seconds: a number of at least 0, or nothing")
            return None
        return number


def read_nodes(lines: Iterable[str], file: str) -> list[Machine]:
    """Return the nodes of a node list. Raises TraceError."""

    def node(row: _Row) -> Machine:
        gpus = row.whole("gpu", MOST_GPUS)
        model = (row.fields.get("model") or "").strip()
        if gpus and not model:
            row.wrong("model", "the device model of a node with GPUs")
        return Machine(
            name=row.text("sn"),
            cpu_milli=row.whole("cpu_milli", 10**9, 1),
            memory_bytes=row.whole("memory_mib", 10**9, 1) << 20,
            gpus=gpus,
            model=model if gpus else "",
        )

    return _read(lines, file, ("sn", "cpu_milli", "memory_mib", "gpu", "model"), node)


def read_jobs(lines: Iterable[str], file: str) -> list[Job]:
    """Return the pods of a pod list, in its order. Raises TraceError."""

    def job(row: _Row) -> Job:
        gpus = row.whole("num_gpu", MOST_GPUS)
        milli = row.whole("gpu_milli", WHOLE)
        if row.right and gpus > 1 and milli != WHOLE:
            row.wrong("gpu_milli", f"{WHOLE} where num_gpu is more than 1")
        elif row.right and (gpus == 0) != (milli == 0):
            row.wrong("gpu_milli", "0 if and only if num_gpu is 0")
        begin, end = row.seconds("creation_time"), row.seconds("deletion_time")
        if begin is not None and end is not None and end < begin:
            row.wrong("deletion_time", "nothing, or a time not before creation_time")
        models = (row.fields.get("gpu_spec") or "").split("|")
        return Job(
            name=row.text("name"),
            cpu_milli=row.whole("cpu_milli", 10**9),
            memory_bytes=row.whole("memory_mib", 10**9) << 20,
            gpus=gpus,
            milli=milli,
            models=tuple(one.strip() for one in models if one.strip()),
            at=begin or 0.0,
            duration=None if end is None else end - (begin or 0.0),
            best_effort=(row.fields.get("qos") or "").strip() == "BE",
        )

    return _read(lines, file, ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"), job)


def _read(
    lines: Iterable[str], file: str, columns: tuple[str, ...], make: Callable[[_Row], Named]
) -> list[Named]:
    reader = csv.reader(lines)
    try:
        heading = [one.strip() for one in next(reader, [])]
        if any(one not in heading for one in columns):
            allowed = f"a first line with the columns {', '.join(columns)}"
            raise TraceError(file, [Mistake(1, "columns", ",".join(heading), allowed)])
        mistakes: list[Mistake] = []
        found: dict[str, Named] = {}
        for cells in reader:
            if not cells:
                continue
            row = _Row(reader.line_num, dict(zip(heading, cells, strict=False)), mistakes)
            if len(cells) != len(heading):
                allowed = f"{len(heading)} fields, as in the first line"
                mistakes.append(Mistake(reader.line_num, "fields", str(len(cells)), allowed))
                continue
            one = make(row)
            if one.name in found:
                row.wrong(columns[0], "a name of its own: this one was used before")
            found[one.name] = one
    except csv.Error as error:
        allowed = f"text in CSV format ({error})"
        raise TraceError(file, [Mistake(reader.line_num, "line", "", allowed)]) from error
    if not found and not mistakes:
        mistakes.append(Mistake(1, "lines", "0", "at least one line below the first"))
    if mistakes:
        raise TraceError(file, mistakes)
    return list(found.values())
