"""Reading a Prometheus server: one number or the reason why there is none, never a wrong zero."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import pytest
from dsec.scaling.metrics import query_of
from dsec.world.metrics import Measured, MemoryMetrics, MetricsAwayError, QueryRefusedError
from dsec.world.prometheus import PrometheusMetrics

Answer = Callable[[str], tuple[int, bytes]]


class Fake:
    """A server on loopback that answers queries as it is told, and notes them."""

    def __init__(self) -> None:
        self.answer: Answer = lambda _: vector()
        self.asked: list[str] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def _serve(self) -> None:
                _, _, tail = self.path.partition("?")
                body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
                query = parse_qs(tail).get("query", parse_qs(body).get("query", [""]))[0]
                fake.asked.append(query)
                status, data = fake.answer(query)
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = _serve  # noqa: N815 - names of the base class

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()


@pytest.fixture
def fake() -> Iterator[Fake]:
    """Serve until the test is over."""
    made = Fake()
    yield made
    made.server.shutdown()
    made.server.server_close()


def success(kind: str, result: Any) -> tuple[int, bytes]:
    """Return an answer as Prometheus gives it."""
    return 200, json.dumps(
        {"status": "success", "data": {"resultType": kind, "result": result}}
    ).encode()


def vector(*values: str) -> tuple[int, bytes]:
    """Return a vector with these values."""
    return success("vector", [{"metric": {"n": v}, "value": [1767225600.0, v]} for v in values])


def read(fake: Fake, query: str, **options: Any) -> Measured | None:
    """Read one query."""

    async def run() -> Measured | None:
        source = PrometheusMetrics(fake.url, **options)
        try:
            return await source.read(query)
        finally:
            await source.close()

    return asyncio.run(run())


def test_one_number_is_read(fake: Fake) -> None:
    """A vector of one series, a scalar, and zero, which is a number."""
    for answer, value in (
        (vector("42.5"), 42.5),
        (vector("0"), 0.0),
        (success("scalar", [1767225600.0, "7"]), 7.0),
    ):
        fake.answer = lambda _, a=answer: a
        assert read(fake, "sum(x)") == Measured(value)
    assert fake.asked == ["sum(x)"] * 3


def test_no_data_is_nothing(fake: Fake) -> None:
    """No series, not a number, endless."""
    for answer in (vector(), vector("NaN"), vector("+Inf"), success("scalar", [1.0, "NaN"])):
        fake.answer = lambda _, a=answer: a
        assert read(fake, "sum(x)") is None


def test_a_plain_series_has_the_age_of_its_sample(fake: Fake) -> None:
    """Prometheus shows a series for five minutes after its last sample: the age says so."""
    fake.answer = lambda query: vector("140" if "timestamp(" in query else "5")
    assert read(fake, 'depth{role="sim"}') == Measured(5, 140)
    assert fake.asked[1] == 'time() - timestamp(depth{role="sim"})'


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (vector("1", "2"), QueryRefusedError, "use sum, avg or max"),
        (success("string", ["x", "y"]), QueryRefusedError, "no single number"),
        ((400, b'{"error":"parse error"}'), QueryRefusedError, "parse error"),
        ((422, b'{"error":"too many"}'), QueryRefusedError, "refuses"),
        ((503, b"busy"), MetricsAwayError, "cannot answer"),
        ((200, b"<html>hello"), MetricsAwayError, "no answer of Prometheus"),
        ((200, b'{"status":"success"}'), MetricsAwayError, "no answer of Prometheus"),
    ],
)
def test_what_is_no_answer_is_said(
    fake: Fake, answer: tuple[int, bytes], error: type[Exception], words: str
) -> None:
    """Typed, in words, and no exception of the library."""
    fake.answer = lambda _: answer
    with pytest.raises(error, match=words):
        read(fake, "sum(x)")


def test_a_silent_server_costs_its_time_out(fake: Fake) -> None:
    """The loop goes on meanwhile; other reads are not kept waiting for ever."""

    def slow(_: str) -> tuple[int, bytes]:
        time.sleep(60)
        return vector("1")

    fake.answer = slow
    began = time.monotonic()
    with pytest.raises(MetricsAwayError, match=r"does not answer|no answer in"):
        read(fake, "sum(x)", timeout=0.2)
    assert time.monotonic() - began < 30


def test_nobody_there_is_away() -> None:
    """A refused connection is no traceback."""

    async def run() -> None:
        source = PrometheusMetrics("http://127.0.0.1:9")
        try:
            await source.read("up")
        finally:
            await source.close()

    with pytest.raises(MetricsAwayError, match="does not answer"):
        asyncio.run(run())


def test_memory_metrics_answer_as_told() -> None:
    """Numbers, functions, nothing and errors."""

    async def run() -> None:
        source = MemoryMetrics({"a": 1, "b": lambda: 2.0, "c": MetricsAwayError("gone")}, {"a": 9})
        assert await source.read("a") == Measured(1, 9)
        assert await source.read("b") == Measured(2)
        assert await source.read("other") is None
        with pytest.raises(MetricsAwayError, match="gone"):
            await source.read("c")

    asyncio.run(run())


def test_signals_become_questions() -> None:
    """Shares are averaged, the rest is summed; a name cannot leave its string."""
    where = {"project": "lab", "experiment": "ppo", "role": "sim"}
    labels = 'project="lab",experiment="ppo",role="sim"'
    assert query_of("cpu", **where) == f"avg(cpu{{{labels}}})"
    assert query_of("exploration_ratio", **where) == f"sum(exploration_ratio{{{labels}}})"
    queue = 'sum(dsec_queue_depth{project="lab",experiment="ppo"})'
    assert query_of("queue_depth", **where) == queue
    assert query_of("no name", **where) is None
    own = 'max(x{e="$experiment",r="$role",p="$project"}) + $roles'
    assert query_of("x", **where, query=own) == 'max(x{e="ppo",r="sim",p="lab"}) + $roles'
    bad = where | {"role": 'a"} or vector(1) #'}
    assert query_of("x", **bad, query='x{r="$role"}') == 'x{r="a\\"} or vector(1) #"}'
