"""The synchronous client: the asynchronous one, run on a loop in a thread of its own.

There is one implementation; every method here forwards to the method of the same name. The
thread starts with the client and ends in `close`; it is a daemon, so a forgotten client does not
keep a program alive.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx2

from dsec.api.decisions import SandboxDecision
from dsec.api.frames import Frame
from dsec.api.reaping import Extension
from dsec.api.sandbox import IsolationLevel, Resources, SandboxStatus
from dsec.api.taskqueue import PutAnswer, QueueStatus, ReceiptsAnswer
from dsec.api.wire import KeyedAnswer
from dsec.client._async import AsyncClient
from dsec.client._experiments import LEAVE_SECONDS
from dsec.client._messages import Answers, Creates, Document, Record, Records, Statuses
from dsec.client._queues import QueueStatuses, Taken
from dsec.client._sync_snapshots import SnapshotCalls
from dsec.client._transport import CALL_TIMEOUT, PATIENCE
from dsec.client.batch import ExecResult, Progress
from dsec.client.context import Context

T = TypeVar("T")


class Client(SnapshotCalls):
    """The verbs of dsec for programs without an event loop. See `AsyncClient`."""

    def __init__(
        self,
        context: Context | None = None,
        *,
        project: str | None = None,
        timeout: float = CALL_TIMEOUT,
        patience: float = PATIENCE,
        inner: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._client = AsyncClient(
            context, project=project, timeout=timeout, patience=patience, inner=inner
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="dsec")
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def project(self) -> str:
        """The project that calls go to."""
        return self._client.project

    def close(self) -> None:
        """Close the connections and end the thread."""
        if self._loop.is_closed():
            return
        self._wait(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        interrupted, left = threading.Event(), threading.Event()
        begun: list[asyncio.Task[Any]] = []

        async def whole() -> T:
            try:
                if interrupted.is_set():
                    call.close()
                    raise asyncio.CancelledError
                begun.extend(filter(None, [asyncio.current_task()]))
                return await call
            finally:
                left.set()

        def cancel() -> None:
            for task in begun:
                task.cancel()

        try:
            return asyncio.run_coroutine_threadsafe(whole(), self._loop).result()
        except KeyboardInterrupt:
            # it may strike before the future is returned, when the call is long under way
            interrupted.set()
            self._loop.call_soon_threadsafe(cancel)
            # on its way out a call removes what it made; a second interrupt does not wait
            left.wait(LEAVE_SECONDS)
            raise

    def _iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        done = object()
        try:
            while (item := self._wait(_next(source, done))) is not done:
                yield item  # type: ignore[misc]  # the sentinel never gets here
        finally:
            self._wait(_close(source))

    def submit(self, document: Document, *, dry_run: bool = False) -> Record:
        """Create a new experiment from a document; where the name is taken it gets a suffix."""
        return self._wait(self._client.submit(document, dry_run=dry_run))

    def apply(self, document: Document, *, dry_run: bool = False) -> Record:
        """Create an experiment, or update the one of that name."""
        return self._wait(self._client.apply(document, dry_run=dry_run))

    def get(self, name: str) -> Record:
        """Return one experiment."""
        return self._wait(self._client.get(name))

    def list(self) -> Records:
        """Return the experiments of the project."""
        return self._wait(self._client.list())

    def describe(self, name: str) -> Record:
        """Return what an experiment is and why it is where it is, in words."""
        return self._wait(self._client.describe(name))

    def scale(self, name: str, role: str, replicas: int) -> Record:
        """Set the live replica count of a role, until its declared count changes."""
        return self._wait(self._client.scale(name, role, replicas))

    def freeze(self, name: str) -> Record:
        """Stop an experiment and keep its scene."""
        return self._wait(self._client.freeze(name))

    def delete(self, name: str) -> None:
        """Ask for the end of an experiment: collect, archive, destroy, in that order."""
        self._wait(self._client.delete(name))

    def wait(
        self,
        name: str,
        *,
        timeout_seconds: float | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Record:
        """Wait for the end of an experiment and return it. Callbacks run in the client's thread."""
        return self._wait(
            self._client.wait(name, timeout_seconds=timeout_seconds, on_progress=on_progress)
        )

    def results(self, name: str) -> Iterator[SandboxStatus]:
        """Yield how each sandbox of an experiment ended, in order of role and index."""
        return self._iterate(self._client.results(name))

    def run(
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
        """Run a command in many sandboxes and return how each ended, in order (ORCH-01)."""
        return self._wait(
            self._client.run(
                image=image,
                command=command,
                count=count,
                items=items,
                cpu=cpu,
                memory=memory,
                pids=pids,
                disk=disk,
                env=env,
                max_run_seconds=max_run_seconds,
                name=name,
                timeout_seconds=timeout_seconds,
                keep=keep,
                on_progress=on_progress,
            )
        )

    def put_items(
        self, experiment: str, queue: str, bodies: Iterable[str], *, ids: Sequence[str] = ()
    ) -> PutAnswer:
        """Put work at the end of a queue; with the same `ids` again, nothing is put twice."""
        return self._wait(self._client.put_items(experiment, queue, bodies, ids=ids))

    def take_items(
        self,
        experiment: str,
        queue: str,
        *,
        most: int = 1,
        visibility_seconds: float = 60.0,
        wait_seconds: float = 0.0,
        worker: str = "",
    ) -> Taken:
        """Take up to `most` items, waiting up to `wait_seconds` (s) for the first."""
        return self._wait(
            self._client.take_items(
                experiment,
                queue,
                most=most,
                visibility_seconds=visibility_seconds,
                wait_seconds=wait_seconds,
                worker=worker,
            )
        )

    def acknowledge_items(
        self, experiment: str, queue: str, receipts: Iterable[str]
    ) -> ReceiptsAnswer:
        """End items. A receipt whose time is over changes nothing and is told as stale."""
        return self._wait(self._client.acknowledge_items(experiment, queue, receipts))

    def release_items(self, experiment: str, queue: str, receipts: Iterable[str]) -> ReceiptsAnswer:
        """Give items back: they wait again, at their old place."""
        return self._wait(self._client.release_items(experiment, queue, receipts))

    def extend_items(
        self, experiment: str, queue: str, receipts: Iterable[str], *, visibility_seconds: float
    ) -> ReceiptsAnswer:
        """Hold items for `visibility_seconds` (s) from now."""
        return self._wait(
            self._client.extend_items(
                experiment, queue, receipts, visibility_seconds=visibility_seconds
            )
        )

    def queue_status(self, experiment: str, queue: str) -> QueueStatus:
        """Return a queue in numbers; one that never had an item is empty."""
        return self._wait(self._client.queue_status(experiment, queue))

    def queues(self, experiment: str) -> QueueStatuses:
        """Return the queues of an experiment in numbers."""
        return self._wait(self._client.queues(experiment))

    def put_input(self, content: bytes) -> str:
        """Upload the items of a batch; return their SHA-256."""
        return self._wait(self._client.put_input(content))

    def create(
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
        """Create one sandbox. With the same key, at most one sandbox is ever made."""
        return self._wait(
            self._client.create(
                image=image,
                resources=resources,
                command=command,
                key=key,
                env=env,
                stdin=stdin,
                max_run_seconds=max_run_seconds,
                isolation=isolation,
                labels=labels,
            )
        )

    def create_batch(self, creates: Creates) -> Answers:
        """Create many sandboxes; one answer per create, in order."""
        return self._wait(self._client.create_batch(creates))

    def sandboxes(self, *, experiment: str = "", role: str = "", state: str = "") -> Statuses:
        """Return the sandboxes of the project that agents report."""
        return self._wait(self._client.sandboxes(experiment=experiment, role=role, state=state))

    def sandbox(self, sandbox_id: str) -> SandboxStatus:
        """Return one sandbox."""
        return self._wait(self._client.sandbox(sandbox_id))

    def decision(self, sandbox_id: str) -> SandboxDecision:
        """Return why a sandbox is where it is, or why it waits."""
        return self._wait(self._client.decision(sandbox_id))

    def decision_dump(self) -> bytes:
        """Return the leader's next round of decisions, as `dsec explain` replays it."""
        return self._wait(self._client.decision_dump())

    def stop(self, sandbox_id: str) -> None:
        """End one sandbox."""
        self._wait(self._client.stop(sandbox_id))

    def exec(
        self,
        sandbox_id: str,
        command: Iterable[str],
        *,
        stdin: bytes | Iterable[bytes] = b"",
        env: dict[str, str] | None = None,
        workdir: str = "",
        user: str = "",
        timeout_seconds: float | None = None,
    ) -> Iterator[Frame]:
        """Run a command in a live sandbox; yield its output, then exactly one END frame."""
        given = stdin if isinstance(stdin, bytes) else _pieces(stdin)
        return self._iterate(
            self._client.exec(
                sandbox_id,
                command,
                stdin=given,
                env=env,
                workdir=workdir,
                user=user,
                timeout_seconds=timeout_seconds,
            )
        )

    def exec_result(
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
        return self._wait(
            self._client.exec_result(
                sandbox_id,
                command,
                stdin=stdin,
                env=env,
                workdir=workdir,
                user=user,
                timeout_seconds=timeout_seconds,
            )
        )

    def extend(self, sandbox_id: str, *, seconds: float) -> Extension:
        """Let a sandbox be for so long from now, whatever the reaper finds; at most 7 days."""
        return self._wait(self._client.extend(sandbox_id, seconds=seconds))

    def logs(self, sandbox_id: str, *, follow: bool = False) -> Iterator[Frame]:
        """Yield the kept output of the main command, then new output while it runs, then END."""
        return self._iterate(self._client.logs(sandbox_id, follow=follow))

    def nodes(self) -> Records:
        """Return the nodes, with what is free on each."""
        return self._wait(self._client.nodes())

    def tenants(self) -> Records:
        """Return the tenants that the caller may see."""
        return self._wait(self._client.tenants())

    def costs(
        self, by: str = "task", *, since: str = "", until: str = "", zone: str = ""
    ) -> Record:
        """Return what was spent that the caller may read; see `AsyncClient.costs`."""
        return self._wait(self._client.costs(by, since=since, until=until, zone=zone))

    def budgets(self) -> Records:
        """Return the budgets that the caller may read: `name`, `project`, `spec`, `status`."""
        return self._wait(self._client.budgets())

    def replication(self) -> Records:
        """Return the replication policies: `name`, `spec`, `status` with lag and recovery point."""
        return self._wait(self._client.replication())

    def replicate(self, policy: str) -> Record:
        """Have a cycle of a policy run now; `asked` is what `status.handled` will be after it.

        Raises NotFoundError.
        """
        return self._wait(self._client.replicate(policy))

    def failover(
        self,
        lost: str,
        *,
        projects: Sequence[str] = (),
        rehearse: bool = False,
        verify: bool = False,
        why: str = "",
    ) -> Record:
        """Take over the experiments of a lost region in the region that is asked.

        `rehearse` changes nothing. The answer has `rows` (what became of each experiment, and the
        work that is lost), `steps` with their seconds, `recoveryPointSeconds`. Repeating it is no
        error. Raises InvalidError where the region is the one that answers.
        """
        return self._wait(
            self._client.failover(
                lost, projects=projects, rehearse=rehearse, verify=verify, why=why
            )
        )

    def whoami(self) -> Record:
        """Return who the server takes the caller for."""
        return self._wait(self._client.whoami())

    def version(self) -> Record:
        """Return the version of the server and of its protocol."""
        return self._wait(self._client.version())

    def ready(self) -> bool:
        """Say whether the server answers that it is ready; never raises."""
        return self._wait(self._client.ready())


async def _next(source: AsyncIterator[T], done: object) -> T | object:
    return await anext(source, done)


async def _close(source: AsyncIterator[T]) -> None:
    close = getattr(source, "aclose", None)
    if close is not None:
        await close()


async def _pieces(source: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Read a blocking iterable without blocking the loop."""
    reader = iter(source)
    while (piece := await asyncio.to_thread(next, reader, None)) is not None:
        yield piece
