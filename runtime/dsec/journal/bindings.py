"""What the bind log says, as state: which key is which sandbox, on which node, and how it ended.

Pure: rows in, state out; the leader and every reader that applies the same rows has the same
state. A binding is *effective* while it has a node and has not ended: only the copy on that node,
of that incarnation, may change anything through dsec.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

from pydantic import Field

from dsec.api.base import WireModel
from dsec.api.experiment import TaskClass
from dsec.api.reasons import EndReason
from dsec.api.sandbox import SandboxSpec
from dsec.api.snapshot import RestoreFrom

KEEP_KEYS = timedelta(hours=24)
"""How long the key of an ended direct create still answers with its sandbox."""


PATIENCE = 120.0
"""Seconds without contact after which a node's sandboxes are given up (CONF-21: partition-safe)."""


class Needs(WireModel):
    """What placement and the ledger must know of a request beside its resources."""

    node_labels: dict[str, str] = Field(default_factory=dict)
    pools: list[str] = Field(default_factory=list)
    tolerations: list[str] = Field(default_factory=list)
    gpu_model: str = ""
    features: list[str] = Field(
        default_factory=list, description="What the node must be able to do."
    )
    shun: list[str] = Field(
        default_factory=list, description="Nodes to take only where no other has room."
    )
    simulated: bool | None = Field(
        default=False, description="True: simulated nodes only; False: real ones; None: either."
    )
    queue: str = "default"
    stage: str = Field(default="", description="Phase of training; empty: data work.")
    task_class: TaskClass = TaskClass.GUARANTEED
    datasets: list[str] = Field(default_factory=list)
    near: str = Field(default="", description="Group whose members exchange often.")
    spread: str = Field(default="", description="Group whose members rarely exchange.")
    together: str = Field(default="", description="Gang that is displaced as one; empty: none.")
    least: int = Field(
        default=0, description="With fewer replicas of its role its whole gang is of no use."
    )


class Kept(WireModel):
    """The copy that a move leaves at rest on its node, until the one that counts runs."""

    node: str
    devices: list[str] = Field(default_factory=list)
    cpus: list[int] = Field(default_factory=list)
    incarnation: int
    rested: bool = Field(default=False, description="It was paused before the move, and stays so.")


class Binding(WireModel):
    """One sandbox under its key. `node` is empty while it waits for room, or hibernates."""

    tenant: str
    key: str
    body_hash: str
    id: str
    spec: SandboxSpec
    node: str = ""
    order: int = Field(default=0, description="Arrival: waiting requests are served in this order.")
    at: datetime
    bound_at: datetime | None = None
    ended_at: datetime | None = None
    reason: EndReason | None = None
    result: str = Field(default="", description="Object that holds the final status.")
    needs: Needs = Field(default_factory=Needs)
    gang: str = ""
    priority: int = Field(default=0, description="Higher is placed first.")
    behind: str = Field(
        default="",
        description="Tenant/key of the work that it leaves for, has left for, or waits behind.",
    )
    patience: float = Field(default=PATIENCE, description="Seconds of silence until given up.")
    kept: Kept | None = Field(default=None, description="A move to its node is under way.")
    asleep: str = Field(
        default="", description="It has no node and asks for none, until it is woken: by whom."
    )
    highest: int = Field(default=0, description="Highest incarnation that a move has used.")

    @property
    def next_incarnation(self) -> int:
        """The number of a copy that is none of those before."""
        return max(self.highest, self.spec.identity.incarnation) + 1

    @property
    def live(self) -> bool:
        """True while it waits or holds room on its node."""
        return self.ended_at is None


class Row(WireModel):
    """One entry of a segment.

    kinds: `want` (a key has an id, no node yet), `bind` (a key has an id and a node; again for the
    same id: another node, or none, or the same one, which it has to leave), `end` (with typed
    reason and the object holding the final status), `forget` (an experiment is gone: its ended
    bindings may be dropped).
    """

    kind: str = Field(pattern="^(want|bind|end|forget)$")
    at: datetime
    binding: Binding | None = None
    id: str = ""
    node: str = ""
    devices: list[str] = Field(default_factory=list)
    cpus: list[int] = Field(default_factory=list)
    incarnation: int = Field(
        default=0, description="With `bind`: of the copy on that node; 0: the same as before."
    )
    reason: EndReason | None = None
    result: str = ""
    experiment_uid: str = ""
    behind: str = Field(default="", description="With `bind`: it has to leave its node for this.")
    kept: Kept | None = Field(default=None, description="With `bind`: what a move leaves behind.")
    settled: bool = Field(
        default=False, description="With `bind` to its node: the move to it is over."
    )
    restore: RestoreFrom | None = Field(
        default=None, description="With `bind`: what the copy starts from; unset: as before."
    )
    asleep: str = Field(default="", description="With `bind` to no node: it hibernates.")


_ROW = Row(kind="bind", at=datetime.min.replace(tzinfo=UTC))


def row_of(binding: Binding, at: datetime, kind: str = "bind") -> Row:
    """Return the row that binds what has just been made, in half the time of a new one."""
    return _ROW.varied(kind=kind, at=at, binding=binding)


class Bindings:
    """The state after all rows so far."""

    def __init__(self) -> None:
        self.epoch = 0
        self.lanes: dict[str, int] = {}
        """Open lanes of gateways, and up to which of its segments the log has the rows of each."""
        self.by_id: dict[str, Binding] = {}
        self._by_key: dict[tuple[str, str], str] = {}
        self._by_node: dict[str, dict[str, None]] = {}
        self._by_experiment: dict[str, dict[str, None]] = {}
        self._waiting: dict[str, None] = {}
        self._order = 0
        self._bound: dict[str, Binding] = {}
        self._followers: list[set[str]] = []

    def key(self, tenant: str, key: str) -> Binding | None:
        """Return the newest binding of a tenant's key."""
        found = self._by_key.get((tenant, key))
        return self.by_id.get(found) if found else None

    def on_node(self, node: str) -> list[Binding]:
        """Return the live bindings of a node."""
        return [self.by_id[i] for i in self._by_node.get(node, {})]

    def nodes(self) -> list[str]:
        """Return the nodes that have live bindings."""
        return [node for node, ids in self._by_node.items() if ids]

    def of_experiment(self, uid: str) -> list[Binding]:
        """Return all bindings of an experiment, ended ones included, oldest first."""
        return [self.by_id[i] for i in self._by_experiment.get(uid, {})]

    def experiments(self) -> set[str]:
        """Return the uid of every experiment that has bindings, ended ones included."""
        return set(self._by_experiment)

    def waiting(self) -> list[Binding]:
        """Return what asks for a node, in order of arrival."""
        return [self.by_id[i] for i in self._waiting]

    @property
    def bound(self) -> Mapping[str, Binding]:
        """What holds room on a node now, by id."""
        return MappingProxyType(self._bound)

    def live(self) -> Iterator[Binding]:
        """Yield what holds room on a node now."""
        yield from self._bound.values()

    def follow(self, instead: set[str] | None = None) -> set[str]:
        """Return a set that from now on gets the ids of whatever is bound otherwise than before.

        Who follows empties nothing: the next set is asked for `instead` of the last one.
        """
        self._followers = [one for one in self._followers if one is not instead]
        self._followers.append(set())
        return self._followers[-1]

    def effective(self, sandbox: str, node: str) -> bool:
        """Return whether the copy of a sandbox on that node is the one that counts."""
        binding = self.by_id.get(sandbox)
        return binding is not None and binding.live and binding.node == node

    def next_order(self) -> int:
        """Return the arrival number for the next new binding."""
        return self._order + 1

    def apply(self, rows: Iterable[Row]) -> None:
        """Apply rows in order. Repeats are harmless."""
        for row in rows:
            if row.kind in {"want", "bind"} and row.binding is not None:
                self._insert(row.binding)
            elif row.kind == "bind":
                self._move(row)
            elif row.kind == "end":
                self._end(row)
            elif row.kind == "forget":
                self._forget(row.experiment_uid)

    def follow_lanes(self, lanes: Mapping[str, int]) -> None:
        """Take over what a segment says of lanes; below 0: closed."""
        for lane, number in lanes.items():
            if number < 0:
                self.lanes.pop(lane, None)
            else:
                self.lanes[lane] = number

    def expire(self, now: datetime) -> None:
        """Drop ended direct creates whose keys are older than KEEP_KEYS."""
        for binding in list(self.by_id.values()):
            done = binding.ended_at is not None and now - binding.ended_at > KEEP_KEYS
            if done and not binding.spec.identity.experiment_uid:
                self._drop(binding)

    def dump(self) -> dict[str, Any]:
        """Return the whole state as JSON data."""
        return {
            "epoch": self.epoch,
            "order": self._order,
            "lanes": dict(self.lanes),
            "bindings": [binding.wire() for binding in self.by_id.values()],
        }

    @classmethod
    def load(cls, data: dict[str, Any]) -> "Bindings":
        """Return the state of a dump."""
        state = cls()
        state.epoch = data["epoch"]
        for raw in data["bindings"]:
            state._insert(Binding.model_validate(raw))
        state._order = data["order"]
        # snapshots of the version before know of no lanes
        state.lanes = dict(data.get("lanes", {}))
        return state

    def _insert(self, binding: Binding) -> None:
        if binding.id in self.by_id:
            return
        self.by_id[binding.id] = binding
        self._by_key[binding.tenant, binding.key] = binding.id
        self._order = max(self._order, binding.order)
        uid = binding.spec.identity.experiment_uid
        if uid:
            self._by_experiment.setdefault(uid, {})[binding.id] = None
        if binding.ended_at is None:
            self._place(binding)

    def _touch(self, sandbox: str) -> None:
        for follower in self._followers:
            follower.add(sandbox)

    def _place(self, binding: Binding) -> None:
        self._touch(binding.id)
        if binding.node:
            self._bound[binding.id] = binding
            self._by_node.setdefault(binding.node, {})[binding.id] = None
        elif not binding.asleep:
            self._waiting[binding.id] = None

    def _unplace(self, binding: Binding) -> None:
        self._touch(binding.id)
        self._bound.pop(binding.id, None)
        self._waiting.pop(binding.id, None)
        ids = self._by_node.get(binding.node, {})
        ids.pop(binding.id, None)
        if binding.node and not ids:
            self._by_node.pop(binding.node, None)

    def _move(self, row: Row) -> None:
        binding = self.by_id.get(row.id)
        if binding is None or binding.ended_at is not None:
            return
        binding.behind = row.behind
        if row.node == binding.node and row.node:
            if row.settled:
                binding.kept = None
                self._touch(binding.id)
            return
        self._unplace(binding)
        binding.node, binding.kept, binding.asleep = row.node, row.kept, row.asleep
        binding.bound_at = row.at if row.node else None
        binding.spec.devices, binding.spec.cpus = row.devices, row.cpus
        if row.incarnation:
            identity = binding.spec.identity
            binding.highest = max(binding.highest, identity.incarnation, row.incarnation)
            identity.incarnation = row.incarnation
        if row.restore is not None:
            binding.spec.restore = row.restore
        self._place(binding)

    def _end(self, row: Row) -> None:
        binding = self.by_id.get(row.id)
        if binding is None or binding.ended_at is not None:
            return
        self._unplace(binding)
        binding.ended_at = row.at
        binding.reason = row.reason
        binding.result = row.result

    def _forget(self, uid: str) -> None:
        for binding in self.of_experiment(uid):
            if not binding.live:
                self._drop(binding)

    def _drop(self, binding: Binding) -> None:
        del self.by_id[binding.id]
        if self._by_key.get((binding.tenant, binding.key)) == binding.id:
            del self._by_key[binding.tenant, binding.key]
        uid = binding.spec.identity.experiment_uid
        members = self._by_experiment.get(uid, {})
        members.pop(binding.id, None)
        if uid and not members:
            self._by_experiment.pop(uid, None)
