"""AWS prices from what its interfaces answer; fetching is elsewhere. Pure.

Price list (`pricing:GetProducts`, and the bulk offer files in the same form): each product is
JSON text with `product.attributes` and `terms`. A spot price is a row of
`ec2:DescribeSpotPriceHistory`. Amounts are text there and stay exact here.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from dsec.cost.amounts import MoneyError, exact, up_to_micro
from dsec.cost.periods import instant
from dsec.cost.prices import HOURS_A_YEAR, MONTHS_A_YEAR

ON_DEMAND, RESERVED, SPOT = "on-demand", "reserved", "spot"
WANTED: Mapping[str, tuple[str, ...]] = {
    "operatingSystem": ("Linux",),
    "tenancy": ("Shared",),
    "preInstalledSw": ("NA", ""),
    "capacitystatus": ("Used", ""),
}
"""Attributes of the instances that we buy: plain Linux, shared hardware, no reserved capacity."""
_YEARS: Mapping[str, int] = {"1yr": 1, "1 yr": 1, "3yr": 3, "3 yr": 3}


@dataclass(frozen=True, slots=True)
class InstancePrice:
    """What an hour of an instance costs. `zone` is set for spot alone."""

    instance_type: str
    region: str
    market: str
    currency: str
    per_hour: Decimal
    """Of a reservation: with what was paid up front, spread over its term."""
    sku: str = ""
    zone: str = ""
    term: str = ""
    """Of a reservation: length, class and way of payment."""
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class TieredPrice:
    """A price per GB (egress) or per GB and month (storage): (from GB, price) in order."""

    kind: str
    region: str
    currency: str
    unit: str
    tiers: tuple[tuple[Decimal, Decimal], ...]
    name: str = ""

    def cost(self, amount: Decimal, *, after: Decimal = Decimal(0)) -> Decimal:
        """Return what an amount costs when `after` was used before it in the same month.

        GB of the list. Rounded up to a millionth.
        """
        begin, end = after, after + amount
        total = Decimal(0)
        for at, (low, price) in enumerate(self.tiers):
            high = self.tiers[at + 1][0] if at + 1 < len(self.tiers) else None
            top = end if high is None else min(end, high)
            total += max(Decimal(0), top - max(begin, low)) * price
        return up_to_micro(total)

    @property
    def per_hour(self) -> Decimal:
        """Of storage: what a GB costs an hour, at the first tier."""
        return up_to_micro(self.tiers[0][1] * MONTHS_A_YEAR / HOURS_A_YEAR)


def instance_prices(price_list: Iterable[str | Mapping[str, Any]]) -> list[InstancePrice]:
    """Return the hourly prices of the instances in a price list, each offer once.

    Products that are no plain Linux instances (`WANTED`) are left out, and offers without a price.
    Raises MoneyError for text that is no such list.
    """
    found = []
    for product in map(_product, price_list):
        attributes = product["product"].get("attributes", {})
        if not str(product["product"].get("productFamily", "")).startswith("Compute Instance"):
            continue
        if any(attributes.get(name, "") not in right for name, right in WANTED.items()):
            continue
        common = (attributes.get("instanceType", ""), attributes.get("regionCode", ""))
        sku = product["product"].get("sku", "")
        for market, name in ((ON_DEMAND, "OnDemand"), (RESERVED, "Reserved")):
            for offer in product.get("terms", {}).get(name, {}).values():
                found += _offers(offer, common, market, sku)
    return sorted(found, key=lambda one: (one.region, one.instance_type, one.market, one.term))


def tiered_prices(price_list: Iterable[str | Mapping[str, Any]]) -> list[TieredPrice]:
    """Return prices of storage (per GB and month) and of egress to the internet (per GB)."""
    found = []
    for product in map(_product, price_list):
        family = product["product"].get("productFamily", "")
        attributes = product["product"].get("attributes", {})
        if family == "Storage":
            kind, name = "storage", attributes.get("volumeApiName", "")
            region = attributes.get("regionCode", "")
        elif family == "Data Transfer" and attributes.get("transferType") == "AWS Outbound":
            kind, name = "egress", attributes.get("toLocation", "")
            region = attributes.get("fromRegionCode", "")
        else:
            continue
        for offer in product.get("terms", {}).get("OnDemand", {}).values():
            rows = list(offer.get("priceDimensions", {}).values())
            tiers: dict[str, list[tuple[Decimal, Decimal]]] = {}
            for row in rows:
                low = exact(row.get("beginRange", "0"), "beginRange")
                for currency, price in row.get("pricePerUnit", {}).items():
                    tiers.setdefault(currency, []).append((low, exact(price, "pricePerUnit")))
            unit = rows[0].get("unit", "") if rows else ""
            found += [
                TieredPrice(kind, region, currency, unit, tuple(sorted(steps)), name)
                for currency, steps in tiers.items()
            ]
    return sorted(found, key=lambda one: (one.kind, one.region, one.name, one.currency))


def spot_prices(
    rows: Iterable[Mapping[str, Any]], region: str, currency: str = "USD"
) -> list[InstancePrice]:
    """Return the newest Linux spot price per type and zone of a price history."""
    newest: dict[tuple[str, str], InstancePrice] = {}
    for row in rows:
        if "Linux" not in row.get("ProductDescription", "Linux/UNIX"):
            continue
        stamp = row["Timestamp"]
        since = instant(stamp) if isinstance(stamp, str) else stamp.timestamp()
        price = exact(str(row["SpotPrice"]), "SpotPrice")
        kind, zone = row["InstanceType"], row["AvailabilityZone"]
        one = InstancePrice(kind, region, SPOT, currency, price, zone=zone, since=since)
        if (kind, zone) not in newest or newest[kind, zone].since < since:
            newest[kind, zone] = one
    return [newest[key] for key in sorted(newest)]


def _offers(
    offer: Mapping[str, Any], common: tuple[str, str], market: str, sku: str
) -> list[InstancePrice]:
    terms = offer.get("termAttributes", {})
    hourly: dict[str, Decimal] = {}
    upfront: dict[str, Decimal] = {}
    for row in offer.get("priceDimensions", {}).values():
        into = {"Hrs": hourly, "Hours": hourly, "Quantity": upfront}.get(row.get("unit", ""))
        if into is not None:
            for currency, price in row.get("pricePerUnit", {}).items():
                into[currency] = into.get(currency, Decimal(0)) + exact(price, "pricePerUnit")
    years = _YEARS.get(terms.get("LeaseContractLength", ""), 0)
    if market == RESERVED and not years:
        return []
    names = ("LeaseContractLength", "OfferingClass", "PurchaseOption")
    term = " ".join(terms[name] for name in names if name in terms)
    since = instant(offer["effectiveDate"]) if "effectiveDate" in offer else 0.0
    found = []
    for currency in sorted({*hourly, *upfront}):
        price = hourly.get(currency, Decimal(0))
        if years:
            price += upfront.get(currency, Decimal(0)) / (years * HOURS_A_YEAR)
        # a list has rows of 0 for what is sold in another way
        if price > 0:
            found.append(
                InstancePrice(*common, market, currency, price, sku=sku, term=term, since=since)
            )
    return found


def _product(one: str | Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        product = json.loads(one) if isinstance(one, str) else one
    except json.JSONDecodeError as error:
        raise MoneyError(f"price list: {error}; each product is a JSON object") from None
    if not isinstance(product, Mapping) or "product" not in product:
        raise MoneyError("price list: an entry without `product`; each has `product` and `terms`")
    return product
