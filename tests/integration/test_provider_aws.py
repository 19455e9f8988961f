"""Nodes of AWS against a real moto server: bought once, found by tag, ended for good."""

import base64
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from dsec.providers.aws import AwsProvider
from dsec.providers.aws_calls import Calls
from dsec.providers.aws_launch import template_name
from dsec.providers.aws_prices import on_demand_prices, spot_prices
from dsec.providers.aws_tags import utc_text
from dsec.providers.provider import EventKind, FailureKind, Phase, Scope, StaleEpochError
from dsec.providers.reconcile import Recorded, Why, reconcile
from dsec.world.clock import SystemClock, system_randomness
from ec2_server import REGION, World, ec2_world, states
from provider_make import T0, Buy, Offer, aws_provider, aws_settings

SPOT = Offer(market="spot")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One moto for the file; each test has an installation of its own."""
    with ec2_world(tmp_path_factory.mktemp("ec2")) as world:
        yield world


@pytest.fixture
def world(servers: World) -> World:
    """The world without what the test before told it."""
    servers.calls.clear()
    servers.faults.clear()
    servers.capacity.clear()
    servers.quotas.clear()
    servers.spot_status.clear()
    return servers


@pytest.fixture
async def make(world: World, request: pytest.FixtureRequest) -> AsyncIterator[Callable[..., Any]]:
    """Make providers of this test's own installation; what they bought ends with the test."""
    made: list[AwsProvider] = []
    name = request.node.name.replace("_", "-")[:40]

    def one(**settings: Any) -> AwsProvider:
        made.append(aws_provider(world, name, **settings))
        return made[-1]

    yield one
    world.faults.clear()
    if made:
        left = [node.id for node in (await made[0].list()).nodes]
        await made[0].end(left, epoch=99)


Make = Callable[..., AwsProvider]


async def test_tags_of_volumes_and_instances(world: World, make: Make) -> None:
    """Volumes carry the purchase as well, and the pool's own tags are there."""
    provider = make()
    answer = await provider.buy(Buy(Offer(), 1, "t-tags"), epoch=1, run_until=T0)
    api = world.api
    volumes = await api.call("ec2", "describe_volumes", VolumeIds=list(answer.nodes[0].volumes))
    tags = {tag["Key"]: tag["Value"] for tag in volumes["Volumes"][0]["Tags"]}
    assert tags["dsec.dev/token"] == "t-tags"
    assert tags["dsec.dev/run-until"] == utc_text(T0)
    assert tags["team"] == "platform"
    assert answer.nodes[0].name == answer.nodes[0].id


async def test_launch_template_ends_on_shutdown_and_guards_metadata(
    world: World, make: Make
) -> None:
    """A shutdown terminates, sandboxes do not reach the metadata, and there is one template."""
    first, second = make(), make()
    await first.buy(Buy(Offer(), 1, "t-a"), epoch=1, run_until=T0)
    await second.buy(Buy(Offer(), 1, "t-b"), epoch=1, run_until=T0)
    api = world.api
    templates = await api.pages("ec2", "describe_launch_templates", "LaunchTemplates")
    ours = [
        one["LaunchTemplateName"]
        for one in templates
        if one["LaunchTemplateName"].startswith("dsec-test-launch-template")
    ]
    assert len(ours) == 1
    (version,) = (
        await api.call("ec2", "describe_launch_template_versions", LaunchTemplateName=ours[0])
    )["LaunchTemplateVersions"]
    data = version["LaunchTemplateData"]
    assert data["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert data["MetadataOptions"]["HttpTokens"] == "required"
    assert data["MetadataOptions"]["HttpPutResponseHopLimit"] == 1


async def test_user_data_has_the_end_and_no_secret(world: World, make: Make) -> None:
    """The script of the launch names the node's end; nothing in it opens anything."""
    provider = make()
    await provider.buy(Buy(SPOT, 1, "t-user-data"), epoch=1, run_until=T0)
    (launch,) = (call for call in world.calls if call.action == "RunInstances")
    script = base64.b64decode(launch.parameters["UserData"]).decode()
    told = base64.b64decode(script.split("<<'SETTINGS'\n")[1].split("SETTINGS\n")[0]).decode()
    assert f'"runUntil": "{utc_text(T0)}"' in told
    assert '"watchSpot": true' in told
    assert "secret" not in (script + told).replace("no secret", "").lower()
    assert "token" not in told


@pytest.mark.parametrize("fault", ["lose", "cut", "InternalError/500", "RequestLimitExceeded/503"])
async def test_a_lost_reply_buys_once(world: World, make: Make, fault: str) -> None:
    """Whatever becomes of the first call, its repeat is the same purchase."""
    provider = make()
    before = (await states(world))["running"]
    world.faults = [("RunInstances", fault)]
    answer = await provider.buy(Buy(Offer(), 3, f"t-{fault}"), epoch=1, run_until=T0)
    assert len(answer.nodes) == 3
    assert answer.failure is None
    assert world.count("RunInstances") == 2
    assert (await states(world))["running"] == before + 3


async def test_replies_that_never_come_are_unsure_and_found_by_tag(
    world: World, make: Make
) -> None:
    """Where every reply is lost, the tag tells; where that is lost too, the answer is unsure."""
    provider = make()
    world.faults = [("RunInstances", "lose")] * 3
    answer = await provider.buy(Buy(Offer(), 2, "t-lost"), epoch=1, run_until=T0)
    assert len(answer.nodes) == 2
    assert answer.failure is None
    world.faults = [("RunInstances", "lose")] * 3 + [("DescribeInstances", "cut")] * 3
    unsure = await provider.buy(Buy(Offer(), 2, "t-unsure"), epoch=1, run_until=T0)
    assert unsure.nodes == ()
    assert unsure.failure is not None
    assert (unsure.failure.kind, unsure.failure.unsure) == (FailureKind.UNKNOWN, True)
    again = await provider.buy(Buy(Offer(), 2, "t-unsure"), epoch=1, run_until=T0)
    assert len(again.nodes) == 2
    assert len((await provider.list()).nodes) == 4


async def test_a_repeat_with_another_end_is_the_same_purchase(make: Make) -> None:
    """A new leader that repeats a purchase with other terms gets the nodes as they were bought."""
    first = await make().buy(Buy(Offer(), 2, "t-again"), epoch=1, run_until=T0)
    second = await make().buy(Buy(Offer(), 2, "t-again"), epoch=2, run_until=T0 + 600)
    assert {node.id for node in first.nodes} == {node.id for node in second.nodes}
    assert {node.run_until for node in second.nodes} == {T0}


@pytest.mark.case("karpenter-oci#64")
async def test_no_capacity_is_told_of_the_offering_alone(world: World, make: Make) -> None:
    """Spot that is out says nothing of on-demand of the same type and zone."""
    provider = make()
    world.capacity[(SPOT.instance_type, SPOT.zone, "spot")] = 0
    spot = await provider.buy(Buy(SPOT, 2, "t-spot"), epoch=1, run_until=T0)
    assert spot.nodes == ()
    assert spot.failure is not None
    assert (spot.failure.kind, spot.failure.scope) == (FailureKind.CAPACITY, Scope.OFFERING)
    assert world.count("RunInstances") == 1
    fine = await provider.buy(Buy(Offer(), 2, "t-od"), epoch=1, run_until=T0)
    assert fine.short == 0


async def test_some_of_what_was_asked(world: World, make: Make) -> None:
    """What there is is taken, the rest is a lack of capacity, and a repeat takes no more."""
    provider = make()
    world.capacity[(Offer().instance_type, Offer().zone, "on-demand")] = 3
    for _ in range(2):
        answer = await provider.buy(Buy(Offer(), 5, "t-part"), epoch=1, run_until=T0)
        assert (len(answer.nodes), answer.short) == (3, 2)
        assert answer.failure is not None
        assert answer.failure.kind is FailureKind.CAPACITY


async def test_throttling_ends_in_a_failure_of_the_provider(world: World, make: Make) -> None:
    """Six throttled tries, and the planner is told to leave the whole provider alone."""
    provider = make()
    world.faults = [("RunInstances", "RequestLimitExceeded/503")] * 6
    answer = await provider.buy(Buy(Offer(), 1, "t-throttled"), epoch=1, run_until=T0)
    assert answer.failure is not None
    assert answer.failure.kind is FailureKind.THROTTLED
    assert answer.failure.scope is Scope.PROVIDER
    assert not answer.failure.unsure
    assert world.count("RunInstances") == 6


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("VcpuLimitExceeded", FailureKind.LIMIT),
        ("UnauthorizedOperation/403", FailureKind.REFUSED),
        ("SomethingNew", FailureKind.UNKNOWN),
    ],
)
@pytest.mark.case("karpenter-provider-oci#33")
async def test_each_family_of_codes(world: World, make: Make, code: str, kind: FailureKind) -> None:
    """What is not known is not read as a lack of room, nor tried at once again."""
    world.faults = [("RunInstances", code)]
    answer = await make().buy(Buy(Offer(), 1, f"t-{code}"), epoch=1, run_until=T0)
    assert answer.failure is not None
    assert answer.failure.kind is kind
    assert code.partition("/")[0] in answer.failure.words
    assert world.count("RunInstances") == 1


async def test_quota_is_read_before_the_try(world: World, make: Make) -> None:
    """Four vCPUs left: two machines of two are bought, and the third is not even asked for."""
    used = (await states(world))["running"] * 2
    provider = make(read_quotas=True)
    world.quotas["L-1216C47A"] = used + 4
    answer = await provider.buy(Buy(Offer(), 3, "t-quota"), epoch=1, run_until=T0)
    assert len(answer.nodes) == 2
    assert answer.failure is not None
    assert (answer.failure.kind, answer.failure.quota) == (FailureKind.LIMIT, "L-1216C47A")
    full = await provider.buy(Buy(Offer(), 1, "t-quota-2"), epoch=1, run_until=T0)
    assert full.nodes == ()
    assert full.failure is not None
    assert full.failure.kind is FailureKind.LIMIT
    assert world.count("RunInstances") == 1
    again = await provider.buy(Buy(Offer(), 3, "t-quota"), epoch=1, run_until=T0)
    assert len(again.nodes) == 2
    whole = await provider.buy(Buy(Offer(), 2, "t-quota"), epoch=1, run_until=T0)
    assert (len(whole.nodes), whole.failure) == (2, None), "the quota is used up by these very two"


async def test_unknown_nodes_do_not_keep_others_from_ending(make: Make) -> None:
    """A node that AWS has forgotten counts as ended, and the others of the call end too."""
    provider = make()
    answer = await provider.buy(Buy(Offer(), 2, "t-end"), epoch=1, run_until=T0)
    gone = "i-0123456789abcdef0"
    ended = await provider.end([gone, *(node.id for node in answer.nodes)], epoch=1)
    assert ended.ended == {gone, *(node.id for node in answer.nodes)}
    assert (await provider.list()).nodes == ()


async def test_extend_writes_the_tag(world: World, make: Make) -> None:
    """The later end is in the tags, and who is not there is named."""
    provider = make()
    answer = await provider.buy(Buy(Offer(), 2, "t-extend"), epoch=1, run_until=T0)
    names = [node.id for node in answer.nodes]
    gone = "i-0123456789abcdef0"
    # moto tags what is not there; the API refuses the whole call
    world.faults = [("CreateTags", f"InvalidInstanceID.NotFound/400/no instance ID '{gone}'")]
    done = await provider.extend([*names, gone], T0 + 900, epoch=3)
    assert done.ended == set(names)
    assert set(done.failed) == {gone}
    held = (await provider.list()).nodes
    assert {(node.run_until, node.epoch) for node in held} == {(T0 + 900, 3)}


async def test_lost_replies_of_ends_and_extensions(world: World, make: Make) -> None:
    """Both are states that are asked for: a repeat changes nothing more."""
    provider = make()
    (node,) = (await provider.buy(Buy(Offer(), 1, "t"), epoch=1, run_until=T0)).nodes
    world.faults = [("CreateTags", "lose"), ("TerminateInstances", "lose")]
    assert (await provider.extend([node.id], T0 + 60, epoch=1)).ended == {node.id}
    assert (await provider.end([node.id], epoch=1)).ended == {node.id}
    assert (world.count("CreateTags"), world.count("TerminateInstances")) == (2, 2)
    assert (await provider.list()).nodes == ()


async def test_a_leader_that_was_followed_is_turned_away(make: Make) -> None:
    """Tags tell an old leader that there is a newer one."""
    await make().buy(Buy(Offer(), 1, "t-new"), epoch=9, run_until=T0)
    old = make()
    await old.list()
    with pytest.raises(StaleEpochError, match="epoch 8 is stale"):
        await old.buy(Buy(Offer(), 1, "t-old"), epoch=8, run_until=T0)


async def test_spot_notice_and_ends_are_told(world: World, make: Make) -> None:
    """A request that AWS has marked is a notice of two minutes; an ended machine is told, too."""
    provider = make()
    answer = await provider.buy(Buy(SPOT, 2, "t-notice"), epoch=1, run_until=T0)
    marked, gone = (node.id for node in answer.nodes)
    world.spot_status[marked] = "marked-for-termination"
    await provider.end([gone], epoch=1)
    events = {event.node: event for event in await provider.events()}
    assert events[marked].kind is EventKind.SPOT_NOTICE
    deadline = events[marked].deadline
    assert deadline is not None
    assert deadline - events[marked].at == 120
    assert events[gone].kind is EventKind.GONE
    assert "user initiated" in events[gone].words.lower()
    assert abs(events[gone].at - events[marked].at) < 60


async def test_orphans_are_found(world: World, make: Make) -> None:
    """A lost purchase is adopted, one of nobody ends, and a volume without machine is deleted."""
    provider = make()
    world.faults = [("RunInstances", "lose")] * 3 + [("DescribeInstances", "cut")] * 3
    lost = await provider.buy(Buy(Offer(), 2, "t-wanted"), epoch=1, run_until=T0)
    assert lost.nodes == ()
    stray = await provider.buy(Buy(Offer(), 1, "t-stray"), epoch=1, run_until=T0)
    api = world.api
    made = await api.call(
        "ec2",
        "create_volume",
        AvailabilityZone=f"{REGION}a",
        Size=1,
        TagSpecifications=[
            {
                "ResourceType": "volume",
                "Tags": [
                    {
                        "Key": "dsec.dev/installation",
                        "Value": provider._settings.installation,
                    }
                ],
            }
        ],
    )
    held = await provider.list()
    now = max(node.launched_at for node in held.nodes) + 300
    findings = reconcile(held, {"t-wanted": Recorded(2)}, frozenset(), now)
    assert sorted(one.why for one in findings) == [
        Why.LOST_REPLY,
        Why.LOST_REPLY,
        Why.NOBODY_WANTED,
    ]
    assert [one.id for one in findings if one.why is Why.NOBODY_WANTED] == [stray.nodes[0].id]
    findings = reconcile(held, {}, frozenset(), now + 600)
    volumes = [one.id for one in findings if one.why is Why.UNATTACHED]
    assert volumes == [made["VolumeId"]]
    assert (await provider.remove_volumes(volumes, epoch=1)).ended == set(volumes)
    assert (await provider.remove_volumes(volumes, epoch=1)).ended == set(volumes)
    assert (await provider.list()).volumes == ()


async def test_members_of_a_group(world: World, make: Make) -> None:
    """Nodes are attached to the group that was named, and take its size down when they end."""
    api = world.api
    await api.call(
        "autoscaling",
        "create_launch_configuration",
        LaunchConfigurationName="lc",
        ImageId="ami-12345678",
        InstanceType="m5.large",
    )
    await api.call(
        "autoscaling",
        "create_auto_scaling_group",
        AutoScalingGroupName="watched",
        LaunchConfigurationName="lc",
        MinSize=0,
        MaxSize=10,
        DesiredCapacity=0,
        AvailabilityZones=[f"{REGION}a"],
    )

    async def size() -> tuple[int, int]:
        (group,) = (
            await api.call(
                "autoscaling", "describe_auto_scaling_groups", AutoScalingGroupNames=["watched"]
            )
        )["AutoScalingGroups"]
        return group["DesiredCapacity"], len(group["Instances"])

    provider = make(auto_scaling_group="watched")
    for _ in range(2):
        answer = await provider.buy(Buy(Offer(), 3, "t-group"), epoch=1, run_until=T0)
        assert answer.failure is None
        assert await size() == (3, 3)
    names = [node.id for node in answer.nodes]
    assert (await provider.end(names[:1], epoch=1)).ended == {names[0]}
    assert await size() == (2, 2)
    assert len((await provider.list()).nodes) == 2


async def test_wrong_purchases_are_refused_in_words(world: World, make: Make) -> None:
    """A pool without settings, another region and an empty token never reach AWS."""
    provider = make()
    for wrong, word in (
        (Buy(Offer(pool="other"), 1, "t"), "pool: 'other'"),
        (Buy(Offer(region="eu-west-1"), 1, "t"), "region: 'eu-west-1'"),
        (Buy(Offer(), 1, ""), "token: 0 characters"),
        (Buy(Offer(), 0, "t"), "count: 0"),
    ):
        answer = await provider.buy(wrong, epoch=1, run_until=T0)
        assert answer.failure is not None
        assert answer.failure.kind is FailureKind.REFUSED
        assert word in answer.failure.words
    long = make(labels={f"l{n}": "x" * 200 for n in range(100)})
    answer = await long.buy(Buy(Offer(), 1, "t"), epoch=1, run_until=T0)
    assert answer.failure is not None
    assert "user data of pool burst" in answer.failure.words
    assert world.count("RunInstances") == 0


async def test_prices(world: World) -> None:
    """List prices come exactly, types without one are left out, spot has one per zone."""
    world.prices = {(REGION, "m5.large"): "0.0960000000"}
    api = world.api
    calls = Calls(api, SystemClock(), system_randomness())
    quotes = await on_demand_prices(calls, SystemClock(), REGION, ["m5.large", "m5.nothing"])
    assert [(str(one.per_hour), one.currency) for one in quotes] == [("0.0960000000", "USD")]
    spot = await spot_prices(calls, SystemClock(), REGION, ["m5.large"])
    assert {one.zone for one in spot} >= {f"{REGION}a", f"{REGION}b"}
    assert {str(one.per_hour) for one in spot} == {"0.00001"}


async def test_silence_of_the_api_is_no_empty_list(world: World, make: Make) -> None:
    """A list that broke off says so: nobody may conclude that nodes are gone."""
    provider = make()
    world.faults = [("DescribeInstances", "cut")] * 3
    held = await provider.list()
    assert not held.complete
    assert held.failure is not None
    assert held.failure.scope is Scope.PROVIDER


def test_a_template_is_named_by_its_content() -> None:
    """A template's name follows from what is in it."""
    one, other = aws_settings("i"), aws_settings("i", root_gib=50)
    assert template_name(one, one.pools["burst"]) != template_name(one, other.pools["burst"])


async def test_a_hundred_nodes_out_and_in(world: World, make: Make) -> None:
    """A hundred nodes come by one launch, carry every tag, and all end."""
    provider = make()
    before = await states(world)
    answer = await provider.buy(Buy(Offer(), 100, "t-100"), epoch=7, run_until=T0)
    assert len({node.id for node in answer.nodes}) == 100
    assert answer.failure is None
    assert world.count("RunInstances") == 1
    held = await provider.list()
    assert {node.id for node in held.nodes} == {node.id for node in answer.nodes}
    for node in held.nodes:
        assert (node.token, node.pool, node.run_until, node.epoch) == ("t-100", "burst", T0, 7)
        assert node.offering == Offer().key
        assert node.phase is Phase.RUNNING
        assert node.zone == f"{REGION}a"
        assert node.market == "on-demand"
    ended = await provider.end([node.id for node in held.nodes], epoch=7)
    assert len(ended.ended) == 100
    assert not ended.failed
    assert (await provider.list()).nodes == ()
    assert (await states(world))["running"] == before["running"]
