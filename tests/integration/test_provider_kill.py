"""kill -9 of the buyer before and after each of its calls: nothing is bought twice, nothing lost.

`make soak` takes every pair of neighbouring calls; here a sample, around the purchases.
"""

import hashlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from aws_buyer import WANTED
from ec2_server import Call, World, ec2_world
from provider_make import T0, aws_provider

BUYER = Path(__file__).with_name("aws_buyer.py")
MOST_CALLS = 12


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One moto for the file; each test has an installation of its own."""
    with ec2_world(tmp_path_factory.mktemp("ec2")) as world:
        yield world


def _start(world: World, installation: str, folder: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, str(BUYER), world.endpoint, installation, str(folder)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def _finish(process: "subprocess.Popen[str]") -> int:
    _, told = process.communicate(timeout=60)
    assert process.returncode in {0, -signal.SIGKILL}, told
    return process.returncode


async def _killed_at(world: World, folder: Path, number: int, side: str) -> bool:
    """Kill the buyer at one side of one call, let it go on; False: it makes fewer calls."""
    installation = f"kill-{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}"
    world.calls.clear()
    buyers: list[subprocess.Popen[str]] = []

    def kill(call: Call) -> None:
        if call.number == number and len(buyers) == 1:
            buyers[0].kill()
            buyers[0].wait()

    setattr(world, side, kill)
    buyers.append(_start(world, installation, folder))
    killed = _finish(buyers[0]) != 0
    setattr(world, side, lambda _: None)
    if killed:
        # what the killed process has sent is done before the next one begins
        with world.lock:
            pass
        assert _finish(_start(world, installation, folder)) == 0
    await _check(world, installation, folder)
    return killed


async def _check(world: World, installation: str, folder: Path) -> None:
    """The first purchase is over, the second runs with its later end; three were ever started."""
    provider = aws_provider(world, installation)
    held = await provider.list()
    facts = [json.loads(row) for row in (folder / "journal").read_text().splitlines()]
    assert [node.id for node in held.nodes] == facts[-1]["nodes"]
    (node,) = held.nodes
    assert (node.token, node.run_until) == ("t-2", T0 + 3600)
    assert node.epoch == max(fact.get("epoch", 0) for fact in facts)
    assert node.offering == WANTED["t-2"][0].key
    ever = await world.api.pages(
        "ec2",
        "describe_instances",
        "Reservations",
        Filters=[{"Name": "tag:dsec.dev/installation", "Values": [installation]}],
    )
    started = sorted(
        next(tag["Value"] for tag in one["Tags"] if tag["Key"] == "dsec.dev/token")
        for reservation in ever
        for one in reservation["Instances"]
    )
    assert started == ["t-1", "t-1", "t-2"]
    volumes = await world.api.pages(
        "ec2",
        "describe_volumes",
        "Volumes",
        Filters=[{"Name": "tag:dsec.dev/installation", "Values": [installation]}],
    )
    assert len(volumes) == 1
    await provider.end([node.id], epoch=99)


@pytest.mark.parametrize(("number", "side"), [(2, "after"), (5, "before")])
async def test_a_killed_buyer_goes_on(
    servers: World, tmp_path: Path, number: int, side: str
) -> None:
    """After the first launch, whose reply nobody reads, and before the ends are asked for."""
    assert await _killed_at(servers, tmp_path, number, side)


@pytest.mark.soak
async def test_killed_between_every_pair_of_calls(servers: World, tmp_path: Path) -> None:
    """Before and after each call that the buyer makes."""
    for side in ("before", "after"):
        for number in range(MOST_CALLS):
            folder = tmp_path / f"{side}-{number}"
            folder.mkdir()
            if not await _killed_at(servers, folder, number, side):
                assert number > 5, "the buyer makes more calls than that"
                break
        else:
            pytest.fail(f"the buyer makes more than {MOST_CALLS} calls")
