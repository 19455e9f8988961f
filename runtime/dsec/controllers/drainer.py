"""Drains nodes that people want empty: what can be moved moves, the rest ends or is waited for.

A drain is an annotation of the node's record, beside its cordon, so it outlives every leader. Each
look asks for moves of what is there; a move that fails is tried again later, and told.
"""

from dataclasses import dataclass, field

import structlog

from dsec.api.nodes import DRAIN, EVICT
from dsec.api.reasons import EndReason
from dsec.controllers.dispatch import Dispatcher
from dsec.controllers.fleet import Fleet
from dsec.controllers.mover import Mover
from dsec.journal.bindings import Binding, Bindings
from dsec.placement.compaction import Move
from dsec.world.clock import Clock

LOOK_SECONDS = 2.0
NAMED = 3
MOST = 64
"""Moves that drains have under way or asked for at once: the places of others may change."""
EVICTED = "its node is being emptied; it starts again elsewhere"

log = structlog.get_logger()


@dataclass(slots=True)
class Drainer:
    """Of one term. `run` is its task."""

    mover: Mover
    fleet: Fleet
    bindings: Bindings
    dispatcher: Dispatcher
    clock: Clock
    _stays: dict[str, dict[str, str]] = field(default_factory=dict)
    """Node -> sandbox -> why it is still there."""

    async def run(self) -> None:
        """Look again and again."""
        while True:
            await self.clock.sleep(LOOK_SECONDS)
            self.look()

    def drains(self, node: str) -> bool:
        """Return whether somebody wants a node empty."""
        member = self.fleet.members.get(node)
        return member is not None and DRAIN in (member.record.metadata.annotations or {})

    def about(self, node: str) -> str:
        """Return what is left on a node that is drained, in words; empty: nothing."""
        left = self._stays.get(node, {})
        if not left:
            return ""
        named = [f"{id_}: {why}" for id_, why in sorted(left.items())[:NAMED]]
        more = f"; and {len(left) - NAMED} more" if len(left) > NAMED else ""
        return f"{len(left)} sandboxes are still there: {'; '.join(named)}{more}"

    def look(self) -> None:
        """Ask for moves away from every node that is drained."""
        now_draining = [name for name in self.fleet.members if self.drains(name)]
        self._stays = {
            name: {one.id: "" for one in self.bindings.on_node(name)} for name in now_draining
        }
        for name in now_draining:
            member = self.fleet.members[name]
            ends = (member.record.metadata.annotations or {}).get(DRAIN) == EVICT
            work = self.bindings.on_node(name)
            away(self.mover, name, work, f"node {name} is being emptied")
            for binding in work:
                self._stays[name][binding.id] = self._left(binding, ends=ends)

    def _left(self, binding: Binding, *, ends: bool) -> str:
        """Return why something is still there; ends it where it cannot move and that is wanted."""
        if binding.id in self.mover.under_way:
            return self.mover.about(binding.id)
        if self.dispatcher.ending(binding.node, binding.id):
            return "it ends"
        why = self.mover.hindrance(binding.id) or self.mover.about(binding.id)
        if why and ends:
            self.dispatcher.stop(binding.node, binding.id, EndReason.PREEMPTED, EVICTED)
            return "it ends, and starts again elsewhere"
        return f"{why or 'no other node has room for it'}; its end is waited for"


def away(mover: Mover, node: str, work: list[Binding], why: str) -> bool:
    """Ask for moves of all that can leave a node; True: all of it is on its way."""
    ids = [
        one.id
        for one in work
        if one.id not in mover.under_way
        and not mover.failed(one.id)
        and not mover.hindrance(one.id)
    ]
    ids = ids[: max(0, MOST - len(mover.under_way))]
    for id_, decision in (mover.places(ids) if ids else {}).items():
        if problem := mover.ask(Move(id_, node, decision), why):
            log.info("not moved yet", sandbox=id_, why=problem)
    return all(one.id in mover.under_way for one in work)
