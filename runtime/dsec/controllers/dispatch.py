"""Tells agents what was decided: one call at a time per node, repeated until it has an answer.

What must be told is computed from the bind log and the agent's own state at each step, so a lost
call, a lost reply or a new leader needs no memory: the same question is asked again, by id.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import structlog

from dsec.api.reasons import EndReason
from dsec.api.sandbox import SandboxSpec
from dsec.api.wire import StopCall
from dsec.controllers.fleet import Fleet
from dsec.journal.bindings import Binding, Bindings
from dsec.world.agents import AgentRefusedError, AgentSilentError, AgentStaleError
from dsec.world.clock import Clock, Randomness

BATCH = 500
"""Creates in one call: a few hundred kilobytes, accepted by one group commit."""
BATCH_BYTES = 16 << 20
"""Of specs in one call, as far as there is more than one."""
SPEC_BYTES = 48 << 20
"""Of one spec: agents take calls of 64 MiB."""
SMALL_BYTES = 8 << 10
"""Most that a spec has beside its own texts; BATCH of four times that fit in BATCH_BYTES."""
FIRST_RETRY, LAST_RETRY = 0.3, 5.0
_BEFORE = {
    EndReason.PREEMPTED: EndReason.INFRASTRUCTURE,
    EndReason.OVER_BUDGET: EndReason.STOPPED,
    EndReason.HEARTBEAT_LOST: EndReason.DEADLINE,
    EndReason.IDLE: EndReason.DEADLINE,
}
"""What an agent of the version before is told where it does not know a reason."""

log = structlog.get_logger()


class Dispatcher:
    """One worker per node with something to say. Started and stopped with the term."""

    def __init__(
        self,
        epoch: int,
        state: Bindings,
        fleet: Fleet,
        *,
        clock: Clock,
        randomness: Randomness,
        on_refused: Callable[[str, str, str], None],
        on_unsendable: Callable[[Binding, str], Awaitable[None]],
        on_unturned: Callable[[str, str], None] = lambda _id, _why: None,
        held: Callable[[str], bool] = lambda _id: False,
    ) -> None:
        """`on_refused(id, node, reason)` is told of each create that an agent turned down.

        `on_unsendable(binding, why)` ends what no agent can ever be asked for. `on_unturned(id,
        why)` is told of each pause and resume that an agent turned down. `held(id)`: a gateway is
        about to create it, and nothing is said of it here.
        """
        self._epoch = epoch
        self._state = state
        self._fleet = fleet
        self._clock = clock
        self._randomness = randomness
        self._on_refused = on_refused
        self._on_unsendable = on_unsendable
        self._on_unturned = on_unturned
        self._held = held
        self._confirmed: dict[str, tuple[str, float]] = {}
        self._stops: dict[str, dict[str, tuple[EndReason, str]]] = {}
        self._turns: dict[str, dict[str, tuple[bool, str]]] = {}
        self._ending: set[tuple[str, str]] = set()
        self._acks: dict[str, set[str]] = {}
        self._workers: dict[str, asyncio.Task[None]] = {}
        self._wakes: dict[str, asyncio.Event] = {}
        self._progress = asyncio.Condition()
        self.stale = asyncio.Event()
        self.failure: BaseException | None = None

    def wake(self, node: str) -> None:
        """Let a node's worker look at what its agent should be told."""
        self._wakes.setdefault(node, asyncio.Event()).set()
        worker = self._workers.get(node)
        if worker is None or worker.done():
            worker = asyncio.create_task(self._work(node), name=f"dispatch-{node}")
            worker.add_done_callback(self._over)
            self._workers[node] = worker

    def _over(self, worker: asyncio.Task[None]) -> None:
        """Keep what ended a worker: the term has to end with it."""
        if not worker.cancelled() and worker.exception() is not None:
            self.failure = worker.exception()

    def confirm(self, node: str, ids: Iterable[str]) -> None:
        """Take note that an agent has these sandboxes."""
        now = self._clock.monotonic()
        known = self._confirmed
        for sandbox in ids:
            if (seen := known.get(sandbox)) is None or seen[0] != node:
                known[sandbox] = (node, now)

    def confirmed(self, sandbox: str, node: str) -> bool:
        """Return whether that node's agent is known to have a sandbox."""
        known = self._confirmed.get(sandbox)
        return known is not None and known[0] == node

    def lost(self, node: str, known: Iterable[str], *, asked: float) -> list[str]:
        """Given all ids that a restarted agent knows, return those confirmed there and now gone.

        `asked` is when it was asked: what was confirmed since then may be missing in the answer.
        """
        present = set(known)
        return [
            binding.id
            for binding in self._state.on_node(node)
            if self.confirmed(binding.id, node)
            and self._confirmed[binding.id][1] < asked
            and binding.id not in present
        ]

    def stop(self, node: str, sandbox: str, reason: EndReason, message: str) -> None:
        """Ask for the end of a sandbox on a node; repeated until the agent has taken it."""
        self._turns.get(node, {}).pop(sandbox, None)
        self._stops.setdefault(node, {})[sandbox] = (reason, message)
        self.wake(node)

    def turn(self, node: str, sandbox: str, *, pause: bool, message: str = "") -> None:
        """Ask that a sandbox rests, or goes on; repeated until the agent has answered."""
        self._turns.setdefault(node, {})[sandbox] = (pause, message)
        self.wake(node)

    def forget_turns(self, node: str, why: str) -> None:
        """Ask a node for no pause and no resume any more, and say so of each that was left."""
        for sandbox in self._turns.pop(node, {}):
            self._on_unturned(sandbox, why)

    def stopping(self, node: str, sandbox: str) -> bool:
        """Return whether a stop still waits to be taken."""
        return sandbox in self._stops.get(node, {})

    def ending(self, node: str, sandbox: str) -> bool:
        """Return whether the end of a copy was asked for in this term, taken or not."""
        return (node, sandbox) in self._ending or self.stopping(node, sandbox)

    def acknowledge(self, node: str, ids: Iterable[str]) -> None:
        """Tell an agent that ends are recorded; repeated until it has taken it."""
        self._acks.setdefault(node, set()).update(ids)
        self.wake(node)

    async def settle(self, ids: Iterable[str], seconds: float) -> None:
        """Wait until each of these is confirmed, ended or without a node, at most so long."""
        left = list(ids)

        def settled() -> bool:
            # all have to be: one that is not is asked about first the next time
            while left:
                binding = self._state.by_id.get(left[-1])
                if (
                    binding is not None
                    and binding.live
                    and binding.node
                    and not self.confirmed(binding.id, binding.node)
                ):
                    return False
                left.pop()
            return True

        await self._until(settled, seconds)

    async def stopped(self, ids: Iterable[str], seconds: float) -> bool:
        """Wait until no stop of these is left to be taken; False when the time is over first."""
        wanted = set(ids)

        def taken() -> bool:
            return all(wanted.isdisjoint(stops) for stops in self._stops.values())

        await self._until(taken, seconds)
        return taken()

    async def _until(self, condition: Callable[[], bool], seconds: float) -> None:
        timer = asyncio.create_task(self._clock.sleep(seconds))
        timer.add_done_callback(lambda _: asyncio.ensure_future(self._tell()))
        try:
            async with self._progress:
                await self._progress.wait_for(lambda: condition() or timer.done())
        finally:
            timer.cancel()

    async def close(self) -> None:
        """Stop all workers."""
        workers, self._workers = list(self._workers.values()), {}
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    async def _tell(self) -> None:
        async with self._progress:
            self._progress.notify_all()

    async def _work(self, node: str) -> None:
        failures = 0
        wake = self._wakes[node]
        while True:
            wake.clear()
            watch = self._fleet.watch(node)
            if watch is None:
                await wake.wait()
                continue
            try:
                busy = await self._step(node)
                failures = 0
            except AgentStaleError as problem:
                log.warning("an agent has seen a later leader", node=node, error=str(problem))
                self.stale.set()
                return
            except (AgentSilentError, AgentRefusedError) as problem:
                failures += 1
                if failures == 1:
                    log.warning("agent call has no outcome", node=node, error=str(problem))
                pause = min(LAST_RETRY, FIRST_RETRY * 2.0 ** min(failures, 8))
                await self._clock.sleep(pause * (0.5 + self._randomness.random() / 2))
                continue
            if not busy:
                await wake.wait()

    async def _step(self, node: str) -> bool:
        """Make one call where one is due. False: there is nothing to say."""
        watch = self._fleet.watch(node)
        if watch is None or watch.memory.seen is None:
            # what it has already is known with its first answer, which wakes this worker
            return False
        known = self._confirmed
        due = [
            b
            for b in self._state.on_node(node)
            if known.get(b.id, ("",))[0] != node and not self._held(b.id)
        ][:BATCH]
        due = await self._sendable(due)
        if due:
            asked = {b.id for b in due}
            answers = await watch.client.create(self._epoch, [b.spec for b in due])
            answers = [answer for answer in answers if answer.id in asked]
            taken = [answer.id for answer in answers if answer.accepted]
            self.confirm(node, taken)
            # what comes back to a node is not what was to end there
            self._ending.difference_update((node, sandbox) for sandbox in taken)
            for answer in answers:
                if not answer.accepted:
                    self._on_refused(answer.id, node, answer.reason)
            await self._tell()
            # refused ones are moved by the placer; asking again at once would only spin
            return any(answer.accepted for answer in answers)
        return (
            await self._stop_some(node)
            or await self._acknowledge_some(node)
            or await self._turn_one(node)
        )

    async def _sendable(self, due: list[Binding]) -> list[Binding]:
        """Return the first of these that fit in one call; those that fit in none are ended."""
        batch: list[Binding] = []
        total = 0
        for binding in due:
            size = _size(binding.spec)
            if size > SPEC_BYTES:
                why = f"what it asks for has {size} bytes; at most {SPEC_BYTES} can be sent"
                await self._on_unsendable(binding, why)
                continue
            if batch and total + size > BATCH_BYTES:
                break
            batch.append(binding)
            total += size
        return batch

    async def _stop_some(self, node: str) -> bool:
        watch, stops = self._fleet.watch(node), self._stops.get(node, {})
        ready = {i: why for i, why in stops.items() if not self._held(i)}
        if watch is None or not ready:
            return False
        reason, message = next(iter(ready.values()))
        ids = [i for i, why in ready.items() if why == (reason, message)][:BATCH]
        call = StopCall(epoch=self._epoch, ids=ids, reason=reason.value, message=message)
        try:
            await watch.client.stop(call)
        except AgentRefusedError as problem:
            if problem.code != "invalid" or reason not in _BEFORE:
                raise
            # an agent of the version before does not know the reason; this one is made up for, too
            call.reason = _BEFORE[reason].value
            await watch.client.stop(call)
        for sandbox in ids:
            stops.pop(sandbox, None)
        self._ending.update((node, sandbox) for sandbox in ids)
        await self._tell()
        return True

    async def _turn_one(self, node: str) -> bool:
        watch, turns = self._fleet.watch(node), self._turns.get(node, {})
        if watch is None or not turns:
            return False
        sandbox, (pause, message) = next(iter(turns.items()))
        if not self._state.effective(sandbox, node):
            del turns[sandbox]
            return True
        # a call without an outcome is repeated after those of the others
        turns[sandbox] = turns.pop(sandbox)
        refused = ""
        try:
            if pause:
                await watch.client.pause(self._epoch, sandbox, message)
            else:
                await watch.client.resume(self._epoch, sandbox)
        except AgentRefusedError as problem:
            refused = str(problem)
        if turns.get(sandbox) == (pause, message):
            del turns[sandbox]
            if refused:
                self._on_unturned(sandbox, refused)
        return True

    async def _acknowledge_some(self, node: str) -> bool:
        watch, acks = self._fleet.watch(node), self._acks.get(node, set())
        if watch is None or not acks:
            return False
        ids = sorted(acks)[:BATCH]
        await watch.client.acknowledge(self._epoch, ids)
        watch.memory.forget(ids)
        acks.difference_update(ids)
        for sandbox in ids:
            self._ending.discard((node, sandbox))
            if self.confirmed(sandbox, node):
                del self._confirmed[sandbox]
        return True


def _size(spec: SandboxSpec) -> int:
    """Return the bytes of a spec in a call: the most it can have, or exactly where that is much."""
    texts = [spec.image, spec.workdir, spec.user, *spec.command, *spec.env, *spec.env.values()]
    texts += [one.path for one in spec.mounts]
    characters = sum(map(len, texts)) + len(spec.item or "") + len(spec.stdin or "")
    # JSON writes some characters as six; names and marks of a list's elements are fewer than 128
    most = SMALL_BYTES + 128 * len(texts) + 6 * characters
    if most <= 4 * SMALL_BYTES:
        return most
    return len(spec.model_dump_json(by_alias=True, exclude_none=True).encode())
