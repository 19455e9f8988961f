"""Nodes for gangs and near groups: in one region, and only where the whole placement works. Pure.

Nodes are found as for single work, put into the view, and the unit is placed there as it will be
placed: what it does not use is given back, and a gang that does not fit whole buys nothing.
"""

from collections.abc import Sequence
from dataclasses import replace

from dsec.placement.view import ClusterView
from dsec.scaling.nodes.buying import Buyer, Step
from dsec.scaling.nodes.filling import Group
from dsec.scaling.nodes.plans import Why
from dsec.scaling.nodes.virtual import Work, fit, works


def buy_unit(buyer: Buyer, view: ClusterView, unit: Work) -> tuple[list[str], list[Group]]:
    """Take nodes for a unit and place it on them.

    Returns the names of the new nodes in `view`, none where it cannot be placed as it must be; and
    its classes as they were first tried, which say why.
    """
    choices = buyer.choices
    alone = [
        replace(one, request=replace(one.request, gang="", gang_group="", near=""))
        for one in unit.members
    ]
    classes = works(alone)
    first: list[Group] = []
    for region in _regions(buyer, view, unit):
        numbers = [number for work in classes for number in choices.add(work.members)]
        groups = [choices.groups[number] for number in numbers]
        first = first or groups
        steps = list(buyer.buy(numbers, region=region))
        if unit.request.gang and any(group.left for group in groups):
            for step in steps:
                buyer.drop(step, step.count)
            continue
        names = {step: _put(view, step, len(view)) for step in steps}
        used = set(fit(view, unit, regions=(region,)).values())
        kept = []
        for step, some in names.items():
            unused = [name for name in some if name not in used]
            for name in unused:
                view.remove(name)
            if unused:
                buyer.drop(step, len(unused))
            kept += [name for name in some if name in used]
        if kept:
            return kept, groups
        for group in groups:
            group.blocked.setdefault(Why.NO_OFFERING, unit.request.required_level)
            group.left = len(group.members)
    return [], first


def _put(view: ClusterView, step: Step, start: int) -> list[str]:
    names = [f"virtual/{step.offering.key}/{start + one}" for one in range(step.count)]
    for name in names:
        view.put(step.offering.named(name))
    return names


def _regions(buyer: Buyer, view: ClusterView, unit: Work) -> Sequence[str]:
    """Return where a unit may be, the cheapest first; where its group runs already, only there."""
    choices, first = buyer.choices, unit.members[0]
    cheapest: dict[str, float] = {}
    for choice in choices.every:
        price = float(choice.offering.price_per_hour)
        region = choice.offering.region
        if region not in cheapest or price < cheapest[region]:
            cheapest[region] = price
    allowed, _ = choices.regions_for(first)
    found = sorted(
        (one for one in cheapest if one in allowed), key=lambda one: (cheapest[one], one)
    )
    near = first.request.near
    home = {view.nodes[name].region for name in (view.group(near) if near else ())}
    return [one for one in found if one in home] if home else found
