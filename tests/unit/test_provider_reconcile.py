"""What to do about machines that exist: adopt, end, delete, each with its reason."""

from dataclasses import replace

import pytest
from dsec.providers.aws_errors import failure_of
from dsec.providers.aws_quota import quota_of
from dsec.providers.provider import (
    FailureKind,
    Holdings,
    OrphanVolume,
    Phase,
    ProviderNode,
    Scope,
)
from dsec.providers.reconcile import Recorded, Verdict, Why, reconcile
from dsec.world.ec2 import CloudError
from provider_make import T0, Offer

NODE = ProviderNode(
    id="i-1",
    name="i-1",
    offering=Offer().key,
    pool="burst",
    token="t",  # noqa: S106 - a purchase
    phase=Phase.RUNNING,
    launched_at=T0,
    run_until=T0 + 3600,
)
WANTED = {"t": Recorded(1, frozenset({"i-1"}))}


@pytest.mark.parametrize(
    ("node", "recorded", "joined", "age", "expected"),
    [
        (NODE, WANTED, {"i-1"}, 1800, None),
        (NODE, WANTED, set(), 599, None),
        (NODE, WANTED, set(), 601, Why.NEVER_JOINED),
        (NODE, {"t": Recorded(1)}, {"i-1"}, 1800, Why.LOST_REPLY),
        (NODE, {}, set(), 119, None),
        (NODE, {}, {"i-1"}, 121, Why.NOBODY_WANTED),
        (NODE, WANTED, {"i-1"}, 3600 + 119, None),
        (NODE, WANTED, {"i-1"}, 3600 + 121, Why.PAST_RUN_UNTIL),
        (replace(NODE, run_until=None), WANTED, {"i-1"}, 119, None),
        (replace(NODE, run_until=None), WANTED, {"i-1"}, 121, Why.NO_RUN_UNTIL),
        (replace(NODE, phase=Phase.ENDING), {}, set(), 9999, None),
        (replace(NODE, phase=Phase.GONE), {}, set(), 9999, None),
        (replace(NODE, phase=Phase.STOPPED), {}, set(), 9999, Why.PAST_RUN_UNTIL),
    ],
)
def test_one_machine(
    node: ProviderNode,
    recorded: dict[str, Recorded],
    joined: set[str],
    age: float,
    expected: Why | None,
) -> None:
    """Each state of one machine has one answer."""
    found = reconcile(Holdings((node,)), recorded, joined, T0 + age)
    assert [one.why for one in found] == ([] if expected is None else [expected])
    for one in found:
        assert one.id in one.words
        assert (one.verdict is Verdict.ADOPT) == (one.why is Why.LOST_REPLY)


def test_more_than_was_bought_ends_newest_first() -> None:
    """Nodes that are known stay; of the others the oldest is adopted and the rest end."""
    nodes = tuple(
        replace(NODE, id=f"i-{n}", name=f"i-{n}", launched_at=T0 + n) for n in range(1, 5)
    )
    found = reconcile(
        Holdings(nodes), {"t": Recorded(2, frozenset({"i-4"}))}, frozenset(), T0 + 100
    )
    assert {(one.id, one.why) for one in found} == {
        ("i-1", Why.LOST_REPLY),
        ("i-2", Why.SURPLUS),
        ("i-3", Why.SURPLUS),
    }


def test_volumes_wait_a_while() -> None:
    """What has just been detached may be of a machine that ends."""
    volume = OrphanVolume("vol-1", "t", T0, 1 << 30)
    assert reconcile(Holdings(volumes=(volume,)), {}, frozenset(), T0 + 599) == ()
    (one,) = reconcile(Holdings(volumes=(volume,)), {}, frozenset(), T0 + 601)
    assert (one.verdict, one.id) == (Verdict.DELETE, "vol-1")


@pytest.mark.parametrize(
    ("code", "status", "kind", "scope", "unsure"),
    [
        ("InsufficientInstanceCapacity", 500, FailureKind.CAPACITY, Scope.OFFERING, False),
        ("InsufficientFreeAddressesInSubnet", 400, FailureKind.CAPACITY, Scope.OFFERING, False),
        ("SpotMaxPriceTooLow", 400, FailureKind.CAPACITY, Scope.OFFERING, False),
        ("RequestLimitExceeded", 503, FailureKind.THROTTLED, Scope.PROVIDER, False),
        ("ThrottlingException", 400, FailureKind.THROTTLED, Scope.PROVIDER, False),
        ("TooManyRequests", 429, FailureKind.THROTTLED, Scope.PROVIDER, False),
        ("VcpuLimitExceeded", 400, FailureKind.LIMIT, Scope.QUOTA, False),
        ("MaxSpotInstanceCountExceeded", 400, FailureKind.LIMIT, Scope.QUOTA, False),
        ("InstanceLimitExceeded", 400, FailureKind.LIMIT, Scope.QUOTA, False),
        ("UnauthorizedOperation", 403, FailureKind.REFUSED, Scope.PROVIDER, False),
        ("InvalidParameterValue", 400, FailureKind.REFUSED, Scope.PROVIDER, False),
        ("Unsupported", 400, FailureKind.REFUSED, Scope.OFFERING, False),
        ("credentials", 0, FailureKind.REFUSED, Scope.PROVIDER, False),
        ("InternalError", 500, FailureKind.UNKNOWN, Scope.OFFERING, True),
        ("ServiceUnavailable", 503, FailureKind.UNKNOWN, Scope.OFFERING, True),
        ("NeverSeenBefore", 400, FailureKind.UNKNOWN, Scope.OFFERING, False),
    ],
)
def test_families_of_codes(
    code: str, status: int, kind: FailureKind, scope: Scope, *, unsure: bool
) -> None:
    """Whatever AWS answers has a kind and a scope; 5xx is unsure only where the code is."""
    failure = failure_of(CloudError(code, "words", unsure=status >= 500, status=status))
    assert (failure.kind, failure.scope, failure.unsure) == (kind, scope, unsure)
    assert code in failure.words


@pytest.mark.parametrize(
    ("instance_type", "market", "code"),
    [
        ("m7i.8xlarge", "on-demand", "L-1216C47A"),
        ("c6a.large", "spot", "L-34B43A08"),
        ("im4gn.large", "on-demand", "L-1216C47A"),
        ("inf2.xlarge", "on-demand", "L-1945791B"),
        ("g5.12xlarge", "spot", "L-3819A6DF"),
        ("gr6.4xlarge", "on-demand", "L-DB2E81BA"),
        ("p4d.24xlarge", "spot", "L-7212CCBC"),
        ("p5.48xlarge", "spot", "L-C4BD4855"),
        ("p5.48xlarge", "reserved", "L-417A185B"),
        ("hpc7a.96xlarge", "on-demand", "L-F7808C92"),
        ("x2gd.metal", "on-demand", "L-7295265B"),
        ("u7i-12tb.224xlarge", "on-demand", "L-43DA4232"),
    ],
)
def test_quotas_by_family(instance_type: str, market: str, code: str) -> None:
    """Each family falls under the quota that AWS counts it in."""
    assert quota_of(Offer(instance_type=instance_type, market=market)) == code
