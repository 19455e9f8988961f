"""dsec's own rules in the simulation: the real planner looks at the fleet, the fleet does it."""

from dataclasses import dataclass, field

from dsec.scaling.nodes.backoff import failed, succeeded, taken_back
from dsec.scaling.nodes.offerings import NodePhase, Offering
from dsec.scaling.nodes.planning import plan
from dsec.scaling.nodes.plans import Gate, OpenGate, Plan
from dsec.scaling.nodes.rules import NodeRules
from dsec.scaling.nodes.state import Backoff, FleetState, Pending, PoolMemory
from dsec.sim.elastic.fleet import Fleet, Machine

CALM_S = 30.0
"""Where nothing waits and nothing has changed, the planner is asked this often."""
PASSES = 4
"""Most plans of one step: after a shortage the next offering is taken at once."""


@dataclass(slots=True)
class Planned:
    """The planner with its memory."""

    rules: NodeRules
    offerings: tuple[Offering, ...]
    gate: Gate = field(default_factory=OpenGate)
    backoffs: tuple[Backoff, ...] = ()
    memories: tuple[PoolMemory, ...] = ()
    serial: int = 0
    consolidated_at: float | None = None
    planned_at: float | None = None

    def step(self, fleet: Fleet) -> None:
        """Plan where something waits or may fall empty, and carry it out."""
        at = self.planned_at
        if at is not None and not fleet.waiting and fleet.now - at < CALM_S:
            return
        if at is not None and fleet.changed_at <= at and fleet.now - at < CALM_S:
            return
        for _ in range(PASSES):
            if not self._once(fleet):
                break

    def noticed(self, fleet: Fleet, machine: Machine) -> None:
        """Plan at once: the replacement first, then what runs there is paused and saved."""
        self.backoffs = taken_back(self.backoffs, machine.offering, fleet.now)
        self._once(fleet)

    def _once(self, fleet: Fleet) -> bool:
        """Make one plan and carry it out. True: something failed, plan again at once."""
        self.planned_at = fleet.now
        state = self._state(fleet)
        found = plan(state, self.rules, self.gate)
        self.serial += 1
        again = False
        for purchase in found.buys:
            offering = purchase.offering
            if fleet.buy(offering, purchase.count, purchase.places or (purchase.covers,)):
                self.backoffs = succeeded(self.backoffs, offering)
            else:
                self.backoffs = failed(self.backoffs, offering, fleet.now, code="short")
                again = True
        self._leave(fleet, found, state.demand if found.moves else "")
        self.memories, self.consolidated_at = found.memories, found.consolidated_at
        return again

    def _leave(self, fleet: Fleet, found: Plan, demand: str) -> None:
        for name in found.cordons:
            fleet.cordon(name)
        for drain in found.drains:
            for move in drain.moves:
                if move.id in fleet.live and fleet.live[move.id].node == move.source:
                    fleet.move(move.id, move.target, move.decision.devices, demand)
            for work in drain.rests:
                if work in fleet.live and fleet.live[work].node == drain.node:
                    fleet.rest(work)
            machine = fleet.machines[drain.node]
            if not machine.work and machine.phase is not NodePhase.ENDING:
                fleet.remove(drain.node)
        for removal in found.removals:
            if removal.node in fleet.machines:
                fleet.remove(removal.node)

    def _state(self, fleet: Fleet) -> FleetState:
        return FleetState(
            fleet.now,
            nodes=fleet.fleet_nodes(),
            pending=tuple(
                Pending(fleet.live[name].request, fleet.live[name].since) for name in fleet.waiting
            ),
            offerings=self.offerings,
            backoffs=self.backoffs,
            buffers=self.rules.buffers(),
            memories=self.memories,
            serial=self.serial,
            consolidated_at=self.consolidated_at,
            view=fleet.view,
        )
