"""What placement remembers during a term: the cluster, the quota ledger, the mix of GPU work.

All of it is memory of things that are recorded elsewhere: before each round it is brought in line
with nodes, tenants and the bind log, by differences, so that a round costs what has changed. A new
leader starts with an empty one and has the same after its first round.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import structlog

from dsec.api.reasons import PendingReason
from dsec.api.sandbox import GpuMode
from dsec.api.tenant import TenantSpec
from dsec.controllers.recorder import Recorder
from dsec.controllers.translating import COHORT, account_of, request_of, unit_of
from dsec.journal.bindings import Binding
from dsec.placement.accounts import Account, QuotaError, amounts_of, total
from dsec.placement.asked import Asked
from dsec.placement.backfill import Reservation, run_round
from dsec.placement.backfill import Waiting as Work
from dsec.placement.dumps import line_of
from dsec.placement.engine import demand_of
from dsec.placement.entries import Entry
from dsec.placement.ledger import Ledger
from dsec.placement.mix import Mix
from dsec.placement.queueing import QueuePolicy, Waiting, ordered
from dsec.placement.refusal import Refusal
from dsec.placement.request import Decision, Node, Request
from dsec.placement.rounds import Wanted, decide
from dsec.placement.view import ClusterView

log = structlog.get_logger()


class Planner:
    """Of one term; one writer."""

    def __init__(self, policy: QueuePolicy | None = None, recorder: Recorder | None = None) -> None:
        self.view = ClusterView()
        self.ledger = Ledger()
        self.mix = Mix()
        self._policy = policy or QueuePolicy()
        self.recorder = recorder
        self._accounts: dict[str, Account] = {}
        self._known: set[str] = set()
        self._kept: Reservation | None = None
        self._rested: dict[str, float] = {}
        self._ends: dict[str, float] = {}
        self._held: set[str] = set()
        self._unbooked: set[str] = set()
        self._moved = True
        self._smallest: dict[str, int] = {}

    # ------------------------------------------------------------------ bringing in line

    def sync(
        self,
        nodes: Iterable[Node],
        tenants: Mapping[str, TenantSpec],
        live: Iterable[Binding],
        held: Collection[str] = (),
    ) -> None:
        """Follow what is recorded: nodes that may be given work, tenants, and what is bound.

        `held` are bookings of work that waits: room that is kept for it.
        """
        self.follow(nodes, tenants, {binding.id: binding for binding in live}, held)

    def follow(
        self,
        nodes: Iterable[Node],
        tenants: Mapping[str, TenantSpec],
        bound: Mapping[str, Binding],
        held: Collection[str] = (),
        *,
        changed: Iterable[str] | None = None,
    ) -> None:
        """Follow what is recorded, as `sync` does.

        `changed` are the ids that may be bound otherwise than at the last call: a round costs what
        they are, not what lives. Without them, and where nodes came or went, all is looked at.
        """
        moved = self._sync_nodes({node.name: node for node in nodes})
        if changed is None or moved:
            ids = {*bound, *self.view.bookings(), *self.ledger.entries, *self._ends}
        else:
            # held room that is given up, and what could not be booked, may be news as well
            ids = {*changed, *self._held.difference(held), *self._unbooked}
        self._held = set(held)
        self._sync_bookings(bound, held, ids)
        self._sync_accounts(tenants)
        self._sync_entries(bound, ids)

    def _sync_nodes(self, nodes: Mapping[str, Node]) -> bool:
        """Take the nodes over and return whether some came or went."""
        known = self.view.nodes
        gone = [name for name in known if name not in nodes]
        for name in gone:
            self.view.remove(name)
        changed = [node for name, node in nodes.items() if known.get(name) is not node]
        moved = bool(gone) or any(node.name not in known for node in changed)
        for node in changed:
            self.view.put(node)
        if changed or gone:
            self._moved = True
            self._smallest = {}
            for node in nodes.values():
                for card in node.devices:
                    least = self._smallest.get(card.model, card.memory_bytes)
                    self._smallest[card.model] = min(least, card.memory_bytes)
        return moved

    def _sync_bookings(
        self, bound: Mapping[str, Binding], held: Collection[str], ids: Collection[str]
    ) -> None:
        booked, nodes = self.view.bookings(), self.view.nodes
        stale = [
            id_
            for id_ in ids
            if (booking := booked.get(id_)) is not None
            and id_ not in held
            and (
                (binding := bound.get(id_)) is None
                or binding.node != booking.node
                or tuple(binding.spec.devices) != booking.devices
            )
        ]
        for id_ in stale:
            if booked[id_].claims and id_ not in bound:
                self.mix.ended()
            self.view.release(id_)
            self._ends.pop(id_, None)
        self._unbooked = set()
        # in the order in which they were bound, as a new leader books them
        for binding in sorted((bound[i] for i in ids if i in bound), key=_arrival):
            id_ = binding.id
            if id_ not in booked and binding.node in nodes:
                decision = Decision(id_, binding.node, tuple(binding.spec.devices))
                try:
                    self.view.book(request_of(binding), decision, force=True)
                except ValueError as error:
                    # its agent runs it all the same; the agent's last word keeps others off
                    self._unbooked.add(id_)
                    log.warning("cannot be booked", sandbox=id_, error=str(error))
            if binding.spec.max_run_seconds and binding.bound_at and id_ not in self._ends:
                self._ends[id_] = binding.bound_at.timestamp() + binding.spec.max_run_seconds
        for id_ in ids:
            if id_ not in bound:
                # also where its node, and its booking with it, went first
                self._ends.pop(id_, None)

    def _sync_accounts(self, tenants: Mapping[str, TenantSpec]) -> None:
        wanted = {
            path: (name, project)
            for name, spec in tenants.items()
            for path, project in (
                (name, ""),
                *((f"{name}/{project}", project) for project in spec.quota.projects),
            )
        }
        # projects first: what they no longer own is their tenant's to give again
        gone = sorted((path for path in self._accounts if path not in wanted), reverse=True)
        for path in gone:
            self.ledger.remove(path)
            del self._accounts[path]
        changed = False
        for path, (name, project) in wanted.items():
            try:
                account = account_of(name, tenants[name], project)
                if self._accounts.get(path) != account:
                    self.ledger.put(account)
                    self._accounts[path], changed = account, True
            except QuotaError as error:
                # what it had before holds on
                log.warning("quota not taken", account=path, error=str(error))
        if changed or gone or self._moved:
            self._moved = False
            self._lend()

    def _lend(self) -> None:
        """Let tenants borrow what no tenant owns: the machines less all nominal amounts."""
        owned = total(one.nominal for path, one in self._accounts.items() if "/" not in path)
        there = total(
            {
                "cpu_milli": node.cpu_milli,
                "memory_bytes": node.memory_bytes,
                "disk_bytes": node.disk_bytes,
                "sandboxes": node.sandboxes,
                "gpu_milli": 1000 * len(node.devices),
                "gpu_memory_bytes": sum(card.memory_bytes for card in node.devices),
            }
            for node in self.view.nodes.values()
        )
        spare = {d: max(0, value - owned.get(d, 0)) for d, value in there.items()}
        self.ledger.put_cohort(COHORT, spare)

    def _sync_entries(self, bound: Mapping[str, Binding], ids: Collection[str]) -> None:
        for id_ in ids:
            if id_ in self.ledger.entries and id_ not in bound:
                self.ledger.end(id_)
        new = [bound[id_] for id_ in ids if id_ in bound and id_ not in self.ledger.entries]
        for binding in sorted(new, key=_arrival):
            entry = self.entry(binding)
            # in their order, so that again what is above its tenant's share can be asked back
            if self.ledger.admit(entry).refusals:
                account = self._accounts.get(entry.tenant)
                softer = account.above_nominal if account is not None else None
                self.ledger.book(replace(entry, task_class=softer) if softer else entry)

    # ------------------------------------------------------------------ deciding

    def decide(
        self,
        wanted: Iterable[Binding],
        avoid: Mapping[str, Sequence[str]],
        now: float,
        *,
        first: Collection[str] = (),
    ) -> list[tuple[Binding, Decision]]:
        """Return a decision for each binding, in the order in which they were tried.

        What has a node is booked from now on. `avoid` has nodes whose agents have just refused a
        sandbox, by its id. `now` is UTC in seconds. The units `first` come before all others: room
        was made for them.
        """
        units: dict[str, list[Binding]] = {}
        keys: dict[str, str] = {}
        for binding in wanted:
            name = unit_of(binding)
            units.setdefault(name, []).append(binding)
            keys[f"{binding.tenant}/{binding.key}"] = name
        queue = ordered(
            [self._waiting(name, members, keys) for name, members in units.items()], self._policy
        )
        queue.sort(key=lambda one: one.id not in first)
        line = [member for one in queue for member in units[one.id]]
        self._learn(line)
        found = self._round(queue, units, avoid, now)
        later: dict[str, Decision] = {}
        lone = [b for b in line if b.needs.shun and not b.gang and not found[b.id].node]
        if lone and self._kept is None:
            # better on a node that failed it before than on none, but not in room kept for others
            again = _Round(self, lone, avoid, shun=False)
            later = {one.id: one for one in again.place([again.requests[b.id] for b in lone])}
        if self.recorder is not None:
            self.recorder.after(found, later)
        found |= later
        return [(binding, found[binding.id]) for binding in line]

    def _round(
        self,
        queue: Sequence[Waiting],
        units: Mapping[str, Sequence[Binding]],
        avoid: Mapping[str, Sequence[str]],
        now: float,
    ) -> dict[str, Decision]:
        start = _Round(self, [b for one in queue for b in units[one.id]], avoid, shun=True)
        works = [
            Work(
                one.id,
                tuple(start.requests[b.id] for b in units[one.id]),
                one.arrived,
                min(b.spec.max_run_seconds or math.inf for b in units[one.id]),
            )
            for one in queue
        ]
        if self.recorder is not None:
            self.recorder.before(
                self.view,
                self.ledger,
                self.mix,
                [start.wanted(request) for work in works for request in work.requests],
                at=datetime.fromtimestamp(now, UTC),
                line=partial(
                    line_of,
                    works,
                    now=now,
                    ends=self._ends,
                    kept=self._kept,
                    rested=self._rested,
                ),
            )
        done = run_round(
            self.view,
            works,
            start,
            ends=self._ends,
            now=now,
            kept=self._kept,
            rested=self._rested,
        )
        self._kept, self._rested = done.kept, done.rested
        # what stands too far behind the head was not looked at; it waits for the same reason
        kept = done.kept.name if done.kept else ""
        late = Refusal(PendingReason.RESERVED, kept, 1)
        return {
            request.id: done.decisions.get(request.id) or Decision(request.id, refusals=(late,))
            for work in works
            for request in work.requests
        }

    def _learn(self, line: Sequence[Binding]) -> None:
        """Tell the mix of each request once, however often it is looked at."""
        waiting = {binding.id for binding in line}
        for binding in line:
            if binding.id not in self._known:
                request = request_of(binding)
                asked = Asked.of(request)
                if asked.gpus:
                    self.mix.observe(demand_of(request, asked))
        self._known = waiting

    def _waiting(self, name: str, members: Sequence[Binding], units: Mapping[str, str]) -> Waiting:
        first = min(members, key=lambda b: (b.at, b.order))
        return Waiting(
            name,
            first.at.timestamp(),
            first.order,
            self._queue(first),
            first.needs.stage,
            max(member.priority for member in members),
            len(members),
            units.get(first.behind, ""),
        )

    def _queue(self, binding: Binding) -> str:
        """Return a queue that is declared: one that nobody declared is as good as none."""
        return binding.needs.queue if binding.needs.queue in self._policy.queues else "default"

    def entry(self, binding: Binding) -> Entry:
        """Return what a binding counts in the ledger."""
        identity, needs = binding.spec.identity, binding.needs
        parts = (binding.tenant, identity.project, identity.experiment)
        return Entry(
            binding.id,
            "/".join(part for part in parts if part),
            amounts_of(binding.spec.resources, card_bytes=self._card_bytes(binding)),
            needs.task_class,
            binding.priority,
            self._queue(binding),
            binding.at.timestamp(),
            identity.part or identity.role,
            binding.gang,
        )

    def _card_bytes(self, binding: Binding) -> int:
        """Return the memory of the card that a shared client has or may get; 0: not known."""
        asked = binding.spec.resources
        if not asked.gpu_count or asked.gpu_mode in {None, GpuMode.WHOLE}:
            return 0
        node = self.view.nodes.get(binding.node)
        if node is not None:
            return min((card.memory_bytes for card in node.devices), default=0)
        models = set(binding.needs.gpu_model.split("|")) - {""} or self._smallest.keys()
        # the smallest counts as the largest part: never less than it takes
        return min(
            (self._smallest[model] for model in models if model in self._smallest), default=0
        )


class _Round:
    """Starts work of one round: quota and room at once."""

    def __init__(
        self,
        planner: Planner,
        wanted: Iterable[Binding],
        avoid: Mapping[str, Sequence[str]],
        *,
        shun: bool,
    ) -> None:
        self._planner = planner
        self.requests: dict[str, Request] = {}
        self._entries: dict[str, Entry] = {}
        for binding in wanted:
            shunned = binding.needs.shun if shun else ()
            self.requests[binding.id] = request_of(binding, (*avoid.get(binding.id, ()), *shunned))
            self._entries[binding.id] = planner.entry(binding)

    def place(self, requests: Sequence[Request]) -> list[Decision]:
        """Decide on requests, in order."""
        planner = self._planner
        return decide(
            planner.view,
            planner.ledger,
            [self.wanted(request) for request in requests],
            mix=planner.mix,
            record=planner.recorder is not None,
            learn=False,
        )

    def wanted(self, request: Request) -> Wanted:
        """Return a request with its entry."""
        return Wanted(request, self._entries[request.id])

    def undo(self, ids: Sequence[str]) -> None:
        """Give room and quota back."""
        for id_ in ids:
            self._planner.view.release(id_)
            self._planner.ledger.end(id_)


def _arrival(binding: Binding) -> tuple[datetime, int, str]:
    return binding.bound_at or binding.at, binding.order, binding.id
