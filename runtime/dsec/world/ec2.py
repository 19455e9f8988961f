"""The AWS API: boto3 in a pool of threads, every fault as one exception with the provider's code.

Nothing is repeated here: whether a call may be repeated, and with which token, its caller knows.
A fault after the request may have left is `unsure`: the work may have been done.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, TypeVar

import boto3.session
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
)

THREADS = 16
CONNECT_SECONDS, READ_SECONDS = 5, 30
PRICING_REGION = "us-east-1"
"""The price list is served from few regions; this one has every region's prices."""
_SERVER_ERROR = 500
_NOT_SENT = (ConnectTimeoutError, EndpointConnectionError, ParamValidationError)
_NO_IDENTITY = (NoCredentialsError, PartialCredentialsError)

T = TypeVar("T")


class CloudError(Exception):
    """A call that brought no answer of the kind that was asked for."""

    def __init__(self, code: str, message: str, *, unsure: bool = False, status: int = 0) -> None:
        """Keep the provider's code (`connection`, `timeout`, `credentials`, `parameter`: ours)."""
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.unsure = unsure
        self.status = status


@dataclass(frozen=True, slots=True)
class AwsConfig:
    """One region of one account. Empty keys: the environment's own identity."""

    region: str
    endpoint: str = ""
    """Empty: the region's own. One address serves every service, as test servers do."""
    access_key: str = ""
    secret_key: str = ""
    session_token: str = ""
    connect_seconds: float = CONNECT_SECONDS
    read_seconds: float = READ_SECONDS


class AwsApi:
    """Calls of any service of one region. `close` lets the threads go."""

    def __init__(self, config: AwsConfig) -> None:
        self.config = config
        # boto3 has neither types nor a list of what it exports
        self._session: Any = boto3.session.Session(  # type: ignore[no-untyped-call]
            aws_access_key_id=config.access_key or None,
            aws_secret_access_key=config.secret_key or None,
            aws_session_token=config.session_token or None,
            region_name=config.region,
        )
        self._clients: dict[str, Any] = {}
        # a session must not make two clients at once
        self._lock = Lock()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="aws")

    def close(self) -> None:
        """Let the threads go; calls under way are not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """Make one call, for example `call("ec2", "run_instances", ...)`. Raises CloudError."""

        def work() -> dict[str, Any]:
            answer: dict[str, Any] = getattr(self._client(service), operation)(**parameters)
            return answer

        return await self._run(work)

    async def pages(
        self, service: str, operation: str, key: str, **parameters: Any
    ) -> list[dict[str, Any]]:
        """Return the items below `key` of every page. Raises CloudError, also midway."""

        def work() -> list[dict[str, Any]]:
            paginator = self._client(service).get_paginator(operation)
            return [item for page in paginator.paginate(**parameters) for item in page.get(key, [])]

        return await self._run(work)

    async def signed_url(
        self, service: str, operation: str, headers: dict[str, str], seconds: int
    ) -> str:
        """Return a URL that makes one GET call with this identity; `headers` are signed with it.

        Whoever holds the URL must send the same headers. Raises CloudError.
        """

        def work() -> str:
            return self._presign(service, operation, headers, seconds)

        return await self._run(work)

    def _presign(self, service: str, operation: str, headers: dict[str, str], seconds: int) -> str:
        from botocore.auth import SigV4QueryAuth
        from botocore.awsrequest import AWSRequest

        credentials = self._session.get_credentials()
        if credentials is None:
            raise NoCredentialsError
        version = self._client(service).meta.service_model.api_version
        request: Any = AWSRequest(  # type: ignore[no-untyped-call]
            method="GET",
            url=self._client(service).meta.endpoint_url.rstrip("/") + "/",
            params={"Action": operation, "Version": version},
            headers=headers,
        )
        signer: Any = SigV4QueryAuth(  # type: ignore[no-untyped-call]
            credentials.get_frozen_credentials(), service, self.config.region, expires=seconds
        )
        signer.add_auth(request)
        return str(request.prepare().url)

    def _client(self, service: str) -> Any:
        with self._lock:
            if service not in self._clients:
                region = PRICING_REGION if service == "pricing" else self.config.region
                self._clients[service] = self._session.client(
                    service,
                    region_name=region,
                    endpoint_url=self.config.endpoint or None,
                    config=Config(  # type: ignore[no-untyped-call]
                        connect_timeout=self.config.connect_seconds,
                        read_timeout=self.config.read_seconds,
                        max_pool_connections=THREADS,
                        # a repeat after a lost answer needs the token, which the caller has
                        retries={"total_max_attempts": 1},
                    ),
                )
            return self._clients[service]

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, partial(work))
        except ClientError as problem:
            error = problem.response.get("Error", {})
            status = int(problem.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            raise CloudError(
                str(error.get("Code", "")) or "unknown",
                str(error.get("Message", problem)),
                # the API itself says that a 5xx may have been carried out
                unsure=status >= _SERVER_ERROR,
                status=status,
            ) from problem
        except _NO_IDENTITY as problem:
            raise CloudError("credentials", str(problem)) from problem
        except _NOT_SENT as problem:
            code = "parameter" if isinstance(problem, ParamValidationError) else "connection"
            raise CloudError(code, str(problem)) from problem
        except (BotoCoreError, OSError, ValueError) as problem:
            kind = "timeout" if "imeout" in type(problem).__name__ else "connection"
            raise CloudError(kind, str(problem), unsure=True) from problem
