"""Carries out preemption and reclaim on the leader: who leaves for whom, and who comes back.

After each round, work that found no place asks `preemption.plan`; victims are told once, through
their agents; the room of whoever they leave for is held meanwhile. All of it is soft: what counts
is in the bind log (who has to stop, for whom) and with the agents (who is paused, who is on its way
out). A new leader reads both before it displaces or resumes anybody, so nothing is done twice.

The step `sync` (TEN-11) is the agents': what stops is saved once more before it ends, and what
rests is saved at once, standing still, where its task has a policy of snapshots.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType

import structlog

from dsec.api.reasons import EndReason, PendingReason
from dsec.api.sandbox import SandboxState
from dsec.controllers import resting
from dsec.controllers.asking import Seen, Unit, key_of, name_of, units
from dsec.controllers.dispatch import Dispatcher
from dsec.controllers.displacer_words import tell_plan, words
from dsec.controllers.planner import Planner
from dsec.controllers.specs import movable
from dsec.journal.bindings import Binding, Bindings, Row
from dsec.journal.history import HistoryWriter
from dsec.placement.compaction import Move
from dsec.placement.displacing import Displacing
from dsec.placement.plans import Asking, Displacement, Plan, PreemptionPolicy, Step
from dsec.placement.preemption import plan
from dsec.placement.preemption_words import Hindrance
from dsec.placement.reclaim import consents
from dsec.placement.refusal import Refusal
from dsec.placement.translating import request_of
from dsec.world.clock import Clock

SETTLED_SECONDS = 10.0
"""A new leader displaces and resumes nobody before: until then it may not know who waits."""
RESUME_SECONDS = 10.0
"""A resumed sandbox counts as running for so long before its agent says so."""
PLANNING_SECONDS = 0.2
"""No further plan is made in a round that has spent so long on plans: one takes 0.5 s where 8,000
sandboxes run, and callers wait meanwhile."""
PLANNING_SHARE = 0.2
"""Most of the leader's time that goes into plans."""
AGAIN_SECONDS = 5.0
"""What was refused a plan is not planned again before, however many rounds there are."""
FORGET_SECONDS = 60.0
"""The words of a refusal stand for so long where there is no time for a new look."""
NAMED = 3
"""Most victims named in words; the others are counted."""
PREEMPTED, RESUMED = "preempted", "resumed"
HOW = ("paused", "stopped", "resumed", "overdue")
"""What is counted of victims."""
LEAVING = frozenset({SandboxState.STOPPING, SandboxState.ARCHIVING})
NO_SYNC = "it has no policy of snapshots, so nothing of it is saved"

log = structlog.get_logger()


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
        moving: Mapping[str, Move] = MappingProxyType({}),
    ) -> None:
        """`moving`: paused sandboxes on their way to another node, by id."""
        self._moving = moving
        self._planner = planner
        self._dispatcher = dispatcher
        self._state = state
        self._history = history
        self._clock = clock
        self._policy = policy
        self._under = Displacing(planner.view, planner.ledger, policy)
        self._started = clock.monotonic()
        self._began: dict[str, datetime] = {}
        self._for: dict[str, Binding | None] = {}
        self._stops: list[str] = []
        self._stay: list[str] = []
        self._pauses: list[str] = []
        self._resuming: dict[str, float] = {}
        self._waits: dict[str, float] = {}
        self._rested = -math.inf
        self._refused: dict[tuple[object, ...], tuple[Refusal, float]] = {}
        self._adopted = False
        self.counts: Counter[str] = Counter()
        """Of this term, by `HOW`."""
        self.rests: Callable[[Binding], bool] = lambda _binding: False
        """Whether something else than room keeps a sandbox paused, such as its budget."""

        self.save: Callable[[Binding], None] = lambda _binding: None
        """Has a sandbox saved that has just been paused."""

    def _saves(self, sandbox: str) -> bool:
        binding = self._state.by_id.get(sandbox)
        return binding is not None and movable(binding.spec)

    # ------------------------------------------------------------------ what others ask

    @property
    def victims(self) -> Collection[str]:
        """Those that have been asked to leave and have not yet."""
        return self._under.victims

    @property
    def held(self) -> set[str]:
        """Ids of waiting work whose room is held, and of what holds room for a move."""
        held = {one.id for under in self._under.plans.values() for one in under.plan.decisions}
        moves = self._moving.values()
        return held | {move.held for move in moves} | {move.kept for move in moves}

    def at_rest(self, sandbox: str) -> bool:
        """Return whether nobody asks a paused sandbox to go on or to end."""
        return sandbox not in self._resuming and sandbox not in self._under.victims

    def waited(self, binding: Binding, now: float) -> float:
        """Return for how many seconds this leader knows that work waits, or it is recorded."""
        return now - self._waits.get(key_of(binding), now)

    def counted_paused(self, seen: Seen) -> frozenset[str]:
        """Return who counts as paused: not who was just told to go on, or is still for a move."""
        still = {id_ for id_, move in self._moving.items() if not move.rested}
        return seen.paused - self._resuming.keys() - still

    def concerns(self, ids: Iterable[str]) -> bool:
        """Return whether news of these may let somebody start, or go on."""
        return any(id_ in self._under.victims or id_ in self._resuming for id_ in ids)

    def turned_down(self, sandbox: str, why: str) -> None:
        """Take note that an agent did not pause or resume a sandbox.

        A victim that cannot be paused is stopped. What cannot go on yet is tried again later.
        """
        self._resuming.pop(sandbox, None)
        victim = self._under.victims.get(sandbox)
        binding = self._state.by_id.get(sandbox)
        if victim is not None and not victim.stops and binding is not None and binding.live:
            log.info("cannot be paused, so it is stopped", sandbox=sandbox, why=why)
            self._stops += self._under.stops(sandbox)

    # ------------------------------------------------------------------ around the append

    def rows(self) -> list[Row]:
        """Return what is recorded of who has to stop, for whom, and of who has not after all."""
        keys = {id_: key_of(asker) for id_ in self._stops if (asker := self._for.get(id_))}
        keys |= dict.fromkeys(self._stay, "")
        self._stay = []
        live = [b for b in map(self._state.by_id.get, keys) if b is not None and b.live]
        return [
            Row(
                kind="bind",
                at=self._clock.now(),
                id=binding.id,
                node=binding.node,
                devices=binding.spec.devices,
                behind=keys[binding.id],
            )
            for binding in live
            if binding.node and binding.behind != keys[binding.id]
        ]

    def send(self) -> None:
        """Tell the agents; called once the rows are recorded."""
        stops, pauses, self._stops, self._pauses = self._stops, self._pauses, [], []
        for id_ in stops:
            victim = self._state.by_id.get(id_)
            if victim is not None and victim.live and victim.node:
                message = words(victim, self._for.get(id_), "stopped")
                self._dispatcher.stop(victim.node, id_, EndReason.PREEMPTED, message)
        for id_ in pauses:
            victim = self._state.by_id.get(id_)
            if victim is not None and victim.live and victim.node:
                message = words(victim, self._for.get(id_), "paused")
                self._dispatcher.turn(victim.node, id_, pause=True, message=message)

    # ------------------------------------------------------------------ before a round

    def follow(self, seen: Seen, waiting: Sequence[Binding], now: float) -> list[str]:
        """Take note of who has gone; resume who can go on. Returns the units that start first.

        The planner has followed `seen` before. `waiting` has all that waits, `now` is UTC in
        seconds.
        """
        self._adopt(seen, waiting)
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

    def _adopt(self, seen: Seen, waiting: Iterable[Binding]) -> None:
        """Take over the victims that an earlier leader recorded: it may not have told them.

        Those whose asker waits no more, and who were not told, stay.
        """
        if self._adopted or not self.settled:
            return
        self._adopted = True
        new = [b for b in seen.bound.values() if b.behind and b.id not in self._under.victims]
        askers = {key_of(binding): binding for binding in waiting}
        for binding in new:
            asker = askers.get(binding.behind)
            if asker is None and seen.states.get(binding.id) not in LEAVING:
                self._stay.append(binding.id)
                continue
            self._under.victims[binding.id] = Displacement(binding.id, binding.node, (Step.STOP,))
            self._for[binding.id] = asker
            self._stops.append(binding.id)

    def _gone(self, victim: str, *, paused: bool) -> None:
        self._under.gone(victim)
        binding, asker = self._state.by_id.get(victim), self._for.pop(victim, None)
        if binding is None or not (paused or binding.reason is EndReason.PREEMPTED):
            return  # it ended by itself
        self.counts["paused" if paused else "stopped"] += 1
        synced = movable(binding.spec)
        if paused and synced:
            self.save(binding)
        why = f"for {name_of(asker, binding.tenant)}"
        self._history.add(
            PREEMPTED,
            tenant=binding.tenant,
            experiment=binding.spec.identity.experiment,
            sandbox=victim,
            node=binding.node,
            how="paused" if paused else "stopped",
            synced=synced,
            why=why if synced else f"{why}; {NO_SYNC}",
        )

    def _note_waits(self, waiting: Iterable[Binding], now: float) -> None:
        """Keep since when work waits.

        A new leader believes what is recorded; what comes later waits since it was first seen: a
        replica that is added to an old experiment has not waited as long as that is old.
        """
        self._began = {one: at for one, at in self._began.items() if one in self._under.plans}
        known, self._waits = self._waits, {}
        for binding in waiting:
            key = key_of(binding)
            since = now if self.settled else min(now, binding.at.timestamp())
            self._waits[key] = known.get(key, since)

    @property
    def settled(self) -> bool:
        """Whether this leader knows by now who waits."""
        return self._clock.monotonic() - self._started >= SETTLED_SECONDS

    def _resume(self, seen: Seen, waiting: Sequence[Binding], now: float) -> None:
        """Let paused sandboxes go on for which there is room, before new softer work."""
        for id_, until in list(self._resuming.items()):
            state = seen.states.get(id_)
            if state is SandboxState.PAUSED and until > now:
                continue
            del self._resuming[id_]
            if state is None and id_ in seen.bound:
                self.counts["resumed"] += 1
                awake = seen.bound[id_]
                self._history.add(
                    RESUMED,
                    tenant=awake.tenant,
                    experiment=awake.spec.identity.experiment,
                    sandbox=id_,
                    node=awake.node,
                )
        paused = self.counted_paused(seen)
        if not self.settled or not paused:
            return
        held = self.held
        free = [binding for binding in waiting if binding.id not in held]
        for id_ in resting.able(self._planner, free):
            binding = seen.bound.get(id_)
            if binding is None or id_ in self._under.victims or id_ not in paused:
                continue
            if id_ in self._moving or self.rests(binding):
                continue
            resting.wake(self._planner.view, self._planner.ledger, id_)
            self._resuming[id_] = now + RESUME_SECONDS
            self._dispatcher.turn(binding.node, id_, pause=False)

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

    def ask(self, unplaced: Sequence[Binding], seen: Seen, now: float) -> dict[str, Refusal]:
        """Let work that found no place displace others. Returns what hinders it, by id.

        What waits with more than normal priority is told why it displaces nobody; what displaces
        somebody from now on is told whom it waits for.
        """
        if not self.settled or not unplaced:
            return {}
        soft = any(consents(entry) for entry in self._planner.ledger.entries.values())
        found: dict[str, Refusal] = {}
        begun = self._clock.monotonic()
        may_plan = begun >= self._rested
        for unit in units(unplaced, self._waits):
            told = unit.first.priority > 0
            if not (soft or told):
                continue
            kind = unit.kind(self._policy, now)
            known = self._refused.get(kind)
            due = known is None or known[1] <= now
            if due and may_plan and self._clock.monotonic() - begun <= PLANNING_SECONDS:
                outcome = self._plan(unit, seen, now)
                if isinstance(outcome, Plan):
                    self._start(outcome, unit, seen, now)
                    if unit.first.id in self._under.plans:
                        found |= {one.id: self.hindrance(one.id) for one in unit.bindings}
                    continue
                known = self._refused[kind] = outcome[0], now + AGAIN_SECONDS
            if known and told and now - unit.since >= self._policy.preempt_after_s:
                found |= dict.fromkeys((one.id for one in unit.bindings), known[0])
        if may_plan:
            self._rested = begun + (self._clock.monotonic() - begun) / PLANNING_SHARE
        late = now - FORGET_SECONDS
        self._refused = {kind: one for kind, one in self._refused.items() if one[1] > late}
        return found

    def _plan(self, unit: Unit, seen: Seen, now: float) -> Plan | tuple[Refusal, ...]:
        out = {id_: True for id_, state in seen.states.items() if state in LEAVING}
        requests = tuple(request_of(binding) for binding in unit.bindings)
        entries = tuple(self._planner.entry(binding) for binding in unit.bindings)
        asking = Asking(requests, entries, unit.since)
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
            # on its way out for a reason of its own
            node = seen.bound[id_].node if id_ in seen.bound else ""
            self._under.victims.setdefault(id_, Displacement(id_, node, (Step.STOP,)))
        asked = self._under.start(made, now)
        if made.asking.id not in self._under.plans:
            return
        self._began[made.asking.id] = datetime.fromtimestamp(now, UTC)
        asker = unit.first
        for one in asked:
            self._for[one.id] = asker
        if asked:
            unsaved = sorted(one.id for one in asked if not self._saves(one.id))
            tell_plan(self._history, unit, asked, now - unit.since, unsaved)
        self._stops += [one.id for one in asked if one.stops]
        self._pauses += [one.id for one in asked if not one.stops]
        for one in asked:
            self._resuming.pop(one.id, None)
