"""Nodes as they are when their sandboxes are booked with what they use: the hook of right-sizing.

Planning on such nodes finds room on them before it buys, and consolidates further. Memory is never
booked below its request; the safe bound on CPU is that of `vertical.right_size`.
"""

from collections.abc import Mapping
from dataclasses import replace

from dsec.placement.asked import Asked
from dsec.scaling.nodes.offerings import FleetNode, Running
from dsec.scaling.vertical import Sized, Use, right_size

UNSEEN = Use(0.0, 0.0)


def right_sized(node: FleetNode, uses: Mapping[str, Use], now: float) -> FleetNode:
    """Return a node with CPU booked by observed use, and only so much CPU as more work may take.

    `uses` by id of the sandbox; one that is missing counts as not seen, with its whole request.
    """
    described = node.described(now)
    asked = {one.id: Asked.of(one.request).cpu for one in node.work if not one.paused}
    sizes = right_size(
        described.cpu_milli,
        [Sized(id_, cpu, uses.get(id_, UNSEEN)) for id_, cpu in asked.items()],
    )
    work = tuple(_booked(one, sizes.cpu.get(one.id)) for one in node.work)
    total = sum(sizes.cpu.values()) + sizes.room
    return replace(node, work=work, registered=replace(described, cpu_milli=total))


def _booked(one: Running, cpu_milli: int | None) -> Running:
    if cpu_milli is None or cpu_milli == one.request.resources.cpu_milli:
        return one
    resources = one.request.resources.model_copy(update={"cpu_milli": max(1, cpu_milli)})
    return replace(one, request=replace(one.request, resources=resources))
