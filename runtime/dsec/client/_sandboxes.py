"""The verbs about sandboxes: keyed creates, exec and logs."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable

import httpx2

from dsec.api.decisions import SandboxDecision
from dsec.api.frames import (
    MEDIA_TYPE,
    Decoder,
    ExecCall,
    ExecEnd,
    Frame,
    FrameError,
    FrameType,
    encode_request,
)
from dsec.api.reaping import ExtendCall, Extension
from dsec.api.sandbox import IsolationLevel, Resources, SandboxStatus
from dsec.api.wire import CreateBatch, KeyedAnswer, KeyedAnswers, KeyedCreate
from dsec.client._caller import Caller
from dsec.client._messages import (
    Answers,
    Creates,
    Statuses,
    checked,
    end_of,
    items_of,
    parse,
    request_stream,
)
from dsec.client._transport import new_id
from dsec.client.batch import ExecResult
from dsec.client.errors import (
    ConflictError,
    InvalidError,
    ServerError,
    TruncatedStreamError,
    UnknownOutcomeError,
    UnreachableError,
)


class SandboxVerbs(Caller):
    """Create, find, enter, read and end sandboxes."""

    async def create(
        self,
        *,
        image: str = "",
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

        Without an image it is the tenant's default one.

        Raises ConflictError (same key, other body), InvalidError (can never run) and
        UnknownOutcomeError, which names the key to repeat.
        """
        create = checked(
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
        batch = checked(CreateBatch, creates=creates)
        body = batch.model_dump_json(by_alias=True, exclude_none=True)
        response = await self._transport.call(
            "POST",
            self._at("sandboxes"),
            content=body.encode(),
            repeatable=True,  # every create has its key
            keys=[create.key for create in creates],
        )
        answers = parse(KeyedAnswers, response.content).answers
        if [answer.key for answer in answers] != [create.key for create in creates]:
            raise ServerError("the server's answers do not match the keys that were sent")
        return answers

    async def sandboxes(self, *, experiment: str = "", role: str = "", state: str = "") -> Statuses:
        """Return the sandboxes of the project that agents report."""
        asked = {"experiment": experiment, "role": role, "state": state}
        params = {name: value for name, value in asked.items() if value}
        response = await self._transport.call("GET", self._at("sandboxes"), params=params)
        return [parse(SandboxStatus, item) for item in items_of(response)]

    async def sandbox(self, sandbox_id: str) -> SandboxStatus:
        """Return one sandbox."""
        response = await self._transport.call("GET", self._at("sandboxes", sandbox_id))
        return parse(SandboxStatus, response.content)

    async def decision(self, sandbox_id: str) -> SandboxDecision:
        """Return why a sandbox is where it is, or why it waits."""
        path = self._at("sandboxes", sandbox_id, "decision")
        return parse(SandboxDecision, (await self._transport.call("GET", path)).content)

    async def decision_dump(self) -> bytes:
        """Return the leader's next round of decisions, as `dsec explain` replays it.

        Raises InvalidError where nothing waits for a place.
        """
        return (await self._transport.call("GET", "/v1/decisions/dump")).content

    async def stop(self, sandbox_id: str) -> None:
        """End one sandbox. Repeating it changes nothing."""
        await self._transport.call("DELETE", self._at("sandboxes", sandbox_id))

    async def extend(self, sandbox_id: str, *, seconds: float) -> Extension:
        """Let a sandbox be for so long from now, whatever the reaper finds; at most 7 days."""
        body = checked(ExtendCall, seconds=seconds)
        response = await self._transport.call(
            "POST",
            self._at("sandboxes", sandbox_id, "extend"),
            content=body.model_dump_json(by_alias=True).encode(),
            repeatable=True,
        )
        return parse(Extension, response.content)

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
            encode_request(call, stdin) if isinstance(stdin, bytes) else request_stream(call, stdin)
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
