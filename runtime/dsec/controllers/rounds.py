"""One round of the leader: follow what is recorded, let paused work go on, place, displace."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from dsec.api.reasons import PendingReason
from dsec.api.sandbox import SandboxState
from dsec.api.tenant import TenantSpec
from dsec.controllers import resting
from dsec.controllers.asking import Seen
from dsec.controllers.displacer import Displacer
from dsec.controllers.fleet import Fleet
from dsec.controllers.planner import Planner
from dsec.controllers.translating import unit_of
from dsec.journal.bindings import Binding, Bindings
from dsec.placement.refusal import Refusal
from dsec.placement.request import Decision


class Rounds:
    """Of one term; one writer."""

    def __init__(
        self,
        planner: Planner,
        displacer: Displacer,
        fleet: Fleet,
        state: Bindings,
        tenants: Callable[[], Mapping[str, TenantSpec]],
    ) -> None:
        """`tenants` returns the spec of each tenant."""
        self.planner = planner
        self.displacer = displacer
        self._fleet = fleet
        self._state = state
        self._tenants = tenants
        self.waiting: Sequence[Binding] = ()
        """All that waited at the last round."""
        self._paused: frozenset[str] = frozenset()
        self._changed: set[str] | None = None

    def decide(
        self, wanted: Sequence[Binding], avoid: Mapping[str, Sequence[str]], now: float
    ) -> list[tuple[Binding, Decision]]:
        """Return a decision for all that waits; what has a node is booked from now on.

        `avoid` has nodes whose agents have just refused a sandbox, by its id. `now` is UTC in
        seconds.
        """
        self.waiting = wanted
        seen = self._seen()
        if not wanted and not self._paused and not seen.paused and not self.displacer.victims:
            return []
        self._follow(seen)
        first = self.displacer.follow(seen, wanted, now)
        held = self.displacer.held
        # in a new term those that displaced work is behind may not have asked yet
        early = set() if self.displacer.settled else {b.id for b in wanted if b.behind}
        trying = [b for b in wanted if b.id not in held and b.id not in early]
        decided = self.planner.decide(trying, avoid, now, first=first) if trying else []
        # who was refused by an agent a moment ago is tried again first
        again = {unit_of(b) for b, _ in decided if avoid.get(b.id)}
        unplaced = [b for b, one in decided if not one.node and unit_of(b) not in again]
        told = self.displacer.ask(unplaced, seen, now)
        waits = [(binding, Decision(binding.id)) for binding in wanted if binding.id in held]
        told |= {binding.id: self.displacer.hindrance(binding.id) for binding, _ in waits}
        late = (Refusal(PendingReason.CONTROL_PLANE, "round", 1),)
        waits += [(b, Decision(b.id, refusals=late)) for b in wanted if b.id in early - held]
        heads = {unit_of(b): b for b in wanted}
        decided = [(b, named(one, b, heads) if one.refusals else one) for b, one in decided]
        return [
            (b, one._replace(refusals=(told[b.id], *one.refusals)) if b.id in told else one)
            for b, one in (*decided, *waits)
        ]

    def refresh(self) -> None:
        """Bring the books in line with what is recorded, without deciding anything."""
        self._follow(self._seen())

    def _seen(self) -> Seen:
        states = self._fleet.turned(self._state.effective)
        paused = frozenset(id_ for id_, one in states.items() if one is SandboxState.PAUSED)
        return Seen(self._state.bound, states, paused)

    def _follow(self, seen: Seen) -> None:
        """Bring view and ledger in line with bind log and agents."""
        planner = self.planner
        # taken before it is looked at: what changes in the meantime is looked at again
        changed, self._changed = self._changed, self._state.follow(self._changed)
        planner.follow(
            self._fleet.nodes(), self._tenants(), seen.bound, self.displacer.held, changed=changed
        )
        before, self._paused = self._paused, self.displacer.counted_paused(seen)
        resting.follow(planner.view, planner.ledger, before, self._paused)


def named(decision: Decision, asker: Binding, heads: Mapping[str, Binding]) -> Decision:
    """Say whom room is kept for as its owner calls it; other tenants learn no names."""
    found = []
    for one in decision.refusals:
        name, head = one.dimension, heads.get(one.dimension)
        if one.reason is PendingReason.RESERVED and head is not None:
            identity = head.spec.identity
            name = f"experiment {identity.experiment}" if identity.experiment else identity.id
            if head.tenant != asker.tenant:
                name = "work of another tenant"
        found.append(replace(one, dimension=name))
    return decision._replace(refusals=tuple(found))
