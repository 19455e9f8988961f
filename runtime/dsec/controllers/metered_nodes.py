"""The nodes that cost money now: machines that have registered, and what was bought and may boot.

A node that was bought for somebody (`status.scaling.nodes` of its pool, with a run-until time) is
paid by those; every other one is a machine of one's own, whose idle time is its pool's.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

import structlog
from pydantic import ValidationError

from dsec.api.nodes import SandboxNodePoolSpec
from dsec.api.records import SandboxNode, SandboxNodePool
from dsec.cost.amounts import MoneyError
from dsec.cost.budgets import POOL
from dsec.cost.commitments import Commitment, Payer
from dsec.cost.metering import NodeUse
from dsec.cost.pools import INSTANCE_TYPE, MILLI, price_of, shape_of
from dsec.cost.prices import NodePrice, Shape, of_total
from dsec.scaling.nodes.budgeted import WIND_DOWN_SECONDS
from dsec.scaling.nodes.offerings import NodePhase
from dsec.world.cache import Cache
from dsec.world.records import Record

log = structlog.get_logger()
Held = dict[str, Any]
"""A bought node as its pool's status has it."""


@dataclass(slots=True)
class MeteredNodes:
    """Reads the caches of one leader. A pool that cannot be read prices nothing.

    What follows from a record is kept as long as the record is the same: there are many nodes, and
    they are looked at every few seconds.
    """

    nodes: Cache
    pools: Cache
    region: str = ""
    _specs: dict[str, tuple[Record, SandboxNodePoolSpec]] = field(default_factory=dict)
    _machines: dict[str, tuple[Record, SandboxNodePoolSpec | None, NodeUse | None]] = field(
        default_factory=dict
    )

    def all(self) -> dict[str, NodeUse]:
        """Return every node that costs money or is booked, by name."""
        specs = self.specs()
        bought = self.bought()
        found: dict[str, NodeUse] = {}
        machines, self._machines = self._machines, {}
        for record in self.nodes.all():
            name = record["metadata"]["name"]
            spec = specs.get((record.get("spec") or {}).get("pool") or "")
            known = machines.get(name)
            if name in bought:
                use = self._machine(record, spec, bought[name])
            elif known is not None and known[0] is record and known[1] is spec:
                use = known[2]
                self._machines[name] = known
            else:
                use = self._machine(record, spec, None)
                self._machines[name] = record, spec, use
            if use is not None:
                found[name] = use
        for name, held in bought.items():
            # what is only asked for costs nothing yet, and may get another name
            if name not in found and held.get("phase") != NodePhase.REQUESTED.value:
                shape = Shape(int(held["cpuMilli"]), 0, MILLI * int(held.get("gpuCount", 0)))
                found[name] = self._bought(held, shape)
        return found

    def specs(self) -> Mapping[str, SandboxNodePoolSpec]:
        """Return what pools declare, by name."""
        kept, self._specs = self._specs, {}
        for record in self.pools.all():
            name = record["metadata"]["name"]
            known = kept.get(name)
            if known is None or known[0] is not record:
                try:
                    spec = SandboxNodePool.model_validate({**record, "status": {}}).spec
                except ValidationError:
                    continue  # the pools' own controller tells of it
                if known is not None and known[1] == spec:
                    # a status that changes makes no other price
                    spec = known[1]
                known = record, spec
            self._specs[name] = known
        return {name: spec for name, (_, spec) in self._specs.items()}

    def bought(self) -> dict[str, Held]:
        """Return the nodes that are paid for until a time, by name."""
        found: dict[str, Held] = {}
        for record in self.pools.all():
            scaling = (record.get("status") or {}).get("scaling") or {}
            for one in scaling.get("nodes") or ():
                if one.get("runUntil") is not None:
                    found[one["name"]] = one
        return found

    def commitments(self) -> Iterator[Commitment]:
        """Yield what is promised for nodes that were bought, from their start."""
        for held in self.bought().values():
            if held.get("endedAt") is not None:
                continue
            use = self._bought(held, Shape(int(held["cpuMilli"]), 0, _gpus(held)))
            yield Commitment(
                use.node,
                use.price.rates,
                use.payers,
                use.started,
                float(held["runUntil"]),
                wind_down_seconds=WIND_DOWN_SECONDS,
                minimum_seconds=use.minimum_seconds,
                pool=use.pool,
                region=use.region,
                revision=int(held.get("revision", 0)),
            )

    def _machine(
        self, record: Record, spec: SandboxNodePoolSpec | None, held: Held | None
    ) -> NodeUse | None:
        try:
            node = SandboxNode.model_validate(record)
        except ValidationError:
            return None
        inventory, created = node.status.inventory, node.metadata.creation_timestamp
        if inventory is None or created is None:
            return None
        shape = shape_of(inventory)
        if held is not None:
            return self._bought(held, shape)
        pool = node.spec.pool or ""
        make = node.spec.labels.get(INSTANCE_TYPE, "")
        return NodeUse(
            node.metadata.name,
            self._price(spec, shape, pool, make),
            _seconds(created),
            pool=pool,
            region=self.region,
        )

    def _price(
        self, spec: SandboxNodePoolSpec | None, shape: Shape, pool: str, make: str
    ) -> NodePrice:
        try:
            return price_of(spec, shape, make=make)
        except MoneyError as problem:
            log.warning("cost of a pool makes no sense", pool=pool, error=str(problem))
            return price_of(None, shape)

    def _bought(self, held: Held, shape: Shape) -> NodeUse:
        pool, region, *_ = [*str(held.get("offering", "")).split("/"), "", ""]
        total = Decimal(str(held["pricePerHour"]))
        paths = tuple(Payer(one) for one in held.get("paths") or ())
        return NodeUse(
            held["name"],
            _total(total, shape, held["currency"]),
            float(held["requestedAt"]),
            # it ends by itself when nobody extends it, whether anybody looks or not
            float(held.get("endedAt") or held["runUntil"]),
            pool=pool,
            region=region or self.region,
            minimum_seconds=int(held.get("minimumSeconds", 0)),
            payers=paths or (Payer(POOL + pool),),
        )


@lru_cache(maxsize=4096)
def _total(total: Decimal, shape: Shape, currency: str) -> NodePrice:
    return of_total(total, shape, currency)


def _gpus(held: Held) -> int:
    return MILLI * int(held.get("gpuCount", 0))


def _seconds(at: datetime) -> float:
    return at.timestamp()
