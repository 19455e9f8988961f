"""A task queue as pure state: which items wait, which are taken until when, which are done.

Decisions (`put`, `take`, `acknowledge`, ...) look at the state and return rows; `apply` is the only
thing that changes it, and it has no clock: who applies the same rows has the same state. An item is
delivered at least once, and acknowledged at most once; of two workers that hold it one after the
other only the later one's acknowledgement counts.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

Row = dict[str, Any]
"""One change, as JSON: {"k": put|take|done|back|hold, "at": UTC seconds, ...}."""
REMEMBER = 24 * 3600.0
"""Seconds for which the id of an acknowledged item is known, so that a late repeat puts nothing."""


@dataclass(slots=True)
class Item:
    """One piece of work. `call` is the take that holds it; empty: it waits."""

    order: int
    body: str
    at: float
    deliveries: int = 0
    call: str = ""
    until: float = 0.0
    worker: str = ""


@dataclass(slots=True)
class Undo:
    """What items were before changes that may have to be taken back. None: they were not there."""

    order: int
    acknowledged: int
    items: dict[str, "Item | None"] = field(default_factory=dict)


@dataclass(slots=True)
class TaskQueue:
    """The state after all rows so far. `bytes` counts bodies, in UTF-8."""

    items: dict[str, Item] = field(default_factory=dict)
    bytes: int = 0
    acknowledged: int = 0
    order: int = 0
    waiting: list[tuple[int, str]] = field(default_factory=list)
    """Heap of (order, id); entries of items that do not wait any more are skipped."""
    depth: int = 0
    taken: dict[str, None] = field(default_factory=dict)
    calls: dict[str, dict[str, None]] = field(default_factory=dict)
    """What each take holds."""
    workers: dict[str, dict[str, None]] = field(default_factory=dict)
    """What each worker holds that said who it is."""
    ends: list[tuple[float, str]] = field(default_factory=list)
    """Heap of (until, id); entries of items that are not taken until then are skipped."""
    done: dict[str, float] = field(default_factory=dict)
    """Acknowledged ids by time, oldest first."""

    def put(self, now: float, items: Sequence[tuple[str, str]]) -> list[Row]:
        """Return the rows that put (id, body) pairs; what the queue has seen is left out."""
        new: dict[str, str] = {}
        for name, body in items:
            if name not in self.items and name not in self.done and name not in new:
                new[name] = body
        return [{"k": "put", "at": now, "items": list(new.items())}] if new else []

    def held(self, call: str) -> list[str]:
        """Return what a take holds, in order."""
        return self._in_order(self.calls.get(call, ()))

    def take(self, now: float, call: str, most: int, seconds: float, worker: str) -> list[Row]:
        """Return the rows that give up to `most` waiting items, oldest first, to a take."""
        heap = self.waiting
        chosen: dict[str, tuple[int, str]] = {}
        while heap and len(chosen) < most:
            entry = heapq.heappop(heap)
            item = self.items.get(entry[1])
            if item is not None and not item.call and item.order == entry[0]:
                chosen[entry[1]] = entry
        # nothing changes before the rows are applied
        for entry in chosen.values():
            heapq.heappush(heap, entry)
        if not chosen:
            return []
        row = {"k": "take", "at": now, "ids": list(chosen), "call": call, "until": now + seconds}
        return [row | {"worker": worker}] if worker else [row]

    def acknowledge(self, now: float, names: Sequence[str]) -> list[Row]:
        """Return the rows that end items."""
        return [{"k": "done", "at": now, "ids": list(names)}] if names else []

    def give_back(self, now: float, names: Sequence[str]) -> list[Row]:
        """Return the rows that let items wait again, at their old place."""
        return [{"k": "back", "at": now, "ids": list(names)}] if names else []

    def extend(self, now: float, names: Sequence[str], seconds: float) -> list[Row]:
        """Return the rows that leave items longer with who holds them."""
        if not names:
            return []
        return [{"k": "hold", "at": now, "ids": list(names), "until": now + seconds}]

    def overdue(self, now: float, ended: Callable[[str], bool]) -> list[str]:
        """Return what was taken by a worker that has ended, or for a time that is over."""
        found: dict[str, float] = {}
        while self.ends and self.ends[0][0] <= now:
            until, name = heapq.heappop(self.ends)
            if name in self.taken and self.items[name].until == until:
                found[name] = until
        # nothing changes before the rows are applied
        for name, until in found.items():
            heapq.heappush(self.ends, (until, name))
        gone = [names for worker, names in self.workers.items() if ended(worker)]
        return self._in_order({*found, *(name for names in gone for name in names)})

    def valid(self, receipts: Iterable[str]) -> tuple[list[str], list[str]]:
        """Return the items of receipts (call/id) that still count, and the receipts that do not."""
        good: dict[str, None] = {}
        stale = []
        for receipt in receipts:
            call, _, name = receipt.partition("/")
            item = self.items.get(name)
            if item is not None and item.call == call:
                good[name] = None
            else:
                stale.append(receipt)
        return list(good), stale

    def oldest(self) -> float | None:
        """Return when the oldest item that waits was put (UTC seconds)."""
        heap = self.waiting
        while heap:
            item = self.items.get(heap[0][1])
            if item is not None and not item.call and item.order == heap[0][0]:
                return item.at
            heapq.heappop(heap)
        return None

    def apply(self, rows: Iterable[Row]) -> None:
        """Apply rows in order."""
        for row in rows:
            match row["k"]:
                case "put":
                    self._put(row)
                case "take":
                    self._take(row)
                case "done":
                    self._done(row)
                case "back":
                    self._back(row)
                case "hold":
                    self._hold(row)

    def try_out(self, rows: Sequence[Row], undo: "Undo") -> None:
        """Apply rows that are not stored yet; `undo` keeps what `take_back` needs."""
        for row in rows:
            names = [name for name, _ in row["items"]] if row["k"] == "put" else row["ids"]
            for name in names:
                if name not in undo.items:
                    item = self.items.get(name)
                    undo.items[name] = None if item is None else replace(item)
        self.apply(rows)

    def take_back(self, undo: "Undo") -> None:
        """Be as before everything that was tried out with this `undo`."""
        for name, old in undo.items.items():
            now = self.items.pop(name, None)
            if now is not None:
                self.bytes -= len(now.body.encode())
                self.depth -= not now.call
                self._let_go(name, now)
            self.done.pop(name, None)
            if old is None:
                continue
            self.items[name] = old
            self.bytes += len(old.body.encode())
            if old.call:
                self._hold_on(name, old)
            else:
                self.depth += 1
                heapq.heappush(self.waiting, (old.order, name))
        self.order, self.acknowledged = undo.order, undo.acknowledged

    def undo(self) -> "Undo":
        """Return where changes that are tried out from now on are kept."""
        return Undo(self.order, self.acknowledged)

    def forget(self, now: float) -> None:
        """Drop acknowledged ids that are older than REMEMBER."""
        while self.done and now - self.done[next(iter(self.done))] > REMEMBER:
            del self.done[next(iter(self.done))]

    def _put(self, row: Row) -> None:
        for name, body in row["items"]:
            self.order += 1
            self.items[name] = Item(self.order, body, row["at"])
            self.bytes += len(body.encode())
            self.depth += 1
            heapq.heappush(self.waiting, (self.order, name))

    def _take(self, row: Row) -> None:
        for name in row["ids"]:
            item = self.items[name]
            item.call, item.until, item.worker = row["call"], row["until"], row.get("worker", "")
            item.deliveries += 1
            self._hold_on(name, item)
            self.depth -= 1

    def _done(self, row: Row) -> None:
        now = row["at"]
        for name in row["ids"]:
            item = self.items.pop(name)
            self.bytes -= len(item.body.encode())
            self._let_go(name, item)
            self.done[name] = now
            self.acknowledged += 1

    def _back(self, row: Row) -> None:
        for name in row["ids"]:
            item = self.items[name]
            self._let_go(name, item)
            item.call, item.until, item.worker = "", 0.0, ""
            self.depth += 1
            heapq.heappush(self.waiting, (item.order, name))

    def _hold(self, row: Row) -> None:
        for name in row["ids"]:
            self.items[name].until = row["until"]
            heapq.heappush(self.ends, (row["until"], name))

    def _hold_on(self, name: str, item: Item) -> None:
        """Enter an item that is taken."""
        self.taken[name] = None
        self.calls.setdefault(item.call, {})[name] = None
        if item.worker:
            self.workers.setdefault(item.worker, {})[name] = None
        heapq.heappush(self.ends, (item.until, name))

    def _let_go(self, name: str, item: Item) -> None:
        """Enter that an item is taken no more, if it was."""
        self.taken.pop(name, None)
        for known, whose in ((self.calls, item.call), (self.workers, item.worker)):
            if whose in known:
                known[whose].pop(name, None)
                if not known[whose]:
                    del known[whose]

    def _in_order(self, names: Iterable[str]) -> list[str]:
        return sorted(names, key=lambda name: self.items[name].order)

    def dump(self) -> dict[str, Any]:
        """Return the whole state as JSON data."""
        return {
            "order": self.order,
            "acknowledged": self.acknowledged,
            "done": list(self.done.items()),
            "items": [
                [name, one.order, one.body, one.at, one.deliveries, one.call, one.until, one.worker]
                for name, one in self.items.items()
            ],
        }

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> "TaskQueue":
        """Return the state of a dump."""
        state = cls(order=data["order"], acknowledged=data["acknowledged"])
        state.done = dict(data["done"])
        for name, *values in data["items"]:
            item = state.items[name] = Item(*values)
            state.bytes += len(item.body.encode())
            if item.call:
                state._hold_on(name, item)
            else:
                state.depth += 1
                state.waiting.append((item.order, name))
        heapq.heapify(state.waiting)
        return state
