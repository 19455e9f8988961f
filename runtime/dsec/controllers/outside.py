"""The outside of the control plane, as one value that programs, standalone and simulator make."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dsec.controllers.fleet import Fleet
from dsec.placement.compaction import Mover
from dsec.providers.provider import NodeProvider
from dsec.world.clock import Clock, Randomness
from dsec.world.metrics import MetricSource
from dsec.world.network import Network
from dsec.world.objects import ObjectStore
from dsec.world.records import Records
from dsec.world.registry import Registry

Movers = Callable[[int, Fleet], Mover]
"""Makes what moves paused sandboxes in a term, of its epoch and the nodes."""


@dataclass(frozen=True, slots=True)
class World:
    """What the control plane reaches the outside with.

    No registry: images keep their tags. No metrics: scalers see queues, counts and ends only. No
    mover: paused sandboxes stay where they are.
    """

    records: Records
    objects: ObjectStore
    network: Network
    clock: Clock
    randomness: Randomness
    registry: Registry | None = None
    metrics: MetricSource | None = None
    mover: Movers | None = None
    suppliers: Mapping[str, NodeProvider] = field(default_factory=dict)
    """Who gives nodes, by the names that pools call them; none: no node is bought."""
