"""One correlation id leads from the call that asked for a sandbox to the sandbox's own output."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import structlog
from dsec.agent.rootfs import identity_text
from dsec.journal.history import AUDIT, Question, read
from sim_world import Sim, create
from structlog.testing import LogCapture

CHAIN = "trace-0123456789"
HEADER = {"X-Dsec-Correlation-Id": CHAIN}
DOCUMENT = """
metadata: {name: traced}
spec:
  image: base
  resources: {cpu: 1, memory: 256Mi}
"""


@pytest.fixture
def lines() -> Any:
    """Catch every log line, with what is bound to its context."""
    caught, before = LogCapture(), structlog.get_config()["processors"]
    structlog.configure(processors=[structlog.contextvars.merge_contextvars, caught])
    yield caught.entries
    structlog.configure(processors=before)


@pytest.mark.parametrize("way", ["experiment", "keyed create"])
def test_one_id_from_submit_to_the_returned_log(
    way: str, lines: list[dict[str, Any]], simulate: Callable[..., None]
) -> None:
    """Submit, placement, start, heartbeat, end and log: in answers, records, rows and log lines."""

    async def scenario() -> None:
        async with Sim() as sim:
            sim.start_controller()
            agent = await sim.add_node("n1")
            await sim.ready(nodes=1)
            if way == "experiment":
                call = {"url": "/v1/projects/lab/experiments", "content": DOCUMENT}
            else:
                call = {"url": "/v1/projects/lab/sandboxes", "json": {"creates": [create("k")]}}
            made = await sim.client.post(**call, headers=HEADER)
            assert made.is_success, made.text
            assert made.headers["X-Dsec-Correlation-Id"] == CHAIN
            if way == "experiment":
                record = await sim.experiment("traced")
                assert record["metadata"]["annotations"]["dsec.dev/correlation-id"] == CHAIN

            await sim.until(lambda: _registered(agent), 30)
            (entry,) = agent.core
            sandbox = entry.spec.identity.id
            listed = (await sim.client.get(f"/v1/projects/lab/sandboxes/{sandbox}")).json()
            assert listed["identity"]["correlationId"] == CHAIN
            assert listed["lastHeartbeat"]
            assert json.loads(identity_text(entry.spec))["correlation_id"] == CHAIN

            bindings = (await sim.control.gateway.views.fresh_log(newest=True)).state
            assert bindings.by_id[sandbox].spec.identity.correlation_id == CHAIN

            logs = await sim.client.get(f"/v1/projects/lab/sandboxes/{sandbox}/logs")
            assert b"simulated\n" in logs.content
            await sim.client.delete(f"/v1/projects/lab/sandboxes/{sandbox}")
            await sim.clock.sleep(15)

            told = {
                row.kind: row.body["correlationId"]
                async for row in read(sim.objects, Question(sandbox=sandbox))
            }
            wanted = {"sandbox-placed", "sandbox-bound", "sandbox-starting", "sandbox-running"}
            assert wanted <= set(told)
            assert set(told.values()) == {CHAIN}
            calls = [row.body async for row in read(sim.objects, Question(kind="call"), AUDIT)]
            assert CHAIN in [one["correlationId"] for one in calls if one["method"] == "POST"]

            trail = [_event(line) for line in lines if CHAIN in json.dumps(line, default=str)]
            assert ("call", "POST") in trail
            places = [trail.index(event) for event in TRAIL]
            assert places == sorted(places), trail

    simulate(scenario)


TRAIL = [
    ("bound", 1),
    ("sandbox starting", False),
    ("sandbox running", True),
    ("sandbox logs", None),
    ("stream", "logs"),
    ("sandbox ended", True),
]
"""Log lines in order: controller, agent twice, agent and gateway for the log, agent at the end.

The gateway's line about a call is written with its answer: of a keyed create after the placement.
"""


def _event(line: dict[str, Any]) -> tuple[str, Any]:
    """Return a line's event and the one field that tells it from others."""
    field = {"call": "method", "bound": "sandboxes", "stream": "verb"}.get(
        line["event"], "registered"
    )
    return line["event"], line.get(field)


def _registered(agent: Any) -> bool:
    return any(entry.status.registered for entry in agent.core)
