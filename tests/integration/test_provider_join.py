"""A machine of AWS joins by its role: it signs, moto's STS says who signed, the tags say whose."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from dsec.agent.config import AgentConfig
from dsec.agent.identity import AwsVoucher
from dsec.api.identity import AUDIENCE_HEADER, NODE_HEADER, PREFIX
from dsec.api.wire import NodeInventory, NodeRegistration
from dsec.gateway import ca
from dsec.gateway.app import build_app
from dsec.gateway.core import Gateway, GatewayConfig
from dsec.gateway.identity import AwsIdentity
from dsec.providers.aws import AwsProvider
from dsec.world.clock import SystemClock, system_randomness
from dsec.world.ec2 import AwsApi, AwsConfig
from dsec.world.http import NetworkPlain
from dsec.world.inprocess import InProcessNetwork
from dsec.world.memory import MemoryObjects, MemoryRecords
from ec2_server import REGION, World, ec2_world
from provider_make import T0, Buy, Offer, aws_provider

GATEWAY = "https://gateway.example:8443"
ACCOUNT, ROLE = "123456789012", "dsec-node"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One moto for the file."""
    with ec2_world(tmp_path_factory.mktemp("ec2")) as made:
        yield made


@dataclass
class Site:
    """A gateway, and a machine that was bought."""

    world: World
    gateway: Any
    """Client of its agents' API."""
    machine: str
    provider: AwsProvider

    async def voucher(self, machine: str, *, role: str = ROLE, secret: str = "") -> AwsVoucher:
        """Return what a machine with a role signs with; EC2 names the session after it."""
        answer = await self.world.api.call(
            "sts",
            "assume_role",
            RoleArn=f"arn:aws:iam::{ACCOUNT}:role/{role}",
            RoleSessionName=machine,
        )
        keys = answer["Credentials"]
        self.world.secrets[keys["AccessKeyId"]] = keys["SecretAccessKey"]
        voucher = AwsVoucher(_config(machine, self.world))
        voucher.close()
        voucher._api = AwsApi(
            AwsConfig(
                REGION,
                self.world.endpoint,
                keys["AccessKeyId"],
                secret or keys["SecretAccessKey"],
                keys["SessionToken"],
            )
        )
        return voucher

    async def join(self, token: str, asked: NodeRegistration) -> tuple[int, str]:
        """Register; return status and message."""
        answer = await self.gateway.post(
            "/agent/v1/register",
            content=asked.model_dump_json(by_alias=True),
            headers={"Authorization": f"Bearer {token}"},
        )
        return answer.status_code, answer.json().get("message", "")


def _config(machine: str, world: World) -> AgentConfig:
    return AgentConfig(
        state_dir="/nowhere",
        gateway=GATEWAY,
        node_name=machine,
        join="aws",
        join_region=REGION,
        join_endpoint=world.endpoint,
    )


def _registration(name: str, **changes: Any) -> NodeRegistration:
    key = ec.generate_private_key(ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    pem = request.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()
    values = {
        "name": name,
        "uid": name,
        "boot_id": "b",
        "incarnation": 1,
        "endpoint": f"https://10.0.0.7:7443/n/{name}",
        "labels": {"market": "spot"},
        "inventory": NodeInventory(cpu_milli=1000, memory_bytes=1 << 30, disk_bytes=1 << 30),
        "csr_pem": pem,
        "utc": datetime.now(UTC),
    }
    return NodeRegistration(**(values | changes))


@pytest.fixture
async def site(world: World) -> AsyncIterator[Site]:
    """A gateway that trusts one role, and one machine of this installation."""
    provider = aws_provider(world, "joins")
    answer = await provider.buy(Buy(Offer(), 1, "t-join"), epoch=1, run_until=T0)
    identity = AwsIdentity(
        NetworkPlain(),
        provider.find,
        GATEWAY,
        frozenset({ACCOUNT}),
        frozenset({ROLE}),
        world.endpoint,
    )
    clock = SystemClock()
    routes: dict[str, Any] = {}
    network = InProcessNetwork(routes)
    gateway = Gateway(
        MemoryRecords(),
        MemoryObjects(),
        network,
        clock=clock,
        randomness=system_randomness(),
        ca=ca.create(clock.now())[0],
        config=GatewayConfig("g", "s", aws=identity),
    )
    routes[GATEWAY] = build_app(gateway)
    running = asyncio.create_task(gateway.run())
    yield Site(world, network.client(GATEWAY, timeout=60), answer.nodes[0].id, provider)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_machine_joins_by_its_role(site: Site) -> None:
    """It gets a certificate, the pool that it was bought for, and its labels; again as well."""
    voucher = await site.voucher(site.machine)
    asked = _registration(site.machine)
    token = await voucher.token(asked)
    assert await site.join(token, asked) == (200, "")
    # the same machine, started anew with another key
    again = _registration(site.machine)
    assert (await site.join(await voucher.token(again), again))[0] == 200
    voucher.close()


Change = Callable[[dict[str, Any]], None]


def _url(old: str, new: str) -> Change:
    def change(told: dict[str, Any]) -> None:
        assert old in told["url"]
        told["url"] = told["url"].replace(old, new)

    return change


def _header(name: str, value: str) -> Change:
    def change(told: dict[str, Any]) -> None:
        told["headers"][name] = value

    return change


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        (_url("http://127.0.0.1", "http://127.0.0.2"), 401, "does not go to STS"),
        (_url("GetCallerIdentity", "AssumeRole"), 401, "asks for something else"),
        (_url("X-Amz-Expires=60", "X-Amz-Expires=900"), 401, "good for too long"),
        (_url("Version=", "RoleArn=x&Version="), 401, "more parameters"),
        (_url("x-dsec-node", "x-dsec-nobody"), 401, "does not bind"),
        (_header(NODE_HEADER, "i-other"), 401, "another node"),
        (_header(AUDIENCE_HEADER, "https://other.example"), 401, "another gateway"),
        (_header("x-more", "1"), 401, "other headers"),
    ],
)
async def test_a_call_that_was_changed_is_not_even_sent(
    site: Site, change: Change, status: int, words: str
) -> None:
    """The gateway sends nothing but what was agreed on."""
    voucher = await site.voucher(site.machine)
    asked = _registration(site.machine)
    token = await voucher.token(asked)
    told = json.loads(base64.urlsafe_b64decode(token.removeprefix(PREFIX)))
    change(told)
    changed = PREFIX + base64.urlsafe_b64encode(json.dumps(told).encode()).decode()
    before = site.world.count("GetCallerIdentity")
    got = await site.join(changed, asked)
    assert got[0] == status
    assert words in got[1]
    assert site.world.count("GetCallerIdentity") == before
    voucher.close()


async def test_a_seen_call_is_good_for_nothing_else(site: Site) -> None:
    """Another key, another name: the call was signed for one request of one node."""
    voucher = await site.voucher(site.machine)
    asked = _registration(site.machine)
    token = await voucher.token(asked)
    status, words = await site.join(token, _registration(site.machine))
    assert (status, "another request" in words) == (401, True)
    status, words = await site.join(token, _registration("i-0123456789abcdef0"))
    assert (status, "another node" in words) == (401, True)
    voucher.close()


async def test_who_is_not_ours_stays_out(site: Site) -> None:
    """A forged signature, another role, another machine's name, a machine of nobody, a pool."""
    forged = await site.voucher(site.machine, secret="wrong")  # noqa: S106 - no secret
    role = await site.voucher(site.machine, role="admin")
    other = await site.voucher("i-0123456789abcdef0")
    mine = await site.voucher(site.machine)
    here = _registration(site.machine)
    away = _registration("i-0123456789abcdef0")
    for voucher, asked, status, words in (
        (forged, here, 401, "no machine's role"),
        (role, here, 403, "role admin"),
        (other, here, 403, "AWS says that this is i-0123456789abcdef0"),
        (other, away, 403, "no machine of this installation"),
        (mine, _registration(site.machine, pool="gpu"), 403, "is of pool burst"),
    ):
        got = await site.join(await voucher.token(asked), asked)
        assert (got[0], words in got[1]) == (status, True), got
    for voucher in (forged, role, other, mine):
        voucher.close()
    assert (await site.join(PREFIX + "rubbish", here))[0] == 401


async def test_an_ended_machine_does_not_join(site: Site) -> None:
    """What was terminated is no machine of ours any more."""
    voucher = await site.voucher(site.machine)
    await site.provider.end([site.machine], epoch=1)
    asked = _registration(site.machine)
    assert (await site.join(await voucher.token(asked), asked))[0] == 403
    voucher.close()


async def test_silence_of_aws_is_no_refusal(site: Site) -> None:
    """The node tries again where AWS does not answer."""
    voucher = await site.voucher(site.machine)
    asked = _registration(site.machine)
    site.world.faults = [("GetCallerIdentity", "cut")]
    assert (await site.join(await voucher.token(asked), asked))[0] == 503
    site.world.faults = [("DescribeInstances", "cut")] * 3
    assert (await site.join(await voucher.token(asked), asked))[0] == 503
    site.world.faults = []
    voucher.close()
