"""A task queue in the object store: an append-only log that any number of gateways write.

Segment N is the object `queues/<project>/<experiment uid>/<queue>/log/<N>`, created only if absent.
Who loses the race for N reads it, decides again on the new state and tries N + 1; so every decision
is made on all that went before it, and nobody needs to be in charge. Calls that arrive while a
segment is written share the next one. Snapshots (`.../state/<N>`) keep replay short.
"""

import asyncio
import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

from dsec.journal.taskqueue import Row, TaskQueue, Undo
from dsec.world.clock import Clock
from dsec.world.objects import NotFoundError, ObjectStore, PreconditionError

PREFIX = "queues"
SNAPSHOT_EVERY = 500
RETAIN_SECONDS = 3600.0
"""How long covered segments stay: a writer that stood still for less than half of this still
collides; one that stood still longer starts from the newest snapshot before it writes."""
MAX_OPEN = 1000
MAX_HELD = 1 << 30
"""Queues that one process holds in memory, and bytes of their bodies."""
LARGE = 1 << 20
"""Bytes of a state from which on a thread packs and unpacks it: others' calls do not wait."""
LISTS, BODY = ("done", "items"), 2
"""What is long in a snapshot, in its order, and the place of the body in a row of an item."""
ITEM_ROW = 64
"""About the bytes of an item in a snapshot beside its body."""
LOOK_SECONDS = 0.25
"""Between two looks at the log by a take that waits."""

R = TypeVar("R")
Q = TypeVar("Q", bound="QueueReader")
Decision = Callable[[TaskQueue, float], tuple[list[Row], R]]
"""From the state and the time (UTC seconds) to rows and the answer to give once they are stored."""


def folder(project: str, uid: str, queue: str = "") -> str:
    """Return the prefix of an experiment's queues, or of one of them."""
    return f"{PREFIX}/{project}/{uid}/{queue}/" if queue else f"{PREFIX}/{project}/{uid}/"


def parts(prefix: str) -> tuple[str, str, str]:
    """Return project, experiment uid and queue of a queue's prefix."""
    _, project, uid, queue, _ = prefix.split("/")
    return project, uid, queue


async def names(objects: ObjectStore, project: str, uid: str) -> list[str]:
    """Return the names of an experiment's queues. Raises ObjectStoreError."""
    prefix = folder(project, uid)
    listed = await objects.list(prefix)
    return sorted({info.key.removeprefix(prefix).split("/", 1)[0] for info in listed})


async def remove(objects: ObjectStore, project: str, uid: str) -> int:
    """Remove all queues of an experiment; return how many objects. Raises ObjectStoreError."""
    listed = await objects.list(folder(project, uid))
    for info in listed:
        await objects.delete(info.key)
    return len(listed)


async def owners(objects: ObjectStore) -> set[tuple[str, str]]:
    """Return (project, experiment uid) of whatever has queues. Raises ObjectStoreError."""
    keys = [info.key.split("/") for info in await objects.list(f"{PREFIX}/")]
    return {(project, uid) for _, project, uid, *_ in keys}


class QueueReader:
    """Follows one queue. Readers never write. Without `bodies` it keeps numbers and names only."""

    def __init__(
        self, objects: ObjectStore, prefix: str, clock: Clock, *, bodies: bool = True
    ) -> None:
        self._objects = objects
        self._bodies = bodies
        self._log, self._states = prefix + "log/", prefix + "state/"
        self._clock = clock
        self.state = TaskQueue()
        self.position = 0
        self._seen: float | None = None
        """When the end of the log was last seen (monotonic)."""
        self._reading = asyncio.Lock()

    async def refresh(self) -> None:
        """Read to the end of the log. Raises ObjectStoreError."""
        async with self._reading:
            await self._read()

    async def _read(self) -> None:
        now = self._clock.monotonic()
        if self._seen is None or now - self._seen > RETAIN_SECONDS / 2:
            await self._jump()
        while True:
            try:
                data, _ = await self._objects.get(self._key(self.position + 1))
            except NotFoundError:
                self._seen = now
                return
            self._apply(json.loads(zlib.decompress(data))["rows"])

    def _apply(self, rows: list[Row]) -> None:
        if not self._bodies:
            for row in rows:
                if row["k"] == "put":
                    row["items"] = [(name, "") for name, _ in row["items"]]
        self.state.apply(rows)
        self.state.forget(rows[-1]["at"])
        self.position += 1

    async def _jump(self) -> None:
        states = await self._objects.list(self._states)
        if states and (number := int(states[-1].key.removeprefix(self._states))) > self.position:
            data, _ = await self._objects.get(states[-1].key)
            # packed: what was large packs to a tenth and less
            large = len(data) >= LARGE // 10
            self.state = (
                await asyncio.to_thread(_unpacked, data, bodies=self._bodies)
                if large
                else _unpacked(data, bodies=self._bodies)
            )
            self.position = number

    def _key(self, number: int) -> str:
        return f"{self._log}{number:020d}"


@dataclass(slots=True)
class _Waiting:
    decide: Decision[Any]
    answer: asyncio.Future[Any]


class QueueLog(QueueReader):
    """One gateway's hand on a queue."""

    def __init__(
        self,
        objects: ObjectStore,
        prefix: str,
        clock: Clock,
        *,
        writer: str,
        ended: Callable[[str], bool],
    ) -> None:
        """`ended` says of a worker whether it is known to have ended."""
        super().__init__(objects, prefix, clock)
        self._writer = writer
        self._ended = ended
        self._inbox: list[_Waiting] = []
        self._task: asyncio.Task[None] | None = None
        self._since_snapshot = 0
        self._number = 0

    async def do(self, decide: Decision[R]) -> R:
        """Decide on the newest state; return the answer once its rows are stored.

        Raises ObjectStoreError where that is not known: every decision may be made again.
        """
        waiting = _Waiting(decide, asyncio.get_running_loop().create_future())
        self._inbox.append(waiting)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write())
        answer: R = await waiting.answer
        return answer

    async def _write(self) -> None:
        while self._inbox:
            batch, self._inbox = self._inbox, []
            try:
                await self._commit(batch)
            except Exception as problem:  # noqa: BLE001 - every caller gets it, nobody else can
                for one in batch:
                    if not one.answer.done():
                        one.answer.set_exception(problem)

    async def _commit(self, batch: list[_Waiting]) -> None:
        """Store one segment for all of a batch, or none where nothing changes."""
        # nobody else reads meanwhile: the state is ahead of the log until the store has answered
        async with self._reading:
            rows, answers, now = await self._settle(batch)
        for one, answer in zip(batch, answers, strict=True):
            if one.answer.done():
                continue
            if isinstance(answer, Exception):
                one.answer.set_exception(answer)
            else:
                one.answer.set_result(answer)
        if rows:
            self._since_snapshot += 1
            if self._since_snapshot >= SNAPSHOT_EVERY:
                await self._snapshot(now)

    async def _settle(self, batch: list[_Waiting]) -> tuple[list[Row], list[Any], float]:
        """Decide until the rows are the next segment; return them, the answers and the time."""
        while True:
            await self._read()
            now = self._clock.now().timestamp()
            undo = self.state.undo()
            try:
                rows, answers = self._decide(batch, now, undo)
                stored = not rows or await self._append(rows)
            except BaseException:
                # what is not known to be stored is read again, where it is
                self.state.take_back(undo)
                raise
            if stored:
                break
            self.state.take_back(undo)
        if rows:
            self.position += 1
            self.state.forget(now)
        return rows, answers, now

    def _decide(self, batch: list[_Waiting], now: float, undo: Undo) -> tuple[list[Row], list[Any]]:
        """Return the rows and answers of a batch; each decision sees the ones before it."""
        state, answers = self.state, []
        rows = state.give_back(now, state.overdue(now, self._ended))
        state.try_out(rows, undo)
        for one in batch:
            try:
                new, answer = one.decide(state, now)
            except Exception as problem:  # noqa: BLE001 - one caller's mistake is only its own
                new, answer = [], problem
            state.try_out(new, undo)
            rows = rows + new
            answers.append(answer)
        return rows, answers

    async def _append(self, rows: list[Row]) -> bool:
        """Write the next segment. False: somebody else has, or had, that number."""
        self._number += 1
        mark = f"{self._writer}:{self._number}"
        text = json.dumps({"writer": mark, "rows": rows}, separators=(",", ":"))
        data, key = zlib.compress(text.encode(), 1), self._key(self.position + 1)
        try:
            await self._objects.put_if_absent(key, data)
        except PreconditionError:
            # ours, if a retry inside the client met what an attempt before it had written
            return (await self._objects.get(key))[0] == data
        return self._in_time() or await self._newest()

    def _in_time(self) -> bool:
        """Return whether no segment behind the state that was decided on can have been removed."""
        return self._clock.monotonic() - (self._seen or 0.0) <= RETAIN_SECONDS / 2

    async def _newest(self) -> bool:
        """Return whether the next segment is behind all snapshots.

        It is not where this process stood still for so long that others' segment of that number
        was removed: then its own counts for nothing, and goes with the next snapshot.
        """
        states = await self._objects.list(self._states)
        return not states or states[-1].key <= f"{self._states}{self.position:020d}"

    async def _snapshot(self, now: float) -> None:
        """Store the state, and remove what snapshots older than RETAIN_SECONDS cover."""
        self._since_snapshot = 0
        # what has changed by the time that it is packed belongs to later segments
        key, dump = f"{self._states}{self.position:020d}", self.state.dump()
        large = self.state.bytes + ITEM_ROW * len(self.state.items) >= LARGE
        data = await asyncio.to_thread(_packed, now, dump) if large else _packed(now, dump)
        await self._objects.put(key, data)
        covered = 0
        for info in (await self._objects.list(self._states))[:-1]:
            data, _ = await self._objects.get(info.key)
            if now - _packed_at(data) < RETAIN_SECONDS:
                break
            covered = int(info.key.removeprefix(self._states))
            await self._objects.delete(info.key)
        if covered:
            for info in await self._objects.list(self._log):
                if int(info.key.removeprefix(self._log)) > covered:
                    break
                await self._objects.delete(info.key)


def _packed(at: float, state: dict[str, Any]) -> bytes:
    """Return a snapshot as compressed JSON: row by row, so that a thread lets others run."""
    packer, rest = zlib.compressobj(1), {**state}
    lists = {name: rest.pop(name) for name in LISTS}
    head = json.dumps({"at": at, "state": rest}, separators=(",", ":")).removesuffix("}}")
    pieces = [packer.compress(head.encode())]
    for name, rows in lists.items():
        pieces.append(packer.compress(f',"{name}":['.encode()))
        for number, item in enumerate(rows):
            row = json.dumps(item, separators=(",", ":"))
            pieces.append(packer.compress(f"{',' * bool(number)}{row}".encode()))
        pieces.append(packer.compress(b"]"))
    pieces += [packer.compress(b"}}"), packer.flush()]
    return b"".join(pieces)


def _unpacked(data: bytes, *, bodies: bool) -> TaskQueue:
    """Return the state of a snapshot, read row by row for the same reason."""
    text, at = zlib.decompress(data).decode(), 0
    head, _, _ = text.partition(f',"{LISTS[0]}":[')
    state: dict[str, Any] = json.loads(f"{head}}}}}")["state"]
    decoder = json.JSONDecoder()
    for name in LISTS:
        rows = state[name] = []
        # no string has this in it: a quotation mark inside of one has a backslash before it
        at = text.index(f'"{name}":[', at) + len(f'"{name}":[')
        while text[at] != "]":
            row, at = decoder.raw_decode(text, at + (text[at] == ","))
            if name == "items" and not bodies:
                row[BODY] = ""
            rows.append(row)
    return TaskQueue.load(state)


def _packed_at(data: bytes) -> float:
    """Return when a snapshot was made, from its first bytes: it may be very large."""
    head = zlib.decompressobj().decompress(data, 64).decode(errors="ignore")
    return float(head.removeprefix('{"at":').partition(",")[0])


def keep(known: dict[str, Q], prefix: str, queue: Q) -> None:
    """Enter the queue that is used now, and let the least recently used go for it."""
    held = sum(one.state.bytes for one in known.values()) + queue.state.bytes
    while known and (held > MAX_HELD or len(known) >= MAX_OPEN):
        held -= known.pop(next(iter(known))).state.bytes
    known[prefix] = queue


class QueueLogs:
    """The queues that a gateway has at hand; the least recently used is read again when needed."""

    def __init__(
        self, objects: ObjectStore, clock: Clock, writer: str, ended: Callable[[str], bool]
    ) -> None:
        """`writer` is the process's own word; `ended` says whether a worker is known to be gone."""
        self._objects, self._clock = objects, clock
        self._writer, self._ended = writer, ended
        self._logs: dict[str, QueueLog] = {}
        self._opened = count()

    def log(self, prefix: str) -> QueueLog:
        """Return one queue."""
        found = self._logs.pop(prefix, None)
        if found is None:
            # the queue may be open still, in the hands of a call that is under way
            writer = f"{self._writer}.{next(self._opened)}"
            found = QueueLog(self._objects, prefix, self._clock, writer=writer, ended=self._ended)
        keep(self._logs, prefix, found)
        return found

    def open(self) -> list[tuple[str, QueueLog]]:
        """Return the queues at hand with their prefixes."""
        return list(self._logs.items())
