"""Plans of preemption while they are carried out: the leader's memory of who leaves for whom.

Pure: controllers execute the steps and tell what came of them; times are passed in. What is lost in
a crash: everything, on purpose. A new leader plans anew; who has left is gone, the others run.

    started = displacing.start(plan, now)     # the victims to be asked now: each exactly once
    displacing.gone(id)                       # stopped, paused, or its node is no more
    displacing.failed(id)                     # a step did not work: it may be planned again
    displacing.ready()                        # askers whose room is there: place them first
    displacing.overdue(now)                   # askers to be planned anew, elsewhere

From the plan to the asker's start its room is held: in the ledger by a hold, in the view by a
booking on its future nodes, so that nobody else is placed there meanwhile (a nomination). A victim
that does not die in time is given up with its node: the asker is planned for another one.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dsec.api.reasons import PendingReason
from dsec.placement.asked import OverCapacityError
from dsec.placement.entries import Entry
from dsec.placement.ledger import Ledger
from dsec.placement.plans import Displacement, Plan, PreemptionPolicy, Step
from dsec.placement.preemption_words import Hindrance
from dsec.placement.refusal import Refusal
from dsec.placement.view import ClusterView


@dataclass(slots=True)
class _Under:
    """A plan under way: its victims that have not gone yet."""

    plan: Plan
    waiting_for: set[str]
    deadline: float


class Displacing:
    """The plans under way, over the leader's view and ledger."""

    def __init__(self, view: ClusterView, ledger: Ledger, policy: PreemptionPolicy) -> None:
        self.view = view
        self.ledger = ledger
        self.policy = policy
        self.plans: dict[str, _Under] = {}
        self.victims: dict[str, Displacement] = {}
        self._stubborn: set[str] = set()

    @property
    def leaving(self) -> Mapping[str, bool]:
        """Victims that have been asked and have not gone, and whether they stop: for `plan`."""
        return {id_: victim.stops for id_, victim in self.victims.items()}

    @property
    def spared(self) -> frozenset[str]:
        """Nodes on which a victim has not died in time and still is: for `plan`."""
        on = self.view.bookings()
        return frozenset(on[victim].node for victim in self._stubborn if victim in on)

    def start(self, plan: Plan, now: float) -> list[Displacement]:
        """Hold the asker's room; return the victims to be asked now.

        A victim that is on its way out for another plan is not asked again, and one whose node is
        gone is nobody to ask: it is counted as gone at once.
        """
        self.drop(plan.asking.id)
        if any(decision.node not in self.view.nodes for decision in plan.decisions):
            # planned for a cluster that is no more: the next round plans anew
            return []
        new = [one for one in plan.displacements if one.id not in self.victims]
        there = self.view.bookings()
        asked = [one for one in new if one.id in there]
        waiting_for = {one.id for one in plan.displacements if one.id in there}
        waiting_for |= {id_ for id_ in plan.after if id_ in self.victims}
        for one in new:
            if one.id not in there:
                self.ledger.end(one.id)
        self.victims |= {one.id: one for one in asked}
        until = now + self.policy.dies_within_s
        for entry in plan.asking.entries:
            # once more as long for the start itself, when the last victim went late
            self.ledger.hold(entry, until + self.policy.dies_within_s)
        by_id = {request.id: request for request in plan.asking.requests}
        for decision in plan.decisions:
            self.view.book(by_id[decision.id], decision, force=True)
        self.plans[plan.asking.id] = _Under(plan, waiting_for, until)
        return asked

    def gone(self, victim: str) -> None:
        """Take note that a victim has stopped, rests, or is on a node that is no more.

        Idempotent. Its entry and booking are changed here, so that they are changed once.
        """
        self._stubborn.discard(victim)
        displacement = self.victims.pop(victim, None)
        if displacement is None:
            return
        if displacement.stops or victim not in self.view.bookings():
            self.view.release(victim)
            self.ledger.end(victim)
        else:
            self.view.pause(victim)
            if victim in self.ledger.entries:
                self.ledger.pause(victim)
        for under in self.plans.values():
            under.waiting_for.discard(victim)

    def stops(self, victim: str) -> list[str]:
        """Take note that a victim has to stop after all: it cannot be paused.

        Returns who has to stop now: it, and those of its gang that were to rest with it.
        """
        softly = [id_ for id_, one in self.victims.items() if not one.stops]
        if victim not in softly:
            return []
        entries = self.ledger.entries
        gang = (entries[victim].tenant, entries[victim].gang) if victim in entries else ("", "")
        found = [victim]
        if gang[1]:
            others = [id_ for id_ in softly if id_ != victim and id_ in entries]
            found += [id_ for id_ in others if (entries[id_].tenant, entries[id_].gang) == gang]
        for id_ in found:
            self.victims[id_] = replace(self.victims[id_], steps=(Step.SYNC, Step.STOP))
        return found

    def failed(self, victim: str) -> list[str]:
        """Take note that a victim could not be displaced: it runs on and may be planned again.

        Returns the askers that have to be planned anew.
        """
        self._stubborn.discard(victim)
        self.victims.pop(victim, None)
        hit = [asker for asker, under in self.plans.items() if victim in under.waiting_for]
        for asker in hit:
            self.drop(asker)
        return hit

    def look(self) -> None:
        """Count victims whose node was removed as gone."""
        for victim in list(self.victims):
            if victim not in self.view.bookings():
                self.gone(victim)

    def ready(self) -> list[Plan]:
        """Return the plans whose victims have all gone.

        Admit the entries first, which uses up their holds, then `drop`, then place.
        """
        return [under.plan for under in self.plans.values() if not under.waiting_for]

    def overdue(self, now: float) -> list[str]:
        """Give up plans with a victim that did not die in time; returns their askers.

        The nodes are spared for everybody until these victims have gone after all. A plan whose
        victims have all gone is given up as well when its asker has not started after that time
        once more: nothing stays held.
        """
        late = [
            asker
            for asker, under in self.plans.items()
            if under.deadline + (0 if under.waiting_for else self.policy.dies_within_s) <= now
        ]
        for asker in late:
            self._stubborn |= self.plans[asker].waiting_for
            self.drop(asker)
        return late

    def drop(self, asker: str) -> None:
        """Give up what is held for an asker: it starts now, was withdrawn, or is planned anew.

        Its victims stay on their way out: they cannot be called back.
        """
        under = self.plans.pop(asker, None)
        if under is None:
            return
        for decision in under.plan.decisions:
            self.view.release(decision.id)
        for entry in under.plan.asking.entries:
            self.ledger.unhold(entry.id)

    def hindrance(self, asker: str) -> Refusal | None:
        """Return what an asker waits for, in words by `words.sentence`; None: it is not planned."""
        under = self.plans.get(asker)
        if under is None:
            return None
        return Refusal(PendingReason.PREEMPTION, Hindrance.LEAVING, 1, nodes=len(under.waiting_for))


def resumable(view: ClusterView, ledger: Ledger) -> list[tuple[Entry, ...]]:
    """Return the paused victims that can go on now, in their order: what was lent for a while.

    A gang of which too few run goes on as one. Highest priority first, then the oldest; whoever has
    no room is passed over, so that room is not left idle. Call it when work has ended: evaluation
    gives its room back at once (SCHED-18). What is held for waiting work is not taken. Changes
    nothing: `resume` does.
    """
    trial, books = view.fork(), ledger.fork()
    return [unit for unit in _units(ledger) if resume(trial, books, unit)]


def resume(view: ClusterView, ledger: Ledger, unit: Sequence[Entry]) -> bool:
    """Let paused work go on, all of it or none; returns whether there is room and quota."""
    done: list[str] = []
    for entry in unit:
        if entry.id not in view.bookings() or ledger.resume(entry.id):
            break
        try:
            view.resume(entry.id)
        except OverCapacityError:
            ledger.pause(entry.id)
            break
        done.append(entry.id)
    else:
        return True
    for id_ in done:
        view.pause(id_)
        ledger.pause(id_)
    return False


def _units(ledger: Ledger) -> list[tuple[Entry, ...]]:
    """Return what is paused as what goes on together, first ones first."""
    paused = [entry for entry in ledger.entries.values() if entry.paused]
    gangs = {(entry.tenant, entry.gang) for entry in paused if entry.gang}
    runs: Counter[tuple[str, str, str]] = Counter()
    least: Counter[tuple[str, str, str]] = Counter()
    for entry in ledger.entries.values():
        if (entry.tenant, entry.gang) in gangs:
            group = (entry.tenant, entry.gang, entry.group)
            runs[group] += not entry.paused
            least[group] = max(least[group], entry.group_min)
    short = {group[:2] for group, least_of in least.items() if runs[group] < least_of}
    units: dict[tuple[str, ...], list[Entry]] = {}
    for entry in sorted(paused, key=lambda one: (-one.priority, one.since, one.id)):
        gang = (entry.tenant, entry.gang)
        units.setdefault(gang if gang in short else (entry.id,), []).append(entry)
    return [tuple(unit) for unit in units.values()]
