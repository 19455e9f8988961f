"""Simulated nodes: many agents in one process behind one port, each a node of its own.

`python -m dsec.agent.simnodes DIRECTORY` runs the nodes of DIRECTORY/plan.json and follows the file
while it changes; it ends when no node is left or on SIGTERM. DIRECTORY/report.json says how each
stands. The sandboxes of simulated nodes live in this process: when it ends they are lost, and a new
process closes them as such.
"""

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path

import structlog
from pydantic import Field, ValidationError

from dsec.agent.config import AgentConfig
from dsec.agent.serving import Host
from dsec.agent.spool import SpoolError
from dsec.agent.state import StateError, replace_durably
from dsec.agent.substrates.simulated import PROFILES, SimulatedSubstrate
from dsec.api.base import Model
from dsec.world import heap, logs
from dsec.world.clock import SystemClock, system_randomness

PLAN, REPORT, TOKENS = "plan.json", "report.json", "tokens"
PLAN_SECONDS = 0.5
"""How often the plan is looked at, and the report written."""

_log = structlog.get_logger(__name__)


class SimulatedNode(Model):
    """One node of the plan."""

    name: str = Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")
    profile: str
    region: str = "local"
    labels: dict[str, str] = {}
    pool: str = ""
    run_until: datetime | None = None


class Plan(Model):
    """What should run, and how it joins."""

    gateway: str
    ca: Path | None = None
    listen: str = "127.0.0.1:0"
    advertise: str = ""
    nodes: list[SimulatedNode] = []


class NodeReport(Model):
    """How one simulated node stands."""

    name: str
    profile: str
    registered: bool
    live: int = 0
    endpoint: str = ""


def read_plan(directory: Path) -> Plan | None:
    """Return the plan, or None where there is none. Raises ValueError naming the file."""
    path = directory / PLAN
    try:
        return Plan.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise ValueError(f"{path}: {error}") from error


def write_plan(directory: Path, plan: Plan) -> None:
    """Write the plan; a running process follows it. Raises StateError."""
    replace_durably(directory / PLAN, plan.model_dump_json(by_alias=True, indent=1).encode())


def store_token(directory: Path, node: str, token: str) -> None:
    """Keep the token that a node joins with, readable by its owner only. Raises StateError."""
    replace_durably(directory / TOKENS / node, token.encode())


def read_report(directory: Path) -> list[NodeReport]:
    """Return how the nodes stood at the last look; empty before the first."""
    try:
        data = json.loads((directory / REPORT).read_bytes())
    except (FileNotFoundError, ValueError):
        return []
    return [NodeReport.model_validate(item) for item in data]


def labels_of(node: SimulatedNode) -> dict[str, str]:
    """Return the labels that a simulated node registers with."""
    profile = PROFILES[node.profile]
    return {**profile.labels, "region": node.region, "simulated": "true", **node.labels}


class Fleet:
    """The nodes of one directory."""

    def __init__(self, directory: Path, plan: Plan) -> None:
        self._directory = directory
        self._clock = SystemClock()
        self._randomness = system_randomness()
        self._boot_id = self._randomness.randbytes(16).hex()
        self._running: dict[str, SimulatedNode] = {}
        self.host = Host(plan.listen, plan.advertise, self._clock, self._randomness)

    async def follow(self, plan: Plan) -> None:
        """Start the nodes that are new in the plan and stop those that are gone from it."""
        wanted = {node.name: node for node in plan.nodes}
        for name in [name for name in self._running if name not in wanted]:
            await self.host.remove(name)
            del self._running[name]
        for name, node in wanted.items():
            if name not in self._running:
                await self._add(plan, node)
                self._running[name] = node

    async def _add(self, plan: Plan, node: SimulatedNode) -> None:
        config = AgentConfig(
            state_dir=self._directory / "nodes" / node.name,
            gateway=plan.gateway,
            node_name=node.name,
            ca=plan.ca,
            token_file=self._directory / TOKENS / node.name,
            uid=f"simulated-{node.name}",
            pool=node.pool,
            labels=labels_of(node),
            run_until=node.run_until,
            # whoever simulates the machine ends it
            shutdown=["true"],
            durable=False,
        )
        substrate = SimulatedSubstrate(
            PROFILES[node.profile], self._clock, self._randomness, node=node.name
        )
        await self.host.add(config, substrate, boot_id=self._boot_id)

    def report(self) -> None:
        """Write how each node stands."""
        items = [
            NodeReport(
                name=name,
                profile=node.profile,
                registered=self.host.registered(name),
                live=self.host.nodes[name].agent.core.live,
                endpoint=self.host.endpoint(name),
            ).wire()
            for name, node in self._running.items()
        ]
        replace_durably(self._directory / REPORT, json.dumps(items).encode(), sync=False)


async def run(directory: Path) -> int:
    """Run the nodes of a directory until none is left or SIGTERM; return the exit code."""
    plan = read_plan(directory)
    if plan is None:
        sys.stderr.write(f"{directory / PLAN} does not exist\n")
        return 2
    fleet = Fleet(directory, plan)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    serving: asyncio.Task[None] | None = None
    try:
        while not stop.is_set() and plan is not None and plan.nodes:
            await fleet.follow(plan)
            fleet.report()
            serving = serving or asyncio.create_task(fleet.host.serve())
            if serving.done():
                serving.result()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), PLAN_SECONDS)
            plan = read_plan(directory)
    finally:
        if serving is not None:
            serving.cancel()
        await fleet.host.close()
        (directory / REPORT).unlink(missing_ok=True)
    return 0


def program(name: str, what: str, run: Callable[[Path], Awaitable[int]]) -> int:
    """Run a program on the directory that its one argument names; return its exit code.

    Every expected failure is one sentence, with `what` failed, and exit code 1 or 2.
    """

    async def whole() -> int:
        return await run(Path(sys.argv[1]))

    if len(sys.argv) != 2:  # noqa: PLR2004 - the program and its one argument
        sys.stderr.write(f"usage: python -m {name} DIRECTORY\n")
        return 2
    logs.configure()
    heap.settle()
    try:
        return asyncio.run(whole())
    except (ValueError, OSError, StateError, SpoolError) as error:
        sys.stderr.write(f"{what}: {error}\n")
        return 1


def main() -> int:
    """Run the program."""
    return program("dsec.agent.simnodes", "simulated nodes", run)


if __name__ == "__main__":
    sys.exit(main())
