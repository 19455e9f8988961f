"""Records and objects in memory: for tests and the simulator, with faults on demand.

`MemoryRecords` behaves like the Kubernetes API where dsec relies on it: resource versions and
conflicts, generation, the status subresource, finalizers, ownership of applied fields, watches
with expiry, and an access table in place of the authoriser. What lives here dies with the process.
"""

import asyncio
import copy
import hashlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from dsec.world.clock import Clock, Randomness, SystemClock, system_randomness
from dsec.world.objects import NotFoundError, ObjectInfo, ObjectStoreError, PreconditionError
from dsec.world.records import (
    Access,
    Record,
    RecordConflictError,
    RecordInvalidError,
    RecordList,
    RecordNotFoundError,
    RecordsError,
    User,
    WatchEvent,
    WatchExpiredError,
)

WATCH_HISTORY = 20_000
"""Changes kept for watchers; a watcher further behind lists again."""

Fault = Callable[[str, str], str]
"""Called with (operation, key) before each operation: "" for none, "before" to fail without
effect, "after" to do it and lose the answer."""

Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class AccessRule:
    """One row of the access table; "*" stands for everything. Subjects are users or groups."""

    subjects: tuple[str, ...]
    verbs: tuple[str, ...] = ("*",)
    resources: tuple[str, ...] = ("*",)
    namespaces: tuple[str, ...] = ("*",)

    def grants(self, user: User, access: Access) -> bool:
        """Return whether this row covers the question."""
        resource = access.resource + (f"/{access.subresource}" if access.subresource else "")
        names = {user.name, *user.groups, "*"}
        return (
            bool(names & set(self.subjects))
            and bool({access.verb, "*"} & set(self.verbs))
            and bool({resource, "*"} & set(self.resources))
            and bool({access.namespace, "*"} & set(self.namespaces))
        )


@dataclass(slots=True)
class AccessTable:
    """Who may do what, and whose tokens are known, where no Kubernetes answers that."""

    rules: list[AccessRule] = field(default_factory=list)
    tokens: dict[str, User] = field(default_factory=dict)


class MemoryRecords:
    """The record store in this process. One event loop; no threads."""

    def __init__(
        self,
        clock: Clock | None = None,
        randomness: Randomness | None = None,
        access: AccessTable | None = None,
        fault: Fault | None = None,
    ) -> None:
        self._clock: Clock = clock or SystemClock()
        self._randomness = randomness or system_randomness()
        self.access = access or AccessTable()
        self.fault = fault
        self._records: dict[Key, Record] = {}
        self._version = 0
        self._events: deque[tuple[int, str, WatchEvent]] = deque(maxlen=WATCH_HISTORY)
        self._changed = asyncio.Condition()

    async def get(self, kind: str, name: str, namespace: str = "") -> Record:
        """Return one record. Raises RecordNotFoundError."""
        self._trip("get", kind, namespace, name)
        return copy.deepcopy(self._need((kind, namespace, name)))

    async def list(self, kind: str, namespace: str = "", selector: str = "") -> RecordList:
        """Return all records of a kind, by label selector (`a=b,c!=d,e,!f`)."""
        self._trip("list", kind, namespace, "")
        items = [
            copy.deepcopy(record)
            for (k, ns, _), record in sorted(self._records.items())
            if k == kind
            and namespace in ("", ns)
            and selected(record["metadata"].get("labels", {}), selector)
        ]
        return RecordList(items, str(self._version))

    async def watch(self, kind: str, resource_version: str) -> AsyncIterator[WatchEvent]:
        """Yield changes since a version. Raises WatchExpiredError when it is too old."""
        self._trip("watch", kind, "", "")
        seen = int(resource_version or "0")
        while True:
            if self._events and self._events[0][0] > seen + 1 and self._lost_before(seen):
                raise WatchExpiredError(f"version {seen} is too old")
            fresh = [
                (version, event)
                for version, event_kind, event in self._events
                if version > seen and event_kind == kind
            ]
            seen = max(seen, self._version)
            for _, event in fresh:
                yield WatchEvent(event.type, copy.deepcopy(event.record))
            async with self._changed:
                if self._version <= seen:
                    await self._changed.wait()
            self._trip("watch", kind, "", "")

    async def create(self, record: Record) -> Record:
        """Create. Raises RecordConflictError when it exists."""
        key = key_of(record)
        lost = self._trip("create", *key)
        if key in self._records:
            raise RecordConflictError(f"{key[0]} {key[2]} already exists")
        fresh = copy.deepcopy(record)
        fresh.pop("status", None)
        self._stamp_new(fresh)
        return await self._finish("ADDED", key, fresh, lost)

    async def apply(self, record: Record, manager: str = "dsec") -> Record:
        """Create or update; fields that this manager named before and now leaves out go away."""
        key = key_of(record)
        lost = self._trip("apply", *key)
        wanted = copy.deepcopy(record)
        wanted.pop("status", None)
        for name in ("resourceVersion", "uid", "generation", "managedFields", "creationTimestamp"):
            wanted.get("metadata", {}).pop(name, None)
        old = self._records.get(key)
        if old is None:
            fresh = copy.deepcopy(wanted)
            fresh["metadata"]["managedFields"] = [{"manager": manager, "fields": wanted}]
            self._stamp_new(fresh)
            return await self._finish("ADDED", key, fresh, lost)
        fresh = copy.deepcopy(old)
        managed = fresh["metadata"].get("managedFields", [])
        before: Record = next((m["fields"] for m in managed if m["manager"] == manager), {})
        _drop_missing(fresh, before, wanted)
        _merge(fresh, wanted)
        fresh["metadata"]["managedFields"] = [
            *(m for m in managed if m["manager"] != manager),
            {"manager": manager, "fields": wanted},
        ]
        if fresh == old:
            return copy.deepcopy(old)
        return await self._update(key, old, fresh, lost)

    async def replace(self, record: Record) -> Record:
        """Replace spec and metadata. Raises RecordConflictError, RecordNotFoundError."""
        key = key_of(record)
        lost = self._trip("replace", *key)
        old = self._need(key)
        self._check_version(record, old)
        fresh = copy.deepcopy(record)
        for name in ("uid", "creationTimestamp", "generation", "deletionTimestamp"):
            fresh["metadata"].pop(name, None)
            if name in old["metadata"]:
                fresh["metadata"][name] = old["metadata"][name]
        fresh.pop("status", None)
        if "status" in old:
            fresh["status"] = copy.deepcopy(old["status"])
        return await self._update(key, old, fresh, lost)

    async def replace_status(self, record: Record) -> Record:
        """Replace status alone. Raises RecordConflictError, RecordNotFoundError."""
        key = key_of(record)
        lost = self._trip("replace_status", *key)
        old = self._need(key)
        self._check_version(record, old)
        fresh = copy.deepcopy(old)
        fresh["status"] = copy.deepcopy(record.get("status", {}))
        return await self._update(key, old, fresh, lost)

    async def delete(self, kind: str, name: str, namespace: str = "", *, uid: str = "") -> None:
        """Delete, or mark for deletion where finalizers are left."""
        key = (kind, namespace, name)
        lost = self._trip("delete", *key)
        old = self._records.get(key)
        if old is None:
            return
        if uid and old["metadata"]["uid"] != uid:
            raise RecordConflictError(f"{kind} {name} is not the one with uid {uid}")
        if old["metadata"].get("finalizers"):
            if "deletionTimestamp" not in old["metadata"]:
                fresh = copy.deepcopy(old)
                fresh["metadata"]["deletionTimestamp"] = self._stamp()
                fresh["metadata"]["generation"] = fresh["metadata"].get("generation", 1) + 1
                await self._finish("MODIFIED", key, fresh, lost)
            return
        await self._finish("DELETED", key, copy.deepcopy(old), lost)

    async def allowed(self, user: User, access: Access) -> tuple[bool, str]:
        """Answer from the access table."""
        self._trip("allowed", access.resource, access.namespace, access.name)
        if any(rule.grants(user, access) for rule in self.access.rules):
            return True, ""
        return False, f"no rule lets {user.name} {access.verb} {access.resource}"

    async def authenticate(self, token: str, audience: str = "") -> User | None:
        """Answer from the table of tokens; `audience` is part of a bound token's entry name."""
        self._trip("authenticate", "TokenReview", "", "")
        table = self.access.tokens
        return table.get(f"{audience}:{token}" if audience else token)

    def _persist(self, key: Key, record: Record | None) -> None:
        """Make a change durable before it is visible; nothing to do in memory."""

    def _trip(self, operation: str, kind: str, namespace: str, name: str) -> bool:
        """Fail as the fault hook says. True: do it, then lose the answer."""
        where = f"{kind}/{namespace}/{name}"
        verdict = self.fault(operation, where) if self.fault else ""
        if verdict == "before":
            raise RecordsError(f"{operation} {where}: no answer")
        return verdict == "after"

    def _need(self, key: Key) -> Record:
        try:
            return self._records[key]
        except KeyError:
            raise RecordNotFoundError(f"{key[0]} {key[2]} not found") from None

    @staticmethod
    def _check_version(record: Record, old: Record) -> None:
        given = record["metadata"].get("resourceVersion", "")
        if given != old["metadata"]["resourceVersion"]:
            raise RecordConflictError(
                f"{record['kind']} {record['metadata']['name']} changed: "
                f"version {given or 'missing'} is not {old['metadata']['resourceVersion']}"
            )

    def _stamp(self) -> str:
        return self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")

    def _stamp_new(self, record: Record) -> None:
        raw = self._randomness.randbytes(16).hex()
        uid = f"{raw[:8]}-{raw[8:12]}-{raw[12:16]}-{raw[16:20]}-{raw[20:]}"
        record["metadata"] |= {
            "uid": uid,
            "creationTimestamp": self._stamp(),
            "generation": 1,
        }

    async def _update(self, key: Key, old: Record, fresh: Record, lost: bool) -> Record:
        if fresh.get("spec") != old.get("spec"):
            fresh["metadata"]["generation"] = old["metadata"].get("generation", 1) + 1
        gone = "deletionTimestamp" in fresh["metadata"] and not fresh["metadata"].get("finalizers")
        return await self._finish("DELETED" if gone else "MODIFIED", key, fresh, lost)

    async def _finish(self, event: str, key: Key, fresh: Record, lost: bool) -> Record:
        self._version += 1
        fresh["metadata"]["resourceVersion"] = str(self._version)
        self._persist(key, None if event == "DELETED" else fresh)
        if event == "DELETED":
            self._records.pop(key, None)
        else:
            self._records[key] = fresh
        self._events.append((self._version, key[0], WatchEvent(event, copy.deepcopy(fresh))))
        async with self._changed:
            self._changed.notify_all()
        if lost:
            raise RecordsError(f"write of {key[0]} {key[2]}: the answer was lost")
        return copy.deepcopy(fresh)

    def _lost_before(self, seen: int) -> bool:
        return self._version - seen > len(self._events)


def key_of(record: Record) -> Key:
    """Return (kind, namespace, name). Raises RecordInvalidError where one is missing."""
    try:
        meta = record["metadata"]
        return record["kind"], meta.get("namespace", ""), meta["name"]
    except (KeyError, TypeError) as problem:
        raise RecordInvalidError(f"a record needs kind and metadata.name: {problem}") from problem


def selected(labels: dict[str, str], selector: str) -> bool:
    """Return whether labels match an equality selector: `a=b`, `a!=b`, `a`, `!a`, by commas."""
    for raw in filter(None, (part.strip() for part in selector.split(","))):
        if "!=" in raw:
            name, value = raw.split("!=", 1)
            good = labels.get(name) != value
        elif "=" in raw:
            name, value = raw.replace("==", "=").split("=", 1)
            good = labels.get(name) == value
        elif raw.startswith("!"):
            good = raw[1:] not in labels
        else:
            good = raw in labels
        if not good:
            return False
    return True


def _merge(target: dict[str, Any], wanted: dict[str, Any]) -> None:
    for name, value in wanted.items():
        if isinstance(value, dict) and isinstance(target.get(name), dict):
            _merge(target[name], value)
        else:
            target[name] = copy.deepcopy(value)


def _drop_missing(target: dict[str, Any], before: dict[str, Any], wanted: dict[str, Any]) -> None:
    for name, value in before.items():
        if name not in wanted:
            target.pop(name, None)
        elif all(isinstance(d.get(name), dict) for d in (target, before, wanted)):
            _drop_missing(target[name], value, wanted[name])


def etag_of(data: bytes) -> str:
    """Return the etag of content: equal content, equal etag."""
    return hashlib.sha256(data).hexdigest()[:32]


class MemoryObjects:
    """One bucket in this process."""

    def __init__(self, fault: Fault | None = None) -> None:
        self.fault = fault
        self._data: dict[str, bytes] = {}

    async def get(self, key: str) -> tuple[bytes, str]:
        """Return content and etag. Raises NotFoundError."""
        self._trip("get", key)
        try:
            data = self._data[key]
        except KeyError:
            raise NotFoundError(key) from None
        return data, etag_of(data)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return a part of the content. Raises NotFoundError, ObjectStoreError."""
        self._trip("get_range", key)
        if key not in self._data:
            raise NotFoundError(key)
        if start >= len(self._data[key]):
            raise ObjectStoreError(f"get_range {key}: nothing at {start}")
        return self._data[key][start : start + length]

    async def size(self, key: str) -> int:
        """Return the size in bytes. Raises NotFoundError."""
        self._trip("size", key)
        if key not in self._data:
            raise NotFoundError(key)
        return len(self._data[key])

    async def put(self, key: str, data: bytes) -> str:
        """Write without condition."""
        return self._write("put", key, data, lambda _: True)

    async def put_if_absent(self, key: str, data: bytes) -> str:
        """Create. Raises PreconditionError when the key exists."""
        return self._write("put_if_absent", key, data, lambda old: old is None)

    async def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """Replace exactly that version. Raises PreconditionError."""
        return self._write(
            "put_if_match", key, data, lambda old: old is not None and etag_of(old) == etag
        )

    async def list(self, prefix: str, *, start_after: str = "") -> list[ObjectInfo]:
        """Return all objects below a prefix, in key order, after a key."""
        self._trip("list", prefix)
        return [
            ObjectInfo(key, etag_of(self._data[key]), len(self._data[key]))
            for key in sorted(self._data, key=str.encode)
            if key.startswith(prefix) and key.encode() > start_after.encode()
        ]

    async def delete(self, key: str) -> None:
        """Remove; removing what is absent is no error."""
        self._trip("delete", key)
        self._data.pop(key, None)

    def _trip(self, operation: str, key: str) -> bool:
        verdict = self.fault(operation, key) if self.fault else ""
        if verdict == "before":
            raise ObjectStoreError(f"{operation} {key}: no answer")
        return verdict == "after"

    def _write(
        self, operation: str, key: str, data: bytes, condition: Callable[[bytes | None], bool]
    ) -> str:
        lost = self._trip(operation, key)
        if not condition(self._data.get(key)):
            raise PreconditionError(key)
        self._data[key] = bytes(data)
        if lost:
            raise ObjectStoreError(f"{operation} {key}: the answer was lost")
        return etag_of(data)
