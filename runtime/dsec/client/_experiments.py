"""The verbs about experiments, and the one-call batch."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from dsec.api.names import dns_name
from dsec.api.sandbox import SandboxStatus
from dsec.client._caller import Caller
from dsec.client._messages import (
    Document,
    Record,
    Records,
    Statuses,
    document_bytes,
    items_of,
    object_of,
    status_of,
)
from dsec.client.batch import (
    Batch,
    Progress,
    ended,
    experiment_of,
    in_order,
    item_lines,
    progress_of,
    refused,
    run_name,
)
from dsec.client.errors import (
    BusyError,
    DsecError,
    InvalidError,
    NotFoundError,
    ServerError,
    UnknownOutcomeError,
    UnreachableError,
    WaitTimeoutError,
)

POLL_SECONDS = 0.5
"""Between two looks at an experiment; a state is at most this much older than the server's."""
LEAVE_SECONDS = 8.0
"""How long a failed batch may take to remove what it made."""


class ExperimentVerbs(Caller):
    """Submit, look at, change, wait for and end experiments."""

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
        return object_of(response)

    async def get(self, name: str) -> Record:
        """Return one experiment."""
        return object_of(await self._transport.call("GET", self._experiment(name)))

    async def list(self) -> Records:
        """Return the experiments of the project."""
        return items_of(await self._transport.call("GET", self._at("experiments")))

    async def describe(self, name: str) -> Record:
        """Return what an experiment is and why it is where it is, in words."""
        return object_of(await self._transport.call("GET", self._experiment(name, "describe")))

    async def scale(self, name: str, role: str, replicas: int) -> Record:
        """Set the live replica count of a role, until its declared count changes."""
        response = await self._transport.call(
            "POST",
            self._experiment(name, "scale"),
            json={"role": role, "replicas": replicas},
            repeatable=True,  # it sets a value
        )
        return object_of(response)

    async def freeze(self, name: str) -> Record:
        """Stop an experiment and keep its scene. Repeating it changes nothing."""
        response = await self._transport.call(
            "POST", self._experiment(name, "freeze"), repeatable=True
        )
        return object_of(response)

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
                    yield status_of(line)
            if rest:
                yield status_of(rest)

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
