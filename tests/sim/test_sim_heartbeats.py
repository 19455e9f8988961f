"""Heartbeats reach whoever looks at a sandbox, soon, and without a call for each."""

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta

from dsec.agent.agent import Agent
from dsec.agent.feed import BEAT_SECONDS
from dsec.world.agents import POLL_WAIT
from dsec.world.tls import peer_of
from sim_world import Sim, create
from starlette.types import Receive, Scope, Send

PERIOD = 3.0
SANDBOXES = 20


def test_the_last_heartbeat_moves_while_a_sandbox_beats(simulate: Callable[..., None]) -> None:
    """What the gateway shows is never older than a period and the time that beats are gathered.

    Twenty sandboxes that beat every three seconds cost the gateway one poll in five, and the
    controller, who does not ask for beats, none.
    """

    async def scenario() -> None:
        async with Sim() as sim:
            sim.start_controller()
            agent = await sim.add_node("n1")
            await sim.ready(nodes=1)
            body = {"creates": [create(f"k{number}") for number in range(SANDBOXES)]}
            assert (await sim.client.post("/v1/projects/lab/sandboxes", json=body)).is_success
            await sim.until(lambda: _registered(agent) == SANDBOXES, 30)
            sim.tasks.append(asyncio.create_task(_beat(sim)))
            await sim.clock.sleep(30)

            polls = _count_polls(sim, "n1")
            seen: set[datetime] = set()
            for _ in range(60):
                await sim.clock.sleep(1)
                items = (await sim.client.get("/v1/projects/lab/sandboxes")).json()["items"]
                assert len(items) == SANDBOXES
                lasts = [datetime.fromisoformat(one["lastHeartbeat"]) for one in items]
                late = sim.clock.now() - min(lasts)
                assert late <= timedelta(seconds=PERIOD + BEAT_SECONDS + 0.5), late
                seen |= set(lasts)
            assert len(seen) >= 60 / (PERIOD + BEAT_SECONDS)
            assert 1 <= polls["gateway"] <= 60 / BEAT_SECONDS + 2
            assert 1 <= polls["c1"] <= 60 / POLL_WAIT + 2

    simulate(scenario)


def _registered(agent: Agent) -> int:
    return sum(entry.status.registered for entry in agent.core)


def _count_polls(sim: Sim, node: str) -> Counter[str]:
    """Return how often each caller asks a node for its state, from now on."""
    polls: Counter[str] = Counter()
    app = sim.routes[f"http://nodes/n/{node}"]

    async def counted(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].endswith("/state"):
            polls[getattr(peer_of(scope), "name", "")] += 1
        await app(scope, receive, send)

    sim.routes[f"http://nodes/n/{node}"] = counted
    return polls


async def _beat(sim: Sim) -> None:
    """Let all sandboxes of n1 beat, for ever."""
    while True:
        for entry in sim.agents["n1"].core:
            sim.substrates["n1"].on_heartbeat(entry.spec.identity.id, {})
        await sim.clock.sleep(PERIOD)
