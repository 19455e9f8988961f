"""A cloud market that can be replayed: boot times, shortages and interruptions by place and time.

Nothing is drawn in the order of calls: each figure is a hash of the seed, the offering and the
time, so that two policies meet the same market, and no call of one shifts the luck of the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from hashlib import blake2b

from dsec.api.scaling import Market
from dsec.placement.request import Node
from dsec.scaling.nodes.offerings import Offering
from dsec.sim.cluster import node_of
from dsec.sim.trace import Machine

HOUR = 3600.0
SPELL_S = 1200.0
"""A shortage of an offering lasts for whole spells."""
LOOK_S = 60.0
"""How often an interruption may begin."""
NOTICE_S = 120.0
MODEL = "accelerator"
CURRENCY = "USD"


@dataclass(frozen=True, slots=True)
class Shape:
    """One make of node at a provider. Price per hour on demand."""

    name: str
    cores: int
    memory_gib: int
    gpus: int
    price: Decimal

    def node(self) -> Node:
        """Return what comes, without a name."""
        machine = Machine(
            self.name, self.cores * 1000, self.memory_gib << 30, self.gpus, MODEL * bool(self.gpus)
        )
        return node_of(machine)


SHAPES = (
    Shape("g1-8", 8, 32, 1, Decimal("0.81")),
    Shape("g1-16", 16, 64, 1, Decimal("1.21")),
    Shape("g1-32", 32, 128, 1, Decimal("2.01")),
    Shape("g4-48", 48, 192, 4, Decimal("4.60")),
    Shape("g4-96", 96, 384, 4, Decimal("6.40")),
    Shape("g8-96", 96, 768, 8, Decimal("11.00")),
    Shape("g8-192", 192, 768, 8, Decimal("13.35")),
    *(
        Shape(f"c{cores}", cores, 4 * cores, 0, Decimal("0.048") * cores)
        for cores in (8, 16, 32, 48, 64, 96, 128)
    ),
)
"""List-like prices; ratios are what counts."""
OWNED_GPU = Shape("own-g8", 96, 384, 8, Decimal("4.00"))
OWNED_CPU = Shape("own-c128", 128, 512, 0, Decimal("1.50"))
RESERVED_PART = Decimal("0.63")
"""Of the price on demand, where a node is reserved for a year."""


@dataclass(frozen=True, slots=True)
class MarketModel:
    """How the cloud behaves. Times in seconds, parts of 1, hazard per hour and node."""

    seed: int = 1
    boot_s: tuple[float, float] = (60.0, 180.0)
    minimum_bill_s: int = 60
    spot_part: Decimal = Decimal("0.40")
    shortage: tuple[tuple[Market, float], ...] = ((Market.ON_DEMAND, 0.02), (Market.SPOT, 0.12))
    hazard: float = 0.05
    hazard_in_shortage: float = 6.0
    """Times as many interruptions while the offering is short."""

    def draw(self, *parts: object) -> float:
        """Return a number of [0, 1) that is a function of the seed and the parts alone."""
        text = "/".join(map(str, (self.seed, *parts)))
        return int.from_bytes(blake2b(text.encode(), digest_size=7).digest(), "big") / 2.0**56

    def short(self, offering: Offering, now: float) -> bool:
        """Return whether nothing of an offering can be bought now."""
        part = dict(self.shortage).get(offering.market, 0.0)
        return self.draw("short", offering.key, int(now // SPELL_S)) < part

    def boot(self, offering: Offering, now: float, number: int) -> float:
        """Return the boot time of the `number`th node of a purchase."""
        least, most = self.boot_s
        return least + (most - least) * self.draw("boot", offering.key, round(now), number)

    def interrupted(self, offering: Offering, name: str, since: float, now: float) -> bool:
        """Return whether a spot node gets its notice in the look that ends now."""
        if offering.market is not Market.SPOT:
            return False
        look = int(now // LOOK_S)
        rate = self.hazard * (self.hazard_in_shortage if self.short(offering, now) else 1.0)
        # the node's place in time, not its name: names differ between policies
        return self.draw("end", offering.key, round(since), name[-4:], look) < rate * LOOK_S / HOUR


def offerings(
    model: MarketModel, shapes: Sequence[Shape] = SHAPES, *, markets: Sequence[Market]
) -> tuple[Offering, ...]:
    """Return what can be bought."""
    return tuple(
        Offering(
            pool="cloud-gpu" if shape.gpus else "cloud-cpu",
            provider="simulated",
            instance_type=shape.name,
            region="here",
            zone="",
            market=market,
            node=shape.node(),
            price_per_hour=shape.price * (model.spot_part if market is Market.SPOT else 1),
            currency=CURRENCY,
            boot_seconds=sum(model.boot_s) / 2,
            minimum_bill_seconds=model.minimum_bill_s,
        )
        for shape in shapes
        for market in markets
    )


def owned(shape: Shape, count: int, *, market: Market = Market.OWNED) -> Offering:
    """Return an offering of machines that are there and paid for anyway."""
    return Offering(
        pool="own-gpu" if shape.gpus else "own-cpu",
        provider="onprem",
        instance_type=shape.name,
        region="here",
        zone="",
        market=market,
        node=shape.node(),
        price_per_hour=shape.price,
        currency=CURRENCY,
        boot_seconds=0.0,
        minimum_bill_seconds=0,
        limit=count,
    )


def tainted(offering: Offering, taint: str) -> Offering:
    """Return the offering with a taint on its nodes."""
    node = replace(offering.node, taints=(*offering.node.taints, taint))
    return replace(offering, node=node)
