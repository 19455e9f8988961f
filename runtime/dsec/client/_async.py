"""The asynchronous client: one method per verb of the API.

Owns a pool of connections: use it with `async with`, or call `close`. Nothing else is kept, so a
client that is lost loses nothing. Every write is safe to repeat: creates carry a key, applies a
name, inputs a digest; the client repeats them itself while the outcome is not known.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx2
from pydantic import ValidationError

from dsec.api.base import WireModel
from dsec.api.frames import (
    MEDIA_TYPE,
    Decoder,
    ExecCall,
    ExecEnd,
    Frame,
    FrameError,
    FrameType,
    encode,
    encode_all,
    encode_request,
)
from dsec.api.names import dns_name
from dsec.api.sandbox import IsolationLevel, Resources, SandboxStatus
from dsec.api.wire import CreateBatch, KeyedAnswer, KeyedAnswers, KeyedCreate
from dsec.client._transport import CALL_TIMEOUT, PATIENCE, Transport, new_id
from dsec.client.batch import (
    Batch,
    ExecResult,
    Progress,
    ended,
    experiment_of,
    in_order,
    item_lines,
    progress_of,
    refused,
    run_name,
)
from dsec.client.context import Context, load
from dsec.client.errors import (
    BusyError,
    ConflictError,
    DsecError,
    InvalidError,
    NotFoundError,
    ServerError,
    TruncatedStreamError,
    UnknownOutcomeError,
    UnreachableError,
    WaitTimeoutError,
)

Record = dict[str, Any]
"""A record as JSON, with the field names of `kubectl explain`."""

# named here because the client's method `list` hides the type inside the class
Records = list[Record]
Statuses = list[SandboxStatus]
Creates = list[KeyedCreate]
Answers = list[KeyedAnswer]

Document = str | bytes | Path | Record
"""A task document: a path, its text (YAML or JSON, any dialect), or a mapping."""

T = TypeVar("T", bound=WireModel)

POLL_SECONDS = 0.5
"""Between two looks at an experiment; a state is at most this much older than the server's."""
LEAVE_SECONDS = 8.0
"""How long a failed batch may take to remove what it made."""


class AsyncClient:
    """The verbs of dsec. Raises the errors of `dsec.client.errors` and nothing else.

    Without a context, the user's own is used (see `dsec.client.context`). `inner` replaces the
    network in tests. Times are in seconds.
    """

    def __init__(
        self,
        context: Context | None = None,
        *,
        project: str | None = None,
        timeout: float = CALL_TIMEOUT,
        patience: float = PATIENCE,
        inner: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        context = load() if context is None else context
        self.project = project or context.project
        self._transport = Transport(context, timeout=timeout, patience=patience, inner=inner)
        self._patience = patience

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    # experiments

    async def submit(self, document: Document, *, dry_run: bool = False) -> Record:
        """Create a new experiment from a document; where the name is taken it gets a suffix.

        Not sent again after an unknown outcome: look with `list`, or use `apply`.
        """
        return await self._send(document, mode="submit", dry_run=dry_run)

    async def apply(self, document: Document, *, dry_run: bool = False) -> Record:
        """Create an experiment, or update the one of that name.

        Of an update `changes` lists each field that differs: path, old, new, effect.
        """
        return await self._send(document, mode="apply", dry_run=dry_run)

    async def _send(self, document: Document, *, mode: str, dry_run: bool) -> Record:
        response = await self._transport.call(
            "POST",
            self._at("experiments"),
            params={"mode": mode, "dryRun": str(dry_run).lower()},
            content=document_bytes(document),
            repeatable=dry_run or mode == "apply",
        )
        return _object(response)

    async def get(self, name: str) -> Record:
        """Return one experiment."""
        return _object(await self._transport.call("GET", self._experiment(name)))

    async def list(self) -> Records:
        """Return the experiments of the project."""
        return _items(await self._transport.call("GET", self._at("experiments")))

    async def describe(self, name: str) -> Record:
        """Return what an experiment is and why it is where it is, in words."""
        return _object(await self._transport.call("GET", self._experiment(name, "describe")))

    async def scale(self, name: str, role: str, replicas: int) -> Record:
        """Set the live replica count of a role, until its declared count changes."""
        response = await self._transport.call(
            "POST",
            self._experiment(name, "scale"),
            json={"role": role, "replicas": replicas},
            repeatable=True,  # it sets a value
        )
        return _object(response)

    async def freeze(self, name: str) -> Record:
        """Stop an experiment and keep its scene. Repeating it changes nothing."""
        response = await self._transport.call(
            "POST", self._experiment(name, "freeze"), repeatable=True
        )
        return _object(response)

    async def delete(self, name: str) -> None:
        """Ask for the end of an experiment: collect, archive, destroy, in that order."""
        await self._transport.call("DELETE", self._experiment(name))

    async def _delete_if_there(self, name: str) -> None:
        with contextlib.suppress(NotFoundError):
            await self.delete(name)

    async def wait(
        self,
        name: str,
        *,
        timeout_seconds: float | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Record:
        """Wait for the end of an experiment and return it.

        A server that is away for a while is waited for. Raises WaitTimeoutError when the time is
        over, and InvalidError where the experiment can never run.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                while True:
                    with contextlib.suppress(UnreachableError, BusyError, ServerError):
                        record = await self.get(name)
                        if on_progress:
                            on_progress(progress_of(record))
                        if ended(record):
                            return record
                        if why := refused(record):
                            raise InvalidError(f"experiment {name} can never run: {why}")
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError as error:
            message = f"experiment {name} has not ended in {timeout_seconds:g} s"
            raise WaitTimeoutError(message) from error

    async def results(self, name: str) -> AsyncIterator[SandboxStatus]:
        """Yield how each sandbox of an experiment ended, in order of role and index."""
        async with self._transport.stream("GET", self._experiment(name, "results")) as parts:
            rest = b""
            async for part in parts:
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    yield _status(line)
            if rest:
                yield _status(rest)

    # batches

    async def run(
        self,
        *,
        command: Iterable[str],
        image: str = "",
        count: int | None = None,
        items: Iterable[Any] | None = None,
        cpu: float | str = 1,
        memory: int | str = "512Mi",
        pids: int = 512,
        disk: int | str = "1Gi",
        env: dict[str, str] | None = None,
        max_run_seconds: int | None = None,
        name: str | None = None,
        timeout_seconds: float | None = None,
        keep: bool = False,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Statuses:
        """Run a command in `count` sandboxes and return how each ended, in order (ORCH-01).

        With `items`, sandbox i finds item i, as one line of JSON, in the file named by
        $DSEC_ITEM_FILE, and the count is that of the items. Each sandbox runs once; one that
        fails is a result, not an error. Without an image, the tenant's default is used.

        The experiment is removed unless `keep`: at the end, and also when the time is over, the
        call is cancelled or it can never run, so that no sandbox goes on for nobody. Where it
        stays after an error, a note of the error names it.
        """
        lines = None if items is None else item_lines(items)
        batch = Batch(
            name=name or run_name(),
            image=image,
            command=list(command),
            count=count,
            items=lines,
            cpu=cpu,
            memory=memory,
            pids=pids,
            disk=disk,
            env=env or {},
            max_run_seconds=max_run_seconds,
        ).checked()
        digest = None if lines is None else await self.put_input(b"\n".join(lines) + b"\n")
        name, made = dns_name(batch.name), False
        try:
            await self.apply(experiment_of(batch, digest))
            made = True
            await self.wait(name, timeout_seconds=timeout_seconds, on_progress=on_progress)
        except (asyncio.CancelledError, Exception) as error:
            # of a name that was refused, the experiment is not of this call
            if made or isinstance(error, asyncio.CancelledError | UnknownOutcomeError):
                await self._leave(name, error, keep=keep)
            raise
        try:
            found = in_order([status async for status in self.results(name)], batch.size)
        except DsecError as error:
            error.add_note(f"its results are still there: dsec results {name}")
            raise
        if not keep:
            await self.delete(name)
        return found

    async def _leave(self, name: str, error: BaseException, *, keep: bool) -> None:
        """Remove what a failed `run` made, or say that it is still there."""
        if not keep:
            with contextlib.suppress(DsecError, TimeoutError):
                async with asyncio.timeout(LEAVE_SECONDS):
                    await self._delete_if_there(name)
                return
        error.add_note(f"it goes on; to end it: dsec delete {name}")

    async def put_input(self, content: bytes) -> str:
        """Upload the items of a batch; return their SHA-256. Repeating it changes nothing."""
        import hashlib

        digest = hashlib.sha256(content).hexdigest()
        await self._transport.call("PUT", self._at("inputs", digest), content=content)
        return digest

    # sandboxes

    async def create(
        self,
        *,
        image: str,
        resources: Resources,
        command: Iterable[str] = (),
        key: str | None = None,
        env: dict[str, str] | None = None,
        stdin: str | None = None,
        max_run_seconds: float | None = None,
        isolation: IsolationLevel = IsolationLevel.CONTAINER,
        labels: dict[str, str] | None = None,
    ) -> KeyedAnswer:
        """Create one sandbox. With the same key, at most one sandbox is ever made.

        Raises ConflictError (same key, other body), InvalidError (can never run) and
        UnknownOutcomeError, which names the key to repeat.
        """
        create = _checked(
            KeyedCreate,
            key=key or new_id(),
            image=image,
            command=list(command),
            env=env or {},
            resources=resources,
            stdin=stdin,
            max_run_seconds=max_run_seconds,
            isolation=isolation,
            labels=labels or {},
        )
        (answer,) = await self.create_batch([create])
        if answer.outcome == "conflict":
            raise ConflictError(f"key {answer.key}: {answer.message}", code="conflict")
        if answer.outcome == "refused":
            raise InvalidError(answer.message, code="refused")
        if answer.outcome == "unknown":
            raise UnknownOutcomeError(
                f"the node {answer.node} of key {answer.key} is silent", keys=[answer.key]
            )
        return answer

    async def create_batch(self, creates: Creates) -> Answers:
        """Create many sandboxes; one answer per create, in order.

        Keys whose node is silent are asked for again, until the client's patience ends; what is
        left then has the outcome `unknown`.
        """
        answers = await self._create_once(creates)
        loop = asyncio.get_running_loop()
        end = loop.time() + self._patience
        while unknown := [i for i, answer in enumerate(answers) if answer.outcome == "unknown"]:
            pause = max(answers[i].retry_after_seconds or 1.0 for i in unknown)
            if loop.time() + pause > end:
                break
            await asyncio.sleep(pause)
            again = await self._create_once([creates[i] for i in unknown])
            for i, answer in zip(unknown, again, strict=True):
                answers[i] = answer
        return answers

    async def _create_once(self, creates: Creates) -> Answers:
        response = await self._transport.call(
            "POST",
            self._at("sandboxes"),
            json=_checked(CreateBatch, creates=creates).wire(),
            repeatable=True,  # every create has its key
            keys=[create.key for create in creates],
        )
        answers = _parse(KeyedAnswers, response.content).answers
        if [answer.key for answer in answers] != [create.key for create in creates]:
            raise ServerError("the server's answers do not match the keys that were sent")
        return answers

    async def sandboxes(self, *, experiment: str = "", role: str = "", state: str = "") -> Statuses:
        """Return the sandboxes of the project that agents report."""
        asked = {"experiment": experiment, "role": role, "state": state}
        params = {name: value for name, value in asked.items() if value}
        response = await self._transport.call("GET", self._at("sandboxes"), params=params)
        return [_parse(SandboxStatus, item) for item in _items(response)]

    async def sandbox(self, sandbox_id: str) -> SandboxStatus:
        """Return one sandbox."""
        response = await self._transport.call("GET", self._at("sandboxes", sandbox_id))
        return _parse(SandboxStatus, response.content)

    async def stop(self, sandbox_id: str) -> None:
        """End one sandbox. Repeating it changes nothing."""
        await self._transport.call("DELETE", self._at("sandboxes", sandbox_id))

    async def exec(
        self,
        sandbox_id: str,
        command: Iterable[str],
        *,
        stdin: bytes | AsyncIterable[bytes] = b"",
        env: dict[str, str] | None = None,
        workdir: str = "",
        user: str = "",
        timeout_seconds: float | None = None,
    ) -> AsyncIterator[Frame]:
        """Run a command in a live sandbox; yield its output, then exactly one END frame.

        Raises TruncatedStreamError where the stream breaks before that. The input is sent whole
        before output is read. `timeout_seconds` ends the command with everything it started.
        """
        call = ExecCall(
            command=list(command),
            env=env or {},
            workdir=workdir,
            user=user,
            timeout=timeout_seconds,
        )
        content = (
            encode_request(call, stdin)
            if isinstance(stdin, bytes)
            else _request_stream(call, stdin)
        )
        path = self._at("sandboxes", sandbox_id, "exec")
        async for frame in self._frames("POST", path, content=content):
            yield frame

    async def exec_result(
        self,
        sandbox_id: str,
        command: Iterable[str],
        *,
        stdin: bytes = b"",
        env: dict[str, str] | None = None,
        workdir: str = "",
        user: str = "",
        timeout_seconds: float | None = None,
    ) -> ExecResult:
        """Run a command in a live sandbox and return its end and its whole output."""
        output = {FrameType.STDOUT: bytearray(), FrameType.STDERR: bytearray()}
        end = ExecEnd()
        async for frame in self.exec(
            sandbox_id,
            command,
            stdin=stdin,
            env=env,
            workdir=workdir,
            user=user,
            timeout_seconds=timeout_seconds,
        ):
            if frame.type is FrameType.END:
                end = end_of(frame)
            else:
                output[frame.type] += frame.payload
        return ExecResult(
            end=end,
            stdout=bytes(output[FrameType.STDOUT]),
            stderr=bytes(output[FrameType.STDERR]),
        )

    async def logs(self, sandbox_id: str, *, follow: bool = False) -> AsyncIterator[Frame]:
        """Yield the kept output of the main command, then new output while it runs, then END."""
        path = self._at("sandboxes", sandbox_id, "logs")
        async for frame in self._frames("GET", path, params={"follow": str(follow).lower()}):
            yield frame

    async def _frames(
        self,
        method: str,
        path: str,
        *,
        params: dict[str, str] | None = None,
        content: bytes | AsyncIterable[bytes] | None = None,
    ) -> AsyncIterator[Frame]:
        decoder = Decoder()
        try:
            async with self._transport.stream(
                method, path, params=params, content=content, media_type=MEDIA_TYPE
            ) as parts:
                async for part in parts:
                    for frame in decoder.feed(part):
                        yield frame
                        if frame.type is FrameType.END:
                            return
        except FrameError as error:
            raise TruncatedStreamError(f"the stream of {path} is damaged: {error}") from error
        except (UnknownOutcomeError, UnreachableError) as error:
            if isinstance(error.__cause__, httpx2.ConnectError | httpx2.ConnectTimeout):
                raise
            raise TruncatedStreamError(
                f"the stream of {path} broke before its end; the outcome is not known",
                correlation_id=error.correlation_id,
            ) from error
        raise TruncatedStreamError(
            f"the stream of {path} ended without its end frame; the outcome is not known"
        )

    # the rest of the world

    async def nodes(self) -> Records:
        """Return the nodes, with what is free on each."""
        return _items(await self._transport.call("GET", "/v1/nodes"))

    async def tenants(self) -> Records:
        """Return the tenants that the caller may see."""
        return _items(await self._transport.call("GET", "/v1/tenants"))

    async def whoami(self) -> Record:
        """Return who the server takes the caller for."""
        return _object(await self._transport.call("GET", "/v1/whoami"))

    async def version(self) -> Record:
        """Return the version of the server and of its protocol."""
        return _object(await self._transport.call("GET", "/v1/version"))

    async def ready(self) -> bool:
        """Say whether the server answers that it is ready; never raises."""
        try:
            await self._transport.once("GET", "/readyz")
        except DsecError:
            return False
        return True

    def _experiment(self, name: str, *parts: str) -> str:
        """Return the path of an experiment, by its record's name or by the name as given."""
        return self._at("experiments", dns_name(name), *parts)

    def _at(self, *parts: str) -> str:
        return "/".join(
            [
                "/v1/projects",
                quote(self.project, safe=""),
                *(quote(part, safe="") for part in parts),
            ]
        )


def document_bytes(document: Document) -> bytes:
    """Return the bytes to send. Raises NotFoundError where a given file cannot be read."""
    if isinstance(document, Path):
        try:
            return document.read_bytes()
        except OSError as error:
            raise NotFoundError(f"{document}: {error.strerror}", code="not-found") from error
    if isinstance(document, dict):
        return json.dumps(document).encode()
    return document.encode() if isinstance(document, str) else document


def end_of(frame: Frame) -> ExecEnd:
    """Return the outcome that an END frame carries."""
    return _parse(ExecEnd, frame.payload)


async def _request_stream(call: ExecCall, stdin: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    yield encode_request(call, None)
    async for data in stdin:
        for frame in encode_all(FrameType.STDIN, data):
            yield frame
    yield encode(FrameType.STDIN)


def _checked(model: type[T], **values: Any) -> T:
    """Build a request. Raises InvalidError naming every field that is not valid."""
    try:
        return model(**values)
    except ValidationError as error:
        details = [
            {
                "path": ".".join(map(str, one["loc"])),
                "value": repr(one["input"])[:80],
                "message": one["msg"],
            }
            for one in error.errors()
        ]
        raise InvalidError(f"not a valid {model.__name__}", details=details) from error


def _parse(model: type[T], content: bytes | Record) -> T:
    try:
        if isinstance(content, bytes):
            return model.model_validate_json(content)
        return model.model_validate(content)
    except ValidationError as error:
        raise ServerError(f"the server's answer is no {model.__name__}: {error}") from error


def _status(line: bytes) -> SandboxStatus:
    return _parse(SandboxStatus, line)


def _object(response: httpx2.Response) -> Record:
    try:
        data = response.json()
    except ValueError as error:
        raise ServerError(f"the server's answer is no JSON: {error}") from error
    if not isinstance(data, dict):
        raise ServerError("the server's answer is no JSON object")
    return data


def _items(response: httpx2.Response) -> list[Record]:
    items = _object(response).get("items")
    if not isinstance(items, list):
        raise ServerError("the server's answer has no list of items")
    return items
