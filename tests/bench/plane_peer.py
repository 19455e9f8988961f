"""The whole control plane beside the peer: gateway, controllers, object store, simulated nodes.

One API server serves both; here it keeps the few records of nodes and tenants.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cluster import ApiServer
from control_plane import ADMIN, Plane, control_plane
from dsec.agent.simnodes import Plan, SimulatedNode, read_report, store_token, write_plan
from dsec.agent.substrates.simulated import PROFILES
from dsec.api.sandbox import Resources, SandboxState
from dsec.api.wire import KeyedCreate
from dsec.client import AsyncClient, Context

PROFILE = "cpu"
CORES, GIB = PROFILES[PROFILE].cpu_milli // 1000, PROFILES[PROFILE].memory_bytes >> 30
ASKED = Resources(cpu_milli=100, memory_bytes=1 << 26, pids=16, disk_bytes=1 << 20)
# no registry is asked for an image that is named by its digest
IMAGE = f"registry.test/base@sha256:{'1' * 64}"
CALL = 500
"""Creates in one call; where there are several, they are made at once."""
SIMULATED = {"dsec.dev/simulated": "true"}
NODES_SECONDS = 300


class PlanePeer:
    """A running control plane whose nodes are ready."""

    def __init__(self, plane: Plane) -> None:
        self._context = Context(
            server=plane.server, api_key=ADMIN, project="lab", ca_file=str(plane.ca)
        )

    async def create(self, names: Sequence[str]) -> float:
        """Create sandboxes; return the seconds until the last is journalled and acknowledged.

        Raises RuntimeError where one has not become a sandbox of a node.
        """
        creates = [
            KeyedCreate(key=name, image=IMAGE, resources=ASKED, labels=SIMULATED) for name in names
        ]
        async with AsyncClient(self._context) as dsec:
            start = time.perf_counter()
            calls = [creates[at : at + CALL] for at in range(0, len(creates), CALL)]
            parts = await asyncio.gather(*(dsec.create_batch(call) for call in calls))
            seconds = time.perf_counter() - start
        answers = [answer for part in parts for answer in part]
        # "exists": a call whose acknowledgement was late has been repeated, by its keys
        lost = [one for one in answers if one.outcome not in {"bound", "exists"} or not one.node]
        if lost:
            raise RuntimeError(f"{len(lost)} of {len(names)} are not there: {lost[0]}")
        return seconds

    async def wrong(self, asked: int) -> list[str]:
        """Say what was not allowed of all that lives now, as the journal and the agents tell it."""
        async with AsyncClient(self._context) as dsec:
            live = await dsec.sandboxes()
        found = []
        if len({one.identity.id for one in live}) != asked:
            found.append(f"{len(live)} sandboxes for {asked} keys")
        found += [
            f"{one.identity.id} is {one.state} on {one.node or 'no node'}"
            for one in live
            if not one.node or one.state in {SandboxState.ENDED, SandboxState.UNKNOWN}
        ]
        most = min(CORES * 1000 // ASKED.cpu_milli, (GIB << 30) // ASKED.memory_bytes)
        for node, count in Counter(one.node for one in live).items():
            if count > most:
                found.append(f"{node} has {count}, which is more than {most}")
        return found


@contextmanager
def plane_peer(apiserver: ApiServer, folder: Path, nodes: int) -> Iterator[PlanePeer]:
    """Run the control plane in a folder with that many nodes; end it afterwards."""
    with control_plane(apiserver, folder) as plane:
        directory = folder / "nodes"
        tokens = plane.join_tokens(nodes)
        names = [f"sim-{number}" for number in range(nodes)]
        for name, token in zip(names, tokens, strict=True):
            store_token(directory, name, token)
        plan = [SimulatedNode(name=name, profile=PROFILE) for name in names]
        write_plan(directory, Plan(gateway=plane.server, ca=plane.ca, nodes=plan))
        path = {"PYTHONPATH": str(Path(__file__).parent)}
        plane.start("nodes", ["still_nodes", str(directory)], path)
        with plane.client() as client:

            def ready() -> bool:
                if sum(one.registered for one in read_report(directory)) < nodes:
                    return False
                items = client.get("/v1/nodes").json()["items"]
                conditions = [c for one in items for c in one["status"].get("conditions", [])]
                good = [c for c in conditions if (c["type"], c["status"]) == ("Ready", "True")]
                return len(good) == nodes

            plane.until("nodes", ready, NODES_SECONDS)
        yield PlanePeer(plane)
