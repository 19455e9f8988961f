"""Placement: which node for which request, or why not. Pure, in one batch.

`place` looks at classes: equal requests next to each other are filtered and scored once, and after
each placement only the node that was touched is scored again. A search looks at the first
`CANDIDATES` nodes with room, in the order of their static cost: later ones pay more, so nothing is
lost, and a decision costs the same in any size of cluster. The batch decides exactly as the same
requests one at a time.
"""

from collections.abc import Sequence
from functools import partial

from dsec.api.reasons import PendingReason
from dsec.placement.asked import Asked, mistakes
from dsec.placement.derived import derived_of
from dsec.placement.gangs import PlaceClass, pack, place_unit
from dsec.placement.machines import Ints
from dsec.placement.mix import Demand, Mix
from dsec.placement.refusal import Refusal
from dsec.placement.refusing import refusals
from dsec.placement.request import Decision, Request
from dsec.placement.scores import Weights
from dsec.placement.search import Search
from dsec.placement.stranding import WHOLE
from dsec.placement.view import ClusterView

DEFAULT_WEIGHTS = Weights()


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
    if len(requests) == 1 and not requests[0].gang and not requests[0].near:
        return place_class(view, requests, mix=mix, weights=weights, record=record, learn=learn)
    decisions: list[Decision | None] = [None] * len(requests)
    units: dict[str, list[int]] = {}
    for position, request in enumerate(requests):
        if request.gang:
            units.setdefault(request.gang_group or request.gang, []).append(position)
    one_class = partial(place_class, view, mix=mix, weights=weights, record=record)
    # several places may be tried for a unit, and it is asked for once
    trying = partial(one_class, learn=False)
    position = 0
    while position < len(requests):
        request = requests[position]
        if request.gang:
            chosen = units.pop(request.gang_group or request.gang, [])
            members: Sequence[Request] = [requests[one] for one in chosen]
            found = _unit(view, members, trying, mix if learn else None) if members else []
            for at, decision in zip(chosen, found, strict=True):
                decisions[at] = decision
            position += 1
            continue
        end = _end(requests, position)
        members = requests[position:end]
        # the first of a group goes where it is best alone; the others come to it
        packed = request.near and (
            len(members) > 1 or request.required_level or view.group(request.near)
        )
        if packed:
            decisions[position:end] = _unit(view, members, trying, mix if learn else None)
        else:
            decisions[position:end] = one_class(members, learn=learn)
        position = end
    return [decision for decision in decisions if decision is not None]


def _unit(
    view: ClusterView, members: Sequence[Request], place: PlaceClass, mix: Mix | None
) -> list[Decision]:
    """Place a gang, or members of one group near to each other; `mix` is told of them."""
    for one in members:
        _observe(mix, one, Asked.of(one), 1)
    unit = place_unit if members[0].gang else pack
    return unit(view, members, place)


def _end(requests: Sequence[Request], start: int) -> int:
    """Return the end of the stretch of equal requests without a gang that begins at `start`."""
    end = start + 1
    if end < len(requests):
        own = requests[start].class_key()
        while end < len(requests) and requests[end].class_key() == own:
            end += 1
    return end


def place_class(
    view: ClusterView,
    members: Sequence[Request],
    rows: Ints | None = None,
    *,
    mix: Mix | None = None,
    weights: Weights = DEFAULT_WEIGHTS,
    record: bool = False,
    learn: bool = True,
    explain: bool = True,
) -> list[Decision]:
    """Place requests that differ in nothing but their ids; whoever finds no room is refused.

    `rows` are the only ones that are looked at. Without `explain` refusals are left empty.
    """
    request = members[0]
    asked = Asked.of(request)
    wrong = mistakes(request, asked)
    if wrong:
        return [Decision(one.id, refusals=wrong) for one in members]
    view.settle()
    if learn:
        _observe(mix, request, asked, len(members))
    derived = derived_of(view, weights)
    potential = derived.refresh(view, mix)
    search = Search(view, derived, potential, request, asked, record=record, within=rows)
    booked = view.bookings()
    free = members
    ids = {one.id for one in members}
    if len(ids) < len(members) or not booked.keys().isdisjoint(ids):
        free = list({one.id: one for one in members if one.id not in booked}.values())
    answers = search.place(free)
    if len(answers) < len(free):
        full = refusals(view, request, asked) if explain else ()
        answers += [Decision(one.id, refusals=full) for one in free[len(answers) :]]
    if len(free) == len(members):
        return answers
    by_id = {one.id: one for one in answers}
    # an id that is booked, or comes a second time, is a mistake of the caller
    return [by_id.pop(one.id) if one.id in by_id else _twice(one.id) for one in members]


def _twice(id_: str) -> Decision:
    return Decision(id_, refusals=(Refusal(PendingReason.INVALID, "id", f"{id_} a second time"),))


def _observe(mix: Mix | None, request: Request, asked: Asked, count: int) -> None:
    if mix is not None and asked.gpus:
        mix.observe(demand_of(request, asked), count)


def demand_of(request: Request, asked: Asked) -> Demand:
    """Return a request's class as the mix counts it."""
    models = tuple(request.gpu_model.split("|")) if request.gpu_model else ()
    milli = asked.milli or WHOLE
    memory = 0 if asked.milli else asked.gpu_memory
    return Demand(_about(asked.cpu), asked.gpus, milli, memory, models, request.pools)


def _about(cpu_milli: int) -> int:
    """Return CPU to two digits: requests that differ in the third are one class of the mix."""
    step = int("1".ljust(len(str(cpu_milli)) - 1, "0"))
    return max(1, (cpu_milli + step // 2) // step * step)
