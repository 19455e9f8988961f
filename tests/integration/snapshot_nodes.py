"""A gateway with a store of snapshots for agent tests: real repositories, in memory."""

import asyncio
import base64
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_world import GATEWAY_URL, FakeGateway, eventually
from dsec.agent.agent import Agent, run_agent
from dsec.agent.config import AgentConfig
from dsec.agent.entry import Entry, Stop
from dsec.api.reasons import EndReason
from dsec.api.sandbox import End, SandboxSpec, SandboxState
from dsec.api.snapshot import SnapshotKind, SnapshotRef
from dsec.api.snapshot_store import (
    Access,
    AccessCall,
    PublishCall,
    Published,
    StoredObject,
    StoredObjects,
)
from dsec.snapshots.keys import FileKeys
from dsec.snapshots.leases import DoomedError, confirm
from dsec.snapshots.refs import FencedError, TakenError, list_refs, publish
from dsec.snapshots.repository import Repository
from dsec.world.clock import SystemClock, system_randomness
from dsec.world.inprocess import InProcessNetwork
from dsec.world.memory import MemoryObjects
from dsec.world.objects import NotFoundError, PreconditionError
from dsec.world.substrate import Substrate
from dsec.world.tls import Peer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

PREFIX = "snapshots/research/"


def lineage(sandbox: str) -> str:
    """Return the lineage of a sandbox that was created directly."""
    return f"sb/{sandbox}"


@dataclass
class SnapshotGateway(FakeGateway):
    """Serves every node everything; `lineages` names others than a sandbox's own."""

    objects: MemoryObjects = field(default_factory=MemoryObjects)
    lineages: dict[str, str] = field(default_factory=dict)
    published: list[SnapshotRef] = field(default_factory=list)
    needs: dict[str, set[str]] = field(default_factory=dict)
    """Packs of each published snapshot, by its manifest."""
    late: set[str] = field(default_factory=set)
    """Sandboxes whose copies count no more."""
    silent: bool = False
    """Nothing about snapshots is answered."""

    def app(self) -> ASGIApp:
        """Return the application."""
        base = "/agent/v1/snapshots"
        ours = [
            Route(f"{base}/access", self._access, methods=["POST"]),
            Route(f"{base}/publish", self._publish, methods=["POST"]),
            Route(f"{base}/objects", self._list, methods=["GET"]),
            Route(f"{base}/objects/{{key:path}}", self._object, methods=["GET", "PUT", "DELETE"]),
        ]
        return Starlette(routes=[*ours, Mount("/", super().app())])

    async def refs(self, of: str) -> list[SnapshotRef]:
        """Return what exists of a lineage."""
        return list((await list_refs(self.objects, PREFIX, of)).refs)

    async def repository(self) -> Repository:
        """Open the tenant's repository."""
        keys = FileKeys((("k", b"k" * 32),), system_randomness())
        return await Repository.open(self.objects, PREFIX, keys, SystemClock(), system_randomness())

    async def _access(self, request: Request) -> Response:
        if self.silent:
            return Response(status_code=503)
        sandbox = AccessCall.model_validate_json(await request.body()).sandbox
        if sandbox in self.late:
            return JSONResponse({"code": "fenced", "message": "superseded"}, 409)
        key = (await self.repository()).data_key
        answer = Access(
            tenant="research",
            lineage=self.lineages.get(sandbox, lineage(sandbox)),
            prefix=PREFIX,
            key=base64.b64encode(key).decode(),
            region="local",
        )
        return JSONResponse(answer.wire())

    async def _publish(self, request: Request) -> Response:
        if self.silent:
            return Response(status_code=503)
        call = PublishCall.model_validate_json(await request.body())
        if call.ref.sandbox in self.late:
            return JSONResponse({"code": "fenced", "message": "superseded"}, 409)
        try:
            stored = await publish(self.objects, PREFIX, call.ref)
            await confirm(self.objects, PREFIX, call.collector_epoch, call.packs)
        except TakenError as problem:
            return JSONResponse({"code": "taken", "message": str(problem)}, 409)
        except FencedError as problem:
            return JSONResponse({"code": "fenced", "message": str(problem)}, 409)
        except DoomedError as problem:
            return JSONResponse({"code": "doomed", "message": str(problem)}, 409)
        self.published.append(stored)
        self.needs[stored.manifest] = set(call.packs)
        return JSONResponse(Published(ref=stored).wire())

    async def _list(self, request: Request) -> Response:
        if self.silent:
            return Response(status_code=503)
        found = await self.objects.list(request.query_params["prefix"])
        listed = [StoredObject(key=one.key, etag=one.etag, size=one.size) for one in found]
        return JSONResponse(StoredObjects(objects=listed).wire())

    async def _object(self, request: Request) -> Response:
        if self.silent:
            return Response(status_code=503)
        key = request.path_params["key"]
        try:
            if request.method == "GET":
                data, _ = await self.objects.get(key)
                part = request.headers.get("range", "").removeprefix("bytes=")
                if part:
                    start, last = map(int, part.split("-"))
                    return Response(data[start : last + 1], 206)
                return Response(data)
            if request.method == "DELETE":
                await self.objects.delete(key)
            elif request.headers.get("if-none-match") == "*":
                await self.objects.put_if_absent(key, await request.body())
            else:
                await self.objects.put(key, await request.body())
        except NotFoundError:
            return JSONResponse({"code": "not-found", "message": key}, 404)
        except PreconditionError:
            return JSONResponse({"code": "exists", "message": key}, 412)
        return JSONResponse({})


class Site:
    """One node with an agent of its own, at a gateway that several may share."""

    def __init__(self, gateway: SnapshotGateway, substrate: Substrate, folder: Path) -> None:
        self.gateway = gateway
        self.substrate = substrate
        self.folder = folder
        self.name = folder.name
        self.agent: Agent | None = None

    async def start(self, **settings: Any) -> None:
        """Start the agent."""
        config = AgentConfig(
            state_dir=self.folder,
            gateway=GATEWAY_URL,
            node_name=self.name,
            durable=False,
            **settings,
        )
        network = InProcessNetwork({GATEWAY_URL: self.gateway.app()}, peer=Peer(self.name))
        self.agent = await run_agent(
            config, self.substrate, network, SystemClock(), system_randomness(), boot_id="boot"
        )

    async def create(self, spec: SandboxSpec) -> str:
        """Create a sandbox, wait until it has begun, and return its id."""
        answers = await self._agent.create([spec])
        assert answers[0].accepted, answers
        entry = self.entry(spec.identity.id)
        await eventually(lambda: SandboxState.RUNNING in entry.status.times or not entry.live)
        return spec.identity.id

    async def ended(self, sandbox: str) -> End:
        """Wait for its end."""
        await eventually(lambda: not self.entry(sandbox).live)
        end = self.entry(sandbox).status.end
        assert end is not None
        return end

    async def stop(self, sandbox: str) -> End:
        """Stop it and wait for its end."""
        await self._agent.stop([sandbox], Stop(EndReason.STOPPED, "the test", 1.0))
        return await self.ended(sandbox)

    async def snapshot(
        self, sandbox: str, kind: SnapshotKind | None = None, *, hold: bool = False
    ) -> SnapshotRef:
        """Take one now."""
        return await self._agent.snapshot(sandbox, kind, reason="asked", hold=hold)

    async def close(self) -> None:
        """Stop the agent; sandboxes go on."""
        if self.agent is not None:
            await self.agent.close()
            self.agent = None

    def entry(self, sandbox: str) -> Entry:
        """Return what the node knows of a sandbox."""
        entry = self._agent.core.get(sandbox)
        assert entry is not None
        return entry

    async def rows(self, sandbox: str, kind: str) -> list[dict[str, Any]]:
        """Return the bodies of a sandbox's rows of one kind, also of what is not shipped yet."""
        spool = self._agent.spool
        await spool.commit()
        shipped = [row for row in self.gateway.rows.values() if row.get("sandbox") == sandbox]
        known = {row["seq"] for row in shipped}
        waiting = [
            row
            for row in spool.unshipped(10_000)
            if row["sandbox"] == sandbox and row["seq"] not in known
        ]
        found = sorted([*shipped, *waiting], key=lambda row: row["seq"])
        return [row["body"] for row in found if row["kind"] == kind]

    async def row(self, sandbox: str, kind: str) -> dict[str, Any]:
        """Wait for the first row of one kind, and return its body."""
        async with asyncio.timeout(60):
            while not (found := await self.rows(sandbox, kind)):  # noqa: ASYNC110 - a file tells it
                await asyncio.sleep(0.02)
        return found[0]

    async def kinds(self, sandbox: str) -> list[str]:
        """Return the kinds of a sandbox's rows in order, once all are shipped."""
        await eventually(lambda: self._agent.spool.backlog == 0)
        return self.gateway.history(sandbox)

    @property
    def _agent(self) -> Agent:
        assert self.agent is not None
        return self.agent
