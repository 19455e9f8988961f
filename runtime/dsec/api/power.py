"""How an own machine is switched: by its management controller, its network card, or a hook."""

from typing import Annotated

from pydantic import Field, model_validator

from dsec.api.base import WireModel
from dsec.api.meta import DnsName, Word

Mac = Annotated[str, Field(pattern=r"^([0-9a-fA-F]{2}[:-]){5}[0-9a-fA-F]{2}$", max_length=17)]


class Redfish(WireModel):
    """A management controller that speaks Redfish."""

    url: Annotated[str, Field(pattern=r"^https?://[^/@?#]+$", max_length=256)] = Field(
        description="Address of the controller, for example https://10.0.9.7."
    )
    system: Word = Field(default="1", description="Which of its computer systems.")
    secret: DnsName = Field(
        description="Secret beside the control plane with username and password, and ca.crt where "
        "the controller's certificate is not signed by a public CA."
    )
    verify: bool = Field(default=True, description="False: take any certificate.")


class WakeOnLan(WireModel):
    """A network card that listens while the machine is off."""

    mac: Mac = Field(description="Address of the card, for example 00:25:90:ab:cd:ef.")
    broadcast: Annotated[str, Field(pattern=r"^\d{1,3}(\.\d{1,3}){3}$")] = Field(
        default="255.255.255.255", description="Where the packet is sent."
    )
    port: Annotated[int, Field(ge=1, le=65_535)] = Field(default=9, description="UDP port.")


class PowerControl(WireModel):
    """Ways to switch a machine; Redfish alone, or a hook, or waking with a hook for the rest."""

    redfish: Redfish | None = Field(default=None, description="Its management controller.")
    wake_on_lan: WakeOnLan | None = Field(default=None, description="Switches on only.")
    hook: DnsName | None = Field(
        default=None,
        description="Program of that name in the controller's folder of hooks; it is called with "
        "on, off, force-off or state and the node's name.",
    )

    @model_validator(mode="after")
    def _some(self) -> "PowerControl":
        if self.redfish is None and self.wake_on_lan is None and self.hook is None:
            raise ValueError("one of redfish, wakeOnLan and hook is wanted")
        if self.redfish is not None and (self.wake_on_lan is not None or self.hook is not None):
            raise ValueError("redfish needs no other way beside it")
        return self
