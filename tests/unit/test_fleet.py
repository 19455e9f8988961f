"""The leader's view of nodes: which may be given work, what is said of others, what is kept."""

from typing import Any

import pytest
from dsec.api.meta import ConditionStatus
from dsec.api.nodes import PlacementTraits, RecordReason
from dsec.controllers import fleet as fleets
from dsec.controllers.fleet import LONGEST_PATIENCE, Fleet
from dsec.placement.request import Health
from dsec.world.inprocess import InProcessNetwork
from structlog.testing import capture_logs

INVENTORY = {"cpuMilli": 4000, "memoryBytes": 8 << 30, "diskBytes": 1 << 30, "pids": 1000}


class Clock:
    """A clock that is set."""

    at = 0.0

    def monotonic(self) -> float:
        """Return the time that was set."""
        return self.at


def record(name: str, **labels: str) -> dict[str, Any]:
    """Return the record of a registered node."""
    return {
        "metadata": {"name": name},
        "spec": {"labels": labels},
        "status": {"endpoint": f"http://{name}", "inventory": INVENTORY},
    }


@pytest.fixture
def clock() -> Clock:
    """Start at zero."""
    return Clock()


@pytest.fixture
def fleet(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """A fleet whose nodes are not asked."""
    monkeypatch.setattr(fleets.NodeWatch, "start", lambda _: None)
    ignored: Any = None
    return Fleet(InProcessNetwork({}), clock, ignored)  # type: ignore[arg-type]  # no more is used


async def test_a_node_that_makes_no_sense_is_not_ready_and_says_why(fleet: Fleet) -> None:
    """It is said once, again when it changes, and is over when the label is right."""

    async def verdict(**labels: str) -> tuple[ConditionStatus, RecordReason, str]:
        await fleet.take("odd", record("odd", **labels))
        fleet.members["odd"].watch.memory.seen = 0.0
        for _ in range(3):
            fleet.nodes()
        return fleet.verdict("odd")

    await fleet.take("good", record("good"))
    fleet.members["good"].watch.memory.seen = 0.0
    with capture_logs() as said:
        for size in ("huge", "huge", "vast"):
            status, reason, message = await verdict(**{"task-size": size})
            assert (status, reason) == (ConditionStatus.FALSE, RecordReason.INVALID)
            assert size in message
            assert [one.name for one in fleet.nodes()] == ["good"]
        status, reason, _ = await verdict()
        assert (status, reason) == (ConditionStatus.TRUE, RecordReason.READY)
        assert len(fleet.nodes()) == 2
    assert [one["event"] for one in said] == ["node cannot be described"] * 2
    await fleet.close()


async def test_nodes_that_are_long_gone_are_forgotten(fleet: Fleet, clock: Clock) -> None:
    """Nothing is bound to them any more; the silence of others is known to the second."""
    for number in range(3):
        await fleet.take(f"n{number}", record(f"n{number}"))
    clock.at = 10.0
    await fleet.take("n0", None)
    clock.at += LONGEST_PATIENCE / 2
    await fleet.take("n1", None)
    clock.at += LONGEST_PATIENCE / 2
    await fleet.take("n2", None)
    assert sorted(fleet._gone) == ["n1", "n2"]
    assert fleet.silent_for("n1") == LONGEST_PATIENCE / 2
    assert fleet.silent_for("n0") > LONGEST_PATIENCE


MORE = {
    "watermarks": {"safePercent": 70, "limitPercent": 90},
    "taints": ["spot"],
    "topology": {"rack": "r1", "zone": "z1"},
    "priceMicro": 1_200_000,
}


async def test_what_a_pool_says_reaches_placement_and_labels_come_first(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Watermarks, taints, topology and price of the pool; a node's own labels instead of them."""
    monkeypatch.setattr(fleets.NodeWatch, "start", lambda _: None)
    traits = PlacementTraits.model_validate(MORE)
    ignored: Any = None
    fleet = Fleet(
        InProcessNetwork({}),
        clock,  # type: ignore[arg-type]  # no more is used
        ignored,
        lambda pool: traits if pool == "p" else None,
    )
    own = {"taints": "old", "rack": "r2", "safe-percent": "50", "price-micro": "7"}
    for name, pool, labels in (("a", "p", {}), ("b", "p", own), ("c", "q", {})):
        said = record(name, **labels)
        said["spec"]["pool"] = pool
        await fleet.take(name, said)
    found = {
        name: (
            node.safe_percent,
            node.limit_percent,
            node.taints,
            node.rack,
            node.zone,
            node.price_micro,
        )
        for name, member in fleet.members.items()
        if (node := member.described(Health.READY)) is not None
    }
    assert found == {
        "a": (70, 90, ("spot",), "r1", "z1", 1_200_000),
        "b": (50, 90, ("spot", "old"), "r2", "z1", 7),
        "c": (100, 100, (), "", "", 0),
    }
    same = fleet.members["a"].described(Health.READY)
    assert fleet.members["a"].described(Health.READY) is same
    fleet.members["a"].traits = None
    assert fleet.members["a"].described(Health.READY) is not same


@pytest.mark.parametrize(
    ("label", "value"), [("limit-percent", "0"), ("safe-percent", "x"), ("price-micro", "-1")]
)
async def test_a_figure_in_a_label_that_makes_no_sense_is_named(
    fleet: Fleet, label: str, value: str
) -> None:
    """The node waits, and its condition says which label it is."""
    await fleet.take("n", record("n", **{label: value}))
    assert f"labels.{label}: '{value}'" in fleet.members["n"].problem()
