"""What destroy asks first: refusal with names, purge with patience, a sentence for silence."""

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from dsec.api.config import Deletion
from dsec_components.guard import RefusedError, SilentError, Waiting, check
from dsec_components.host import DsecServicer, component_provider
from pulumi.runtime import proto, rpc

MINE = "dsec.test"


def experiment(name: str, *, stack: str = "", completed: bool = False) -> dict[str, Any]:
    """Return an Experiment as the API server lists it."""
    status = "True" if completed else "False"
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "labels": {"dsec.dev/stack": stack} if stack else {},
        },
        "status": {"conditions": [{"type": "Completed", "status": status}]},
    }


@dataclass
class FakeCluster:
    """Records in memory; `finishes` says whether a controller removes finalizers."""

    experiments: list[dict[str, Any]] = field(default_factory=list)
    finishes: bool = True
    silent: int = 0
    tenants: list[dict[str, Any]] = field(default_factory=list)
    ends_after: int | None = None
    controlled: bool = True
    marked: list[str] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    server: str = "https://api.test:6443"

    def mark(self, tenant: dict[str, Any], purge: dict[str, Any]) -> None:
        """Keep a purge; where a controller is at work, one sandbox ends at each later look."""
        self.marked.append(tenant["metadata"]["name"])
        for one in self.tenants:
            if one["metadata"] == tenant["metadata"]:
                one["status"]["purge"] = purge

    def _control(self) -> None:
        for one in self.tenants:
            purge = one["status"].get("purge")
            if self.controlled and purge is not None:
                one["status"]["purge"] = {**purge, "observed": True}
                one["status"]["keyed"] = max(0, one["status"]["keyed"] - 1)

    def list(self, plural: str) -> list[dict[str, Any]]:
        """Return the records, or be silent some times."""
        if self.silent:
            self.silent -= 1
            raise SilentError("connection refused")
        if plural == "tenants":
            if self.ends_after is not None:
                self.ends_after -= 1
                if self.ends_after <= 0:
                    self.tenants = []
            self._control()
            return deepcopy(self.tenants)
        return list(self.experiments) if plural == "experiments" else []

    def delete(self, plural: str, record: dict[str, Any]) -> None:
        """Delete where a controller is at work."""
        assert plural == "experiments"
        if self.finishes:
            self.experiments.remove(record)

    def release(self, plural: str, record: dict[str, Any]) -> None:
        """Remove a record by force."""
        self.released.append(f"{plural}/{record['metadata']['name']}")
        self.experiments.remove(record)


@pytest.fixture
def waiting() -> Waiting:
    """Time that passes only by waiting."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    return Waiting(now=lambda: now[0], sleep=sleep)


def test_protect_refuses_and_names_foreign_experiments(waiting: Waiting) -> None:
    """Own and completed ones do not count."""
    cluster = FakeCluster(
        [experiment("mine", stack=MINE), experiment("over", completed=True), experiment("theirs")]
    )
    with pytest.raises(RefusedError, match=r"1 experiment .* would be lost: team/theirs\. Nothing"):
        check(cluster, Deletion.PROTECT, MINE, waiting)
    assert len(cluster.experiments) == 3


def test_protect_names_ten_and_counts_the_rest(waiting: Waiting) -> None:
    """A refusal stays readable."""
    cluster = FakeCluster([experiment(f"e{n:02}") for n in range(12)])
    with pytest.raises(RefusedError, match=r"12 experiments .*team/e09 and 2 more"):
        check(cluster, Deletion.PROTECT, MINE, waiting)


def test_protect_lets_an_unused_installation_go(waiting: Waiting) -> None:
    """Own experiments are the stack's to delete."""
    assert check(FakeCluster([experiment("m", stack=MINE)]), Deletion.PROTECT, MINE, waiting) == []


def test_purge_deletes_foreign_records_and_leaves_own_ones_to_the_engine(waiting: Waiting) -> None:
    """The controller still runs and collects."""
    cluster = FakeCluster([experiment("mine", stack=MINE), experiment("theirs")])
    remarks = check(cluster, Deletion.PURGE, MINE, waiting)
    assert [one["metadata"]["name"] for one in cluster.experiments] == ["mine"]
    assert "team/theirs" in remarks[0]
    assert cluster.released == []


def tenant(name: str, keyed: int, *projects: str) -> dict[str, Any]:
    """Return this stack's Tenant, with so many sandboxes without an experiment."""
    return {
        "metadata": {"name": name, "labels": {"dsec.dev/stack": MINE}},
        "spec": {"projects": list(projects)},
        "status": {"used": {"sandboxes": 100}, "keyed": keyed},
    }


def test_protect_refuses_sandboxes_without_an_experiment(waiting: Waiting) -> None:
    """They have no record; the tenant's count tells of them."""
    cluster = FakeCluster(tenants=[tenant("walkers", 0, "team", "other")])
    assert check(cluster, Deletion.PROTECT, MINE, waiting) == []
    cluster.tenants = [tenant("walkers", 3, "team", "other"), tenant("idle", 0, "x")]
    with pytest.raises(RefusedError, match=r"3 of walkers \(projects: team, other\)\. Nothing"):
        check(cluster, Deletion.PROTECT, MINE, waiting)
    assert 0 < waiting.now() < 60
    assert cluster.marked == [], "nothing is ended where the answer is no"


def test_purge_has_sandboxes_without_an_experiment_ended(waiting: Waiting) -> None:
    """Every tenant is asked, also one that seems idle; purge goes on when the count is zero."""
    cluster = FakeCluster(
        [experiment("theirs")], tenants=[tenant("walkers", 5, "team"), tenant("idle", 0, "x")]
    )
    remarks = check(cluster, Deletion.PURGE, MINE, waiting)
    assert cluster.marked == ["walkers", "idle"]
    assert [one["status"]["keyed"] for one in cluster.tenants] == [0, 0]
    assert "ends sandboxes without an experiment: 5 of walkers" in " ".join(remarks)
    assert "Nobody" not in " ".join(remarks)
    assert cluster.experiments == []
    assert waiting.now() < 30


def test_purge_without_a_controller_ends_in_time_and_says_what_is_left(waiting: Waiting) -> None:
    """One span for sandboxes and records together: below five minutes, with a sentence."""
    cluster = FakeCluster(
        [experiment("stuck")],
        finishes=False,
        controlled=False,
        tenants=[tenant("walkers", 5, "team"), tenant("idle", 0, "x")],
    )
    remarks = check(cluster, Deletion.PURGE, MINE, waiting)
    words = " ".join(remarks)
    assert "Nobody ended the sandboxes without an experiment in 150 s: 5 of walkers" in words
    assert "no controller answers for walkers, idle" in words
    assert cluster.released == ["experiments/stuck"]
    assert 150 <= waiting.now() < 200


def test_purge_believes_no_count_from_before_its_call(waiting: Waiting) -> None:
    """A zero that an earlier purge has left in the status says nothing about now."""
    old = tenant("walkers", 0, "team")
    old["status"]["purge"] = {"by": "purge", "until": "2026-01-01T00:00:00Z", "observed": True}
    cluster = FakeCluster(controlled=False, tenants=[old])
    remarks = check(cluster, Deletion.PURGE, MINE, waiting)
    assert "no controller answers for walkers" in remarks[0]


def test_what_cannot_be_released_is_a_sentence(waiting: Waiting) -> None:
    """With the gateways dead the webhook lets no change through."""

    class Locked(FakeCluster):
        def release(self, plural: str, record: dict[str, Any]) -> None:
            raise SilentError(f"HTTP 500: failed calling webhook for {plural} {record}")

    cluster = Locked([experiment("stuck")], finishes=False)
    with pytest.raises(RefusedError, match=r"1 experiments wait for a controller.*failed calling"):
        check(cluster, Deletion.PURGE, MINE, waiting)
    assert waiting.now() < 300


def test_protect_waits_for_sandboxes_that_just_ended(waiting: Waiting) -> None:
    """A tenant's status is some seconds old."""
    cluster = FakeCluster(tenants=[tenant("walkers", 1, "team")], ends_after=4)
    assert check(cluster, Deletion.PROTECT, MINE, waiting) == []


def test_purge_forces_what_nobody_finishes_and_says_so(waiting: Waiting) -> None:
    """A dead controller must not keep a purge for ever."""
    cluster = FakeCluster([experiment("stuck")], finishes=False)
    remarks = check(cluster, Deletion.PURGE, MINE, waiting)
    assert cluster.released == ["experiments/stuck"]
    assert "were not collected" in remarks[-1]
    assert waiting.now() < 200


@pytest.mark.parametrize("deletion", list(Deletion))
def test_a_short_silence_is_waited_out_and_a_long_one_is_a_sentence(
    deletion: Deletion, waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the servers dead it ends within minutes, and nothing is forgotten unasked."""
    check(FakeCluster(silent=3), deletion, MINE, waiting)
    with pytest.raises(RefusedError, match=r"api\.test:6443 did not answer for 30 s") as refused:
        check(FakeCluster(silent=10**6), deletion, MINE, waiting)
    assert "nothing was deleted" in str(refused.value)
    assert waiting.now() < 300
    monkeypatch.setenv("PULUMI_K8S_DELETE_UNREACHABLE", "true")
    remarks = check(FakeCluster(silent=10**6), deletion, MINE, waiting)
    assert "is gone" in remarks[0]


class Aborted(Exception):  # noqa: N818 - what gRPC's abort does, not an error of ours
    """The call ended with a status."""


class Context:
    """A gRPC context that remembers how a call was aborted."""

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        """Raise, as the real one does."""
        raise Aborted(code, details)


async def test_the_plugin_turns_a_refusal_into_a_plain_message() -> None:
    """No traceback: the engine prints the details as they are."""
    asked: list[tuple[str, Deletion, str]] = []

    def guard(kubeconfig: str, deletion: Deletion, stack: str) -> list[str]:
        asked.append((kubeconfig, deletion, stack))
        raise RefusedError("Two experiments live.")

    servicer = DsecServicer(component_provider(), [], "127.0.0.1:1", guard)
    state = {
        "kubeconfig": {rpc._special_sig_key: rpc._special_secret_sig, "value": "apiVersion: v1"},
        "deletion": "protect",
        "stackLabel": MINE,
    }
    request = proto.DeleteRequest(id="1")
    request.properties.update(state)
    with pytest.raises(Aborted) as aborted:
        await servicer.Delete(request, Context())
    assert aborted.value.args[1] == "Two experiments live."
    assert asked == [("apiVersion: v1", Deletion.PROTECT, MINE)]


async def test_the_plugin_updates_in_place_and_only_on_change() -> None:
    """A new kubeconfig is no reason to replace anything."""
    servicer = DsecServicer(component_provider(), [], "127.0.0.1:1")
    request = proto.DiffRequest()
    request.old_inputs.update({"kubeconfig": "a"})
    request.news.update({"kubeconfig": "a"})
    same = await servicer.Diff(request, Context())
    request.news.update({"kubeconfig": "b"})
    changed = await servicer.Diff(request, Context())
    assert same.changes == proto.DiffResponse.DIFF_NONE
    assert changed.changes == proto.DiffResponse.DIFF_SOME
    assert list(changed.replaces) == []
