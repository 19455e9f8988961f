"""Placement: which node for which request, or why not. Pure, in one batch.

`place` looks at classes: equal requests next to each other are filtered and scored once, and after
each placement only the node that was touched is scored again. A search looks at the first
`CANDIDATES` nodes with room, in the order of their static cost: later ones pay more, so nothing is
lost, and a decision costs the same in any size of cluster. The batch decides exactly as the same
requests one at a time.
"""

from collections.abc import Sequence
from operator import attrgetter

from dsec.api.reasons import PendingReason
from dsec.placement.asked import Asked, mistakes
from dsec.placement.derived import derived_of
from dsec.placement.mix import Demand, Mix
from dsec.placement.refusal import Refusal
from dsec.placement.refusing import refusals
from dsec.placement.request import Decision, Request
from dsec.placement.scores import Weights
from dsec.placement.search import Search
from dsec.placement.stranding import WHOLE
from dsec.placement.view import ClusterView

DEFAULT_WEIGHTS = Weights()
_CLASS = attrgetter(*(name for name in Request.__slots__ if name != "id"))


def place(
    view: ClusterView,
    requests: Sequence[Request],
    *,
    mix: Mix | None = None,
    weights: Weights = DEFAULT_WEIGHTS,
    record: bool = False,
    learn: bool = True,
) -> list[Decision]:
    """Return one decision per request, in order, and book those that have a node into `view`.

    Deterministic: equal views and requests give equal decisions. `mix` foretells what GPU work
    comes; with `learn` it is told of these requests. `record` adds the parts of the chosen
    nodes' costs. Gangs take the place of their first member and are placed whole or not at all.
    """
    decisions: list[Decision | None] = [None] * len(requests)
    gangs: dict[str, list[int]] = {}
    for position, request in enumerate(requests):
        if request.gang:
            gangs.setdefault(request.gang, []).append(position)
    position = 0
    while position < len(requests):
        request = requests[position]
        if decisions[position] is not None:
            position += 1
            continue
        if request.gang:
            members = gangs[request.gang]
            found = _gang(
                view, [requests[one] for one in members], mix=mix, weights=weights, learn=learn
            )
            for member, decision in zip(members, found, strict=True):
                decisions[member] = decision
            position += 1
            continue
        end = position + 1
        if end < len(requests):
            own = _CLASS(request)
            while end < len(requests) and _CLASS(requests[end]) == own:
                end += 1
        found = place_class(
            view, requests[position:end], mix=mix, weights=weights, record=record, learn=learn
        )
        decisions[position:end] = found
        position = end
    return [decision for decision in decisions if decision is not None]


def place_class(
    view: ClusterView,
    members: Sequence[Request],
    *,
    mix: Mix | None = None,
    weights: Weights = DEFAULT_WEIGHTS,
    record: bool = False,
    learn: bool = True,
) -> list[Decision]:
    """Place requests that differ in nothing but their ids; whoever finds no room is refused."""
    request = members[0]
    asked = Asked.of(request)
    wrong = mistakes(request, asked)
    if wrong:
        return [Decision(one.id, refusals=wrong) for one in members]
    view.settle()
    if mix is not None and learn and asked.gpus:
        mix.observe(demand_of(request, asked), len(members))
    derived = derived_of(view, weights)
    potential = derived.refresh(view, mix)
    search = Search(view, derived, potential, request, asked, record=record)
    booked = view.bookings()
    free = list({one.id: one for one in members if one.id not in booked}.values())
    found = search.place(free)
    full = refusals(view, request, asked) if None in found else ()
    answers = [
        decision or Decision(one.id, refusals=full)
        for one, decision in zip(free, found, strict=True)
    ]
    if len(free) == len(members):
        return answers
    by_id = {one.id: one for one in answers}
    # an id that is booked, or comes a second time, is a mistake of the caller
    return [by_id.pop(one.id) if one.id in by_id else _twice(one.id) for one in members]


def _twice(id_: str) -> Decision:
    return Decision(id_, refusals=(Refusal(PendingReason.INVALID, "id", f"{id_} a second time"),))


def _gang(
    view: ClusterView,
    members: Sequence[Request],
    *,
    mix: Mix | None,
    weights: Weights,
    learn: bool,
) -> list[Decision]:
    """Place a gang whole or not at all; members that had room are told what the gang lacks."""
    found: list[Decision] = []
    start = 0
    while start < len(members):
        own = _CLASS(members[start])
        end = start + 1
        while end < len(members) and _CLASS(members[end]) == own:
            end += 1
        found += place_class(view, members[start:end], mix=mix, weights=weights, learn=learn)
        start = end
    placed = [one for one in found if one.node]
    if len(placed) == len(found):
        return found
    for one in placed:
        view.release(one.id)
    lacking = next(one.refusals for one in found if not one.node)
    gang = Refusal(PendingReason.GANG, "replicas together", len(found), len(placed))
    return [Decision(one.id, refusals=one.refusals or (gang, *lacking)) for one in found]


def demand_of(request: Request, asked: Asked) -> Demand:
    """Return a request's class as the mix counts it."""
    models = tuple(request.gpu_model.split("|")) if request.gpu_model else ()
    milli = asked.milli or WHOLE
    memory = 0 if asked.milli else asked.gpu_memory
    return Demand(asked.cpu, asked.gpus, milli, memory, models, request.pools)
