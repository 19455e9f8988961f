"""Prices as AWS publishes them: the price list for on-demand, the history for spot.

All are prices of Linux on shared tenancy, per hour. AWS bills in US dollars but in China.
"""

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from dsec.providers.aws_calls import Calls
from dsec.providers.provider import PriceQuote
from dsec.world.clock import Clock

LINUX = "Linux/UNIX"
_CURRENCIES = ("USD", "CNY")


async def on_demand_prices(
    calls: Calls, clock: Clock, region: str, instance_types: Sequence[str]
) -> tuple[PriceQuote, ...]:
    """Return the list price of each instance type that has one in a region. Raises CloudError."""
    now = clock.now().timestamp()
    quotes: list[PriceQuote] = []
    for instance_type in instance_types:
        found = await calls.pages(
            "pricing",
            "get_products",
            "PriceList",
            ServiceCode="AmazonEC2",
            Filters=[
                {"Type": "TERM_MATCH", "Field": field, "Value": value}
                for field, value in {
                    "regionCode": region,
                    "instanceType": instance_type,
                    "operatingSystem": "Linux",
                    "preInstalledSw": "NA",
                    "tenancy": "Shared",
                    "capacitystatus": "Used",
                }.items()
            ],
        )
        prices = {listed for one in found if (listed := _listed(one)) is not None}
        # two prices for one thing: then it is not known which is paid, and the dearer is safe
        if prices:
            price, currency = max(prices)
            quotes.append(PriceQuote(region, "", instance_type, "on-demand", price, currency, now))
    return tuple(quotes)


async def spot_prices(
    calls: Calls, clock: Clock, region: str, instance_types: Sequence[str]
) -> tuple[PriceQuote, ...]:
    """Return the newest spot price per instance type and zone. Raises CloudError."""
    history = await calls.pages(
        "ec2",
        "describe_spot_price_history",
        "SpotPriceHistory",
        InstanceTypes=list(instance_types),
        ProductDescriptions=[LINUX],
        # from now on: AWS then answers with the price that holds, and no history
        StartTime=clock.now(),
    )
    newest: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in history:
        key = row["InstanceType"], row["AvailabilityZone"]
        if key not in newest or row["Timestamp"] > newest[key]["Timestamp"]:
            newest[key] = row
    return tuple(
        PriceQuote(
            region,
            zone,
            instance_type,
            "spot",
            Decimal(row["SpotPrice"]),
            "USD",
            row["Timestamp"].timestamp(),
        )
        for (instance_type, zone), row in sorted(newest.items())
    )


def _listed(product: Any) -> tuple[Decimal, str] | None:
    """Return price and currency of an entry of the price list; None where it has no hourly one."""
    data = json.loads(product) if isinstance(product, str) else product
    for term in data.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term.get("priceDimensions", {}).values():
            if dimension.get("unit") != "Hrs":
                continue
            for currency in _CURRENCIES:
                try:
                    price = Decimal(dimension["pricePerUnit"][currency])
                except (KeyError, InvalidOperation):
                    continue
                if price > 0:
                    return price, currency
    return None
