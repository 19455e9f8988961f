"""Switches one own machine by what its record says: Redfish, a magic packet, a hook."""

import base64
import binascii
from enum import StrEnum
from pathlib import Path

from dsec.api.power import PowerControl, Redfish
from dsec.world.power import HookError, run_hook, wake_on_lan
from dsec.world.records import RecordNotFoundError, Records, RecordsError
from dsec.world.redfish import Controller, RedfishError, power_state, reset


class PowerError(Exception):
    """The machine could not be switched, or asked; the words say why."""


class PowerState(StrEnum):
    """Whether a machine is on, as what switches it knows."""

    ON = "on"
    OFF = "off"
    STARTING = "starting"
    ENDING = "ending"
    UNKNOWN = "unknown"
    """Nobody can be asked: a card that wakes its machine knows nothing of it."""


_REDFISH = {
    "On": PowerState.ON,
    "Off": PowerState.OFF,
    "PoweringOn": PowerState.STARTING,
    "PoweringOff": PowerState.ENDING,
}


class Power:
    """All ways to switch. `hooks` is the folder of the only programs that records may name."""

    def __init__(self, records: Records, *, namespace: str, hooks: Path) -> None:
        self._records = records
        self._namespace = namespace
        self._hooks = hooks

    async def state(self, node: str, control: PowerControl) -> PowerState:
        """Ask whether a machine is on. Raises PowerError."""
        try:
            if control.redfish is not None:
                told = await power_state(await self._controller(control.redfish))
                return _REDFISH.get(told, PowerState.UNKNOWN)
            if control.hook is not None:
                told = (await self._hook(control.hook, "state", node)).strip()
                return PowerState(told) if told in set(PowerState) else PowerState.UNKNOWN
        except (RedfishError, HookError) as error:
            raise PowerError(f"{node}: {error}") from error
        return PowerState.UNKNOWN

    async def on(self, node: str, control: PowerControl) -> None:
        """Switch a machine on. Idempotent. Raises PowerError."""
        try:
            if control.redfish is not None:
                await reset(await self._controller(control.redfish), ("On", "ForceOn"))
            elif control.wake_on_lan is not None:
                wake = control.wake_on_lan
                await wake_on_lan(wake.mac, wake.broadcast, wake.port)
            elif control.hook is not None:
                await self._hook(control.hook, "on", node)
        except (RedfishError, HookError, OSError, ValueError) as error:
            raise PowerError(f"{node}: {error}") from error

    async def off(self, node: str, control: PowerControl, *, force: bool = False) -> None:
        """Have a machine shut down, or cut its power. Idempotent. Raises PowerError."""
        try:
            if control.redfish is not None:
                kinds = ("ForceOff",) if force else ("GracefulShutdown", "ForceOff")
                await reset(await self._controller(control.redfish), kinds)
            elif control.hook is not None:
                await self._hook(control.hook, "force-off" if force else "off", node)
            else:
                raise PowerError(f"{node}: it can be woken only; a hook could switch it off")
        except (RedfishError, HookError) as error:
            raise PowerError(f"{node}: {error}") from error

    async def _controller(self, redfish: Redfish) -> Controller:
        """Return a controller with the credentials of its secret. Raises RedfishError."""
        try:
            secret = await self._records.get("Secret", redfish.secret, self._namespace)
        except (RecordNotFoundError, RecordsError) as error:
            raise RedfishError(f"secret {redfish.secret} cannot be read: {error}") from error
        data = secret.get("data", {})
        try:
            user, password, authority = (
                base64.b64decode(data.get(key, "")).decode()
                for key in ("username", "password", "ca.crt")
            )
        except (binascii.Error, UnicodeDecodeError) as error:
            raise RedfishError(f"secret {redfish.secret}: {error}") from error
        if not user or not password:
            raise RedfishError(f"secret {redfish.secret}: username and password are wanted")
        return Controller(
            redfish.url, redfish.system, user, password, authority, verify=redfish.verify
        )

    async def _hook(self, name: str, verb: str, node: str) -> str:
        """Run a program of the folder; names are DNS names, so they never lead out of it."""
        return await run_hook([str(self._hooks / name), verb, node])
