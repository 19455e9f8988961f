"""The repositories that a node's snapshots go to: opened once per tenant, closed with the agent.

Keys are in memory only. What waits to be sent or to be published is on disk: a snapshot that was
taken while no gateway answered exists as soon as one does, also after a restart of the agent.
"""

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from dsec.agent import snapshot_store
from dsec.agent.snapshot_spool import DeniedError, SpooledObjects
from dsec.agent.snapshot_store import DoomedError, GatewayObjects, TakenError
from dsec.agent.state import replace_durably
from dsec.agent.uplink import AwayError, FencedError, RefusedError, Uplink
from dsec.api.snapshot import SnapshotRef
from dsec.api.snapshot_store import Access, PublishCall
from dsec.snapshots.refs import next_seq
from dsec.snapshots.repository import Repository
from dsec.world.clock import Clock, Randomness
from dsec.world.network import Network
from dsec.world.objects import ObjectStoreError

PUBLISH_TRIES = 4
"""Numbers that may be taken in a row: nobody but this copy publishes in its lineage."""
_log = structlog.get_logger(__name__)


class ShelfAwayError(Exception):
    """No repository now: the gateway is away, and this process has not had its key before."""


class LateError(Exception):
    """The copy does not count any more: its snapshot does not come to exist."""


@dataclass(slots=True)
class Shelf:
    """A tenant's repository, opened."""

    access: Access
    store: SpooledObjects
    repository: Repository


class Shelves:
    """Of one node. `outside` makes clients for presigned URLs; None: all goes by the gateway."""

    def __init__(
        self,
        uplink: Uplink,
        clock: Clock,
        randomness: Randomness,
        directory: Path,
        *,
        outside: Network | None,
        spool_bytes: int,
    ) -> None:
        """Use a directory of the node. Raises OSError."""
        self._uplink = uplink
        self._clock = clock
        self._randomness = randomness
        self._outside = outside
        self._pending = directory / "pending"
        self._pending.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._relayed = GatewayObjects(uplink, clock, outside, direct=False)
        self._direct = GatewayObjects(uplink, clock, outside, direct=True)
        self._spools = directory / "spool"
        self._spool_bytes = spool_bytes
        self._stores: dict[str, SpooledObjects] = {}
        self._repositories: dict[str, Repository] = {}
        self._access: dict[str, Access] = {}
        self._lock = asyncio.Lock()
        self._publishing = asyncio.Lock()
        self.late: Callable[[SnapshotRef], None] = lambda _: None
        self.waits = asyncio.Event()
        """Set while snapshots wait for a gateway."""
        if any(self._waiting()):
            self.waits.set()

    async def close(self) -> None:
        """Close the connections."""
        await self._relayed.close()
        await self._direct.close()

    async def open(self, sandbox: str) -> Shelf:
        """Return the repository of a sandbox. Raises ShelfAwayError, FencedError, RefusedError."""
        try:
            access = await snapshot_store.access(self._uplink, sandbox)
        except AwayError as error:
            known = self._access.get(sandbox)
            if known is None or known.prefix not in self._repositories:
                raise ShelfAwayError(f"control plane unavailable: {error}") from error
            access = known
        self._access[sandbox] = access
        async with self._lock:
            store = self._store(access.tenant, direct=access.direct)
            repository = self._repositories.get(access.prefix)
            if repository is None:
                key = base64.b64decode(access.key)
                try:
                    repository = await Repository.open_with_key(
                        store, access.prefix, key, self._clock, self._randomness
                    )
                except ObjectStoreError as error:
                    raise ShelfAwayError(f"the store is away: {error}") from error
                self._repositories[access.prefix] = repository
        return Shelf(access, store, repository)

    def knows(self, sandbox: str) -> bool:
        """Return whether a sandbox has used a repository here."""
        return sandbox in self._access

    def forget(self, sandbox: str) -> None:
        """Drop what is known of a sandbox that has ended; the last of its tenant takes the key."""
        gone = self._access.pop(sandbox, None)
        if gone and all(one.prefix != gone.prefix for one in self._access.values()):
            self._repositories.pop(gone.prefix, None)

    # ------------------------------------------------------------------ coming to exist

    async def publish(
        self, shelf: Shelf, call: PublishCall, *, wait: bool = True
    ) -> SnapshotRef | None:
        """Send what waits and make the snapshot exist; None: it waits on disk for a gateway.

        Its number is set here: what was taken before it comes before it. Raises LateError,
        DoomedError, StateError, and without `wait` ShelfAwayError.
        """
        ref = call.ref
        try:
            async with self._publishing:
                for path in sorted(self._waiting(f"*-{ref.sandbox}-*")):
                    await self._publish_late(path)
                return await self._publish(shelf.store, shelf.access.prefix, call)
        except (AwayError, ObjectStoreError) as error:
            if not wait:
                raise ShelfAwayError(f"control plane unavailable: {error}") from error
            _log.info("a snapshot waits on disk", sandbox=ref.sandbox, why=str(error))
            name = f"{ref.created:%Y%m%dT%H%M%S%f}-{ref.sandbox}-{ref.kind}.json"
            text = json.dumps({"prefix": shelf.access.prefix, "call": call.wire()}).encode()
            await asyncio.to_thread(replace_durably, self._pending / name, text)
            self.waits.set()
            return None

    async def catch_up(self) -> bool:
        """Send and publish what waits from before, oldest first; False: the gateway is away.

        `late` is told of each one that exists now. Raises OSError.
        """
        for path in sorted(self._waiting()):
            try:
                async with self._publishing:
                    await self._publish_late(path)
            except (AwayError, ObjectStoreError):
                return False
        return True

    async def _publish_late(self, path: Path) -> None:
        """Publish what waits in a file. Raises AwayError, ObjectStoreError, OSError."""
        try:
            body = json.loads(await asyncio.to_thread(path.read_bytes))
            call, prefix = PublishCall.model_validate(body["call"]), str(body["prefix"])
        except FileNotFoundError:
            # somebody else was faster
            return
        except (ValueError, KeyError) as error:
            _log.error("a waiting snapshot cannot be read", path=path.name, error=str(error))
            await asyncio.to_thread(path.unlink)
            return
        store = self._store(call.ref.tenant, direct=False)
        try:
            self.late(await self._publish(store, prefix, call))
        except (LateError, DoomedError) as error:
            _log.info("a waiting snapshot is void", sandbox=call.ref.sandbox, why=str(error))
        await asyncio.to_thread(path.unlink)

    def _waiting(self, name: str = "[0-9]*") -> Iterator[Path]:
        return self._pending.glob(f"{name}.json")

    async def _publish(self, store: SpooledObjects, prefix: str, call: PublishCall) -> SnapshotRef:
        try:
            await store.flush()
        except DeniedError as error:
            # nothing of this tenant runs here any more
            store.drop(prefix)
            raise LateError(str(error)) from error
        lineage = call.ref.lineage
        for _ in range(PUBLISH_TRIES):
            seq = await next_seq(store, prefix, lineage)
            ref = call.ref.model_copy(update={"seq": seq, "parent": seq - 1 or None})
            try:
                return await self._exist(call.model_copy(update={"ref": ref}))
            except TakenError as error:
                _log.info("number taken, will try the next", why=str(error))
            except (FencedError, RefusedError) as error:
                raise LateError(str(error)) from error
        raise ObjectStoreError(f"{lineage}: {PUBLISH_TRIES} numbers in a row were taken")

    async def _exist(self, call: PublishCall) -> SnapshotRef:
        """Publish; where the answer is lost, ask again with the same number: it is idempotent."""
        try:
            return await snapshot_store.publish(self._uplink, call)
        except AwayError:
            return await snapshot_store.publish(self._uplink, call)

    def _store(self, tenant: str, *, direct: bool) -> SpooledObjects:
        store = self._stores.get(tenant)
        if store is None:
            objects = self._direct if direct else self._relayed
            store = self._stores[tenant] = SpooledObjects(
                objects, self._spools / tenant, self._clock, most=self._spool_bytes
            )
        return store
