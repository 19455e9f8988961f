"""The placer: every sandbox, keyed create or replica, passes through this one gate.

One round: quota (a one-shot lease: admitted here, booked by the append, returned by the end),
placement, one append to the bind log for the whole batch, and only then calls to agents. Requests
without room wait in order of arrival. One task per term; a crash loses nothing but the questions
of callers, who repeat them by key.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType

import structlog

from dsec.api.reasons import PendingReason
from dsec.api.tenant import TenantSpec
from dsec.api.wire import KeyedAnswer
from dsec.controllers.answering import Answers
from dsec.controllers.dispatch import Dispatcher
from dsec.controllers.displacer import Displacer
from dsec.controllers.fleet import Fleet
from dsec.controllers.isolating import Isolating
from dsec.controllers.origins import Origins, origins, own_of
from dsec.controllers.planner import Planner
from dsec.controllers.recorder import Recorder
from dsec.controllers.rounds import Rounds
from dsec.controllers.specs import movable
from dsec.controllers.teller import Teller
from dsec.journal.bindings import Binding, Row, row_of
from dsec.journal.bindlog import BindLog
from dsec.journal.history import HistoryWriter
from dsec.journal.keyed import replaceable
from dsec.placement.compaction import Move
from dsec.placement.dumps import DecisionDump
from dsec.placement.plans import PreemptionPolicy
from dsec.placement.refusal import Refusal
from dsec.placement.request import Decision
from dsec.world.cache import first_of
from dsec.world.clock import Clock
from dsec.world.objects import ObjectStore

SETTLE_SECONDS = 5.0
"""How long a caller waits for agents to answer before it is told `unknown`."""
AVOID_SECONDS = 5.0
"""A node whose agent refused a request is not asked for it again for this long."""
ROUND = 500
"""Keyed creates in one round: the agents of one take theirs while the next is decided on."""
TICK_SECONDS = 5.0
"""Waiting requests are looked at this often even if no event says that room came free."""

log = structlog.get_logger()


@dataclass(slots=True)
class MissingReplicas:
    """Replicas that an experiment misses. Replaced as a whole by each reconcile."""

    candidates: list[Binding]
    refused: dict[str, tuple[Refusal, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class _Submission:
    """Creates of one caller. `wants` become bindings unless their key is known."""

    wants: list[Binding]
    done: asyncio.Future[None]
    origins: Origins
    """Of what was lost before, and is asked for again."""


class Placer:
    """Of one term."""

    def __init__(
        self,
        bind_log: BindLog,
        fleet: Fleet,
        dispatcher: Dispatcher,
        *,
        clock: Clock,
        history: HistoryWriter,
        tenants: Callable[[], Mapping[str, TenantSpec]],
        changed: Callable[[Sequence[Binding]], None],
        preemption: PreemptionPolicy,
        mine: Callable[[str, str], bool],
        snapshots: ObjectStore,
        moving: Mapping[str, Move] = MappingProxyType({}),
    ) -> None:
        """`tenants` returns the spec of each tenant, `changed` is told of what was bound.

        `mine(tenant, key)`: whether a new key is bound here, not by a gateway. `snapshots`: where
        they are. `moving`: paused sandboxes on their way to another node, by id.
        """
        self._log = bind_log
        self._fleet = fleet
        self._dispatcher = dispatcher
        self._clock = clock
        self._recorder = Recorder(history, bind_log.epoch)
        recorder, state = self._recorder, bind_log.state
        self.teller = Teller(bind_log.epoch, history, recorder, dispatcher, clock, changed)

        def begin() -> Rounds:
            planner = Planner(preemption.queues, recorder=recorder)
            displacer = Displacer(
                planner,
                dispatcher,
                state,
                history=history,
                clock=clock,
                policy=preemption,
                moving=moving,
            )
            return Rounds(planner, displacer, fleet, state, tenants)

        self._rounds = Isolating(begin)
        self._changed = changed
        self._mine = mine
        self._snapshots = snapshots
        self._inbox: list[_Submission] = []
        self._demands: dict[str, MissingReplicas] = {}
        self._refused_by: dict[str, dict[str, float]] = {}
        self._returned: dict[str, str] = {}
        self._why: dict[str, tuple[Refusal, ...]] = {}
        self._wake = asyncio.Event()
        self.rounding = asyncio.Lock()
        """Held while a round decides and writes."""

    @property
    def rounds(self) -> Rounds:
        """What decides now, and remembers."""
        return self._rounds.rounds

    @property
    def displacer(self) -> Displacer:
        """Who carries out preemption now."""
        return self._rounds.rounds.displacer

    @property
    def crowded(self) -> bool:
        """Whether room is kept or made for waiting work: nobody else may take it."""
        displacer, waits = self.displacer, bool(self._log.state.waiting()) or bool(self._demands)
        kept = waits and self.rounds.planner.kept is not None
        return kept or bool(displacer.victims) or bool(displacer.held)

    def short_of_quota(self) -> set[str]:
        """Return the tenants with work that waits for quota."""
        told = [(b, self._why.get(b.id, ())) for b in self._log.state.waiting()]
        for demand in self._demands.values():
            told += [(b, demand.refused.get(b.id, ())) for b in demand.candidates]
        quota = PendingReason.QUOTA
        return {b.tenant for b, why in told if any(one.reason is quota for one in why)}

    # ------------------------------------------------------------------ what others ask

    async def submit(self, wants: Sequence[Binding]) -> list[KeyedAnswer]:
        """Bind keyed creates; one answer per want, in order. Raises FencedError."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        known = (self._log.state.key(want.tenant, want.key) for want in wants)
        lost = [b for b in known if b is not None and replaceable(b) and movable(b.spec)]
        before = await origins(self._snapshots, lost) if lost else {}
        self._inbox.append(_Submission(list(wants), done, before))
        self._wake.set()
        await done
        fresh = [want.id for want in wants if want.id in self._log.state.by_id]
        await self._dispatcher.settle(fresh, SETTLE_SECONDS)
        answers, key = Answers(self._fleet, self._dispatcher), self._log.state.key
        found = [(want, key(want.tenant, want.key)) for want in wants]
        return [
            answers.of(want, known, self._why.get(known.id, ()) if known else ())
            for want, known in found
        ]

    def demand(self, uid: str, candidates: list[Binding]) -> None:
        """Say which replicas an experiment misses now; an empty list: none."""
        if not candidates:
            self._demands.pop(uid, None)
            return
        old = self._demands.get(uid)
        same = old is not None and [c.id for c in old.candidates] == [c.id for c in candidates]
        refused = old.refused if old is not None and same else {}
        self._demands[uid] = MissingReplicas(candidates, refused)
        if not same:
            self._wake.set()

    async def withdraw(self, uid: str) -> None:
        """Demand nothing any more; on return every earlier demand is bound or will never be."""
        self.demand(uid, [])
        async with self.rounding:
            return

    def demanding(self) -> set[str]:
        """Return the experiments that miss replicas."""
        return set(self._demands)

    def missing(self, uid: str) -> list[Binding]:
        """Return the replicas that an experiment still waits for, as last demanded."""
        demand = self._demands.get(uid)
        return demand.candidates if demand else []

    def why(self, sandbox: str, uid: str = "") -> tuple[Refusal, ...]:
        """Return why a request waits; empty before its first round."""
        demand = self._demands.get(uid)
        return (demand.refused if demand else {}).get(sandbox) or self._why.get(sandbox, ())

    def refused(self, sandbox: str, node: str, reason: str) -> None:
        """Take note that an agent turned a create down: it goes to another node."""
        until = self._clock.monotonic() + AVOID_SECONDS
        self._refused_by.setdefault(sandbox, {})[node] = until
        self._returned[sandbox] = node
        log.info("agent refused", sandbox=sandbox, node=node, reason=reason)
        self._wake.set()

    async def dump(self, seconds: float = SETTLE_SECONDS) -> DecisionDump | None:
        """Return a dump of the next round of decisions; None: nothing waits."""
        asked = self._recorder.ask()
        self._wake.set()
        await first_of(asyncio.wait({asked}), self._clock.sleep(seconds))
        if asked.done():
            return asked.result()
        asked.cancel()
        return None

    def kick(self) -> None:
        """Look again: room may have come free."""
        self._wake.set()

    # ------------------------------------------------------------------ the loop

    async def run(self) -> None:
        """Serve rounds for ever. Raises FencedError, ObjectStoreError: the term is over then."""
        ticking = asyncio.ensure_future(self._tick())
        try:
            while True:
                # at once: agents take what is bound while the next calls are read
                await self._wake.wait()
                self._wake.clear()
                async with self.rounding:
                    await self._round()
                await asyncio.sleep(0)
        finally:
            ticking.cancel()
            for submission in self._inbox:
                submission.done.cancel()

    async def _tick(self) -> None:
        while True:
            await self._clock.sleep(TICK_SECONDS)
            self._wake.set()

    async def _round(self) -> None:
        submissions = self._next()
        try:
            await self._give_back()
            fresh = self._fresh(submissions)
            wanted = [*self._log.state.waiting(), *fresh, *self._candidates()]
            self._forget(wanted)
            rows = self._decide(wanted, {binding.id for binding in fresh})
            # a stop is recorded before its agent is called: the next leader knows of it, too
            await self._log.append([*rows, *self.displacer.rows()])
        except BaseException:
            for submission in submissions:
                submission.done.cancel()
            raise
        ids = [row.binding.id if row.binding else row.id for row in rows if row.kind == "bind"]
        self.teller.bound([self._log.state.by_id[one] for one in ids])
        self.displacer.send()
        for submission in submissions:
            if not submission.done.done():
                submission.done.set_result(None)

    def _next(self) -> list[_Submission]:
        """Take whole submissions of about ROUND creates; what is left has the next round.

        More where much waits: each round decides on all of that, too.
        """
        waiting = len(self._log.state.waiting())
        waiting += sum(len(demand.candidates) for demand in self._demands.values())
        creates, enough = 0, max(ROUND, waiting)
        for number, submission in enumerate(self._inbox):
            creates += len(submission.wants)
            if creates >= enough:
                taken, self._inbox = self._inbox[: number + 1], self._inbox[number + 1 :]
                if self._inbox:
                    self._wake.set()
                return taken
        taken, self._inbox = self._inbox, []
        return taken

    async def _give_back(self) -> None:
        """Make what agents refused wait again."""
        returned, self._returned = self._returned, {}
        await self._log.append(
            [
                Row(kind="bind", at=self._clock.now(), id=sandbox, node="")
                for sandbox, node in returned.items()
                if self._log.state.effective(sandbox, node)
            ]
        )

    def _fresh(self, submissions: Sequence[_Submission]) -> list[Binding]:
        """Return wants whose key is new, or whose earlier sandbox was lost with its node."""
        fresh: dict[tuple[str, str], Binding] = {}
        order = self._log.state.next_order()
        for submission in submissions:
            for want in submission.wants:
                known = self._log.state.key(want.tenant, want.key)
                if (want.tenant, want.key) in fresh or not self._mine(want.tenant, want.key):
                    continue
                if known is not None:
                    if not replaceable(known) or known.body_hash != want.body_hash:
                        continue
                    want.spec.identity.incarnation = known.next_incarnation
                    if movable(known.spec):
                        # lost only since it was asked for: its node looks what there is
                        want.spec.restore = submission.origins.get(known.id, own_of(known))
                    want.behind = known.behind
                want.order = order
                order += 1
                fresh[want.tenant, want.key] = want
        return list(fresh.values())

    def _candidates(self) -> list[Binding]:
        bound = self._log.state.by_id
        return [c for d in self._demands.values() for c in d.candidates if c.id not in bound]

    def _decide(self, wanted: list[Binding], fresh: set[str]) -> list[Row]:
        """Return the rows of one round; keeps the reasons of what has to wait."""
        state, now = self._log.state, self._clock.now()
        decided = self._rounds.decide(wanted, self._avoided(wanted), now.timestamp())
        self._why = {}
        rows: list[Row] = []
        for binding, decision in decided:
            waiting = binding.id in state.by_id
            if decision.node and waiting:
                rows.append(
                    Row(
                        kind="bind",
                        at=now,
                        id=binding.id,
                        node=decision.node,
                        devices=list(decision.devices),
                        cpus=list(decision.cpus),
                    )
                )
            elif decision.node:
                _bind(binding, decision, now)
                rows.append(row_of(binding, now))
            else:
                self._keep_reason(binding, decision.refusals)
                if binding.id in fresh:
                    rows.append(row_of(binding, now, "want"))
                    self.teller.waits(binding, decision.refusals)
        return rows

    def _keep_reason(self, binding: Binding, refusals: tuple[Refusal, ...]) -> None:
        demand = self._demands.get(binding.spec.identity.experiment_uid)
        if demand is not None and binding.id not in self._log.state.by_id:
            news = demand.refused.get(binding.id) != refusals
            demand.refused[binding.id] = refusals
            if news:
                self.teller.news(binding, refusals)
                self._changed([binding])
        else:
            self._why[binding.id] = refusals

    def _forget(self, wanted: Sequence[Binding]) -> None:
        """Drop what was kept of requests that wait no more."""
        waiting = {binding.id for binding in wanted}
        now = self._clock.monotonic()
        self.teller.forget(waiting)
        self._refused_by = {
            i: nodes
            for i, nodes in self._refused_by.items()
            if i in waiting or max(nodes.values()) > now
        }

    def _avoided(self, wanted: Sequence[Binding]) -> dict[str, list[str]]:
        """Return, by id, the nodes whose agents have just refused it."""
        now = self._clock.monotonic()
        refused = {b.id: self._refused_by[b.id] for b in wanted if b.id in self._refused_by}
        return {
            id_: [node for node, until in nodes.items() if until > now]
            for id_, nodes in refused.items()
        }


def _bind(binding: Binding, decision: Decision, now: datetime) -> None:
    """Write into a new binding where it goes."""
    binding.node, binding.bound_at = decision.node, now
    if binding.behind:
        binding.behind = ""
    if decision.devices or binding.spec.devices:
        binding.spec.devices = list(decision.devices)
    if decision.cpus or binding.spec.cpus:
        binding.spec.cpus = list(decision.cpus)
