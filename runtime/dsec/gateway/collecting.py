"""Collection of what no snapshot needs, on gateways: they alone can open the tenants' repositories.

Asked for by an operator, and once a day by each gateway: collectors share one written state per
repository, so several at once are no more than one.
"""

import zlib
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from dsec.api.snapshot_calls import Collected
from dsec.gateway.errors import ApiError, away
from dsec.snapshots.collecting import CollectError, Collector
from dsec.snapshots.keys import KeyAwayError, KeyUnknownError
from dsec.snapshots.layout import prefix_of
from dsec.snapshots.needing import needs_of
from dsec.snapshots.repacking import repack
from dsec.snapshots.repository import Repository
from dsec.snapshots.sealing import SnapshotDamagedError
from dsec.world.objects import ObjectStoreError

if TYPE_CHECKING:
    from dsec.gateway.core import Gateway

DAY_SECONDS = 86_400.0

log = structlog.get_logger()


async def daily(gateway: "Gateway") -> None:
    """Collect in every repository once a day, at a time of this gateway's own."""
    part = zlib.crc32(gateway.config.identity.encode()) / (1 << 32)
    await gateway.clock.sleep(part * DAY_SECONDS)
    while True:
        if gateway.config.snapshot_keys is not None:
            try:
                for done in await everywhere(gateway, wait=True):
                    log.info("snapshots collected", **done.wire())
            except (ApiError, ObjectStoreError) as problem:
                log.warning("snapshots are not collected", why=str(problem))
        await gateway.clock.sleep(DAY_SECONDS)


async def everywhere(gateway: "Gateway", *, wait: bool) -> list[Collected]:
    """Collect in the repository of every tenant that has one. Raises ApiError without keys."""
    tenants = sorted(gateway.tenants() or {})
    has = [one for one in tenants if await gateway.objects.list(prefix_of(one) + "repo.json")]
    found = []
    for one in has:
        try:
            found.append(await collected(gateway, one, wait=wait))
        except ApiError as problem:
            if gateway.config.snapshot_keys is None:
                raise
            # one tenant's key is gone or away: those of others are not to wait for it
            found.append(Collected(tenant=one, problem=str(problem)))
    return found


async def collected(gateway: "Gateway", tenant: str, *, wait: bool) -> Collected:
    """Collect in one tenant's repository. Raises ApiError without keys."""
    prefix = prefix_of(tenant)
    repo = await open_repository(gateway, prefix)
    collector = Collector(gateway.objects, prefix, gateway.clock, needs_of(repo), repo.forget)
    try:
        with suppress(SnapshotDamagedError):
            # what is damaged stays where it is; the collector says which snapshots are
            await repack(repo)
            if repo.damaged:
                # made anew from the packs, or no copy of it can be made either
                await repo.forget(())
        swept = await collector.collect(wait=wait)
    except (CollectError, SnapshotDamagedError, ObjectStoreError) as problem:
        return Collected(tenant=tenant, problem=str(problem))
    return Collected(
        tenant=tenant,
        packs=len(swept.packs),
        bytes=swept.bytes,
        waits_for=list(swept.waits_for),
        broken=list(swept.broken),
    )


async def open_repository(gateway: "Gateway", prefix: str) -> Repository:
    """Open a repository. Raises ApiError where its key cannot be had."""
    source = gateway.config.snapshot_keys
    if source is None:
        raise ApiError(501, "not-implemented", "this installation has no keys for snapshots")
    try:
        return await Repository.open(
            gateway.objects, prefix, source, gateway.clock, gateway.randomness
        )
    except KeyAwayError as problem:
        raise away(f"the key service is away: {problem}") from problem
    except (KeyUnknownError, SnapshotDamagedError) as problem:
        raise ApiError(409, "key-unknown", str(problem)) from problem
