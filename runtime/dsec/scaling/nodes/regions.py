"""Region first, then the node in it: where data may be, where work belongs, where it is cheap.

Data that may not leave pulls its sandboxes there, whatever the price (ROAD-05). Work of low
priority that is not sensitive goes by price (ROAD-06); other work stays in the home region where
one is set. Groups that exchange often are in one region (ROAD-08; see virtual.fit).
"""

from collections.abc import Iterable, Sequence
from decimal import Decimal

from dsec.scaling.nodes.offerings import Offering
from dsec.scaling.nodes.plans import RegionStage
from dsec.scaling.nodes.rules import NodeRules
from dsec.scaling.nodes.state import Pending


def by_price(pending: Pending) -> bool:
    """Return whether price alone may choose its region."""
    return pending.request.priority < 0 and not pending.sensitive


def regions_for(
    pending: Pending, offered: Sequence[str], rules: NodeRules
) -> tuple[tuple[str, ...], str]:
    """Return the regions that may be bought in, and why: only, residency, home or price."""
    allowed = tuple(one for one in offered if not pending.regions or one in pending.regions)
    if pending.regions and set(allowed) != set(offered):
        why = "residency"
    elif len(offered) <= 1:
        why = "only"
    else:
        why = "price"
    if rules.home_region in allowed and len(allowed) > 1 and not by_price(pending):
        return (rules.home_region,), "home"
    return allowed, why


def stage_of(
    chosen: Offering, able: Iterable[Offering], rules: NodeRules, first: Pending
) -> RegionStage:
    """Return the record of the first stage of a purchase for some work.

    `able`: the offerings that could hold it, wherever they are.
    """
    cheapest: dict[str, Decimal] = {}
    for one in able:
        price = cheapest.get(one.region)
        if price is None or one.price_per_hour < price:
            cheapest[one.region] = one.price_per_hour
    allowed, why = regions_for(first, sorted({*cheapest, chosen.region}), rules)
    considered = tuple(
        (region, f"{price:f} {chosen.currency}" if region in allowed else "not allowed")
        for region, price in sorted(cheapest.items(), key=lambda one: (one[1], one[0]))
    )
    return RegionStage(chosen.region, why, considered)
