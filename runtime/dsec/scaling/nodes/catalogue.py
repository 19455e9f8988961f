"""What a pool may get, as offerings: each make in each of its markets, regions and zones. Pure.

What a machine has for sandboxes is less than what it has: the agent keeps a reserve. Once a node of
a make has registered, that is better known than any description, and used instead.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from itertools import product

from dsec.api.nodes import SandboxNodePoolSpec
from dsec.api.sandbox import GpuMode
from dsec.api.scaling import PoolOffering
from dsec.api.wire import Device, NodeInventory
from dsec.placement.dimensions import UNMETERED
from dsec.placement.request import Node, node_of
from dsec.scaling.nodes.offerings import Offering

RESERVE_SHARE, RESERVE_MOST = 16, 1 << 30
"""Memory that an agent keeps for the node where the pool says nothing: a sixteenth, at most 1 GiB.

Keep in step with `AgentSettings.reserved_memory_bytes`."""
Price = Callable[[str], tuple[Decimal, str] | None]
"""Price per hour and currency of an offering's key; None: the price book has none."""
NO_NODES: Mapping[str, Node] = {}


def offerings_of(
    pool: str,
    spec: SandboxNodePoolSpec,
    price: Price,
    registered: Mapping[str, Node] = NO_NODES,
) -> tuple[tuple[Offering, ...], tuple[str, ...]]:
    """Return a pool's offerings, and the keys of those that have no price and cannot be bought.

    `registered`: a node that has registered, by instance type. Raises ValueError where labels of
    the pool make no sense for a node.
    """
    asked = spec.scaling
    if asked is None:
        return (), ()
    found, lacking = [], []
    for make in asked.offerings:
        node = _node(pool, spec, make, registered.get(make.instance_type))
        places = product(make.regions or asked.regions or [""], make.zones or asked.zones or [""])
        for (region, zone), market in product(places, make.markets):
            if asked.markets and market not in asked.markets:
                continue
            offering = Offering(
                pool,
                asked.supplier,
                make.instance_type,
                region,
                zone,
                market,
                node,
                Decimal(0),
                asked.currency,
                boot_seconds=make.boot_seconds,
                minimum_bill_seconds=make.minimum_bill_seconds,
                limit=make.limit,
            )
            known = price(offering.key)
            if make.price_per_hour is not None:
                known = Decimal(make.price_per_hour), asked.currency
            if known is None:
                lacking.append(offering.key)
            else:
                found.append(replace(offering, price_per_hour=known[0], currency=known[1]))
    return tuple(found), tuple(lacking)


def _node(pool: str, spec: SandboxNodePoolSpec, make: PoolOffering, seen: Node | None) -> Node:
    if seen is not None:
        return replace(seen, name=make.instance_type, images=frozenset(), datasets=())
    reserve = spec.agent.reserved_memory_bytes
    if reserve is None:
        reserve = min(make.memory_bytes // RESERVE_SHARE, RESERVE_MOST)
    modes = [GpuMode.WHOLE.value, GpuMode.MPS.value, GpuMode.SHARES.value, GpuMode.MIG.value]
    inventory = NodeInventory(
        cpu_milli=max(0, make.cpu_milli - spec.agent.reserved_cpu_milli),
        memory_bytes=max(0, make.memory_bytes - reserve),
        disk_bytes=UNMETERED if make.disk_bytes is None else make.disk_bytes,
        max_sandboxes=spec.agent.max_sandboxes,
        devices=[
            Device(
                uuid=f"card-{number}",
                index=number,
                model=make.gpu_model,
                memory_bytes=make.gpu_memory_bytes,
                modes=modes,
            )
            for number in range(make.gpu_count)
        ],
        isolation=list(make.isolation),
        features=dict.fromkeys(make.features, ""),
        simulated=spec.scaling is not None and spec.scaling.supplier == "simulated",
    )
    return node_of(
        make.instance_type, inventory, labels=dict(spec.labels), pool=pool, traits=spec.placement
    )
