"""A copy of view and ledger in which some work has left: would waiting work then fit? Pure."""

from collections.abc import Callable, Mapping, Sequence

from dsec.placement.engine import place
from dsec.placement.entries import Entry
from dsec.placement.ledger import Ledger
from dsec.placement.reclaim import consents
from dsec.placement.request import Decision, Request
from dsec.placement.view import ClusterView

Place = Callable[[ClusterView, Sequence[Request]], list[Decision]]


def what_if(view: ClusterView, requests: Sequence[Request]) -> list[Decision]:
    """Place for real, without learning from what is only tried."""
    return place(view, requests, learn=False)


class Trial:
    """One what-if: the world at first (the origin), and who has left it since.

    `left`: victims in the order in which they leave, with whether they stop or only rest.
    """

    def __init__(
        self,
        view: ClusterView,
        ledger: Ledger,
        requests: Sequence[Request],
        entries: Sequence[Entry],
        place: Place = what_if,
    ) -> None:
        self.view = view
        self.ledger = ledger
        self.requests = requests
        self.entries = entries
        self.place = place
        self.left: dict[str, bool] = {}
        self.origin = self
        self.gangs: dict[tuple[str, str], list[Entry]] = {}
        for entry in ledger.entries.values():
            if entry.gang:
                self.gangs.setdefault((entry.tenant, entry.gang), []).append(entry)

    def without(self, leaving: Mapping[str, bool]) -> "Trial":
        """Return a new origin in which victims of earlier plans have left."""
        view, ledger = self.view.fork(), self.ledger.fork()
        for id_, stops in leaving.items():
            _leave_view(view, id_, stops=stops)
            _leave_ledger(ledger, id_, stops=stops)
        return Trial(view, ledger, self.requests, self.entries, self.place)

    def only(self, node: str, requests: Sequence[Request] | None = None) -> "Trial":
        """Return an origin with one node and the whole ledger, for all requests or some of them."""
        small = self._bare(ClusterView([self.view.nodes[node]]))
        small.requests = self.requests if requests is None else requests
        small.origin = small
        for id_ in self.view.on(node):
            booking = self.view.bookings()[id_]
            decision = Decision(id_, node, booking.devices, cpus=booking.cpus)
            small.view.book(booking.request, decision, force=True)
            if booking.paused:
                small.view.pause(id_)
        return small

    def leave(self, victims: Mapping[str, bool], *, skip: bool = False) -> "Trial | None":
        """Return a copy in which victims have left as well, with those they take along.

        None where one would take along work that may not be displaced; `skip` leaves such a victim
        out instead.
        """
        left = dict(self.left)
        for id_, stops in victims.items():
            along = self._along(id_, left, stops=stops)
            if along is not None:
                left |= dict.fromkeys(along, stops) | {id_: stops}
            elif not skip:
                return None
        found = self._bare(self.origin.view.fork())
        found.left = left
        for id_, stops in left.items():
            _leave_view(found.view, id_, stops=stops)
        return found

    def books(self) -> Ledger:
        """Return a copy of the ledger in which the victims have left."""
        ledger = self.origin.ledger.fork()
        for id_, stops in self.left.items():
            _leave_ledger(ledger, id_, stops=stops)
        return ledger

    def works(self) -> tuple[Decision, ...] | None:
        """Return where the asker goes, quota and room both given; None where it does not fit."""
        return None if self.books().check(*self.entries) else self.places()

    def places(self) -> tuple[Decision, ...] | None:
        """Return where the asker goes, whatever its quota; None where there is no room."""
        decisions = self.place(self.view.fork(), self.requests)
        return tuple(decisions) if all(decision.node for decision in decisions) else None

    def _bare(self, view: ClusterView) -> "Trial":
        found = Trial.__new__(Trial)
        found.view, found.ledger, found.place = view, self.ledger, self.place
        found.requests, found.entries, found.gangs = self.requests, self.entries, self.gangs
        found.left, found.origin = {}, self.origin
        return found

    def _along(self, id_: str, left: Mapping[str, bool], *, stops: bool) -> list[str] | None:
        """Return whom a victim takes along: its gang, where too few of a group would run on.

        Those that rest stop with a victim that stops. None where that includes work that may not be
        displaced.
        """
        victim = self.ledger.entries[id_]
        gang = self.gangs.get((victim.tenant, victim.gang), [])
        for group in sorted({entry.group for entry in gang}):
            members = [entry for entry in gang if entry.group == group]
            others = [entry for entry in members if entry.id not in left and entry.id != id_]
            stay = sum(not entry.paused for entry in others)
            if stay < max(member.group_min for member in members):
                rest = [entry for entry in gang if entry.id not in left and entry.id != id_]
                rest = [entry for entry in rest if stops or not entry.paused]
                return [entry.id for entry in rest] if all(map(consents, rest)) else None
        return []


def _leave_view(view: ClusterView, id_: str, *, stops: bool) -> None:
    if stops:
        view.release(id_)
    elif id_ in view.bookings():
        view.pause(id_)


def _leave_ledger(ledger: Ledger, id_: str, *, stops: bool) -> None:
    if stops:
        ledger.end(id_)
    elif id_ in ledger.entries:
        ledger.pause(id_)
