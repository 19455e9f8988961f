"""What a simulated market does: boots, failures, outages, interruptions, prices. Pure functions.

Each draw is keyed by what it is about and when (offering, span of time), never by the order of
calls: two policies that are compared see the same weather, however often either asks.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

HOUR, DAY = 3600.0, 86_400.0
CENT_OF_CENT = Decimal("0.0001")
"""Prices are rounded to this, as AWS rounds spot prices."""
_BITS = 64


@dataclass(frozen=True, slots=True)
class Weather:
    """A market's habits. Shares are of time or of nodes, between 0 and 1; spans are in seconds.

    The defaults are of the study that the planner's defaults rest on: boots of one to three
    minutes, spells of twenty minutes without machines, one spot node in twenty taken an hour.
    """

    seed: int = 0
    boot: tuple[float, float] = (60.0, 180.0)
    boot_fails: float = 0.0
    """Nodes that are paid for and never come up."""
    out: Mapping[str, float] = field(
        default_factory=lambda: {"on-demand": 0.02, "spot": 0.12, "reserved": 0.0, "owned": 0.0}
    )
    """Market to the share of time in which an offering has no machines."""
    out_span: float = 1200.0
    hazard_per_hour: float = 0.05
    """Of a spot node, to be taken away."""
    hazard_when_out: float = 6.0
    """Factor on it while its offering is out."""
    hazard_span: float = 60.0
    notice: float = 120.0
    spot_share: tuple[float, float] = (0.3, 0.6)
    """Range of the spot price, in parts of the list price; a wave of a day with steps each hour."""
    throttled: float = 0.0
    """Spans of ten seconds in which no call is taken."""
    lost: float = 0.0
    """Purchases that are made and whose reply is lost."""


def draw(weather: Weather, about: str, *keys: object) -> float:
    """Return a number in [0, 1) that depends on nothing but seed, subject and keys."""
    text = "\x1f".join([str(weather.seed), about, *(str(key) for key in keys)])
    digest = hashlib.blake2b(text.encode(), digest_size=_BITS // 8).digest()
    return int.from_bytes(digest) / (1 << _BITS)


def is_out(weather: Weather, offering: str, market: str, at: float) -> bool:
    """Say whether an offering has no machines at a time."""
    share = weather.out.get(market, 0.0)
    return draw(weather, "out", offering, int(at // weather.out_span)) < share


def boot_seconds(weather: Weather, offering: str, at: float, index: int) -> float | None:
    """Return how long the index-th node of a purchase takes to come up; None: it never does."""
    span = int(at // weather.hazard_span)
    if draw(weather, "boot-fails", offering, span, index) < weather.boot_fails:
        return None
    low, high = weather.boot
    return low + (high - low) * draw(weather, "boot", offering, span, index)


def interrupted_at(
    weather: Weather, offering: str, market: str, *, launched_at: float, index: int, until: float
) -> float | None:
    """Return when a node is first taken away before `until`; None: it is left alone.

    One draw per span, so that the answer for a time does not depend on how far one looks. Nodes of
    one offering that came in the same minute with the same index share their fate.
    """
    if market != "spot" or weather.hazard_per_hour <= 0:
        return None
    width = weather.hazard_span
    origin = int(launched_at // width)
    for span in range(origin + 1, int(until // width) + 1):
        factor = weather.hazard_when_out if is_out(weather, offering, market, span * width) else 1.0
        chance = 1.0 - math.exp(-weather.hazard_per_hour * factor * width / HOUR)
        if draw(weather, "taken", offering, span, origin, index) < chance:
            return min(span * width + weather.notice, until) if span * width < until else None
    return None


def spot_price(weather: Weather, offering: str, list_price: Decimal, at: float) -> Decimal:
    """Return the spot price of an offering at a time, per hour, in the list price's currency."""
    low, high = weather.spot_share
    phase = draw(weather, "price-phase", offering)
    wave = 0.5 + 0.35 * math.sin(2 * math.pi * (at / DAY + phase))
    step = 0.3 * (draw(weather, "price-step", offering, int(at // HOUR)) - 0.5)
    share = low + (high - low) * min(1.0, max(0.0, wave + step))
    return (list_price * Decimal(repr(share))).quantize(CENT_OF_CENT)


def is_throttled(weather: Weather, at: float) -> bool:
    """Say whether calls are turned away at a time."""
    return draw(weather, "throttled", int(at // 10)) < weather.throttled


def reply_is_lost(weather: Weather, token: str, attempt: int) -> bool:
    """Say whether the reply to a try of a purchase is lost."""
    return draw(weather, "lost", token, attempt) < weather.lost
