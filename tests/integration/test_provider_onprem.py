"""Own machines: switched by a management controller on loopback, by a magic packet, by a hook."""

import asyncio
import base64
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from dsec.providers.onprem import FORCE_SECONDS, OnPremProvider
from dsec.providers.power import Power
from dsec.providers.provider import FailureKind, Phase, Scope
from dsec.providers.reconcile import reconcile
from dsec.world.memory import MemoryRecords
from dsec.world.power import magic_packet
from dsec.world.serve import Listener
from provider_make import T0, Buy, Offer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

RACK = Offer(pool="rack", instance_type="dl380", region="lab", zone="", market="owned")
CREDENTIALS = "Basic " + base64.b64encode(b"admin:letmein").decode()
ALLOWED = ["On", "ForceOff", "GracefulShutdown"]


@dataclass
class FakeController:
    """A management controller of several systems that speaks Redfish."""

    power: dict[str, str] = field(default_factory=dict)
    resets: list[tuple[str, str]] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    hangs: set[str] = field(default_factory=set)
    """Systems that do not heed a graceful shutdown."""

    def app(self) -> Starlette:
        """Return the application."""
        system = "/redfish/v1/Systems/{system}"
        reset = f"{system}/Actions/ComputerSystem.Reset"
        return Starlette(
            routes=[Route(system, self._system), Route(reset, self._reset, methods=["POST"])]
        )

    async def _system(self, request: Request) -> Response:
        if request.headers.get("authorization") != CREDENTIALS:
            return Response(status_code=401)
        name = request.path_params["system"]
        target = f"/redfish/v1/Systems/{name}/Actions/ComputerSystem.Reset"
        action = {"target": target, "ResetType@Redfish.AllowableValues": ALLOWED}
        return JSONResponse(
            {"PowerState": self.power[name], "Actions": {"#ComputerSystem.Reset": action}}
        )

    async def _reset(self, request: Request) -> Response:
        if request.headers.get("authorization") != CREDENTIALS:
            return Response(status_code=401)
        name, kind = request.path_params["system"], (await request.json())["ResetType"]
        if name in self.broken:
            return Response(status_code=500)
        self.resets.append((name, kind))
        if kind == "On":
            self.power[name] = "PoweringOn"
        elif kind == "ForceOff" or name not in self.hangs:
            self.power[name] = "Off"
        return Response(status_code=204)


class Time:
    """A clock that tests move."""

    at = T0

    def now(self) -> datetime:
        """Return the time."""
        return datetime.fromtimestamp(self.at, UTC)

    def monotonic(self) -> float:
        """Return the same in seconds."""
        return self.at

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.at += seconds


@dataclass
class Lab:
    """Records, a controller for them, and a provider."""

    records: MemoryRecords
    controller: FakeController
    url: str
    hooks: Path
    time: Time = field(default_factory=Time)

    def provider(self) -> OnPremProvider:
        """Return a provider, as another process would make it."""
        power = Power(self.records, namespace="dsec-system", hooks=self.hooks)
        return OnPremProvider(self.records, power, self.time)

    async def add(self, name: str, power: dict[str, Any] | None = None) -> None:
        """Add a machine that is off."""
        self.controller.power[name] = "Off"
        redfish = {"redfish": {"url": self.url, "system": name, "secret": "bmc"}}
        spec = {"pool": "rack", "labels": {"instance-type": "dl380"}, "power": power or redfish}
        await self.records.create(
            {
                "apiVersion": "dsec.dev/v1alpha1",
                "kind": "SandboxNode",
                "metadata": {"name": name},
                "spec": spec,
            }
        )


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    """Three machines, and the controller's credentials."""
    controller = FakeController()
    listener = Listener("127.0.0.1", 0)
    await listener.start(controller.app())
    records = MemoryRecords()
    data = {"username": b"admin", "password": b"letmein"}
    await records.create(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "bmc", "namespace": "dsec-system"},
            "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
        }
    )
    lab = Lab(records, controller, f"http://{listener.address}", tmp_path)
    for name in ("m1", "m2", "m3"):
        await lab.add(name)
    yield lab
    await listener.close()


async def test_machines_are_switched_on_once_and_parked(lab: Lab) -> None:
    """A purchase holds and starts machines; its repeat and another process find the same."""
    buy = Buy(RACK, 2, "t-1")
    first = await lab.provider().buy(buy, epoch=1, run_until=T0 + 3600)
    assert [node.id for node in first.nodes] == ["m1", "m2"]
    assert first.failure is None
    again = await lab.provider().buy(buy, epoch=1, run_until=T0 + 3600)
    assert [node.id for node in again.nodes] == ["m1", "m2"]
    assert lab.controller.resets == [("m1", "On"), ("m2", "On")]
    lab.controller.power["m1"] = "On"
    held = {node.id: node for node in (await lab.provider().list()).nodes}
    assert [held[name].phase for name in ("m1", "m2", "m3")] == [
        Phase.RUNNING,
        Phase.STARTING,
        Phase.STOPPED,
    ]
    assert (held["m1"].token, held["m1"].offering, held["m1"].market) == ("t-1", RACK.key, "owned")
    for _ in range(2):
        ended = await lab.provider().end(["m1", "never"], epoch=1)
        assert ended.ended == {"m1", "never"}
    assert lab.controller.resets[2:] == [("m1", "GracefulShutdown")]
    free = {node.id: node.token for node in (await lab.provider().list()).nodes}
    assert free == {"m1": "", "m2": "t-1", "m3": ""}


async def test_two_who_want_the_same_machines_share_none(lab: Lab) -> None:
    """The record store lets one hold each machine; what is missing is a lack of capacity."""
    answers = await asyncio.gather(
        *(
            lab.provider().buy(Buy(RACK, 2, f"t-{n}"), epoch=1, run_until=T0 + 3600)
            for n in range(2)
        )
    )
    got = [node.id for answer in answers for node in answer.nodes]
    assert len(got) == len(set(got)) == 3
    failures = [answer.failure for answer in answers if answer.failure is not None]
    assert [failure.kind for failure in failures] == [FailureKind.CAPACITY]
    assert failures[0].scope is Scope.OFFERING


async def test_a_broken_controller_costs_one_machine(lab: Lab) -> None:
    """The next one is taken, and the broken one is left alone for a while."""
    lab.controller.broken = {"m1"}
    answer = await lab.provider().buy(Buy(RACK, 3, "t"), epoch=1, run_until=T0 + 3600)
    assert [node.id for node in answer.nodes] == ["m2", "m3"]
    assert answer.failure is not None
    assert "m1" in answer.failure.words
    lab.controller.broken = set()
    soon = await lab.provider().buy(Buy(RACK, 1, "u"), epoch=1, run_until=T0 + 3600)
    assert soon.nodes == ()
    lab.time.at += 601
    later = await lab.provider().buy(Buy(RACK, 1, "u"), epoch=1, run_until=T0 + 3600)
    assert [node.id for node in later.nodes] == ["m1"]


async def test_force_comes_late(lab: Lab) -> None:
    """A machine that does not heed loses its power after two minutes."""
    lab.controller.hangs = {"m1"}
    await lab.provider().buy(Buy(RACK, 1, "t"), epoch=1, run_until=T0 + 3600)
    lab.controller.power["m1"] = "On"
    for seconds, kind in ((0, "GracefulShutdown"), (60, "GracefulShutdown"), (61, "ForceOff")):
        lab.time.at += seconds
        await lab.provider().end(["m1"], epoch=1)
        assert lab.controller.resets[-1] == ("m1", kind)
    assert FORCE_SECONDS == 120
    assert lab.controller.power["m1"] == "Off"


async def test_machines_that_are_on_are_nobodys_to_buy_or_end(lab: Lab) -> None:
    """One that was switched on by hand is not taken, and no reaper ends it."""
    lab.controller.power["m1"] = "On"
    answer = await lab.provider().buy(Buy(RACK, 3, "t"), epoch=1, run_until=T0 + 3600)
    assert [node.id for node in answer.nodes] == ["m2", "m3"]
    held = await lab.provider().list()
    assert reconcile(held, {}, frozenset(), T0 + 1e6) == ()


async def test_wake_on_lan_by_a_packet(lab: Lab) -> None:
    """The packet is six bytes of ones and the address sixteen times; only a hook switches off."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as card:
        card.bind(("127.0.0.1", 0))
        card.setblocking(False)
        wake = {"mac": "00:25:90:ab:cd:ef", "broadcast": "127.0.0.1", "port": card.getsockname()[1]}
        await lab.add("a-wol", {"wakeOnLan": wake})
        for _ in range(2):
            answer = await lab.provider().buy(Buy(RACK, 1, "t"), epoch=1, run_until=T0 + 3600)
            assert [node.id for node in answer.nodes] == ["a-wol"]
            packet = await asyncio.wait_for(
                asyncio.get_running_loop().sock_recv(card, 1024), timeout=5
            )
            assert packet == magic_packet("00-25-90-AB-CD-EF")
            assert len(packet) == 102
    ended = await lab.provider().end(["a-wol"], epoch=1)
    assert ended.failed["a-wol"].kind is FailureKind.REFUSED
    assert "can be woken only" in ended.failed["a-wol"].words


async def test_hooks(lab: Lab) -> None:
    """A program of the folder switches; it is told what to do and for which node."""
    hook = lab.hooks / "pdu"
    hook.write_text(
        "#!/bin/sh\n"
        f'state="{lab.hooks}/$2"\n'
        'case "$1" in\n'
        '  state) cat "$state" 2>/dev/null || echo off ;;\n'
        '  on) echo on > "$state" ;;\n'
        '  off|force-off) echo off > "$state" ;;\n'
        "esac\n"
    )
    hook.chmod(0o755)
    await lab.add("a-hook", {"hook": "pdu"})
    answer = await lab.provider().buy(Buy(RACK, 1, "t"), epoch=1, run_until=T0 + 3600)
    assert [node.id for node in answer.nodes] == ["a-hook"]
    held = {node.id: node.phase for node in (await lab.provider().list()).nodes}
    assert held["a-hook"] is Phase.RUNNING
    await lab.provider().end(["a-hook"], epoch=1)
    held = {node.id: node.phase for node in (await lab.provider().list()).nodes}
    assert held["a-hook"] is Phase.STOPPED
    await lab.add("b-hook", {"hook": "missing"})
    failed = (await lab.provider().end(["b-hook"], epoch=1)).failed["b-hook"]
    assert "No such file" in failed.words


async def test_wrong_credentials_are_told(lab: Lab) -> None:
    """A secret that the controller does not take is in the words, and nothing is held."""
    secret = await lab.records.get("Secret", "bmc", "dsec-system")
    secret["data"]["password"] = base64.b64encode(b"wrong").decode()
    await lab.records.replace(secret)
    for name in ("m1", "m2", "m3"):
        record = await lab.records.get("SandboxNode", name)
        assert "annotations" not in record["metadata"]
    answer = await lab.provider().buy(Buy(RACK, 1, "t"), epoch=1, run_until=T0 + 3600)
    assert answer.nodes == ()
    assert answer.failure is not None
    assert "401" in answer.failure.words
