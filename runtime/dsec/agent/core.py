"""The truth about one node's sandboxes: a state machine without clock, disk or network.

The shell (`agent.py`) asks it before it acts and tells it what happened; every answer follows from
earlier calls alone. It holds four promises, which its tests check with random histories: what is
used is the sum over the live sandboxes and never exceeds the capacity, a repeated call changes
nothing, change numbers only grow, and each accepted sandbox ends exactly once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from dsec.agent.entry import ENDING, NEXT, Entry, IllegalTransitionError, Stop
from dsec.agent.gpus import GpuRefusalError, Gpus, devices_asked
from dsec.api.reasons import EndReason
from dsec.api.sandbox import End, Resources, SandboxSpec, SandboxState, SandboxStatus
from dsec.api.snapshot import LastSnapshot
from dsec.api.wire import CreateAnswer, NodeInventory

TOMBSTONE_AGE = timedelta(hours=24)
"""How long an acknowledged end still answers questions and repeated creates: as long as keys."""
TOMBSTONE_COUNT = 10_000
"""Most acknowledged ends kept; past it the oldest go first, so that memory stays bounded."""
SEQ_PER_INCARNATION = 1 << 20
"""Change numbers start at incarnation times this: they grow over restarts without being stored."""

S = SandboxState


class StaleEpochError(Exception):
    """The caller's leader epoch is lower than one seen before."""

    def __init__(self, epoch: int, highest: int) -> None:
        """Say both epochs."""
        super().__init__(f"epoch {epoch} is stale; this node has seen {highest}")
        self.highest = highest


class CpuRefusalError(Exception):
    """There are not as many CPUs that nobody has; the message says what was asked, what is free."""


@dataclass(slots=True)
class Used:
    """Sums over the live sandboxes of a node: what `Usage` says on the wire."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0
    pids: int = 0
    gpu_count: int = 0


class Core:
    """All sandboxes of a node, live and recently ended. The inventory is what may be booked."""

    def __init__(
        self,
        node: str,
        incarnation: int,
        inventory: NodeInventory,
        *,
        epoch: int = 0,
    ) -> None:
        self.node = node
        self.incarnation = incarnation
        self.inventory = inventory
        self.epoch = epoch
        self._refusals: dict[str, str] = {}
        self.used = Used()
        self.live = 0
        self.gpus = Gpus(inventory.devices)
        self.seq = incarnation * SEQ_PER_INCARNATION
        self._floor = self.seq
        self.beat = self.seq
        # who beat, and its beat number, in order of the last beat
        self._beats: dict[str, int] = {}
        # in order of change: a changed entry moves to the end
        self._entries: dict[str, Entry] = {}
        self._replicas: dict[tuple[str, str, int], set[str]] = {}

    # ------------------------------------------------------------------ questions

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    def get(self, sandbox_id: str) -> Entry | None:
        """Return an entry, also a tombstone; None when it was never here or is forgotten."""
        return self._entries.get(sandbox_id)

    @property
    def refusing(self) -> str:
        """Why no create is taken, as `cause: words`, the longest-standing cause first; or empty."""
        return next((f"{cause}: {why}" for cause, why in self._refusals.items()), "")

    def refuse(self, cause: str, why: str) -> None:
        """Take no creates until this cause is lifted; others stay as they are."""
        self._refusals[cause] = why

    def lift(self, cause: str) -> None:
        """Drop one cause. Idempotent."""
        self._refusals.pop(cause, None)

    def follows(self, since: int) -> bool:
        """Return whether a change number is of now: what came after it is all there is to tell."""
        return self._floor <= since <= self.seq

    def changes(self, since: int) -> tuple[bool, list[Entry]]:
        """Return (full, entries) after a change number, oldest change first.

        Full: the number is from before a restart or before something was forgotten, so the list
        is all that lives or is not acknowledged yet.
        """
        if not self.follows(since):
            return True, [e for e in self._entries.values() if e.live or not e.acknowledged]
        fresh: list[Entry] = []
        for entry in reversed(self._entries.values()):
            if entry.status.seq <= since:
                break
            fresh.append(entry)
        fresh.reverse()
        return False, fresh

    def heartbeats(self, since: int) -> dict[str, datetime]:
        """Return when each live sandbox last beat, of those that did after a beat number."""
        found: dict[str, datetime] = {}
        for sandbox_id, number in reversed(self._beats.items()):
            if number <= since <= self.beat:
                break
            last = self._entries[sandbox_id].status.last_heartbeat
            if last is not None:
                found[sandbox_id] = last
        return found

    # ------------------------------------------------------------------ calls of the control plane

    def see_epoch(self, epoch: int) -> bool:
        """Take note of a leader's epoch; True when it is new and must be stored before acting.

        Raises StaleEpochError for a lower one.
        """
        if epoch < self.epoch:
            raise StaleEpochError(epoch, self.epoch)
        if epoch == self.epoch:
            return False
        self.epoch = epoch
        return True

    def admit(self, spec: SandboxSpec, now: datetime) -> CreateAnswer:
        """Say the last word on a create, and book its resources when it is accepted.

        A repeat of a known id is accepted and changes nothing. A later incarnation of what has
        ended here is another copy, which was moved away and comes back.
        """
        identity = spec.identity
        if (known := self._entries.get(identity.id)) is not None and not _earlier(known, spec):
            return CreateAnswer(id=identity.id, accepted=True, state=known.status.state)
        devices: list[str] = []
        cpus: list[int] = []
        reason = self._refusal(spec)
        if not reason:
            try:
                devices = self.gpus.choose(spec.resources, spec.devices)
                cpus = self._own_cpus(spec)
            except (GpuRefusalError, CpuRefusalError) as error:
                reason = f"capacity: {error}"
        if reason:
            return CreateAnswer(
                id=identity.id, accepted=False, reason=reason, state=SandboxState.PENDING
            )
        if devices != spec.devices or cpus != spec.cpus:
            spec = spec.model_copy(update={"devices": devices, "cpus": cpus})
        # who follows asks for everything then: the end that is dropped has been told, or is void
        self._drop(identity.id)
        self._insert(Entry(spec, self._status(spec, now, S.BOUND)))
        return CreateAnswer(id=identity.id, accepted=True, state=S.BOUND)

    def older_copies(self, spec: SandboxSpec) -> list[str]:
        """Return live sandboxes that are an earlier incarnation of the same replica."""
        identity = spec.identity
        return [
            entry.spec.identity.id
            for entry in self._same_replica(spec)
            if entry.live and entry.spec.identity.incarnation < identity.incarnation
        ]

    def request_stop(self, sandbox_id: str, stop: Stop, now: datetime) -> bool:
        """Ask for the end of a sandbox; True when that changed something.

        The first request wins, except that FENCED wins over all until the sandbox has ended.
        """
        entry = self._entries.get(sandbox_id)
        if entry is None or not entry.live or entry.fenced:
            return False
        fencing = stop.reason is EndReason.FENCED
        if entry.status.state in ENDING:
            if not fencing:
                return False
            entry.stop = stop
            self._touch(entry)
            return True
        entry.stop = stop
        self._move(entry, S.STOPPING, now, stop.message)
        return True

    def acknowledge(self, sandbox_id: str) -> bool:
        """Take note that an end is recorded elsewhere; True when that is news.

        Its output is dropped; the tombstone stays for a while (`forget`).
        """
        entry = self._entries.get(sandbox_id)
        if entry is None or entry.live or entry.acknowledged:
            return False
        entry.acknowledged = True
        if entry.status.end is not None:
            entry.status.end = entry.status.end.model_copy(update={"stdout": "", "stderr": ""})
            entry.end = None
        return True

    def forget(self, now: datetime) -> list[str]:
        """Drop tombstones that are acknowledged and too old or too many; return their ids."""
        done = [e for e in self._entries.values() if e.acknowledged]
        surplus = len(done) - TOMBSTONE_COUNT
        gone = [
            entry
            for position, entry in enumerate(done)
            if position < surplus or now - entry.status.times[S.ENDED] > TOMBSTONE_AGE
        ]
        for entry in gone:
            self._drop(entry.spec.identity.id)
        return [entry.spec.identity.id for entry in gone]

    def _drop(self, sandbox_id: str) -> None:
        """Forget an entry that has ended, where there is one."""
        entry = self._entries.pop(sandbox_id, None)
        if entry is None:
            return
        self._floor = max(self._floor, entry.status.seq)
        copies = self._replicas[_replica(entry.spec)]
        copies.discard(sandbox_id)
        if not copies:
            del self._replicas[_replica(entry.spec)]

    # ------------------------------------------------------------------ what happens on the node

    def advance(
        self, sandbox_id: str, state: SandboxState, now: datetime, *, message: str = ""
    ) -> bool:
        """Move on to a state before ARCHIVING; False when it is there already.

        Raises IllegalTransitionError.
        """
        entry = self._entries[sandbox_id]
        if entry.status.state is state:
            return False
        self._move(entry, state, now, message)
        return True

    def take_back(self, sandbox_id: str) -> str:
        """Take back the CPU that a pause lent; or return why not, in words. Idempotent."""
        entry = self._entries[sandbox_id]
        asked = entry.spec.resources.cpu_milli
        free = self.inventory.cpu_milli - self.used.cpu_milli
        if entry.resting and asked > free:
            return f"capacity: cpu: asked {asked}, free {max(free, 0)}"
        self._lend(entry, lent=False)
        return ""

    def lend(self, sandbox_id: str) -> None:
        """Give out the CPU of a paused sandbox: what is frozen computes nothing. Idempotent."""
        self._lend(self._entries[sandbox_id], lent=True)

    def touch(self) -> None:
        """Take note that something of the node itself has changed: followers read its state."""
        self.seq += 1

    def warn(self, sandbox_id: str, message: str) -> bool:
        """Put a warning into the status of a live sandbox; True where it is news."""
        entry = self._entries.get(sandbox_id)
        if entry is None or not entry.live or entry.status.message == message:
            return False
        entry.status.message = message
        self._touch(entry)
        return True

    def saved(self, sandbox_id: str, last: LastSnapshot) -> None:
        """Take note of a snapshot that exists now."""
        entry = self._entries.get(sandbox_id)
        if entry is not None and entry.live:
            entry.status.snapshot = last
            self._touch(entry)

    def heartbeat(self, sandbox_id: str, now: datetime) -> bool:
        """Take note of a heartbeat; True for the first one: the sandbox has registered.

        Later ones change the status without a change number: they are no news. They have numbers
        of their own, for those who ask (`heartbeats`).
        """
        entry = self._entries.get(sandbox_id)
        if entry is None or not entry.live:
            return False
        entry.status.last_heartbeat = now
        self.beat += 1
        self._beats.pop(sandbox_id, None)
        self._beats[sandbox_id] = self.beat
        if entry.status.registered:
            return False
        entry.status.registered = True
        if entry.status.state is S.STARTING:
            self._move(entry, S.RUNNING, now, "")
        else:
            self._touch(entry)
        return True

    def finish(self, sandbox_id: str, end: End, now: datetime) -> None:
        """Take note of the end of the main command: the scene may be archived now."""
        entry = self._entries[sandbox_id]
        entry.end = end
        self._move(entry, S.ARCHIVING, now, "")

    def close(self, sandbox_id: str, now: datetime, *, archive: str, partial: bool) -> End:
        """Publish the end and give the resources back. The sandbox is destroyed by now."""
        entry = self._entries[sandbox_id]
        end = entry.end or End(reason=EndReason.INFRASTRUCTURE)
        update: dict[str, object] = {"archive": archive or None, "archive_partial": partial}
        if entry.stop is not None:
            update["reason"] = entry.stop.reason
            update["message"] = entry.stop.message or end.message
        if entry.fenced:
            update |= {"archive": None, "archive_partial": False, "stdout": "", "stderr": ""}
        entry.status.end = entry.end = end.model_copy(update=update)
        entry.status.message = entry.end.message
        self._move(entry, S.ENDED, now, entry.end.message)
        self._beats.pop(sandbox_id, None)
        self._book(entry, -1)
        return entry.end

    # ------------------------------------------------------------------ restart

    def restore(self, entry: Entry) -> None:
        """Put back an entry as it was stored; its change number is new."""
        entry.status.node_incarnation = self.incarnation
        self._insert(entry)
        if not entry.live:
            self._book(entry, -1)

    def adopt(self, spec: SandboxSpec, now: datetime) -> Entry:
        """Take over a sandbox that runs here though no store remembers it.

        It is booked even past the capacity: it exists.
        """
        entry = Entry(spec, self._status(spec, now, S.RUNNING))
        entry.status.registered = True
        self._insert(entry)
        return entry

    # ------------------------------------------------------------------ inside

    def _status(self, spec: SandboxSpec, now: datetime, state: SandboxState) -> SandboxStatus:
        return SandboxStatus(
            identity=spec.identity,
            state=state,
            node=self.node,
            node_incarnation=self.incarnation,
            resources=spec.resources,
            image=spec.image,
            times={state: now},
        )

    def _insert(self, entry: Entry) -> None:
        self._touch(entry)
        self._replicas.setdefault(_replica(entry.spec), set()).add(entry.spec.identity.id)
        self._book(entry, 1)

    def _move(self, entry: Entry, state: SandboxState, now: datetime, message: str) -> None:
        status = entry.status
        if state not in NEXT[status.state]:
            raise IllegalTransitionError(f"{status.identity.id}: {status.state} to {state}")
        status.state = state
        status.times.setdefault(state, now)
        status.message = message
        if state in {S.PAUSED, S.RUNNING}:
            self._lend(entry, lent=state is S.PAUSED)
        self._touch(entry)

    def _lend(self, entry: Entry, *, lent: bool) -> None:
        if entry.resting is not lent:
            self.used.cpu_milli -= entry.spec.resources.cpu_milli * (1 if lent else -1)
            entry.resting = lent

    def _touch(self, entry: Entry) -> None:
        self.seq += 1
        entry.status.seq = self.seq
        self._entries.pop(entry.spec.identity.id, None)
        self._entries[entry.spec.identity.id] = entry

    def _book(self, entry: Entry, sign: int) -> None:
        asked, used = entry.spec.resources, self.used
        used.cpu_milli += sign * (0 if entry.resting else asked.cpu_milli)
        used.memory_bytes += sign * asked.memory_bytes
        used.disk_bytes += sign * asked.disk_bytes
        used.pids += sign * asked.pids
        used.gpu_count += sign * devices_asked(asked)
        self.live += sign
        if sign > 0:
            self.gpus.take(entry.spec.identity.id, entry.spec.devices, asked)
        else:
            self.gpus.give_back(entry.spec.identity.id)

    def _same_replica(self, spec: SandboxSpec) -> list[Entry]:
        if not spec.identity.experiment_uid:
            return []
        copies = self._replicas.get(_replica(spec), set())
        return [self._entries[copy] for copy in sorted(copies) if copy != spec.identity.id]

    def _refusal(self, spec: SandboxSpec) -> str:
        """Return why a create is refused, in words that start with a stable one; or nothing."""
        if self.refusing:
            return self.refusing
        if spec.isolation not in self.inventory.isolation:
            offered = ", ".join(self.inventory.isolation)
            return f"capability: isolation {spec.isolation} asked, this node offers {offered}"
        for other in self._same_replica(spec):
            incarnation = other.spec.identity.incarnation
            if incarnation > spec.identity.incarnation or (
                other.live and incarnation == spec.identity.incarnation
            ):
                return (
                    f"fenced: incarnation {spec.identity.incarnation} asked, "
                    f"incarnation {incarnation} is known here as {other.spec.identity.id}"
                )
        return self._shortage(spec.resources)

    def _own_cpus(self, spec: SandboxSpec) -> list[int]:
        """Return the CPUs that a sandbox gets to itself: those of placement where they are free.

        They stay its own while it is paused. Raises CpuRefusalError.
        """
        if not spec.exclusive_cpus:
            return []
        count = -(-spec.resources.cpu_milli // 1000)
        taken = {cpu for entry in self._entries.values() if entry.live for cpu in entry.spec.cpus}
        have = range(self.inventory.whole_cpus or self.inventory.cpu_milli // 1000)
        free = [cpu for cpu in have if cpu not in taken]
        if count > len(free):
            raise CpuRefusalError(f"cpus of its own: asked {count}, free {len(free)}")
        named = len(spec.cpus) == count and set(spec.cpus) <= set(free)
        return list(spec.cpus) if named else free[:count]

    def _shortage(self, asked: Resources) -> str:
        have, used = self.inventory, self.used
        for dimension, want, free in (
            ("sandboxes", 1, have.max_sandboxes - self.live),
            ("cpu", asked.cpu_milli, have.cpu_milli - used.cpu_milli),
            ("memory", asked.memory_bytes, have.memory_bytes - used.memory_bytes),
            ("disk", asked.disk_bytes, have.disk_bytes - used.disk_bytes),
            ("pids", asked.pids, have.pids - used.pids),
        ):
            if want > free:
                return f"capacity: {dimension}: asked {want}, free {max(free, 0)}"
        return ""


def _earlier(known: Entry, spec: SandboxSpec) -> bool:
    """Return whether what is known of an id has ended and is of an earlier incarnation."""
    return not known.live and known.spec.identity.incarnation < spec.identity.incarnation


def _replica(spec: SandboxSpec) -> tuple[str, str, int]:
    """Return what incarnations share; direct creates have no experiment and share nothing."""
    identity = spec.identity
    return identity.experiment_uid or identity.id, identity.role, identity.index
