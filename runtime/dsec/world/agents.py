"""How the control plane talks with agents: calls with typed outcomes, and a soft view by long poll.

`NodeWatch` is one task per node. It is started by whoever wants the view and stopped by cancelling
it; what it knows is soft state that a new one reads again from the agent, which holds the truth.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

import httpx2
import structlog
from pydantic import BaseModel, ValidationError

from dsec.api.sandbox import SandboxSpec, SandboxState, SandboxStatus
from dsec.api.snapshot import SnapshotAnswer, SnapshotCall
from dsec.api.wire import (
    AckCall,
    CreateAnswer,
    CreateAnswers,
    CreateCall,
    EpochCall,
    ErrorBody,
    NodeState,
    NodeUse,
    PauseCall,
    RunUntilAnswer,
    RunUntilCall,
    StopCall,
    Usage,
)
from dsec.world.clock import Clock
from dsec.world.network import Network

CALL_SECONDS = 10.0
"""Limit of one call; an agent that accepts a batch writes one group commit first."""
SNAPSHOT_SECONDS = 900.0
"""Limit of one snapshot: state of 50 GB takes about 90 s, and its turn may have to come first."""
POLL_WAIT = 20.0
"""Seconds that an agent holds a poll without news; a silent agent is noticed after this plus
POLL_MARGIN at the latest, an unreachable one at once."""
POLL_MARGIN = 5.0
POLL_RETRY = 1.0

log = structlog.get_logger()
M = TypeVar("M", bound=BaseModel)


class AgentSilentError(Exception):
    """The agent gave no usable answer; the outcome is unknown and the call safe to repeat."""


class AgentStaleError(Exception):
    """The agent has seen a later leader: the caller's term is over."""


class AgentRefusedError(Exception):
    """The agent refuses the call for good; `code` is the stable word of its answer."""

    def __init__(self, code: str, message: str) -> None:
        """Keep the code beside the message."""
        super().__init__(f"{code}: {message}")
        self.code = code


class AgentClient:
    """One agent. Owned by a NodeWatch or a caller, who closes it."""

    def __init__(self, network: Network, endpoint: str) -> None:
        self.endpoint = endpoint
        self.http = network.client(endpoint.rstrip("/"), timeout=CALL_SECONDS)

    async def close(self) -> None:
        """Close its connections."""
        await self.http.aclose()

    async def state(
        self, since: int, boot: str, wait: float, *, beat: int | None = None
    ) -> NodeState:
        """Return changes since a number, and heartbeats since a beat number where one is given.

        Raises AgentSilentError, AgentRefusedError.
        """
        params = {"since": str(since), "boot": boot, "wait": f"{wait:g}"}
        if beat is not None:
            params["beat"] = str(beat)
        timeout = httpx2.Timeout(wait + POLL_MARGIN, connect=POLL_MARGIN)
        return await self._call(
            NodeState, self.http.get("/v1/state", params=params, timeout=timeout)
        )

    async def use(self) -> NodeUse:
        """Return what its sandboxes use. Raises AgentSilentError, AgentRefusedError (too old)."""
        return await self._call(NodeUse, self.http.get("/v1/use"))

    async def create(
        self,
        epoch: int,
        specs: list[SandboxSpec],
        *,
        before: datetime | None = None,
        seconds: float = CALL_SECONDS,
    ) -> list[CreateAnswer]:
        """Create sandboxes; idempotent by id. Raises as all calls do, and AgentStaleError.

        None is started after `before` (UTC). `seconds`: how long an answer is waited for.
        """
        call = CreateCall(epoch=epoch, specs=specs, before=before)
        return (await self._post(CreateAnswers, "sandboxes", call, seconds)).answers

    async def stop(self, call: StopCall) -> None:
        """End sandboxes; idempotent."""
        await self._post(EpochCall, "stop", call)

    async def pause(self, epoch: int, sandbox: str, message: str) -> None:
        """Freeze a sandbox; idempotent. Raises AgentRefusedError where it cannot be."""
        await self._post(
            EpochCall, f"sandboxes/{sandbox}/pause", PauseCall(epoch=epoch, message=message)
        )

    async def resume(self, epoch: int, sandbox: str) -> None:
        """Thaw a sandbox; idempotent. Raises AgentRefusedError, `capacity` without CPU for it."""
        await self._post(EpochCall, f"sandboxes/{sandbox}/resume", EpochCall(epoch=epoch))

    async def snapshot(
        self, sandbox: str, call: SnapshotCall, *, seconds: float = SNAPSHOT_SECONDS
    ) -> SnapshotAnswer:
        """Save a sandbox now; the answer comes once it is stored.

        Raises AgentRefusedError where it cannot be saved; it then runs, or rests, as before.
        """
        return await self._post(SnapshotAnswer, f"sandboxes/{sandbox}/snapshot", call, seconds)

    async def acknowledge(self, epoch: int, ids: list[str]) -> None:
        """Say that these ends are durably recorded; idempotent."""
        await self._post(EpochCall, "ack", AckCall(epoch=epoch, ids=ids))

    async def epoch(self, epoch: int) -> None:
        """Tell the agent of a new term. Raises AgentStaleError where it knows a later one."""
        await self._post(EpochCall, "epoch", EpochCall(epoch=epoch))

    async def extend(self, call: RunUntilCall) -> RunUntilAnswer:
        """Move the node's own end; idempotent by revision. The answer says what holds now."""
        return await self._post(RunUntilAnswer, "run-until", call)

    async def _post(
        self, answer: type[M], path: str, body: BaseModel, seconds: float = CALL_SECONDS
    ) -> M:
        content = body.model_dump_json(by_alias=True, exclude_none=True)
        headers = {"Content-Type": "application/json"}
        return await self._call(
            answer,
            self.http.post(f"/v1/{path}", content=content, headers=headers, timeout=seconds),
        )

    async def _call(self, answer: type[M], request: Awaitable[httpx2.Response]) -> M:
        try:
            response = await request
        except (httpx2.TransportError, RuntimeError) as problem:
            raise AgentSilentError(f"{type(problem).__name__}: {problem}") from problem
        if response.status_code >= httpx2.codes.INTERNAL_SERVER_ERROR:
            raise AgentSilentError(f"status {response.status_code}{_words(response)}")
        try:
            if response.is_success:
                return answer.model_validate_json(response.content)
            error = ErrorBody.model_validate_json(response.content)
        except ValidationError as problem:
            raise AgentSilentError(f"unreadable answer ({response.status_code})") from problem
        if error.code == "stale-epoch":
            raise AgentStaleError(error.message)
        raise AgentRefusedError(error.code, error.message)


def _words(response: httpx2.Response) -> str:
    """Return what an agent says of a failure of its own, where it says anything."""
    try:
        return f": {ErrorBody.model_validate_json(response.content).message}"
    except ValidationError:
        return ""


TURNED = frozenset({SandboxState.PAUSED, SandboxState.STOPPING, SandboxState.ARCHIVING})
"""States of sandboxes that hold room and run no more, or not now."""


@dataclass(slots=True)
class NodeMemory:
    """What a watcher knows of a node. Times are monotonic seconds of the watcher's clock.

    `asked` is when the poll of the last answer was sent: what happened later may not be in it.
    """

    name: str
    endpoint: str
    boot_id: str = ""
    incarnation: int = 0
    seq: int = -1
    beat: int = -1
    seen: float | None = None
    asked: float = 0.0
    utc: datetime | None = None
    used: Usage = field(default_factory=Usage)
    live: int = 0
    sandboxes: dict[str, SandboxStatus] = field(default_factory=dict)
    turned: set[str] = field(default_factory=set)
    """Ids of those in a state of `TURNED`."""

    def take(self, state: NodeState, seen: float) -> None:
        """Merge an answer."""
        if state.full or state.boot_id != self.boot_id:
            self.sandboxes, self.turned = {}, set()
        for status in state.sandboxes:
            self.sandboxes[status.identity.id] = status
            if status.state in TURNED:
                self.turned.add(status.identity.id)
            else:
                self.turned.discard(status.identity.id)
        for sandbox, beaten in state.heartbeats.items():
            if (known := self.sandboxes.get(sandbox)) is not None:
                known.last_heartbeat = beaten
        self.boot_id, self.incarnation, self.seq = state.boot_id, state.incarnation, state.seq
        self.beat = state.beat
        self.utc, self.used, self.live = state.utc, state.used, state.live
        self.seen = seen

    def forget(self, ids: list[str]) -> None:
        """Drop ended sandboxes that are recorded elsewhere."""
        for sandbox in ids:
            status = self.sandboxes.get(sandbox)
            if status is not None and status.state is SandboxState.ENDED:
                del self.sandboxes[sandbox]


OnState = Callable[[NodeMemory, NodeState], Awaitable[None]]


class NodeWatch:
    """Follows one agent by long polls and keeps its NodeMemory; also the agent's client.

    `heartbeats`: keep the sandboxes' last ones, too, which answers more polls.
    """

    def __init__(
        self,
        name: str,
        endpoint: str,
        network: Network,
        clock: Clock,
        on_state: OnState,
        *,
        heartbeats: bool = False,
    ) -> None:
        self.memory = NodeMemory(name, endpoint)
        self.client = AgentClient(network, endpoint)
        self._clock = clock
        self._on_state = on_state
        self._heartbeats = heartbeats
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to poll."""
        self._task = asyncio.create_task(self._run(), name=f"watch-{self.memory.name}")

    async def close(self) -> None:
        """Stop polling and close the connections."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.client.close()

    @property
    def failure(self) -> BaseException | None:
        """What ended the task, if anything but cancelling did."""
        if self._task is None or not self._task.done() or self._task.cancelled():
            return None
        return self._task.exception()

    def silent_for(self) -> float | None:
        """Return seconds since the last answer; None before the first."""
        return None if self.memory.seen is None else self._clock.monotonic() - self.memory.seen

    async def _run(self) -> None:
        quiet = True
        while True:
            memory = self.memory
            # the first answer must come at once: until then nothing is known
            wait = POLL_WAIT if memory.seen is not None and quiet else 0.0
            memory.asked = self._clock.monotonic()
            try:
                beat = memory.beat if self._heartbeats else None
                state = await self.client.state(memory.seq, memory.boot_id, wait, beat=beat)
            except (AgentSilentError, AgentRefusedError) as problem:
                if quiet:
                    log.warning("agent is silent", node=memory.name, error=str(problem))
                quiet = False
                await self._clock.sleep(POLL_RETRY)
                continue
            if state.node != memory.name:
                log.warning("another node answers", node=memory.name, answers=state.node)
                await self._clock.sleep(POLL_WAIT)
                continue
            quiet = True
            memory.take(state, self._clock.monotonic())
            await self._on_state(memory, state)
