"""How nodes come and go by their owner's word: join tokens, and the removal of a record."""

from datetime import timedelta

from pydantic import Field
from starlette.responses import JSONResponse, Response

from dsec.api.base import WireModel
from dsec.gateway.calls import Call


class TokensCall(WireModel):
    """How many tokens, for which pool, valid for how many seconds."""

    count: int = Field(default=1, ge=1, le=1000)
    pool: str = ""
    seconds: int = Field(default=3600, ge=1, le=7 * 86_400)


async def create(call: Call) -> Response:
    """Return fresh join tokens."""
    asked = await call.model(TokensCall)
    gateway = call.gateway
    until = gateway.clock.now() + timedelta(seconds=asked.seconds)
    tokens = [
        gateway.ca.join_token(
            number=gateway.randomness.randbytes(16).hex(), pool=asked.pool, until=until
        )
        for _ in range(asked.count)
    ]
    return JSONResponse({"tokens": tokens, "expires": until.isoformat()}, 201)


async def remove(call: Call) -> Response:
    """Forget a node that is gone for good; repeating it changes nothing.

    What it ran is lost, and its certificate counts no more: an agent that still runs there needs a
    new join token, or comes back by its pod's token.
    """
    await call.gateway.records.delete("SandboxNode", call.path("node"))
    return JSONResponse({}, 202)
