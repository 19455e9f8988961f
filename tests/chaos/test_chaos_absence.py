"""No controller at all for a while: what runs goes on, and its history has no gap."""

import itertools
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from chaos_world import bind_log, client_of, journal, many, say
from control_plane import CONTROLLERS, Plane, sandbox
from dsec.api.frames import FrameType
from dsec.api.reasons import EndReason
from dsec.api.wire import KeyedCreate
from dsec.client import Client
from dsec.client.errors import DsecError

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

LIVE = 200
STREAMS = 5
FIRST_END = 15.0
"""Seconds that the shortest of them run: most machines have made all and killed the controllers."""
WAY = tuple(
    f"sandbox-{state}"
    for state in (*("bound", "pulling", "creating", "starting", "running"), "archiving", "ended")
)
"""The transitions of a sandbox that ends by itself."""


def follow(plane: Plane, sandbox: str, ends: dict[str, str]) -> None:
    """Follow the log of a sandbox to its end; keep how the stream closed."""
    try:
        with client_of(plane) as client:
            last = [frame.type for frame in client.logs(sandbox, follow=True)][-1]
            ends[sandbox] = FrameType(last).name
    except DsecError as broken:
        ends[sandbox] = str(broken)


def make(client: Client, prefix: str, away: int) -> tuple[list[str], list[str]]:
    """Make 200: half run until they are stopped, half end by and by while nobody leads."""
    half = LIVE // 2
    seconds = [FIRST_END + 0.7 * away * n / half for n in range(half)]
    envs = [*({} for _ in range(half)), *({"DSEC_SIM_SECONDS": f"{s:.1f}"} for s in seconds)]
    creates = [sandbox(key=f"{prefix}-{n}", env=env) for n, env in enumerate(envs)]
    answers = client.create_batch([KeyedCreate.model_validate(one) for one in creates])
    ids = [answer.id for answer in answers]
    return ids[:half], ids[half:]


def run_commands(client: Client, sandboxes: list[str], seconds: float) -> int:
    """Run a command in one sandbox after the other for so long; return how many were run."""
    end = time.monotonic() + seconds
    for count, one in enumerate(itertools.cycle(sandboxes)):
        if time.monotonic() > end:
            return count
        result = client.exec_result(one, ["true"])
        assert result.end.exit_code == 0, result
        time.sleep(0.2)
    raise AssertionError("unreachable: the cycle has no end")


def ways_of(plane: Plane, ids: set[str]) -> dict[str, tuple[str, ...]]:
    """Return the transitions of each sandbox as its agent wrote them to the journal."""
    ways: dict[str, tuple[str, ...]] = {}
    for row in journal(plane, ids):
        if row.node.startswith("sim-"):
            ways[row.sandbox] = (*ways.get(row.sandbox, ()), row.kind)
    return ways


@pytest.mark.parametrize("away", many(20, 600))
def test_sandboxes_go_on_without_a_controller(plane: Plane, away: int) -> None:
    """Commands and streams are served, many of 200 end, and each transition is written once."""
    streams: dict[str, str] = {}
    with client_of(plane) as client:
        long, short = make(client, f"away{away}", away)
        ids = {*long, *short}
        assert len(ids) == LIVE
        followers = [
            threading.Thread(target=follow, args=(plane, one, streams)) for one in short[-STREAMS:]
        ]
        for thread in followers:
            thread.start()

        def running() -> set[str]:
            return ids & {one.identity.id for one in client.sandboxes(state="running")}

        seen: set[str] = set()

        def all_have_run() -> bool:
            seen.update(running())
            return seen == ids

        plane.until("all have run", all_have_run)
        for name in CONTROLLERS:
            plane.kill(name)
        commands = run_commands(client, long, away)
        left: set[str] = set()

        def some_went_on() -> bool:
            left.clear()
            left.update(running())
            return set(long) <= left and len(left) <= LIVE * 9 // 10

        plane.until("some go on to their ends, all others run", some_went_on)
        for name in CONTROLLERS:
            plane.restart(name)

        def ended(which: list[str]) -> bool:
            by_id = bind_log(plane).by_id
            return not any(by_id[i].live for i in which)

        back = plane.until("every end is recorded", lambda: ended(short), away + 60)
        for thread in followers:
            thread.join(60)
        assert Counter(streams.values()) == {"END": STREAMS}
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(client.stop, long))
        plane.until("the others are stopped", lambda: ended(long), 60)
    by_id = bind_log(plane).by_id
    assert {by_id[i].reason for i in short} == {EndReason.COMPLETED}
    assert {by_id[i].reason for i in long} == {EndReason.STOPPED}
    ways: dict[str, tuple[str, ...]] = {}

    def written() -> bool:
        # agents ship their rows when they can, not when the end is decided
        ways.update(ways_of(plane, ids))
        return all(ways.get(one, ())[-1:] == WAY[-1:] for one in ids)

    plane.until("every end is in the journal", written, 120)
    assert {ways[i] for i in short} == {WAY}
    assert {ways[i] for i in long} == {(*WAY[:5], "sandbox-stopping", *WAY[5:])}
    say(
        f"{LIVE} live, no controller for {away} s: {commands} commands served, {LIVE - len(left)} "
        f"ended meanwhile, {STREAMS} streams followed to their end; every end in the bind log "
        f"{back:.1f} s after the controllers came back; {sum(map(len, ways.values()))} journal "
        "rows, each once and in order"
    )
