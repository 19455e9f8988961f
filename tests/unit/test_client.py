"""What the SDK promises: typed errors, keys, safe repeats, no success without an end."""

import asyncio
import inspect
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator

import httpx2
import pytest
from client_fake import KEY, RESOURCES, FakeGateway, status_of
from dsec.api.frames import FrameType
from dsec.api.sandbox import End
from dsec.client import (
    AsyncClient,
    Client,
    Context,
    DeniedError,
    InvalidError,
    NotFoundError,
    TruncatedStreamError,
    UnknownOutcomeError,
    UnreachableError,
    WaitTimeoutError,
    errors,
)
from dsec.client.batch import Progress, in_order
from dsec.client.errors import DsecError


class Breaking(httpx2.AsyncBaseTransport):
    """The network to a gateway in this process: an exception of the app is a lost answer."""

    def __init__(self, gateway: FakeGateway) -> None:
        self._inner = httpx2.ASGITransport(app=gateway)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Pass on, and lose."""
        try:
            return await self._inner.handle_async_request(request)
        except ConnectionResetError as error:
            raise httpx2.ReadError("connection reset") from error


@pytest.fixture
def gateway() -> FakeGateway:
    """A fresh fake."""
    return FakeGateway()


@pytest.fixture
async def client(gateway: FakeGateway) -> AsyncIterator[AsyncClient]:
    """A client of it, with little patience."""
    context = Context(server="http://gateway", api_key=KEY)
    async with AsyncClient(context, patience=3, inner=Breaking(gateway)) as one:
        yield one


DOCUMENT = {
    "apiVersion": "dsec.dev/v1alpha1",
    "kind": "Experiment",
    "metadata": {"name": "one"},
    "spec": {"roles": [{"name": "worker", "replicas": 2}]},
}


def test_both_clients_have_the_same_verbs() -> None:
    """The synchronous client is a complete mirror: names, parameters and defaults."""

    def verbs(kind: type) -> dict[str, object]:
        return {
            name: [
                (parameter.name, parameter.kind, parameter.default)
                for parameter in inspect.signature(member).parameters.values()
            ]
            for name, member in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
        }

    assert verbs(AsyncClient) == verbs(Client)


async def test_submit_makes_a_new_name_and_apply_does_not(client: AsyncClient) -> None:
    """The same document twice is two experiments by `submit`, and one by `apply`."""
    names = [(await client.submit(DOCUMENT))["metadata"]["name"] for _ in range(2)]
    assert names == ["one", "one-1"]
    again = await client.apply(DOCUMENT)
    assert (again["metadata"]["name"], again["changes"]) == ("one", [])
    assert len(await client.list()) == 2


async def test_names_as_given_find_their_record(client: AsyncClient) -> None:
    """`ppo_walk` cannot be a record's name; the one that it became is found by it."""
    record = "ppo-walk-c4e0221d"
    await client.submit({**DOCUMENT, "metadata": {"name": record}})
    assert (await client.get("ppo_walk"))["metadata"]["name"] == record
    assert (await client.get(record))["metadata"]["name"] == record


async def test_submit_is_not_repeated_when_its_outcome_is_unknown(
    client: AsyncClient, gateway: FakeGateway
) -> None:
    """A lost answer to `submit` is reported as unknown, though it took effect."""
    gateway.lose["experiments"] = 1
    with pytest.raises(UnknownOutcomeError):
        await client.submit(DOCUMENT)
    assert "one" in gateway.experiments


async def test_create_repeats_with_the_same_key(client: AsyncClient, gateway: FakeGateway) -> None:
    """A lost answer leads to a repeat with the same generated key and to one sandbox."""
    gateway.lose["sandboxes"] = 2
    answer = await client.create(image="base", resources=RESOURCES)
    assert len(gateway.creates_seen) == 3
    assert {answer.key} == set(gateway.creates_seen) == set(gateway.keys)
    assert answer.outcome == "exists"


async def test_create_asks_again_while_the_node_is_silent(
    client: AsyncClient, gateway: FakeGateway
) -> None:
    """Only the silent keys of a batch are asked for again."""
    gateway.silent_keys["k"] = 2
    answer = await client.create(image="base", resources=RESOURCES, key="k")
    assert answer.outcome == "bound"
    gateway.silent_keys["dead"] = 10**6
    impatient = AsyncClient(
        Context(server="http://g", api_key=KEY), patience=0.05, inner=Breaking(gateway)
    )
    async with impatient:
        with pytest.raises(UnknownOutcomeError) as caught:
            await impatient.create(image="base", resources=RESOURCES, key="dead")
    assert caught.value.keys == ["dead"]


async def test_a_gateway_without_leader_is_waited_for(
    client: AsyncClient, gateway: FakeGateway
) -> None:
    """503 is a refusal for now, also for calls that are otherwise never repeated."""
    gateway.busy = 3
    await client.submit(DOCUMENT)


async def test_errors_are_typed(client: AsyncClient, gateway: FakeGateway) -> None:
    """Each status has its class; mistakes are complete."""
    with pytest.raises(NotFoundError):
        await client.get("none")
    with pytest.raises(InvalidError) as caught:
        await client.submit("no: [json")
    assert [one["allowed"] for one in caught.value.details] == ["a mapping"]
    with pytest.raises(InvalidError) as caught:
        await client.create(image="base", resources=RESOURCES, key="x" * 201)
    assert caught.value.details[0]["path"] == "key"
    async with AsyncClient(
        Context(server="http://gateway", api_key="wrong"), inner=Breaking(gateway)
    ) as stranger:
        with pytest.raises(DeniedError):
            await stranger.list()


@pytest.mark.parametrize(("how", "kind"), [("node", "nodes"), ("pool", "pools")])
async def test_a_drain_is_of_what_was_named_and_of_nothing_else(how: str, kind: str) -> None:
    """A name that leads elsewhere as a path stays one part of it."""
    asked: list[bytes] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.url.raw_path)
        return httpx2.Response(202, json={"nodes": []})

    context = Context(server="http://gateway", api_key=KEY)
    async with AsyncClient(context, inner=httpx2.MockTransport(answer)) as client:
        await client.drain(**{how: "a/../b?c#d"}, undo=True)
    assert asked == [f"/v1/{kind}/a%2F..%2Fb%3Fc%23d/drain".encode()]


async def test_an_absent_server_is_unreachable() -> None:
    """Nothing listens on port 1; nothing was changed, and the error says so."""
    async with AsyncClient(Context(server="http://127.0.0.1:1"), patience=0.2) as client:
        with pytest.raises(UnreachableError, match="nothing was changed"):
            await client.submit(DOCUMENT)
        assert not await client.ready()


RETRYING = """
import asyncio, logging, sys
from dsec.client import AsyncClient, Context, UnreachableError
if "heard" in sys.argv:
    logging.basicConfig(level="INFO", format="%(name)s %(message)s")
async def main():
    async with AsyncClient(Context(server="http://127.0.0.1:1"), patience=1.0) as client:
        try:
            await client.list()
        except UnreachableError:
            print("program")
asyncio.run(main())
"""


@pytest.mark.parametrize("heard", [False, True], ids=["silent program", "program that logs"])
def test_the_sdk_prints_nothing_of_its_own(heard: bool) -> None:
    """Tries again are told to `logging` alone: a program's two streams are its own."""
    done = subprocess.run(
        [sys.executable, "-c", RETRYING, *(["heard"] if heard else [])],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "program\n"
    said = [line for line in done.stderr.splitlines() if line.startswith("dsec.client ")]
    assert bool(said) is heard
    assert heard or not done.stderr
    assert all("try" in line and "cannot be reached" in line for line in said)


async def test_run_returns_results_in_order(client: AsyncClient, gateway: FakeGateway) -> None:
    """ORCH-01: count, image and code in; an ordered list out, failures included."""
    gateway.ends[1] = End(reason="oom-killed", signal=9)
    results = await client.run(image="base", command=["true"], items=[{"n": 1}, "[2]", b"3"])
    assert [one.identity.index for one in results] == [0, 1, 2]
    assert [one.end.reason for one in results if one.end] == [
        "completed",
        "oom-killed",
        "completed",
    ]
    assert b'{"n": 1}\n[2]\n3\n' in gateway.inputs.values()
    assert gateway.experiments == {}


async def test_a_cancelled_run_leaves_nothing(client: AsyncClient, gateway: FakeGateway) -> None:
    """No sandbox goes on for a caller that is gone, unless that was asked for."""
    gateway.endless = True
    for keep, left in ((False, set()), (True, {"mine"})):
        gateway.made.clear()
        call = client.run(image="base", command=["true"], count=1, name="mine", keep=keep)
        task = asyncio.create_task(call)
        await gateway.made.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert set(gateway.experiments) == left


async def test_a_run_out_of_time_leaves_nothing(client: AsyncClient, gateway: FakeGateway) -> None:
    """And where it must stay, the error says how to end it."""
    gateway.endless = True
    short = {"image": "base", "command": ["true"], "count": 1, "timeout_seconds": 0.1}
    with pytest.raises(WaitTimeoutError):
        await client.run(**short)  # type: ignore[arg-type]  # one type for all
    assert gateway.experiments == {}
    with pytest.raises(WaitTimeoutError) as caught:
        await client.run(**short, name="mine", keep=True)  # type: ignore[arg-type]  # same
    assert set(gateway.experiments) == {"mine"}
    assert caught.value.__notes__ == ["it goes on; to end it: dsec delete mine"]


async def test_a_refused_run_removes_nothing_of_others(
    client: AsyncClient, gateway: FakeGateway
) -> None:
    """An experiment of that name was there before, and the server takes no change."""
    await client.apply(DOCUMENT)
    gateway.refuse = True
    with pytest.raises(InvalidError):
        await client.run(image="base", command=["true"], count=1, name="one")
    assert set(gateway.experiments) == {"one"}


def test_an_interrupted_program_leaves_nothing(gateway: FakeGateway) -> None:
    """Ctrl-C in the main thread: the client's own thread removes what runs before it goes on."""
    gateway.endless = True
    seen: list[Progress] = []
    main = threading.get_ident()

    def interrupt(progress: Progress) -> None:
        if not seen:
            signal.pthread_kill(main, signal.SIGINT)
        seen.append(progress)

    context = Context(server="http://gateway", api_key=KEY)
    with Client(context, inner=Breaking(gateway)) as dsec:
        with pytest.raises(KeyboardInterrupt):
            dsec.run(image="base", command=["true"], count=1, on_progress=interrupt)
        assert seen
        assert gateway.experiments == {}


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({"count": None}, "count"),
        ({"count": 0}, "count"),
        ({"count": 3, "items": [1]}, "count"),
        ({"items": []}, "items"),
        ({"items": ["a\nb"]}, "items[0]"),
        ({"items": [{1, 2}]}, "items[0]"),
        ({"count": 1, "cpu": 0}, "cpu"),
        ({"count": 1, "memory": "much"}, "memory"),
        ({"count": 1, "disk": "1 Zi"}, "disk"),
    ],
)
async def test_run_names_the_mistake(
    client: AsyncClient, wrong: dict[str, object], path: str
) -> None:
    """A batch that cannot run is refused before anything is sent."""
    asked = {"image": "base", "command": ["true"], **wrong}
    with pytest.raises(InvalidError) as caught:
        await client.run(**asked)  # type: ignore[arg-type]  # wrong on purpose
    assert [path] == [one["path"] for one in caught.value.details]


def test_missing_results_are_an_unknown_outcome_not_a_shorter_list() -> None:
    """A gap would shift every later result."""
    done = End(reason="completed", exit_code=0)
    with pytest.raises(UnknownOutcomeError, match="1 of 3 results are missing: 1"):
        in_order([status_of(0, done), status_of(2, done)], 3)


def test_the_last_incarnation_counts() -> None:
    """A replaced replica has two ends; the newer one is the result."""
    fenced, done = End(reason="fenced"), End(reason="completed", exit_code=0)
    newer, older = status_of(0, done, incarnation=2), status_of(0, fenced, incarnation=1)
    assert [newer] == in_order([newer, older], 1)


async def test_exec_streams_and_ends(client: AsyncClient, gateway: FakeGateway) -> None:
    """Output comes by stream, then exactly one END."""
    frames = [frame async for frame in client.exec("sb", ["cat"], stdin=b"in", env={"A": "b"})]
    assert [one.type for one in frames] == [FrameType.STDOUT, FrameType.STDERR, FrameType.END]
    call, stdin = gateway.exec_calls[0]
    assert (call.command, call.env, stdin) == (["cat"], {"A": "b"}, b"in")
    result = await client.exec_result("sb", ["false"])
    assert (result.end.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")


async def test_a_stream_without_end_is_never_a_success(
    client: AsyncClient, gateway: FakeGateway
) -> None:
    """Output arrived, the end did not: the outcome is unknown."""
    gateway.cut_streams = True
    with pytest.raises(TruncatedStreamError):
        await client.exec_result("sb", ["true"])
    with pytest.raises(TruncatedStreamError):
        async for _ in client.logs("sb"):
            pass


def test_the_synchronous_client_streams_and_closes(gateway: FakeGateway) -> None:
    """A generator that is left early does not keep its connection."""

    def pieces() -> list[bytes]:
        return [b"a", b"b"]

    context = Context(server="http://gateway", api_key=KEY)
    with Client(context, inner=Breaking(gateway)) as dsec:
        frames = dsec.exec("sb", ["cat"], stdin=iter(pieces()))
        assert next(frames).payload == b"ab"
        frames.close()  # type: ignore[attr-defined]  # it is a generator
        results = dsec.run(image="base", command=["true"], count=4)
    assert len(results) == 4
    dsec.close()


def test_every_error_has_a_sentence_and_one_root() -> None:
    """The tree in the docstring is complete."""
    kinds = [one for one in vars(errors).values() if inspect.isclass(one)]
    for kind in (one for one in kinds if one.__module__ == errors.__name__):
        assert issubclass(kind, DsecError)
        assert kind.__doc__
        assert kind.__name__ in (errors.__doc__ or "")
