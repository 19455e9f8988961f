"""The whole control plane in one process: for standalone mode, tests and the simulator.

The same gateway and controller as in a cluster, wired through an in-process or real network.
"""

import asyncio
import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from starlette.types import ASGIApp

from dsec.controllers.app import build_app as build_internal
from dsec.controllers.controller import Controller, ControllerConfig
from dsec.controllers.outside import World
from dsec.gateway import ca
from dsec.gateway.app import build_app, build_metrics
from dsec.gateway.auth import ApiKeyEntry, keys_secret
from dsec.gateway.core import Gateway, GatewayConfig
from dsec.providers.provider import NodeProvider
from dsec.rules import Settings
from dsec.snapshots.keys import KeySource
from dsec.world.clock import Clock, Randomness
from dsec.world.network import Network
from dsec.world.objects import ObjectStore
from dsec.world.records import RecordConflictError, RecordNotFoundError, Records
from dsec.world.remote import RemoteStores

CA_SECRET = "dsec-ca"  # noqa: S105 - the name of a Secret, not a secret
ADMIN_GROUP = "dsec.dev:admins"


@dataclass(frozen=True, slots=True)
class ControlConfig:
    """One process of control plane.

    `internal_url` is where the gateway reaches the controller: a route of an in-process network, or
    a URL that serves `internal_app`. `api_keys` are made known at the start.
    """

    identity: str = "standalone"
    namespace: str = "dsec-system"
    region: str = "local"
    internal_url: str = "http://controller"
    internal_secret: str = "in-process"  # noqa: S105 - only this process can reach the internal API
    join_secret: str = ""
    api_keys: Sequence[ApiKeyEntry] = ()
    settings: Settings = field(default_factory=Settings)
    suppliers: Mapping[str, NodeProvider] = field(default_factory=dict)
    """Who gives nodes, by the names that pools call them; none: no node is bought."""
    snapshot_keys: KeySource | None = None
    """What opens the keys of tenants' snapshots; without it none are taken."""


@dataclass(slots=True)
class Control:
    """What to serve, and what to run beside it."""

    gateway: Gateway
    controller: Controller
    gateway_app: ASGIApp
    internal_app: ASGIApp
    metrics_app: ASGIApp

    async def run(self) -> None:
        """Run gateway and controller until cancelled, or until one of them fails."""
        tasks = [
            asyncio.ensure_future(self.gateway.run()),
            asyncio.ensure_future(self.controller.run()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def build_control(  # noqa: PLR0917 - the outside, in the order of design.md, then settings
    records: Records,
    objects: ObjectStore,
    network: Network,
    clock: Clock,
    randomness: Randomness,
    config: ControlConfig,
) -> Control:
    """Wire a control plane. The caller serves the applications and runs `run`.

    Makes the CA and the API keys of the configuration at the first start and keeps them in the
    record store. Raises RecordsError.
    """
    authority = await _authority(records, clock, config.namespace)
    if config.api_keys:
        await records.apply(keys_secret(list(config.api_keys), config.namespace), "dsec-local")
    gateway = Gateway(
        records,
        objects,
        network,
        clock=clock,
        randomness=randomness,
        ca=authority,
        config=GatewayConfig(
            identity=config.identity,
            internal_secret=config.internal_secret,
            namespace=config.namespace,
            region=config.region,
            join_secret=config.join_secret,
            settings=config.settings,
            snapshot_keys=config.snapshot_keys,
        ),
    )
    controller = Controller(
        World(
            records,
            objects,
            network,
            clock,
            randomness,
            suppliers=config.suppliers,
            region=config.region,
            stores=RemoteStores(records, config.namespace).open,
        ),
        ControllerConfig(
            identity=config.identity,
            endpoint=config.internal_url,
            namespace=config.namespace,
            region=config.region,
            exit_on_loss=False,
        ),
    )
    return Control(
        gateway,
        controller,
        build_app(gateway),
        build_internal(controller, config.internal_secret),
        build_metrics(gateway),
    )


async def _authority(records: Records, clock: Clock, namespace: str) -> ca.Authority:
    """Return the CA of this installation, made at the first start."""
    try:
        return _read(await records.get("Secret", CA_SECRET, namespace))
    except RecordNotFoundError:
        authority, key_pem = ca.create(clock.now())
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": CA_SECRET, "namespace": namespace},
        "data": {
            "ca.crt": base64.b64encode(authority.ca_pem.encode()).decode(),
            "ca.key": base64.b64encode(key_pem.encode()).decode(),
        },
    }
    try:
        await records.create(secret)
    except RecordConflictError:
        # another gateway was first
        return _read(await records.get("Secret", CA_SECRET, namespace))
    return authority


def _read(secret: dict[str, dict[str, str]]) -> ca.Authority:
    data = secret["data"]
    return ca.load(
        base64.b64decode(data["ca.crt"]).decode(), base64.b64decode(data["ca.key"]).decode()
    )
