"""What an own machine costs: bought once, powered and housed for years."""

from typing import Annotated

from pydantic import Field

from dsec.api.base import WireModel
from dsec.api.meta import Money


class MachineCost(WireModel):
    """From it follows the price of a node-hour; the formula is in docs/budgets.md."""

    currency: Annotated[str, Field(pattern="^[A-Z]{3}$")] = Field(
        default="USD", description="ISO 4217 code of its amounts."
    )
    purchase: Money = Field(description="Price of one machine.")
    years: Annotated[int, Field(ge=1, le=30)] = Field(description="Years that it is used for.")
    residual: Money = Field(default="0", description="What it is worth after that.")
    watts: Annotated[int, Field(ge=0, le=10**6)] = Field(default=0, description="Mean draw.")
    pue: Annotated[str, Field(pattern=r"^[1-9]\d?(\.\d{1,4})?$", max_length=8)] = Field(
        default="1", description="Power of the site over power of its machines, 1 or more."
    )
    per_kwh: Money = Field(default="0", description="Price of a kilowatt-hour.")
    monthly_overhead: Money = Field(
        default="0", description="Room, network, service, people; per machine and month."
    )
