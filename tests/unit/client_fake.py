"""A gateway for tests of the client and the command line: the HTTP API from the wire models.

It keeps experiments and creates in memory, completes every replica at once, and can be told to
lose answers: `lose` holds how many of the next answers to a path are cut after they took effect.
"""

import asyncio
import hashlib
import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

from dsec.api.changes import changes
from dsec.api.decisions import SandboxDecision
from dsec.api.describe import describe
from dsec.api.frames import Decoder, ExecCall, ExecEnd, FrameType, encode, encode_end
from dsec.api.reaping import Extension
from dsec.api.records import Experiment
from dsec.api.sandbox import End, Evidence, Identity, Resources, SandboxState, SandboxStatus
from dsec.api.wire import CreateBatch, ErrorBody, KeyedAnswer, KeyedAnswers
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

START = datetime(2026, 1, 1, tzinfo=UTC)
KEY = "k-right"
RESOURCES = Resources(cpu_milli=500, memory_bytes=64 << 20)


def sandbox_id(number: int) -> str:
    """Return a well-formed id."""
    return f"sb-{number:026d}"


def status_of(
    index: int, end: End | None, *, experiment: str = "exp", incarnation: int = 1
) -> SandboxStatus:
    """Return a sandbox that ran for two seconds, or still runs."""
    times = {SandboxState.RUNNING: START, SandboxState.ARCHIVING: START + timedelta(seconds=2)}
    identity = Identity(
        id=sandbox_id(index),
        tenant="t",
        project="default",
        experiment=experiment,
        index=index,
        incarnation=incarnation,
    )
    return SandboxStatus(
        identity=identity,
        state=SandboxState.ENDED if end else SandboxState.RUNNING,
        node="node-a",
        resources=RESOURCES,
        image="base@sha256:0",
        times={str(state): moment for state, moment in times.items()},
        end=end,
    )


class FakeGateway:
    """The state of the fake, and its app."""

    def __init__(self) -> None:
        self.experiments: dict[str, dict[str, Any]] = {}
        self.inputs: dict[str, bytes] = {}
        self.keys: dict[str, KeyedAnswer] = {}
        self.creates_seen: list[str] = []
        self.lose: Counter[str] = Counter()
        self.busy = 0
        self.endless = False  # nothing ends
        self.made = asyncio.Event()  # an experiment is there
        self.refuse = False  # no document is valid
        self.ends: dict[int, End] = {}
        self.silent_keys: Counter[str] = Counter()
        self.exec_calls: list[tuple[ExecCall, bytes]] = []
        self.cut_streams = False
        self.nodes: list[dict[str, Any]] = []
        self.decisions: dict[str, SandboxDecision] = {}
        self.dump = b""
        self.costs: dict[str, Any] = {"by": "task", "items": [], "total": {}}
        self.budgets: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.estimate: dict[str, Any] = {}
        self.app = Starlette(
            routes=[
                Route("/readyz", lambda _: Response("ok")),
                Route("/v1/whoami", self._whoami),
                Route("/v1/version", lambda _: JSONResponse({"version": "9.9", "protocol": 1})),
                Route("/v1/nodes", lambda _: JSONResponse({"items": self.nodes})),
                Route("/v1/decisions/dump", lambda _: Response(self.dump)),
                Route("/v1/tenants", lambda _: JSONResponse({"items": []})),
                Route("/v1/cost", self._cost),
                Route("/v1/budgets", lambda _: JSONResponse({"items": self.budgets})),
                Route("/v1/projects/{p}/experiments", self._list, methods=["GET"]),
                Route("/v1/projects/{p}/experiments", self._accept, methods=["POST"]),
                Route("/v1/projects/{p}/experiments/{name}", self._one, methods=["GET", "DELETE"]),
                Route("/v1/projects/{p}/experiments/{name}/describe", self._describe),
                Route("/v1/projects/{p}/experiments/{name}/results", self._results),
                Route("/v1/projects/{p}/experiments/{name}/scale", self._scale, methods=["POST"]),
                Route("/v1/projects/{p}/inputs/{digest}", self._input, methods=["PUT"]),
                Route("/v1/projects/{p}/sandboxes", self._create, methods=["POST"]),
                Route("/v1/projects/{p}/sandboxes", self._sandboxes, methods=["GET"]),
                Route("/v1/projects/{p}/sandboxes/{id}/exec", self._exec, methods=["POST"]),
                Route("/v1/projects/{p}/sandboxes/{id}/extend", self._extend, methods=["POST"]),
                Route("/v1/projects/{p}/sandboxes/{id}/logs", self._logs),
                Route("/v1/projects/{p}/sandboxes/{id}/decision", self._decision),
            ],
            exception_handlers={404: self._missing},
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Check the key, then answer; or take effect and break the connection."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        if request.url.path.startswith("/v1") and (
            request.headers.get("authorization") != f"Bearer {KEY}"
        ):
            await _error(401, "denied", "the key is not known")(scope, receive, send)
            return
        if self.busy:
            self.busy -= 1
            response = _error(503, "no-leader", "a leader is being elected")
            response.headers["Retry-After"] = "0.01"
            await response(scope, receive, send)
            return
        path = request.url.path.rsplit("/", 1)[-1]
        if self.lose[path]:
            self.lose[path] -= 1
            await self.app(scope, receive, _swallow)
            raise ConnectionResetError("the answer is lost")
        await self.app(scope, receive, send)

    async def _cost(self, request: Request) -> Response:
        self.asked.append(request.url.query)
        return JSONResponse(self.costs)

    async def _whoami(self, _: Request) -> Response:
        return JSONResponse({"user": "me"})

    async def _missing(self, request: Request, _: Exception) -> Response:
        return _error(404, "not-found", f"there is no {request.url.path}")

    async def _list(self, _: Request) -> Response:
        return JSONResponse({"items": list(self.experiments.values())})

    async def _accept(self, request: Request) -> Response:
        try:
            document = json.loads(await request.body())
        except ValueError:
            document = None
        if self.refuse or document is None:
            detail: dict[str, object] = {
                "path": "",
                "value": "text",
                "allowed": "a mapping",
                "message": "no mapping",
            }
            return _error(422, "invalid", "the document is not valid", [detail])
        name = document["metadata"]["name"]
        old = self.experiments.get(name)
        if request.query_params["mode"] == "submit" and old is not None:
            old, name = None, f"{name}-{len(self.experiments)}"
            document["metadata"]["name"] = name
        record = Experiment.model_validate(document).record()
        record["status"] = self._status(document["spec"]["roles"][0]["replicas"])
        if self.estimate and request.query_params["dryRun"] == "true":
            record = {**record, "estimate": self.estimate}
        if request.query_params["dryRun"] == "false":
            self.experiments[name] = record
            self.made.set()
        if old is not None:
            specs = (Experiment.model_validate(one).spec for one in (old, record))
            return JSONResponse({**record, "changes": [one.wire() for one in changes(*specs)]})
        return JSONResponse(record, status_code=201)

    def _status(self, replicas: int) -> dict[str, Any]:
        if self.endless:
            return {"desired": replicas, "roles": [{"name": "worker", "desired": replicas}]}
        counts = Counter(self._end(i).reason.value for i in range(replicas))
        return {
            "conditions": [{"type": "Completed", "status": "True", "reason": "AllEnded"}],
            "desired": replicas,
            "ended": replicas,
            "roles": [
                {
                    "name": "worker",
                    "desired": replicas,
                    "ended": [{"reason": r, "count": n} for r, n in sorted(counts.items())],
                }
            ],
        }

    def _end(self, index: int) -> End:
        done = End(reason="completed", exit_code=0, evidence=Evidence(cpu_seconds=0.1))
        return self.ends.get(index, done)

    async def _one(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self.experiments:
            return _error(404, "not-found", f"there is no experiment {name}")
        if request.method == "DELETE":
            del self.experiments[name]
            return JSONResponse({}, status_code=202)
        return JSONResponse(self.experiments[name])

    async def _describe(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self.experiments:
            return _error(404, "not-found", f"there is no experiment {name}")
        experiment = Experiment.model_validate(self.experiments[name])
        return JSONResponse(describe(experiment, now=START).wire())

    async def _extend(self, request: Request) -> Response:
        name = request.path_params["id"]
        if name == "gone":
            return _error(404, "not-found", f"there is no live sandbox {name}")
        until = START + timedelta(seconds=(await request.json())["seconds"])
        return JSONResponse(Extension(id=name, until=until).wire())

    async def _scale(self, request: Request) -> Response:
        record = self.experiments[request.path_params["name"]]
        record["status"]["overrides"] = [await request.json()]
        return JSONResponse(record)

    async def _results(self, request: Request) -> Response:
        record = self.experiments[request.path_params["name"]]
        size = record["spec"]["roles"][0]["replicas"]
        found = [
            status_of(i, self._end(i), experiment=record["metadata"]["name"]) for i in range(size)
        ]
        lines = [one.model_dump_json(by_alias=True) + "\n" for one in found]
        return StreamingResponse(iter(lines), media_type="application/x-ndjson")

    async def _input(self, request: Request) -> Response:
        body = await request.body()
        digest = request.path_params["digest"]
        if hashlib.sha256(body).hexdigest() != digest:
            return _error(422, "invalid", "the digest differs")
        self.inputs[digest] = body
        return JSONResponse({})

    async def _create(self, request: Request) -> Response:
        batch = CreateBatch.model_validate_json(await request.body())
        answers = []
        for create in batch.creates:
            self.creates_seen.append(create.key)
            if self.silent_keys[create.key]:
                self.silent_keys[create.key] -= 1
                answers.append(
                    KeyedAnswer(
                        key=create.key, outcome="unknown", node="n", retry_after_seconds=0.01
                    )
                )
                continue
            known = self.keys.get(create.key)
            if known is None:
                known = KeyedAnswer(
                    key=create.key, outcome="bound", id=sandbox_id(len(self.keys)), node="node-a"
                )
                self.keys[create.key] = known
                answers.append(known)
            else:
                answers.append(known.model_copy(update={"outcome": "exists"}))
        return JSONResponse(KeyedAnswers(answers=answers).wire())

    async def _sandboxes(self, _: Request) -> Response:
        return JSONResponse({"items": [status_of(0, None).wire()], "ageSeconds": 0.1})

    async def _exec(self, request: Request) -> Response:
        decoder = Decoder()
        frames = [frame async for part in request.stream() for frame in decoder.feed(part)]
        call = ExecCall.model_validate_json(frames[0].payload)
        stdin = b"".join(frame.payload for frame in frames[1:])
        self.exec_calls.append((call, stdin))
        code = 3 if call.command[0] == "false" else 0
        parts = [
            encode(FrameType.STDOUT, stdin or b"out\n"),
            encode(FrameType.STDERR, b"err\n"),
            encode_end(ExecEnd(exit_code=code)),
        ]
        return StreamingResponse(iter(parts[:-1] if self.cut_streams else parts))

    async def _decision(self, request: Request) -> Response:
        decision = self.decisions.get(request.path_params["id"])
        return JSONResponse(decision.wire()) if decision else _error(404, "not-found", "none")

    async def _logs(self, _: Request) -> Response:
        parts = [encode(FrameType.STDOUT, b"line\n"), encode_end(ExecEnd(dropped_bytes=7))]
        return StreamingResponse(iter(parts[:-1] if self.cut_streams else parts))


def _error(
    status: int, code: str, message: str, details: list[dict[str, object]] | None = None
) -> JSONResponse:
    body = ErrorBody(code=code, message=message, details=details or [], correlation_id="c-1")
    return JSONResponse(body.wire(), status_code=status)


async def _swallow(_: Any) -> None:
    """Take an answer that will never arrive."""
