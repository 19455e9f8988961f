"""Carries out preemption and reclaim on the leader: who leaves for whom, and who comes back.

After each round, work that found no place asks `preemption.plan`; victims are told once, through
their agents; the room of whoever they leave for is held meanwhile. All of it is soft: what counts
is in the bind log (who ended, for whom) and with the agents (who is paused, who is on its way out).
A new leader reads both before it displaces or resumes anybody, so nothing is done twice.

Agents cannot save the state of a sandbox yet, so the step `sync` is left out and history says so.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from dsec.api.reasons import EndReason, PendingReason
from dsec.api.sandbox import SandboxState
from dsec.controllers import resting
from dsec.controllers.dispatch import Dispatcher
from dsec.controllers.planner import Planner, unit_of
from dsec.journal.bindings import Binding, Bindings
from dsec.journal.history import HistoryWriter
from dsec.placement.displacing import Displacing
from dsec.placement.entries import Entry, alike
from dsec.placement.plans import Asking, Displacement, Plan, PreemptionPolicy, Step
from dsec.placement.preemption import plan
from dsec.placement.preemption_words import Hindrance
from dsec.placement.reclaim import consents
from dsec.placement.refusal import Refusal
from dsec.placement.request import Request
from dsec.world.clock import Clock

SETTLED_SECONDS = 10.0
"""A new leader displaces and resumes nobody before: until then it may not know who waits."""
RESUME_SECONDS = 10.0
"""A resumed sandbox counts as running for so long before its agent says so."""
PLANS = 16
"""Most plans made in one round, successful or not: each costs milliseconds."""
AGAIN_SECONDS = 2.0
"""What was refused a plan is not planned again before, however many rounds there are."""
NAMED = 3
"""Most victims named in words; the others are counted."""
PREEMPTING, PREEMPTED, RESUMED = "preempting", "preempted", "resumed"
HOW = ("paused", "stopped", "resumed", "overdue")
"""What is counted of victims."""
LEAVING = frozenset({SandboxState.STOPPING, SandboxState.ARCHIVING})
NO_SYNC = "its agent cannot save the state of a sandbox"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Seen:
    """What is recorded now: live bindings with a node by id, and what agents say of each."""

    bound: Mapping[str, Binding]
    states: Mapping[str, SandboxState]
    paused: frozenset[str]


@dataclass(frozen=True, slots=True)
class Unit:
    """Waiting work that found no place in a round, whole, with why not."""

    bindings: Sequence[Binding]
    requests: tuple[Request, ...]
    entries: tuple[Entry, ...]
    since: float

    @property
    def first(self) -> Binding:
        """The one that it is named after."""
        return self.bindings[0]


class Displacer:
    """Of one term; called by the placer, within its rounds."""

    def __init__(
        self,
        planner: Planner,
        dispatcher: Dispatcher,
        state: Bindings,
        *,
        history: HistoryWriter,
        clock: Clock,
        policy: PreemptionPolicy,
    ) -> None:
        self._planner = planner
        self._dispatcher = dispatcher
        self._state = state
        self._history = history
        self._clock = clock
        self._policy = policy
        self._under = Displacing(planner.view, planner.ledger, policy)
        self._started = clock.monotonic()
        self._began: dict[str, datetime] = {}
        self._for: dict[str, Binding] = {}
        self._resuming: dict[str, float] = {}
        self._waits: dict[tuple[str, str], float] = {}
        self._refused: dict[str, tuple[Refusal, float]] = {}
        self.counts: Counter[str] = Counter()
        """Of this term, by `HOW`."""

    # ------------------------------------------------------------------ what others ask

    @property
    def victims(self) -> Collection[str]:
        """Those that have been asked to leave and have not yet."""
        return self._under.victims

    @property
    def held(self) -> set[str]:
        """Ids of waiting work whose room is held."""
        return {one.id for under in self._under.plans.values() for one in under.plan.decisions}

    def counted_paused(self, seen: Seen) -> frozenset[str]:
        """Return who counts as paused: not those that have just been told to go on."""
        return seen.paused - self._resuming.keys()

    def concerns(self, ids: Iterable[str]) -> bool:
        """Return whether news of these may let somebody start, or go on."""
        return any(id_ in self._under.victims or id_ in self._resuming for id_ in ids)

    def behind(self, sandbox: str) -> str:
        """Return the key of the work that a sandbox was asked to make room for; empty: of none."""
        asker = self._for.get(sandbox)
        return f"{asker.tenant}/{asker.key}" if asker else ""

    def turned_down(self, sandbox: str, why: str) -> None:
        """Take note that an agent did not pause or resume a sandbox.

        A victim that cannot be paused is stopped. What cannot go on yet is tried again later.
        """
        self._resuming.pop(sandbox, None)
        victim = self._under.victims.get(sandbox)
        binding = self._state.by_id.get(sandbox)
        if victim is not None and not victim.stops and binding is not None and binding.live:
            log.info("cannot be paused, so it is stopped", sandbox=sandbox, why=why)
            self._stop(binding)

    # ------------------------------------------------------------------ before a round

    def follow(self, seen: Seen, waiting: Sequence[Binding], now: float) -> list[str]:
        """Take note of who has gone; resume who can go on. Returns the units that start first.

        The planner has followed `seen` before. `waiting` has all that waits, `now` is UTC in
        seconds.
        """
        for id_, victim in list(self._under.victims.items()):
            binding = seen.bound.get(id_)
            rests = not victim.stops and seen.states.get(id_) is SandboxState.PAUSED
            if binding is None or binding.node != victim.node or rests:
                self._gone(id_, paused=binding is not None and rests)
        self._under.look()
        ids = {binding.id for binding in waiting}
        for asker in [one for one in self._under.plans if one not in ids]:
            self._under.drop(asker)
        for asker in self._under.overdue(now):
            self.counts["overdue"] += 1
            log.warning("a victim does not go, another place is looked for", asker=asker)
        self._note_waits(waiting, now)
        self._resume(seen, waiting, now)
        first = []
        for ready in self._under.ready():
            self._under.drop(ready.asking.id)
            first.append(ready.asking.requests[0].gang or ready.asking.id)
        return first

    def _gone(self, victim: str, *, paused: bool) -> None:
        self._under.gone(victim)
        binding, asker = self._state.by_id.get(victim), self._for.pop(victim, None)
        if binding is None or not (paused or binding.reason is EndReason.PREEMPTED):
            return  # it ended by itself
        self.counts["paused" if paused else "stopped"] += 1
        self._history.add(
            PREEMPTED,
            tenant=binding.tenant,
            experiment=binding.spec.identity.experiment,
            sandbox=victim,
            node=binding.node,
            how="paused" if paused else "stopped",
            synced=False,
            why=f"for {name_of(asker, binding.tenant)}; {NO_SYNC}",
        )

    def _note_waits(self, waiting: Iterable[Binding], now: float) -> None:
        """Keep since when work waits.

        A new leader believes what is recorded; what comes later waits since it was first seen: a
        replica that is added to an old experiment has not waited as long as that is old.
        """
        young = not self._settled
        self._began = {one: at for one, at in self._began.items() if one in self._under.plans}
        self._waits = {
            (b.tenant, b.key): self._waits.get(
                (b.tenant, b.key), min(now, b.at.timestamp()) if young else now
            )
            for b in waiting
        }

    @property
    def _settled(self) -> bool:
        return self._clock.monotonic() - self._started >= SETTLED_SECONDS

    def _resume(self, seen: Seen, waiting: Sequence[Binding], now: float) -> None:
        """Let paused sandboxes go on for which there is room, before new softer work."""
        self._resuming = {
            id_: until
            for id_, until in self._resuming.items()
            if until > now and seen.states.get(id_) is SandboxState.PAUSED
        }
        paused = self.counted_paused(seen)
        if not self._settled or not paused:
            return
        held = self.held
        free = [binding for binding in waiting if binding.id not in held]
        for id_ in resting.able(self._planner, free):
            binding = seen.bound.get(id_)
            if binding is None or id_ in self._under.victims or id_ not in paused:
                continue
            resting.wake(self._planner.view, self._planner.ledger, id_)
            self._resuming[id_] = now + RESUME_SECONDS
            self._dispatcher.turn(binding.node, id_, pause=False)
            self.counts["resumed"] += 1
            self._history.add(
                RESUMED,
                tenant=binding.tenant,
                experiment=binding.spec.identity.experiment,
                sandbox=id_,
                node=binding.node,
            )

    # ------------------------------------------------------------------ after a round

    def hindrance(self, sandbox: str) -> Refusal:
        """Return what work waits for whose room is held, in words."""
        asker, under = next(
            (asker, under)
            for asker, under in self._under.plans.items()
            if any(one.id == sandbox for one in under.plan.decisions)
        )
        ids = sorted(under.waiting_for)
        more = f" and {len(ids) - NAMED} more" if len(ids) > NAMED else ""
        since = self._began[asker].isoformat(timespec="seconds")
        return Refusal(
            PendingReason.PREEMPTION,
            Hindrance.LEAVING,
            1,
            nodes=len(ids),
            whose=f"{', '.join(ids[:NAMED])}{more} since {since}",
        )

    def ask(self, units: Sequence[Unit], seen: Seen, now: float) -> dict[str, Refusal]:
        """Let units that found no place displace others. Returns what hinders them, by id.

        What waits with more than normal priority is told why it displaces nobody; what displaces
        somebody from now on is told whom it waits for.
        """
        if not self._settled:
            return {}
        soft = any(consents(entry) for entry in self._planner.ledger.entries.values())
        found: dict[str, Refusal] = {}
        self._refused = {kind: one for kind, one in self._refused.items() if one[1] > now}
        made = 0
        for unit in units:
            told = unit.first.priority > 0
            waited = now - unit.since
            if made >= PLANS or not (soft or told):
                continue
            kind = self._kind(unit, now - unit.since)
            if kind not in self._refused:
                made += 1
                outcome = self._plan(unit, seen, now)
                if isinstance(outcome, Plan):
                    self._start(outcome, unit, seen, now)
                    if unit.first.id in self._under.plans:
                        found |= {one.id: self.hindrance(one.id) for one in unit.bindings}
                    continue
                self._refused[kind] = outcome[0], now + AGAIN_SECONDS
            if told and waited >= self._policy.preempt_after_s:
                hinders, _ = self._refused[kind]
                found |= dict.fromkeys((one.id for one in unit.bindings), hinders)
        return found

    def units(
        self, unplaced: Iterable[tuple[Binding, Request]], members: Mapping[str, int]
    ) -> list[Unit]:
        """Return what found no place as units, in order; `members`: how many each unit has."""
        groups: dict[str, list[tuple[Binding, Request]]] = {}
        for binding, request in unplaced:
            groups.setdefault(unit_of(binding), []).append((binding, request))
        return [
            Unit(
                [binding for binding, _ in group],
                tuple(request for _, request in group),
                tuple(self._planner.entry(binding) for binding, _ in group),
                min(self._waits[binding.tenant, binding.key] for binding, _ in group),
            )
            for name, group in groups.items()
            if len(group) == members[name]
        ]

    def _kind(self, unit: Unit, waited: float) -> str:
        """Return what decides about a plan besides ids: what is refused once is refused again."""
        first, request, policy = unit.entries[0], unit.requests[0], self._policy
        return repr(
            (
                [alike(entry) for entry in unit.entries],
                (first.priority, first.queue),
                (request.resources, request.labels, request.pools, request.gpu_model),
                request.simulated,
                (waited >= policy.preempt_after_s, waited >= policy.reclaim_after_s),
            )
        )

    def _plan(self, unit: Unit, seen: Seen, now: float) -> Plan | tuple[Refusal, ...]:
        out = {id_: True for id_, state in seen.states.items() if state in LEAVING}
        asking = Asking(unit.requests, unit.entries, unit.since)
        return plan(
            self._planner.view,
            self._planner.ledger,
            asking,
            self._policy,
            now,
            leaving={**out, **self._under.leaving},
            spared=self._under.spared,
        )

    def _start(self, made: Plan, unit: Unit, seen: Seen, now: float) -> None:
        if not made.displacements and not made.after:
            return  # it has room, and is only kept back for somebody else
        for id_ in made.after:
            # on its way out for a reason of its own, or for an earlier leader's
            node = seen.bound[id_].node if id_ in seen.bound else ""
            self._under.victims.setdefault(id_, Displacement(id_, node, (Step.STOP,)))
            self._for.setdefault(id_, unit.first)
        asked = self._under.start(made, now)
        if made.asking.id not in self._under.plans:
            return
        self._began[made.asking.id] = datetime.fromtimestamp(now, UTC)
        asker = unit.first
        for one in asked:
            self._for[one.id] = asker
        if asked:
            self._tell(unit, asked, now)
        for one in asked:
            victim = seen.bound[one.id]
            if one.stops:
                self._stop(victim)
            else:
                self._dispatcher.turn(
                    victim.node, victim.id, pause=True, message=self._words(victim, "paused")
                )

    def _stop(self, victim: Binding) -> None:
        self._under.stops(victim.id)
        message = self._words(victim, "stopped")
        self._dispatcher.stop(victim.node, victim.id, EndReason.PREEMPTED, message)

    def _words(self, victim: Binding, how: str) -> str:
        name = name_of(self._for.get(victim.id), victim.tenant)
        back = "goes on" if how == "paused" else "starts again"
        return f"{how} to make room for {name}; it {back} when there is room"

    def _tell(self, unit: Unit, asked: Sequence[Displacement], now: float) -> None:
        asker = unit.first
        self._history.add(
            PREEMPTING,
            tenant=asker.tenant,
            experiment=asker.spec.identity.experiment,
            sandbox=asker.id,
            key=asker.key,
            priority=asker.priority,
            waited=round(now - unit.since, 3),
            victims=[
                {
                    "id": one.id,
                    "node": one.node,
                    "steps": [step.value for step in one.steps if step is not Step.SYNC],
                }
                for one in asked
            ],
            skipped=f"{Step.SYNC.value}: {NO_SYNC}",
            correlationId=asker.spec.identity.correlation_id,
        )
        log.info("displacing", asker=asker.id, victims=[one.id for one in asked])


def name_of(asker: Binding | None, tenant: str) -> str:
    """Return the words for work that displaces: to another tenant only whose it is."""
    if asker is None:
        return "work that may ask for its place"
    identity = asker.spec.identity
    if asker.tenant != tenant:
        return f"work of tenant {asker.tenant} (priority {asker.priority})"
    name = f"{identity.project}/{identity.experiment}" if identity.experiment else asker.key
    return f"{name} (priority {asker.priority})"
