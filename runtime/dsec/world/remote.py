"""Stores of other regions, opened by what a record says of them; credentials come from Secrets."""

import base64
import binascii
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from dsec.api.replication import ReplicationDestination
from dsec.world.objects import ObjectStore, ObjectStoreError
from dsec.world.records import RecordNotFoundError, Records
from dsec.world.s3 import S3Config, S3Objects
from dsec.world.s3bytes import S3Bytes

OpenStore = Callable[[ReplicationDestination], Awaitable[ObjectStore]]
"""Returns the store of a destination. Raises ObjectStoreError, RecordsError."""


@dataclass(slots=True)
class RemoteStores:
    """Buckets of other regions. Those that were opened are used again."""

    records: Records
    namespace: str
    _open: dict[S3Config, S3Bytes] = field(default_factory=dict)

    async def open(self, destination: ReplicationDestination) -> ObjectStore:
        """Return a store; its bucket is made where it is missing.

        Raises ObjectStoreError, also without its Secret, and RecordsError.
        """
        access, secret = await self._keys(destination)
        config = S3Config(
            destination.bucket, destination.endpoint, destination.region, access, secret
        )
        found = self._open.get(config)
        if found is None:
            control = S3Objects(config)
            try:
                await control.ensure_bucket()
                # copies rest on conditional writes: a store that ignores them is none
                await control.probe()
            finally:
                control.close()
            found = self._open[config] = S3Bytes(config)
        return found

    async def _keys(self, destination: ReplicationDestination) -> tuple[str, str]:
        if destination.secret is None:
            return "", ""
        where = f"Secret {destination.secret} in {self.namespace}"
        try:
            secret = await self.records.get("Secret", destination.secret, self.namespace)
            data = secret.get("data") or {}
            access, key = (
                base64.b64decode(data[name], validate=True).decode().strip()
                for name in ("accessKey", "secretKey")
            )
        except RecordNotFoundError:
            raise ObjectStoreError(f"{where}: there is none") from None
        except (KeyError, ValueError, binascii.Error):
            raise ObjectStoreError(f"{where}: accessKey and secretKey are wanted in it") from None
        return access, key
