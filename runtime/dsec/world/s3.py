"""Objects in an S3 bucket: boto3 in a pool of threads, with conditional puts.

The conditions rest on the server: If-None-Match and If-Match of PutObject. `probe` proves at the
start that the server keeps them, because a store that ignores them would fence nothing.
"""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from dsec.world.objects import NotFoundError, ObjectInfo, ObjectStoreError, PreconditionError
from dsec.world.s3config import CONNECT_SECONDS, S3Config

__all__ = ["S3Config", "S3Objects"]

THREADS = 32
READ_SECONDS = 30
LOST = frozenset({"PreconditionFailed", "412", "ConditionalRequestConflict", "409"})
ABSENT = frozenset({"NoSuchKey", "404", "NotFound"})

T = TypeVar("T")


class S3Objects:
    """One bucket of an S3 server."""

    def __init__(self, config: S3Config) -> None:
        self._bucket = config.bucket
        self._client: Any = boto3.client(
            "s3",
            endpoint_url=config.endpoint or None,
            region_name=config.region,
            aws_access_key_id=config.access_key or None,
            aws_secret_access_key=config.secret_key or None,
            config=Config(  # type: ignore[no-untyped-call]
                connect_timeout=CONNECT_SECONDS,
                read_timeout=READ_SECONDS,
                max_pool_connections=THREADS,
                # a repeat of a conditional put after a lost answer is the caller's to judge
                retries={"total_max_attempts": 1},
                s3={"addressing_style": "path" if config.endpoint else "auto"},
                # URLs too: the older form signs no headers, and the condition of a put is one
                signature_version="s3v4",
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="s3")

    def close(self) -> None:
        """Let the threads go."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def ensure_bucket(self) -> None:
        """Make the bucket where it is missing. Raises ObjectStoreError."""

        def ensure() -> None:
            try:
                self._client.head_bucket(Bucket=self._bucket)
            except ClientError as problem:
                if _code(problem) not in ABSENT | {"NoSuchBucket"}:
                    raise
                self._client.create_bucket(Bucket=self._bucket)

        await self._run(ensure)

    async def probe(self) -> None:
        """Prove that the server keeps conditions. Raises ObjectStoreError where it does not."""
        key = "probe/conditional-put"
        await self.put(key, b"present")
        try:
            with contextlib.suppress(PreconditionError):
                await self.put_if_absent(key, b"twice")
                raise ObjectStoreError("the object store ignores If-None-Match: it cannot be used")
            with contextlib.suppress(PreconditionError):
                await self.put_if_match(key, b"wrong", "0" * 32)
                raise ObjectStoreError("the object store ignores If-Match: it cannot be used")
        finally:
            await self.delete(key)

    async def get(self, key: str) -> tuple[bytes, str]:
        """Return content and etag. Raises NotFoundError, ObjectStoreError."""

        def read() -> tuple[bytes, str]:
            answer = self._client.get_object(Bucket=self._bucket, Key=key)
            return answer["Body"].read(), _etag(answer["ETag"])

        return await self._run(read, key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return a part of the content. Raises NotFoundError, ObjectStoreError."""

        def read() -> bytes:
            part = f"bytes={start}-{start + length - 1}"
            answer = self._client.get_object(Bucket=self._bucket, Key=key, Range=part)
            return answer["Body"].read()  # type: ignore[no-any-return]

        return await self._run(read, key)

    async def size(self, key: str) -> int:
        """Return the size in bytes. Raises NotFoundError, ObjectStoreError."""
        return await self._run(
            lambda: int(self._client.head_object(Bucket=self._bucket, Key=key)["ContentLength"]),
            key,
        )

    async def modified(self, key: str) -> datetime:
        """Return when an object was last written, by the server's clock (UTC).

        Raises NotFoundError, ObjectStoreError.
        """

        def look() -> datetime:
            found: datetime = self._client.head_object(Bucket=self._bucket, Key=key)["LastModified"]
            return found

        return await self._run(look, key)

    async def put(self, key: str, data: bytes) -> str:
        """Write without condition and return the etag."""
        return await self._put(key, data)

    async def put_if_absent(self, key: str, data: bytes) -> str:
        """Create. Raises PreconditionError when the key exists."""
        return await self._put(key, data, IfNoneMatch="*")

    async def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """Replace exactly that version. Raises PreconditionError."""
        try:
            return await self._put(key, data, IfMatch=f'"{etag}"')
        except NotFoundError:
            raise PreconditionError(key) from None

    async def list(self, prefix: str, *, start_after: str = "") -> list[ObjectInfo]:
        """Return all objects below a prefix, in key order, after a key."""

        def pages() -> list[ObjectInfo]:
            found = []
            start = {"StartAfter": start_after} if start_after else {}
            paginator = self._client.get_paginator("list_objects_v2")
            for page in paginator.paginate(Bucket=self._bucket, Prefix=prefix, **start):
                found += [
                    ObjectInfo(item["Key"], _etag(item["ETag"]), item["Size"])
                    for item in page.get("Contents", [])
                ]
            return sorted(found, key=lambda info: info.key.encode())

        return await self._run(pages, prefix)

    async def delete(self, key: str) -> None:
        """Remove; removing what is absent is no error."""
        with contextlib.suppress(NotFoundError):
            await self._run(
                lambda: self._client.delete_object(Bucket=self._bucket, Key=key) and None, key
            )

    async def presign(self, method: str, key: str, seconds: int) -> tuple[str, dict[str, str]]:
        """Return a URL for GET, or for a PUT of what does not exist, and the headers it needs."""
        parameters = {"Bucket": self._bucket, "Key": key}
        headers = {}
        if method == "PUT":
            # a signed header: without it the server refuses
            parameters["IfNoneMatch"] = headers["If-None-Match"] = "*"
        name = {"GET": "get_object", "PUT": "put_object"}[method]
        url = await self._run(
            lambda: str(
                self._client.generate_presigned_url(name, Params=parameters, ExpiresIn=seconds)
            ),
            key,
        )
        return url, headers

    async def _put(self, key: str, data: bytes, **condition: str) -> str:
        def write() -> str:
            answer = self._client.put_object(Bucket=self._bucket, Key=key, Body=data, **condition)
            return _etag(answer["ETag"])

        return await self._run(write, key)

    async def _run(self, work: Callable[[], T], key: str = "") -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        except ClientError as problem:
            code = _code(problem)
            if code in LOST:
                raise PreconditionError(key) from problem
            if code in ABSENT:
                raise NotFoundError(key) from problem
            raise ObjectStoreError(f"{key}: {problem}") from problem
        except (BotoCoreError, OSError) as problem:
            raise ObjectStoreError(f"{key}: {problem}") from problem


def _code(problem: ClientError) -> str:
    return str(problem.response.get("Error", {}).get("Code", ""))


def _etag(raw: str) -> str:
    return raw.strip('"')
