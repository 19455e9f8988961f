"""The replicas that experiments miss, as bindings without a node, and why some are not demanded.

A replica that is missing has the same binding at each look, so that its place in the queue and its
id stand. Soft state: a new leader makes other ids for what was never bound.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from dsec.api.experiment import Completion
from dsec.api.lineage import lineage_of
from dsec.api.nodes import AgentSettings
from dsec.api.reasons import EndReason, PendingReason
from dsec.api.records import Experiment
from dsec.api.status import Resolved
from dsec.api.tenant import TenantSpec
from dsec.controllers.replicas import Plan, Slot
from dsec.controllers.specs import replica_binding
from dsec.journal.bindings import Binding
from dsec.journal.inputs import InputMissingError, Inputs
from dsec.journal.keyed import new_id
from dsec.journal.results import ResultReader
from dsec.placement.refusal import Refusal
from dsec.snapshots.layout import prefix_of, under
from dsec.world.clock import Clock, Randomness
from dsec.world.objects import ObjectStore, ObjectStoreError

Place = tuple[str, int, int]
"""Of a replica within its experiment: role, index, incarnation."""


@dataclass(slots=True)
class Candidates:
    """Of one term."""

    inputs: Inputs
    results: ResultReader
    clock: Clock
    randomness: Randomness
    snapshots: ObjectStore | None = None
    """Where snapshots are; None: every restore is asked for, saved or not."""
    _made: dict[str, dict[Place, Binding]] = field(default_factory=dict)
    """By the uid of their experiment."""

    async def missing(
        self,
        experiment: Experiment,
        resolved: Resolved,
        rights: TenantSpec,
        plans: Sequence[Plan],
        unread: Mapping[str, Refusal],
    ) -> list[Binding]:
        """Return bindings for the replicas that are missing, the same ones at each call.

        Those whose nodes could not use their image are among them while they pause: they wait, too.
        `unread` are the roles whose items cannot be read.
        """
        uid = experiment.metadata.uid
        # what is kept running starts as one, at first and after all of it gave way to other work;
        # other replacements are single
        kept = [one for one in plans if one.role.completion is Completion.KEEP]
        whole = not any(one.slots for one in plans) or _gave_way(kept)
        # a gang that gives way starts again once all of it is gone
        leaving = any(copy.behind for one in kept for copy in one.live)
        made = self._made.get(uid, {})
        fresh: dict[Place, Binding] = {}
        for one in plans:
            role = one.role
            ref = None if role.name in unread else role.items_ref
            for slot in (*one.create, *one.held):
                if leaving and _displaced(slot):
                    continue
                key = (role.name, slot.index, slot.incarnation)
                known = made.get(key)
                if known is None or known.body_hash != f"{uid}/{resolved.generation}":
                    known = replica_binding(
                        experiment,
                        resolved,
                        role,
                        index=slot.index,
                        incarnation=slot.incarnation,
                        item=await self._item(experiment, ref, slot.index),
                        rights=rights,
                        sandbox=new_id(self.clock, self.randomness),
                        heartbeat=AgentSettings().heartbeat_seconds,
                        now=self._arrived(experiment, slot),
                        last=slot.last,
                    )
                elif (image := _image(resolved, role.name)) != known.spec.image:
                    known.spec.image = image  # its digest is known by now
                if known.spec.item is None:  # the items may have come since
                    known.spec.item = await self._item(experiment, ref, slot.index)
                gang = whole and role.completion is Completion.KEEP
                known.gang = uid if gang else ""
                known.needs.shun = slot.shunned
                known.behind = slot.last.behind if slot.last else ""
                known.order = len(fresh)
                fresh[key] = known
        copies = {(p.role.name, slot.index): slot.last for p in plans for slot in p.slots.values()}
        new = {k: b for k, b in fresh.items() if k not in made}
        unsure = [(b, copies.get(k[:2])) for k, b in new.items()]
        await self._unsaved(resolved.tenant, uid, unsure)
        self.forget(uid)
        if fresh:
            self._made[uid] = fresh
        return list(fresh.values())

    async def _unsaved(
        self, tenant: str, uid: str, fresh: Sequence[tuple[Binding, Binding | None]]
    ) -> None:
        """Let what was never saved start as its last copy did: its node would look in vain.

        Where the store does not answer the node asks it.
        """
        asking = [
            (one, last)
            for one, last in fresh
            if one.spec.restore is not None
            and one.spec.restore.lineage == lineage_of(one.spec.identity)
        ]
        if not asking or self.snapshots is None:
            return
        below = under(prefix_of(tenant), "refs", "exp", uid, "")
        try:
            keys = [info.key for info in await self.snapshots.list(below)]
        except ObjectStoreError:
            return
        saved = {key.removeprefix(below).rpartition("/")[0] for key in keys}
        for one, last in asking:
            identity = one.spec.identity
            if f"{identity.role}/{identity.index}" not in saved:
                before = last.spec.restore if last is not None else None
                own = before is not None and before.lineage == lineage_of(identity)
                one.spec.restore = None if own else before

    def _arrived(self, experiment: Experiment, slot: Slot) -> datetime:
        """Return since when a replica waits in line: the displaced not before they were that."""
        last = slot.last
        if last is not None and last.reason is EndReason.PREEMPTED and last.ended_at:
            return last.ended_at
        return experiment.metadata.creation_timestamp or self.clock.now()

    def forget(self, uid: str) -> None:
        """Drop what was made for an experiment."""
        self._made.pop(uid, None)

    async def unread(self, experiment: Experiment, plans: Sequence[Plan]) -> dict[str, Refusal]:
        """Return, by role, why the items of replicas that are missing cannot be read."""
        found: dict[str, Refusal] = {}
        for one in plans:
            digest = one.role.items_ref
            if not one.create or digest is None:
                continue
            try:
                await self._item(experiment, digest, 0)
            except InputMissingError as problem:
                found[one.role.name] = Refusal(PendingReason.INPUT, str(problem), digest)
            except ObjectStoreError:
                why = "the object store does not answer"
                found[one.role.name] = Refusal(PendingReason.INPUT, why, digest)
        return found

    async def unusable(self, plans: Sequence[Plan]) -> dict[Place, Refusal]:
        """Return, by role, index and incarnation, why replicas pause whose image no node could use.

        The words are those of the last node, of one replica for its whole role.
        """
        found: dict[Place, Refusal] = {}
        for one in plans:
            if not one.held:
                continue
            why = await self._words(one.held[0])
            for slot in one.held:
                image = slot.last.spec.image if slot.last else ""
                refusal = Refusal(PendingReason.IMAGE, why, image)
                found[one.role.name, slot.index, slot.incarnation] = refusal
        return found

    async def _words(self, slot: Slot) -> str:
        last = slot.last
        told = ""
        if last is not None and last.result:
            try:
                status = await self.results.read(last.result)
            except ObjectStoreError:
                status = None  # the words are for people; the decision stands without them
            told = status.end.message if status is not None and status.end is not None else ""
        node = last.node if last is not None else ""
        return f"node {node} could not use it ({told or 'it gave no reason'})"

    async def _item(self, experiment: Experiment, digest: str | None, index: int) -> str | None:
        if digest is None:
            return None
        return await self.inputs.line(experiment.metadata.namespace, digest, index)


def _displaced(slot: Slot) -> bool:
    return slot.last is not None and slot.last.reason is EndReason.PREEMPTED


def _gave_way(kept: Sequence[Plan]) -> bool:
    """Return whether nothing of what is kept running is left, because it was displaced."""
    slots = [slot for one in kept for slot in one.slots.values()]
    return any(map(_displaced, slots)) and not any(one.live for one in kept)


def place_of(binding: Binding) -> Place:
    """Return the place of a replica within its experiment."""
    identity = binding.spec.identity
    return identity.role, identity.index, identity.incarnation


def held(
    missing: Sequence[Binding], unknown: Mapping[str, Refusal]
) -> dict[str, tuple[Refusal, ...]]:
    """Return, by id, why replicas wait for an image: their own, or one of another in their gang.

    `unknown` has the refusal of each role that cannot start.
    """
    if not unknown:
        return {}
    other = next(iter(unknown.values()))
    return {
        binding.id: (unknown.get(binding.spec.identity.role, other),)
        for binding in missing
        if binding.gang or binding.spec.identity.role in unknown
    }


def _image(resolved: Resolved, role: str) -> str:
    """Return what sandboxes of a role use."""
    return next(one.reference for one in resolved.images if one.role == role)
