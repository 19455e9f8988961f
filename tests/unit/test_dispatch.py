"""What agents are told: calls of bounded size, no false losses, nothing before a first answer."""

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from dsec.api.reasons import EndReason
from dsec.api.sandbox import Identity, Resources, SandboxSpec
from dsec.api.wire import CreateAnswer, StopCall
from dsec.controllers.dispatch import BATCH_BYTES, SPEC_BYTES, Dispatcher
from dsec.journal.bindings import Binding, Bindings, Row
from dsec.world.agents import AgentRefusedError, AgentSilentError, NodeMemory
from dsec.world.clock import SystemClock

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class World:
    """A dispatcher with one node whose agent takes everything."""

    def __init__(self) -> None:
        self.calls: list[list[SandboxSpec]] = []
        self.ended: list[tuple[str, str]] = []
        self.refused: list[str] = []
        self.extra: list[CreateAnswer] = []
        self.turns: list[tuple[str, str]] = []
        self.unturned: list[tuple[str, str]] = []
        self.stopped: list[str] = []
        self.cannot: set[str] = set()
        self.unknown: set[str] = set()
        self.silent: set[str] = set()
        self.state = Bindings()
        self.memory = NodeMemory("n1", "http://n1", seen=0.0)
        fleet: Any = SimpleNamespace(watch=lambda _: self)
        self.client = self
        self.dispatcher = Dispatcher(
            1,
            self.state,
            fleet,
            clock=SystemClock(),
            randomness=random.Random(1),  # noqa: S311 - repeatable jitter
            on_refused=lambda sandbox, _node, _reason: self.refused.append(sandbox),
            on_unsendable=self._end,
            on_unturned=lambda sandbox, why: self.unturned.append((sandbox, why)),
        )

    def bind(self, number: int, item: str = "") -> str:
        """Bind one sandbox to the node."""
        name = f"sb-{number:026d}"
        spec = SandboxSpec(
            identity=Identity(id=name, tenant="t", project="p"),
            image="i",
            resources=Resources(cpu_milli=1, memory_bytes=1 << 20),
            item=item or None,
        )
        made = Binding(tenant="t", key=name, body_hash="h", id=name, spec=spec, node="n1", at=NOW)
        self.state.apply([Row(kind="bind", at=NOW, binding=made)])
        return name

    async def create(self, _: int, specs: list[SandboxSpec]) -> list[CreateAnswer]:
        """Accept a call."""
        self.calls.append(specs)
        taken = [CreateAnswer(id=spec.identity.id, accepted=True) for spec in specs]
        return taken + self.extra

    async def pause(self, _: int, sandbox: str, message: str) -> None:
        """Take a pause, or turn it down."""
        self.turns.append((sandbox, message))
        if sandbox in self.silent:
            raise AgentSilentError("status 503")
        if sandbox in self.cannot:
            raise AgentRefusedError("cannot-pause", "no freezer")

    async def stop(self, call: StopCall) -> None:
        """Take a stop whose reason is known."""
        if call.reason in self.unknown:
            raise AgentRefusedError("invalid", "no such reason")
        self.stopped += call.ids

    async def until(self, what: Callable[[], object]) -> None:
        """Let the worker go on until something holds; then stop it."""
        self.dispatcher.wake("n1")
        for _ in range(3000):
            if what():
                break
            await asyncio.sleep(0.01)
        await self.dispatcher.close()

    async def _end(self, binding: Binding, why: str) -> None:
        self.ended.append((binding.id, why))
        self.state.apply([Row(kind="end", at=NOW, id=binding.id)])


async def test_large_specs_go_in_several_calls() -> None:
    """Twenty items of a megabyte are two calls, each below what an agent takes."""
    world = World()
    names = [world.bind(n, "x" * (1 << 20)) for n in range(20)]
    await world.until(lambda: sum(map(len, world.calls)) == len(names))
    assert [spec.identity.id for call in world.calls for spec in call] == names
    assert len(world.calls) == 2
    for call in world.calls:
        assert sum(len(spec.model_dump_json()) for spec in call) < BATCH_BYTES + (1 << 20)


async def test_what_fits_in_no_call_ends_and_blocks_nobody() -> None:
    """A spec that no agent can be sent ends with a message; the others are served."""
    world = World()
    large = world.bind(1, "x" * (SPEC_BYTES + 1))
    small = world.bind(2)
    await world.until(lambda: world.calls)
    assert [name for name, _ in world.ended] == [large]
    assert str(SPEC_BYTES) in world.ended[0][1]
    assert [[spec.identity.id for spec in call] for call in world.calls] == [[small]]


async def test_what_was_confirmed_after_the_question_is_not_lost() -> None:
    """An answer under way while a create was confirmed says nothing about that sandbox."""
    world = World()
    name = world.bind(1)
    clock = SystemClock()
    before = clock.monotonic()
    await asyncio.sleep(0.01)
    world.dispatcher.confirm("n1", [name])
    assert world.dispatcher.lost("n1", [], asked=before) == []
    await asyncio.sleep(0.01)
    # seen again: it is as old as its first confirmation
    world.dispatcher.confirm("n1", [name])
    assert world.dispatcher.lost("n1", [], asked=clock.monotonic()) == [name]
    assert world.dispatcher.lost("n1", [name], asked=clock.monotonic()) == []


async def test_nothing_is_sent_before_the_first_answer() -> None:
    """A new leader learns what a node has before it asks it for anything."""
    world = World()
    world.bind(1)
    world.memory.seen = None
    world.dispatcher.wake("n1")
    await asyncio.sleep(0.1)
    assert world.calls == []
    world.memory.seen = 1.0
    await world.until(lambda: world.calls)
    assert len(world.calls) == 1


async def test_only_what_was_asked_is_taken() -> None:
    """An agent cannot confirm or refuse a sandbox that it was not asked for."""
    world = World()
    world.bind(1)
    world.extra = [
        CreateAnswer(id="sb-other", accepted=True),
        CreateAnswer(id="sb-third", accepted=False, reason="no"),
    ]
    await world.until(lambda: world.calls)
    assert not world.dispatcher.confirmed("sb-other", "n1")
    assert world.refused == []


async def test_a_turn_is_asked_once_and_its_refusal_is_told() -> None:
    """A pause that an agent turns down is not repeated; one that it takes is not either."""
    world = World()
    first, second = world.bind(1), world.bind(2)
    world.dispatcher.confirm("n1", [first, second])
    world.cannot = {second}
    world.dispatcher.turn("n1", first, pause=True, message="for another")
    world.dispatcher.turn("n1", second, pause=True)
    world.dispatcher.turn("n1", "sb-unknown", pause=True)
    await world.until(lambda: world.unturned)
    assert world.turns == [(first, "for another"), (second, "")]
    assert world.unturned == [(second, "cannot-pause: no freezer")]


async def test_a_stop_wins_over_a_pause() -> None:
    """What has to stop is not paused first."""
    world = World()
    name = world.bind(1)
    world.dispatcher.confirm("n1", [name])
    world.dispatcher.turn("n1", name, pause=True)
    world.dispatcher.stop("n1", name, EndReason.PREEMPTED, "for another")
    await world.until(lambda: world.stopped)
    assert (world.stopped, world.turns) == ([name], [])


async def test_a_turn_without_an_outcome_holds_back_no_other() -> None:
    """The others are asked before it is repeated, and it is until its node is gone."""
    world = World()
    names = [world.bind(number) for number in range(3)]
    world.dispatcher.confirm("n1", names)
    world.silent = {names[0]}
    for name in names:
        world.dispatcher.turn("n1", name, pause=True)
    await world.until(lambda: len(world.turns) > len(names))
    assert [name for name, _ in world.turns] == [*names, names[0]]
    assert world.unturned == []
    world.dispatcher.forget_turns("n1", "node n1 is gone")
    assert world.unturned == [(names[0], "node n1 is gone")]
    assert await world.dispatcher._turn_one("n1") is False


@pytest.mark.parametrize("reason", [EndReason.PREEMPTED, EndReason.IDLE, EndReason.HEARTBEAT_LOST])
async def test_an_older_agent_stops_victims_for_a_reason_that_it_knows(reason: EndReason) -> None:
    """And no other stop waits behind one that it cannot take."""
    world = World()
    first, second = world.bind(1), world.bind(2)
    world.dispatcher.confirm("n1", [first, second])
    world.unknown = {reason.value}
    world.dispatcher.stop("n1", first, reason, "for another")
    world.dispatcher.stop("n1", second, EndReason.STOPPED, "by a user")
    await world.until(lambda: len(world.stopped) > 1)
    assert world.stopped == [first, second]
