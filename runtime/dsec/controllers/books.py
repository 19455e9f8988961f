"""The leader's books in a term: the cluster as placement sees it, and the ledger of quotas.

Both are memory of things that are recorded elsewhere: before each round they are brought in line
with nodes, tenants and the bind log, by differences, so that a round costs what has changed. A new
leader starts with empty ones and has the same after its first round.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime

import structlog

from dsec.api.sandbox import GpuMode
from dsec.api.tenant import TenantSpec
from dsec.controllers.translating import COHORT, account_of
from dsec.journal.bindings import Binding
from dsec.placement.accounts import Account, QuotaError, amounts_of, total
from dsec.placement.asked import Asked
from dsec.placement.engine import demand_of
from dsec.placement.entries import Entry
from dsec.placement.ledger import Ledger
from dsec.placement.mix import Mix
from dsec.placement.queueing import QueuePolicy
from dsec.placement.request import Decision, Node
from dsec.placement.translating import request_of
from dsec.placement.view import ClusterView

log = structlog.get_logger()


class Books:
    """Of one term; one writer."""

    def __init__(self, policy: QueuePolicy | None = None) -> None:
        self.view = ClusterView()
        self.ledger = Ledger()
        self.mix = Mix()
        self.policy = policy or QueuePolicy()
        self.ends: dict[str, float] = {}
        """When bound sandboxes end at the latest, UTC in seconds."""
        self._accounts: dict[str, Account] = {}
        self._held: set[str] = set()
        self._unbooked: set[str] = set()
        self._moved = True
        self._smallest: dict[str, int] = {}

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
            ids = {*bound, *self.view.bookings(), *self.ledger.entries, *self.ends}
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
            self.ends.pop(id_, None)
        self._unbooked = set()
        # a new leader has heard no requests yet: what runs tells what is asked for
        fresh = not self.mix.seen
        # in the order in which they were bound, as a new leader books them
        for binding in sorted((bound[i] for i in ids if i in bound), key=_arrival):
            id_ = binding.id
            if id_ not in booked and binding.node in nodes:
                spec = binding.spec
                decision = Decision(id_, binding.node, tuple(spec.devices), cpus=tuple(spec.cpus))
                request = request_of(binding)
                asked = Asked.of(request)
                if fresh and asked.gpus:
                    self.mix.observe(demand_of(request, asked))
                try:
                    self.view.book(request, decision, force=True)
                except ValueError as error:
                    # its agent runs it all the same; the agent's last word keeps others off
                    self._unbooked.add(id_)
                    log.warning("cannot be booked", sandbox=id_, error=str(error))
            if binding.spec.max_run_seconds and binding.bound_at and id_ not in self.ends:
                self.ends[id_] = binding.bound_at.timestamp() + binding.spec.max_run_seconds
        for id_ in ids:
            if id_ not in bound:
                # also where its node, and its booking with it, went first
                self.ends.pop(id_, None)

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

    def queue(self, binding: Binding) -> str:
        """Return a queue that is declared: one that nobody declared is as good as none."""
        return binding.needs.queue if binding.needs.queue in self.policy.queues else "default"

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
            self.queue(binding),
            binding.at.timestamp(),
            identity.part or identity.role,
            needs.together or binding.gang,
            identity.role,
            needs.least,
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


def _arrival(binding: Binding) -> tuple[datetime, int, str]:
    return binding.bound_at or binding.at, binding.order, binding.id
