"""The outside of the control plane, as one value that programs, standalone and simulator make."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dsec.providers.provider import NodeProvider
from dsec.world.clock import Clock, Randomness
from dsec.world.metrics import MetricSource
from dsec.world.network import Network
from dsec.world.objects import ObjectStore
from dsec.world.records import Records
from dsec.world.registry import Registry
from dsec.world.remote import OpenStore


@dataclass(frozen=True, slots=True)
class World:
    """What the control plane reaches the outside with.

    No registry: images keep their tags. No metrics: scalers see queues, counts and ends only.
    """

    records: Records
    objects: ObjectStore
    network: Network
    clock: Clock
    randomness: Randomness
    registry: Registry | None = None
    metrics: MetricSource | None = None
    suppliers: Mapping[str, NodeProvider] = field(default_factory=dict)
    """Who gives nodes, by the names that pools call them; none: no node is bought."""
    region: str = "local"
    stores: OpenStore | None = None
    """Opens the stores of other regions; None: no snapshot is copied."""
