"""Switching machines by Redfish, the HTTP API of their management controllers."""

import ssl
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx2

from dsec.world.http import NetworkPlain, NetworkTls

CALL_SECONDS = 20.0
"""Management controllers are slow, and slower while their machine starts."""
_RESET = "#ComputerSystem.Reset"
_CONFLICT = 409
"""A controller that says so is in the very change that was asked for."""


class RedfishError(Exception):
    """The controller did not do what was asked, or did not answer; the words say which."""


@dataclass(frozen=True, slots=True)
class Controller:
    """One management controller and how to speak to it."""

    url: str
    system: str
    user: str
    password: str
    ca_pem: str = ""
    verify: bool = True


async def power_state(controller: Controller) -> str:
    """Return PowerState as Redfish has it (On, Off, PoweringOn, ...). Raises RedfishError."""
    async with _client(controller) as client:
        return str((await _system(client, controller)).get("PowerState", ""))


async def reset(controller: Controller, kinds: tuple[str, ...]) -> None:
    """Ask for the first of the kinds that the machine allows, for example On or ForceOff.

    Raises RedfishError, also where it allows none of them.
    """
    async with _client(controller) as client:
        system = await _system(client, controller)
        action = system.get("Actions", {}).get(_RESET, {})
        allowed = action.get("ResetType@Redfish.AllowableValues", kinds)
        kind = next((kind for kind in kinds if kind in allowed), None)
        if kind is None:
            raise RedfishError(f"{controller.url}: none of {', '.join(kinds)} is allowed")
        target = str(action.get("target") or f"{_path(controller)}/Actions/ComputerSystem.Reset")
        if not target.startswith("/"):
            raise RedfishError(f"{controller.url}: its reset is at {target!r}, not on itself")
        try:
            answer = await client.post(target, json={"ResetType": kind})
        except httpx2.TransportError as error:
            raise RedfishError(f"{controller.url}: {type(error).__name__}: {error}") from error
        if not answer.is_success and answer.status_code != _CONFLICT:
            raise RedfishError(f"{controller.url}: {kind}: {answer.status_code}")


def _path(controller: Controller) -> str:
    return f"/redfish/v1/Systems/{quote(controller.system, safe='')}"


def _client(controller: Controller) -> httpx2.AsyncClient:
    network: NetworkPlain | NetworkTls = NetworkPlain()
    if controller.url.startswith("https://"):
        context = ssl.create_default_context(cadata=controller.ca_pem or None)
        if not controller.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        network = NetworkTls(context)
    client = network.client(controller.url, timeout=CALL_SECONDS)
    client.auth = httpx2.BasicAuth(controller.user, controller.password)
    return client


async def _system(client: httpx2.AsyncClient, controller: Controller) -> dict[str, Any]:
    try:
        answer = await client.get(_path(controller))
    except httpx2.TransportError as error:
        raise RedfishError(f"{controller.url}: {type(error).__name__}: {error}") from error
    if not answer.is_success:
        raise RedfishError(f"{controller.url}: {answer.status_code}")
    try:
        body = answer.json()
    except ValueError as error:
        raise RedfishError(f"{controller.url}: its answer is no JSON") from error
    if not isinstance(body, dict):
        raise RedfishError(f"{controller.url}: its answer is no object")
    return body
