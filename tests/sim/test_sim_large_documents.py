"""Large task documents, in real time: others are answered meanwhile, and there is a bound."""

import asyncio
import threading
from typing import Any

import httpx2
import pytest
from dsec.api.documents.reader import MAX_MISTAKES
from dsec.gateway import documents
from dsec.gateway.calls import DOCUMENT_BYTES
from dsec.rules.verdict import Checked, check_document
from sim_world import Sim

WHERE = "/v1/projects/lab/experiments"


def document(roles: int, variables: int) -> str:
    """Return a document with so many environment variables."""
    lines = ["name: large", "roles:"]
    for role in range(roles):
        lines += [
            f"  - role: r{role}",
            "    image: base:1",
            "    resource: {cpu: 1, mem: 256M}",
            "    env:",
        ]
        lines += [f"      VARIABLE_{n:04d}: value-{n:08d}" for n in range(variables)]
    return "\n".join(lines) + "\n"


async def started(sim: Sim) -> None:
    """Start a controller, which gives the project its tenant."""
    sim.start_controller()
    await sim.ready()
    for _ in range(100):
        answer = await sim.client.post(f"{WHERE}?dryRun=true", content=document(1, 1))
        if answer.status_code == 200:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(answer.text)


def test_a_large_document_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is read, the gateway goes on with the calls of others."""
    begun, answered = threading.Event(), threading.Event()
    waited: list[bool] = []

    def read(*args: Any, **kwargs: Any) -> Checked:
        """Read a document, but only once somebody else has been answered meanwhile."""
        begun.set()
        waited.append(answered.wait(5))
        return check_document(*args, **kwargs)

    async def scenario() -> None:
        async with Sim() as sim:
            await started(sim)
            monkeypatch.setattr(documents, "check_document", read)
            text = document(60, 110)
            assert DOCUMENT_BYTES * 0.9 < len(text) < DOCUMENT_BYTES
            submit = asyncio.ensure_future(sim.client.post(f"{WHERE}?dryRun=true", content=text))
            assert await asyncio.to_thread(begun.wait, 20)
            assert (await sim.client.get("/v1/whoami")).status_code == 200
            answered.set()
            assert (await submit).status_code == 200

    asyncio.run(scenario())
    assert waited == [True], "nobody was answered while the document was read"


def test_a_document_has_a_bound_in_length_and_in_mistakes() -> None:
    """What is too long is said with the bound; a page of rubbish is not read to its end."""

    async def scenario() -> None:
        async with Sim() as sim:
            await started(sim)

            async def post(text: str) -> httpx2.Response:
                return await sim.client.post(WHERE, content=text)

            long = await post(document(64, 200))
            assert long.status_code == 413
            said = long.json()
            assert said["code"] == "too-large"
            assert said["message"] == f"a task document may have at most {DOCUMENT_BYTES} bytes"
            rubbish = await post("{name: x, roles: [" + "{a: 1}," * 6000 + "]}")
            assert rubbish.status_code == 422
            details = rubbish.json()["details"]
            assert MAX_MISTAKES < len(details) < MAX_MISTAKES + 20
            assert "what follows was not looked at" in str(details)

    asyncio.run(scenario())
