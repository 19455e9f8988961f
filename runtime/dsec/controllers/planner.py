"""Decides in a term what of the waiting work starts now, and where: the books, and a queue.

One round: the order of the queues, then quota and room at once, with room kept for what has waited
long; what finds none says why.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter

from dsec.api.reasons import PendingReason
from dsec.controllers.asking import key_of
from dsec.controllers.books import Books
from dsec.controllers.recorder import Recorder
from dsec.controllers.translating import unit_of
from dsec.journal.bindings import Binding, Bindings
from dsec.placement.asked import Asked
from dsec.placement.backfill import Reservation, Work, run_round
from dsec.placement.deciding import Wanted, decide
from dsec.placement.dumps import line_of
from dsec.placement.engine import demand_of
from dsec.placement.entries import again
from dsec.placement.queueing import QueuePolicy, Waiting, ordered
from dsec.placement.refusal import Refusal
from dsec.placement.request import Decision, Request, renamed
from dsec.placement.translating import request_of


class Planner(Books):
    """Of one term; one writer."""

    def __init__(self, policy: QueuePolicy | None = None, recorder: Recorder | None = None) -> None:
        super().__init__(policy)
        self.recorder = recorder
        self._known: set[str] = set()
        self.kept: Reservation | None = None
        """Room that is kept for the head of the line."""
        self._rested: dict[str, float] = {}

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
        for binding in wanted:
            units.setdefault(unit_of(binding), []).append(binding)
        keys: dict[str, str] = {}
        if any(one.behind for members in units.values() for one in members):
            keys = {key_of(one): name for name, members in units.items() for one in members}
        queue = ordered(
            [self._waiting(name, members, keys) for name, members in units.items()], self.policy
        )
        queue.sort(key=lambda one: one.id not in first)
        line = [member for one in queue for member in units[one.id]]
        start = _Round(self, line, avoid, shun=True)
        self._learn(start.requests)
        found = self._round(queue, units, start, now)
        later: dict[str, Decision] = {}
        lone = [b for b in line if b.needs.shun and not b.gang and not found[b.id].node]
        if lone and self.kept is None:
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
        start: "_Round",
        now: float,
    ) -> dict[str, Decision]:
        works = [
            Work(
                one.id,
                tuple([start.requests[b.id] for b in units[one.id]]),
                one.arrived,
                min([b.spec.max_run_seconds or math.inf for b in units[one.id]]),
            )
            for one in queue
        ]
        if self.recorder is not None:
            self.recorder.before(
                self.view,
                self.ledger,
                self.mix,
                [start.wanted[request.id] for work in works for request in work.requests],
                at=datetime.fromtimestamp(now, UTC),
                line=partial(
                    line_of,
                    works,
                    now=now,
                    ends=self.ends,
                    kept=self.kept,
                    rested=self._rested,
                ),
            )
        done = run_round(
            self.view,
            works,
            start,
            ends=self.ends,
            now=now,
            kept=self.kept,
            rested=self._rested,
        )
        self.kept, self._rested = done.kept, done.rested
        # what stands too far behind the head was not looked at; it waits for the same reason
        kept = done.kept.name if done.kept else ""
        late = Refusal(PendingReason.RESERVED, kept, 1)
        return {
            request.id: done.decisions.get(request.id) or Decision(request.id, refusals=(late,))
            for work in works
            for request in work.requests
        }

    def room(self, state: Bindings, uid: str, role: str) -> int | None:
        """Return how many more replicas of a role its quota takes; None: no limit is known."""
        for binding in state.of_experiment(uid):
            entry = self.ledger.entries.get(binding.id)
            if entry is not None and binding.spec.identity.role == role:
                room = self.ledger.room(entry)
                asked = {one: entry.amounts[one] for one in room if entry.amounts.get(one)}
                return min((room[one] // asked[one] for one in asked), default=None)
        return None

    def _learn(self, requests: Mapping[str, Request]) -> None:
        """Tell the mix of each request once, however often it is looked at."""
        for id_, request in requests.items():
            if id_ not in self._known and (asked := Asked.of(request)).gpus:
                self.mix.observe(demand_of(request, asked))
        self._known = set(requests)

    def _waiting(self, name: str, members: Sequence[Binding], units: Mapping[str, str]) -> Waiting:
        first = min(members, key=lambda b: (b.at, b.order)) if len(members) > 1 else members[0]
        return Waiting(
            name,
            first.at.timestamp(),
            first.order,
            self.queue(first),
            first.needs.stage,
            max([member.priority for member in members]),
            len(members),
            units.get(first.behind, ""),
        )


_OF_BINDING = attrgetter("tenant", "needs", "gang", "priority", "node")
_OF_SPEC = attrgetter("resources", "isolation", "image", "exclusive_cpus")
_OF_IDENTITY = attrgetter("project", "experiment", "role", "part")
"""All that requests and entries are made of, but for ids and times."""


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
        self.wanted: dict[str, Wanted] = {}
        """Requests with their entries."""
        kind: tuple[object, ...] = ()
        like: Wanted | None = None
        for binding in wanted:
            id_, spec = binding.id, binding.spec
            avoided = (*avoid.get(id_, ()), *(binding.needs.shun if shun else ()))
            last, kind = (
                kind,
                (avoided, *_OF_BINDING(binding), *_OF_SPEC(spec), *_OF_IDENTITY(spec.identity)),
            )
            if like is not None and kind == last:
                # most of a burst is like the one before it
                request = renamed(like.request, id_)
                entry = again(like.entry, id_, binding.at.timestamp())
            else:
                request, entry = request_of(binding, avoided), planner.entry(binding)
            like = Wanted(request, entry)
            self.requests[id_], self.wanted[id_] = request, like

    def place(self, requests: Sequence[Request]) -> list[Decision]:
        """Decide on requests, in order."""
        planner = self._planner
        return decide(
            planner.view,
            planner.ledger,
            [self.wanted[request.id] for request in requests],
            mix=planner.mix,
            record=planner.recorder is not None,
            learn=False,
        )

    def undo(self, ids: Sequence[str]) -> None:
        """Give room and quota back."""
        for id_ in ids:
            self._planner.view.release(id_)
            self._planner.ledger.end(id_)
