"""A spot machine hears from its own metadata that it is taken away, and the control plane hears."""

import asyncio
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from agent_world import World, eventually
from dsec.agent import spotwatch
from dsec.world.clock import SystemClock
from dsec.world.inprocess import InProcessNetwork
from dsec.world.instance import InstanceMetadata, MetadataError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

URL = "http://metadata"
ACTION = "meta-data/spot/instance-action"


@dataclass
class FakeMetadata:
    """IMDSv2: a session token first, then values by path."""

    values: dict[str, str] = field(default_factory=dict)
    tokens: int = 0
    broken: bool = False

    def app(self) -> Starlette:
        """Return the application."""
        return Starlette(
            routes=[
                Route("/latest/api/token", self._token, methods=["PUT"]),
                Route("/latest/{path:path}", self._value),
            ]
        )

    async def _token(self, request: Request) -> Response:
        if "x-aws-ec2-metadata-token-ttl-seconds" not in request.headers:
            return Response(status_code=400)
        self.tokens += 1
        return PlainTextResponse(f"token-{self.tokens}")

    async def _value(self, request: Request) -> Response:
        if self.broken:
            return Response(status_code=500)
        if request.headers.get("x-aws-ec2-metadata-token") != f"token-{self.tokens}":
            return Response(status_code=401)
        value = self.values.get(request.path_params["path"])
        return Response(status_code=404) if value is None else PlainTextResponse(value)


@pytest.fixture
def service() -> FakeMetadata:
    """The metadata of one machine."""
    return FakeMetadata()


@pytest.fixture
def metadata(service: FakeMetadata) -> InstanceMetadata:
    """A client of it."""
    return InstanceMetadata(InProcessNetwork({URL: service.app()}), URL)


async def test_notices_are_read(service: FakeMetadata, metadata: InstanceMetadata) -> None:
    """Nothing, then a rebalance, then the action with its deadline; one token serves all."""
    now = datetime(2027, 1, 1, tzinfo=UTC)
    assert await spotwatch.look(metadata, now) == []
    service.values["meta-data/events/recommendations/rebalance"] = json.dumps(
        {"noticeTime": "2026-12-31T23:59:00Z"}
    )
    (notice,) = await spotwatch.look(metadata, now)
    assert (notice.kind, notice.at) == ("rebalance", now - timedelta(minutes=1))
    service.values[ACTION] = json.dumps({"action": "terminate", "time": "2027-01-01T00:02:00Z"})
    action, _ = await spotwatch.look(metadata, now)
    assert action.deadline == now + timedelta(minutes=2)
    assert action.at == now
    assert service.tokens == 1
    await metadata.close()


@pytest.mark.parametrize("text", ["", "soon", "[]", '{"time": 7}', '{"action": "stop"}'])
async def test_an_unreadable_notice_stands(
    service: FakeMetadata, metadata: InstanceMetadata, text: str
) -> None:
    """The machine goes, even where nobody can read when."""
    service.values[ACTION] = text
    (notice,) = await spotwatch.look(metadata, datetime.now(UTC))
    assert (notice.kind, notice.deadline) == ("spot-notice", None)
    await metadata.close()


async def test_a_token_that_has_expired_is_renewed(
    service: FakeMetadata, metadata: InstanceMetadata
) -> None:
    """The next call gets a new one by itself."""
    await spotwatch.look(metadata, datetime.now(UTC))
    service.tokens += 1
    assert await spotwatch.look(metadata, datetime.now(UTC)) == []
    service.broken = True
    with pytest.raises(MetadataError, match="500"):
        await spotwatch.look(metadata, datetime.now(UTC))
    await metadata.close()


async def test_a_notice_is_in_state_and_history_once(
    tmp_path: Path,
    service: FakeMetadata,
    metadata: InstanceMetadata,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A long poll answers at once, and repeats of the notice write no more rows."""
    monkeypatch.setattr(spotwatch, "ASK_SECONDS", 0.02)
    world = World(tmp_path)
    agent = await world.start()
    watching = asyncio.create_task(spotwatch.watch(metadata, SystemClock(), agent.notice))
    before = await world.state()
    assert before.notices == []
    polling = asyncio.create_task(world.state(before.seq, wait=20))
    await asyncio.sleep(0.1)
    service.values[ACTION] = json.dumps({"action": "terminate", "time": "2027-01-01T00:02:00Z"})
    after = await asyncio.wait_for(polling, 5)
    assert [notice.kind for notice in after.notices] == ["spot-notice"]
    assert not after.full

    def told() -> int:
        return sum(row["kind"] == "node-spot-notice" for row in world.gateway.rows.values())

    await eventually(lambda: told() == 1)
    await asyncio.sleep(0.2)
    assert told() == 1
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await agent.close()
    await metadata.close()
