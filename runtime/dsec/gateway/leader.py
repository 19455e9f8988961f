"""The way to the leading controller: found by the Lease, asked again when it moved."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx2
from pydantic import BaseModel, ValidationError

from dsec.api.internal import (
    ENDPOINT_ANNOTATION,
    LEASE,
    CreatesCall,
    DumpCall,
    EndCall,
    EndOutcome,
    ExtendAsk,
    ExtendOutcome,
    LeaseAnswer,
    LeaseCall,
    MoveAsk,
    MoveOutcome,
)
from dsec.api.wire import ErrorBody, KeyedAnswers
from dsec.gateway.errors import ApiError, away
from dsec.placement.dumps import DecisionDump
from dsec.world.clock import Clock
from dsec.world.network import Network
from dsec.world.records import RecordNotFoundError, Records, RecordsError

LEASE_SECONDS = 1.0
CALL_SECONDS = 20.0
"""Longer than the leader waits for agents before it answers `unknown`."""
SAVE_SECONDS = 900.0

M = TypeVar("M", bound=BaseModel)


@dataclass(slots=True)
class Leader:
    """Calls of one gateway to whoever leads."""

    records: Records
    network: Network
    clock: Clock
    namespace: str
    secret: str
    _clients: dict[str, httpx2.AsyncClient] = field(default_factory=dict)
    _endpoint: str = ""
    _epoch: int = 0
    _read: float | None = None
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def create(self, call: CreatesCall) -> KeyedAnswers:
        """Have a batch bound. Raises ApiError: 503 without a leader, 422 refused for good."""
        return await self._call("/internal/v1/creates", call, KeyedAnswers)

    async def end(self, call: EndCall) -> EndOutcome:
        """Have sandboxes ended. Raises ApiError."""
        return await self._call("/internal/v1/end", call, EndOutcome)

    async def extend(self, ask: ExtendAsk) -> ExtendOutcome:
        """Have a sandbox left alone by the reaper. Raises ApiError."""
        return await self._call("/internal/v1/extend", ask, ExtendOutcome)

    async def move(self, ask: MoveAsk) -> MoveOutcome:
        """Have a sandbox moved, put to sleep or woken; saving may take minutes. Raises ApiError."""
        return await self._call("/internal/v1/move", ask, MoveOutcome, SAVE_SECONDS)

    async def lease(self, call: LeaseCall) -> LeaseAnswer:
        """Have quota and keys lent, or taken back. Raises ApiError."""
        return await self._call("/internal/v1/leases", call, LeaseAnswer)

    async def dump(self) -> DecisionDump:
        """Have the next round of decisions dumped. Raises ApiError: 422 where nothing waits."""
        return await self._call("/internal/v1/dump", DumpCall(), DecisionDump)

    async def epoch(self) -> int:
        """Return the newest epoch known. Raises ApiError 503."""
        await self._find()
        return self._epoch

    async def close(self) -> None:
        """Close the connections."""
        clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            await client.aclose()

    async def _find(self) -> str:
        async with self._reading:
            now = self.clock.monotonic()
            if self._read is None or now - self._read > LEASE_SECONDS:
                try:
                    lease = await self.records.get("Lease", LEASE, self.namespace)
                except RecordNotFoundError:
                    raise away("no controller has led yet") from None
                except RecordsError as problem:
                    raise away(f"the record store is away: {problem}") from problem
                annotations = lease["metadata"].get("annotations", {})
                self._endpoint = annotations.get(ENDPOINT_ANNOTATION, "")
                self._epoch = int(lease.get("spec", {}).get("leaseTransitions") or 0)
                self._read = now
            return self._endpoint

    async def _moved(self, endpoint: str) -> None:
        """Return once the leader is elsewhere."""
        while True:
            await self.clock.sleep(LEASE_SECONDS)
            try:
                if await self._find() != endpoint:
                    return
            except ApiError:
                # without the Lease nobody else is known: the call goes on waiting
                continue

    async def _while_leading(
        self, endpoint: str, request: Coroutine[Any, Any, httpx2.Response]
    ) -> httpx2.Response:
        """Wait for an answer, but not of a leader that was replaced.

        A process that stands still takes calls and never answers; who waited for it to time out
        would be served twice as late as the new leader allows.
        """
        asking, moving = (
            asyncio.ensure_future(request),
            asyncio.ensure_future(self._moved(endpoint)),
        )
        try:
            await asyncio.wait({asking, moving}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise away("another controller leads now; repeat the call")
            return asking.result()
        finally:
            asking.cancel()
            moving.cancel()
            await asyncio.gather(asking, moving, return_exceptions=True)

    async def _call(
        self, path: str, call: BaseModel, answer: type[M], seconds: float = CALL_SECONDS
    ) -> M:
        endpoint = await self._find()
        client = self._clients.get(endpoint)
        if client is None:
            client = self._clients[endpoint] = self.network.client(endpoint, timeout=CALL_SECONDS)
        try:
            response = await self._while_leading(
                endpoint,
                client.post(
                    path,
                    content=call.model_dump_json(by_alias=True, exclude_none=True),
                    headers={
                        "Authorization": f"Bearer {self.secret}",
                        "Content-Type": "application/json",
                    },
                    timeout=seconds,
                ),
            )
        except httpx2.TransportError as problem:
            self._read = None
            raise away(f"the leading controller is silent: {problem}") from problem
        try:
            if response.is_success:
                return answer.model_validate_json(response.content)
            error = ErrorBody.model_validate_json(response.content)
        except ValidationError as problem:
            raise away(f"the leading controller answered {response.status_code}") from problem
        if response.status_code == httpx2.codes.SERVICE_UNAVAILABLE:
            self._read = None
            raise away(error.message)
        raise ApiError(response.status_code, error.code, error.message, error.details)
