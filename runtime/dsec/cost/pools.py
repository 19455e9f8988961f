"""What nodes of a pool cost, from its record: machines of one's own, a price, or no price. Pure.

The first of these that is there counts: the cost of an own machine (`cost`), `priceMicro` of the
pool's placement, the price of the one make that the pool may buy. What was bought for a price of
its own is priced by that (`bought`). Without any of them only hours are counted, no money.
"""

from collections.abc import Iterable, Mapping
from decimal import Decimal

from dsec.api.machinecost import MachineCost
from dsec.api.nodes import SandboxNodePoolSpec
from dsec.api.wire import NodeInventory
from dsec.cost.amounts import MoneyError, exact
from dsec.cost.prices import NodePrice, OwnedCost, Shape, of_owned, of_total

CURRENCY = "USD"
"""Where neither pool nor tenant names one."""
MILLI = 1000
UNPRICED = "none"
"""Source of the price of a node that has none."""
INSTANCE_TYPE = "node.kubernetes.io/instance-type"


def shape_of(inventory: NodeInventory) -> Shape:
    """Return what a node has to sell."""
    gpus = len(inventory.devices) * MILLI
    return Shape(inventory.cpu_milli, inventory.memory_bytes, gpus)


def owned_cost(cost: MachineCost) -> OwnedCost:
    """Return a pool's declared cost as amounts. Raises MoneyError."""
    return OwnedCost(
        cost.currency,
        exact(cost.purchase, "cost.purchase"),
        Decimal(cost.years),
        exact(cost.residual, "cost.residual"),
        cost.watts,
        exact(cost.pue, "cost.pue"),
        exact(cost.per_kwh, "cost.perKwh"),
        exact(cost.monthly_overhead, "cost.monthlyOverhead"),
    )


def price_of(
    spec: SandboxNodePoolSpec | None, shape: Shape, *, make: str = "", currency: str = CURRENCY
) -> NodePrice:
    """Return the price of a node of a pool; `make` is its instance type. Raises MoneyError."""
    if spec is None:
        return unpriced(shape, currency)
    if spec.cost is not None:
        return of_owned(owned_cost(spec.cost), shape)
    if spec.scaling is not None:
        currency = spec.scaling.currency
    if spec.placement.price_micro:
        return of_total(Decimal(spec.placement.price_micro).scaleb(-6), shape, currency)
    for one in spec.scaling.offerings if spec.scaling is not None else ():
        if one.price_per_hour is not None and one.instance_type == make:
            return of_total(exact(one.price_per_hour), shape, currency, source="override")
    return unpriced(shape, currency)


def unpriced(shape: Shape, currency: str = CURRENCY) -> NodePrice:
    """Return a price of nothing: hours are counted all the same."""
    return NodePrice(currency, {}, shape, UNPRICED)


def prices(
    pools: Mapping[str, SandboxNodePoolSpec], nodes: Iterable[tuple[str, str, NodeInventory]]
) -> dict[str, NodePrice]:
    """Return a price per make of node that is there or may be bought, as estimates want them.

    `nodes` are (pool, instance type, inventory). What has no price is left out.
    """
    found: dict[str, NodePrice] = {}
    for pool, make, inventory in nodes:
        spec = pools.get(pool)
        found[f"{pool}/{make}" if make else pool] = _price(spec, shape_of(inventory), make)
    for pool, spec in pools.items():
        for one in spec.scaling.offerings if spec.scaling is not None else ():
            shape = Shape(one.cpu_milli, one.memory_bytes, one.gpu_count * MILLI)
            found.setdefault(f"{pool}/{one.instance_type}", _price(spec, shape, one.instance_type))
    return {key: one for key, one in found.items() if one.source != UNPRICED}


def _price(spec: SandboxNodePoolSpec | None, shape: Shape, make: str) -> NodePrice:
    """Return a price; a cost that contradicts itself is none."""
    try:
        return price_of(spec, shape, make=make)
    except MoneyError:
        return unpriced(shape)
