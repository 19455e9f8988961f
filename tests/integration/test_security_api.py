"""The users' API under abuse: every answer is an ErrorBody, nothing is told, floods are bounded.

A control plane in this process behind a real HTTP server: what a client sends is parsed as in a
real installation.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from dsec.api.wire import ErrorBody
from dsec.gateway.app import build_webhook
from dsec.gateway.auth import key_entry, keys_secret
from dsec.gateway.calls import CORRELATION
from dsec.journal.denials import BURST
from dsec.journal.history import AUDIT, Question, read
from dsec.local.control import ADMIN_GROUP, Control, ControlConfig, build_control
from dsec.world.clock import SystemClock, system_randomness
from dsec.world.inprocess import InProcessNetwork
from dsec.world.memory import AccessRule, AccessTable, MemoryObjects, MemoryRecords
from dsec.world.serve import Listener
from dsec.world.tls import CONTROLLER, Peer

ADMIN, ANN = "dsec_admin_0123456789", "dsec_ann_0123456789"
LAB = "/v1/projects/lab"
DOCUMENT = """
metadata: {name: real}
spec: {image: base, resources: {cpu: 1, memory: 64Mi}}
"""


@dataclass
class Served:
    """A gateway that listens, and what it stores."""

    control: Control
    objects: MemoryObjects
    url: str

    def client(self, key: str = "") -> httpx2.AsyncClient:
        """Return a client with an API key, or without one."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx2.AsyncClient(base_url=self.url, headers=headers, timeout=30, trust_env=False)

    async def denied(self) -> list[dict[str, Any]]:
        """Return the bodies of the audit rows of refusals."""
        return [row.body async for row in read(self.objects, Question(kind="denied"), AUDIT)]


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """An administrator, and ann, who may do everything in `annex` and nothing in `lab`."""
    annex = AccessRule(("ann",), ("*",), ("*",), ("annex",))
    table = AccessTable([AccessRule((ADMIN_GROUP,)), annex])
    records, objects = MemoryRecords(access=table), MemoryObjects()
    for tenant, project in (("research", "lab"), ("other", "annex")):
        record = {"kind": "Tenant", "metadata": {"name": tenant}, "spec": {"projects": [project]}}
        await records.create(record)
        await records.create({"kind": "Namespace", "metadata": {"name": project}})
    keys = [key_entry(ADMIN, "root", [ADMIN_GROUP]), key_entry(ANN, "ann", [])]
    await records.create(keys_secret(keys, "dsec-system"))
    routes: dict[str, Any] = {}
    network = InProcessNetwork(routes, peer=Peer("control", frozenset({CONTROLLER})))
    control = await build_control(
        records, objects, network, SystemClock(), system_randomness(), ControlConfig(identity="t")
    )
    routes["http://controller"] = control.internal_app
    listener = Listener("127.0.0.1", 0)
    await listener.start(control.gateway_app)
    running = asyncio.create_task(control.run())
    made = Served(control, objects, f"http://{listener.address}")
    async with made.client(ADMIN) as client:
        for _ in range(200):
            answer = await client.post(f"{LAB}/sandboxes", json=batch("first"))
            if answer.status_code == 200:
                break
            await asyncio.sleep(0.05)
        assert answer.status_code == 200, answer.text
        assert (await client.post(f"{LAB}/experiments", content=DOCUMENT)).status_code == 201
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await listener.close()


def batch(key: str, **more: Any) -> dict[str, Any]:
    """Return a batch of one create."""
    resources = {"cpuMilli": 100, "memoryBytes": 1 << 26}
    return {"creates": [{"key": key, "image": "base", "resources": resources, **more}]}


def error_of(answer: httpx2.Response, what: str) -> ErrorBody:
    """Return the error of an answer; fails for anything that is none."""
    assert 400 <= answer.status_code < 500, (what, answer.status_code, answer.text[:300])
    body = ErrorBody.model_validate_json(answer.content)
    assert body.code, what
    assert body.message, what
    assert body.correlation_id == answer.headers[CORRELATION], what
    assert "Traceback" not in answer.text, what
    return body


DEEP = b"[" * 20_000
CREATES = f"{LAB}/sandboxes"
REAL = f"{LAB}/experiments/real"
ABUSE: list[tuple[str, str, str, bytes, int]] = [
    ("no route", "GET", "/v2/secrets", b"", 404),
    ("no method", "PATCH", "/v1/nodes", b"", 405),
    ("dots", "GET", "/v1/projects/%2e%2e/experiments", b"", 422),
    ("a slash", "GET", "/v1/projects/..%2f..%2fsecrets/experiments", b"", 404),
    ("a NUL", "GET", "/v1/projects/%00/experiments", b"", 422),
    ("a query in a name", "GET", "/v1/projects/lab%3Fx=y/experiments", b"", 422),
    ("a newline in a name", "GET", "/v1/projects/lab%0aX-Evil:1/sandboxes", b"", 422),
    ("a long project", "GET", f"/v1/projects/{'x' * 9000}/experiments", b"", 422),
    ("a long experiment", "GET", f"{LAB}/experiments/{'x' * 9000}", b"", 404),
    ("no text for a name", "GET", f"{LAB}/experiments/%ff%fe", b"", 404),
    ("a strange sandbox", "GET", f"{LAB}/sandboxes/%00", b"", 404),
    ("a strange state", "GET", f"{LAB}/sandboxes?state=%ff", b"", 422),
    ("a strange mode", "POST", f"{LAB}/experiments?mode=%00", DOCUMENT.encode(), 422),
    ("a strange flag", "POST", f"{LAB}/experiments?dryRun=1", DOCUMENT.encode(), 422),
    ("no document", "POST", f"{LAB}/experiments", b"", 422),
    ("no text", "POST", f"{LAB}/experiments", b"\xff\xfe\x00", 422),
    ("no YAML", "POST", f"{LAB}/experiments", b"a: [", 422),
    ("a deep document", "POST", f"{LAB}/experiments", DEEP, 422),
    ("a bomb of aliases", "POST", f"{LAB}/experiments", b"", 422),
    ("a tag", "POST", f"{LAB}/experiments", b"!!python/object/apply:os.abort []", 422),
    ("a large document", "POST", f"{LAB}/experiments", b"#" * ((1 << 20) + 1), 413),
    ("no JSON", "POST", CREATES, b"{", 422),
    ("deep JSON", "POST", CREATES, DEEP, 422),
    ("another type", "POST", CREATES, b'[1, "x", null]', 422),
    ("no text in JSON", "POST", CREATES, b'{"creates": "\xff"}', 422),
    ("half a character", "POST", CREATES, json.dumps(batch("\ud800")).encode(), 422),
    ("a long key", "POST", CREATES, json.dumps(batch("k" * 201)).encode(), 422),
    ("no number", "POST", CREATES, b'{"creates": [{"key": "k", "resources": NaN}]}', 422),
    ("no end", "POST", CREATES, json.dumps(batch("inf", maxRunSeconds=float("inf"))).encode(), 422),
    ("a huge number", "POST", f"{REAL}/scale", b'{"role": "r", "replicas": ' + b"9" * 5000, 422),
    ("no such role", "POST", f"{REAL}/scale", b'{"role": "\\u0000", "replicas": 1}', 422),
    ("scale nothing", "POST", f"{LAB}/experiments/none/scale", b'{"role":"r","replicas":1}', 404),
    ("freeze nothing", "POST", f"{LAB}/experiments/none/freeze", b"", 404),
    ("exec in nothing", "POST", f"{LAB}/sandboxes/sb-x/exec", b"\x04\xff\xff\xff\xff", 404),
    ("logs of nothing", "GET", f"{LAB}/sandboxes/sb-x/logs?follow=%00", b"", 404),
    ("end nothing", "DELETE", f"{LAB}/sandboxes/sb-x", b"", 404),
    ("a wrong digest", "PUT", f"{LAB}/inputs/{'0' * 64}", b"x", 422),
    ("no digest", "PUT", f"{LAB}/inputs/zz", b"x", 422),
    ("tokens by the million", "POST", "/v1/join-tokens", b'{"count": 1000000}', 422),
    ("a project without a tenant", "POST", "/v1/projects/nowhere/experiments", b"a: 1", 422),
]
"""What an authorised caller sends, and the status of the refusal."""


def bomb() -> bytes:
    """Return a document of ten lines that expands to 10^9 values."""
    lines = ["a0: &a0 [x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    return "\n".join(lines).encode()


async def test_every_abuse_is_answered_as_an_error(
    served: Served, capfd: pytest.CaptureFixture[str]
) -> None:
    """Never a 500, never a traceback, never another form."""
    wrong = []
    async with served.client(ADMIN) as client:
        for what, method, path, content, status in ABUSE:
            body = bomb() if "bomb" in what else content
            answer = await client.request(method, path, content=body)
            if answer.status_code != status:
                wrong.append((what, answer.status_code, answer.text[:300]))
                continue
            error_of(answer, what)
            assert "x-evil" not in answer.headers
    assert not wrong
    assert "Traceback" not in capfd.readouterr().err


async def test_who_has_no_right_learns_nothing(served: Served) -> None:
    """What exists elsewhere looks the same as what does not; unknown callers learn less."""
    async with served.client(ADMIN) as root:
        foreign = (await root.get(f"{LAB}/sandboxes")).json()["items"][0]["identity"]["id"]
    async with served.client(ANN) as ann:
        for there, absent in (
            (f"{LAB}/experiments", "/v1/projects/void/experiments"),
            (f"{LAB}/experiments/real", f"{LAB}/experiments/void"),
            (f"{LAB}/sandboxes/{foreign}", f"{LAB}/sandboxes/void"),
            (f"{LAB}/experiments/real/results", f"{LAB}/experiments/void/results"),
        ):
            one, two = await ann.get(there), await ann.get(absent)
            assert (one.status_code, two.status_code) == (403, 403), there
            first, second = error_of(one, there), error_of(two, absent)
            assert first.message.replace("lab", "void") == second.message.replace("lab", "void")
        for method, tail in (("GET", ""), ("DELETE", ""), ("POST", "/exec"), ("GET", "/logs")):
            place = "/v1/projects/annex/sandboxes/"
            one = await ann.request(method, f"{place}{foreign}{tail}")
            two = await ann.request(method, f"{place}sb-void{tail}")
            assert (one.status_code, two.status_code) == (404, 404), (method, tail)
            assert (
                error_of(one, tail).message.replace(foreign, "sb-void")
                == error_of(two, tail).message
            )
        assert (await ann.get("/v1/tenants")).json()["items"][0]["metadata"]["name"] == "other"
        assert len((await ann.get("/v1/tenants")).json()["items"]) == 1
    words = set()
    wrong = ("dsec_admin_wrong", "dsec_", "dsec__", "dsec_void_x", "\xff")
    for header in ("", "Bearer", "Basic cm9vdDo=", *(f"Bearer {w}" for w in wrong)):
        async with served.client() as nobody:
            raw = {b"Authorization": header.encode("latin-1")} if header else {}
            for path in ("/v1/whoami", f"{LAB}/experiments/real", "/v1/projects/void/sandboxes"):
                answer = await nobody.get(path, headers=raw)
                assert answer.status_code == 401, (header, path)
                words.add(error_of(answer, header).message)
    assert len(words) <= 2, "a wrong key and an unknown one are not told apart"


async def test_what_is_sent_back_is_clean(served: Served) -> None:
    """A correlation id that could end a header or a log line is replaced."""
    async with served.client(ADMIN) as client:
        for given in ("a b", "x" * 65, "a;b", "\u00e9", "<b>"):
            answer = await client.get("/v1/whoami", headers={CORRELATION: given.encode()})
            assert answer.headers[CORRELATION] != given
        answer = await client.get("/v1/whoami", headers={CORRELATION: "run-1"})
        assert answer.headers[CORRELATION] == "run-1"
    host, port = served.url.removeprefix("http://").split(":")
    for request in (
        b"GET /v1/whoami HTTP/1.1\r\nHost: x\r\nX-Dsec-Correlation-Id: a\r\n evil: 1\r\n\r\n",
        b"GET /v1/whoami HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        b"POST /v1/whoami HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request + b"\r\n\r\n")
        status = await asyncio.wait_for(reader.readline(), 30)
        writer.close()
        assert status.split()[1][:1] == b"4", (request[:40], status)


async def test_the_webhook_stands_whatever_comes(served: Served) -> None:
    """Whoever reaches its port gets an answer or a refusal, and nothing is changed."""
    listener = Listener("127.0.0.1", 0)
    await listener.start(build_webhook(served.control.gateway))
    forged = {"uid": "u", "kind": "Tenant", "userInfo": "root", "object": {"spec": []}}
    evil = {"spec": {"projects": ["lab"]}, "metadata": {"name": "evil"}}
    claim = {"uid": "u", "kind": {"kind": "Tenant"}, "object": evil}
    async with httpx2.AsyncClient(base_url=f"http://{listener.address}", trust_env=False) as client:
        for content, status in (
            (b"", 400),
            (b"[]", 400),
            (b"\xff", 400),
            (b"[" * 100_000, 400),
            (b'{"request": 5}', 400),
            (b"x" * ((4 << 20) + 1), 413),
            (json.dumps({"request": forged}).encode(), 200),
            (json.dumps({"request": claim}).encode(), 200),
        ):
            answer = await client.post("/admission", content=content)
            assert answer.status_code == status, (content[:40], answer.text[:200])
        assert answer.json()["response"]["allowed"] is False, "lab is a project of another tenant"
    await listener.close()
    async with served.client(ADMIN) as root:
        assert len((await root.get("/v1/tenants")).json()["items"]) == 2


async def test_a_flood_of_refusals_leaves_few_rows(served: Served) -> None:
    """Denials carry caller, call and reason; of a flood only the first ones are written."""
    async with served.client("dsec_admin_wrong") as client:
        answers = await asyncio.gather(*(client.get("/v1/nodes") for _ in range(BURST + 100)))
    assert {answer.status_code for answer in answers} == {401}
    rows = await served.denied()
    assert BURST - 1 <= len(rows) <= BURST + 10
    assert {row["user"] for row in rows} == {"anonymous"}
    assert all(row["source"] == "127.0.0.1" and row["path"] and row["why"] for row in rows)
    assert "dsec_admin_wrong" not in json.dumps(rows)
    async with served.client(ANN) as ann:
        await ann.post("/v1/join-tokens", json={})
    last = [row for row in await served.denied() if row["user"] == "ann"]
    assert last[0]["why"] == "ann may not create sandboxnodes"
