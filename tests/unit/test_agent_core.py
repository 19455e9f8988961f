"""The agent's core: its four promises over random histories, and the words of its refusals."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from dsec.agent.core import TOMBSTONE_AGE, Core, StaleEpochError
from dsec.agent.entry import IllegalTransitionError, Stop
from dsec.api.reasons import EndReason
from dsec.api.sandbox import (
    End,
    GpuMode,
    Identity,
    IsolationLevel,
    Resources,
    SandboxSpec,
    SandboxState,
)
from dsec.api.wire import Device, NodeInventory
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GB = 10**9
S = SandboxState
ORDER = [S.BOUND, S.PULLING, S.CREATING, S.STARTING, S.RUNNING]


def inventory(**changes: Any) -> NodeInventory:
    """Return a small node with two 80 GB devices."""
    values: dict[str, Any] = {
        "cpu_milli": 1000,
        "memory_bytes": 1000 << 20,
        "disk_bytes": 1000 << 20,
        "pids": 1000,
        "max_sandboxes": 6,
        "devices": [
            Device(
                uuid=f"GPU-{index}",
                index=index,
                model="A100",
                memory_bytes=80 * GB,
                modes=["whole", "mps", "shares"],
            )
            for index in range(2)
        ],
    }
    return NodeInventory(**(values | changes))


def spec(name: str, *, uid: str = "", incarnation: int = 1, **resources: Any) -> SandboxSpec:
    """Return a sandbox named by one character."""
    values: dict[str, Any] = {"cpu_milli": 100, "memory_bytes": 1 << 20, "pids": 8}
    values |= {"disk_bytes": 1 << 20}
    return SandboxSpec(
        identity=Identity(
            id="sb-" + name * 26,
            tenant="t",
            project="p",
            experiment_uid=uid,
            incarnation=incarnation,
        ),
        image="base",
        resources=Resources(**(values | resources)),
    )


NAMES = st.sampled_from("0123456789")
RESOURCES = st.fixed_dictionaries(
    {
        "cpu_milli": st.sampled_from([1, 200, 500, 1001]),
        "memory_bytes": st.sampled_from([1 << 20, 400 << 20]),
        "disk_bytes": st.sampled_from([1 << 20, 600 << 20]),
        "pids": st.sampled_from([8, 300]),
    },
    optional={
        "gpu_count": st.integers(0, 2),
        "gpu_mode": st.sampled_from([GpuMode.WHOLE, GpuMode.MPS, GpuMode.SHARES]),
        "gpu_shares": st.sampled_from([0, 400]),
    },
)


class Histories(RuleBasedStateMachine):
    """Random calls in random order against one core, with a plain model beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.core = Core("n", 7, inventory())
        self.seq = self.core.seq
        self.accepted: dict[str, SandboxSpec] = {}
        self.ended: dict[str, int] = {}
        self.now = NOW

    @initialize(cpu=st.sampled_from([1000, 1500]))
    def start(self, cpu: int) -> None:
        """Begin on an empty node."""
        self.core = Core("n", 7, inventory(cpu_milli=cpu))

    @rule(name=NAMES, resources=RESOURCES)
    def admit(self, name: str, resources: dict[str, Any]) -> None:
        """A create is accepted or refused with words; a repeat is accepted and changes nothing."""
        wanted = spec(name, **resources)
        known = self.core.get(wanted.identity.id)
        before = (self.core.seq, replace(self.core.used))
        answer = self.core.admit(wanted, self.now)
        if known is not None:
            assert answer.accepted
            assert before == (self.core.seq, self.core.used)
        elif answer.accepted:
            self.accepted[wanted.identity.id] = wanted
        else:
            assert answer.reason.startswith(("capacity: ", "capability: "))
            assert before == (self.core.seq, self.core.used)

    @rule(name=NAMES)
    def step(self, name: str) -> None:
        """A life goes one state on."""
        entry = self.core.get("sb-" + name * 26)
        if entry is None or not entry.live:
            return
        sandbox, state = entry.spec.identity.id, entry.status.state
        if state in ORDER[:-1]:
            assert self.core.advance(sandbox, ORDER[ORDER.index(state) + 1], self.now)
        elif state in {S.RUNNING, S.PAUSED, S.STOPPING}:
            self.core.finish(sandbox, End(reason=EndReason.COMPLETED, exit_code=0), self.now)
        elif state is S.ARCHIVING:
            self.core.close(sandbox, self.now, archive="a", partial=False)
            self.ended[sandbox] = self.ended.get(sandbox, 0) + 1
        if entry.status.state is state and state is not S.ARCHIVING:
            pytest.fail("it did not move")

    @rule(name=NAMES)
    def repeat_state(self, name: str) -> None:
        """To move where it is already changes nothing; to move back is a bug that is seen."""
        entry = self.core.get("sb-" + name * 26)
        if entry is None:
            return
        before = self.core.seq
        assert not self.core.advance(entry.spec.identity.id, entry.status.state, self.now)
        assert before == self.core.seq
        if entry.status.state is not S.BOUND:
            with pytest.raises(IllegalTransitionError):
                self.core.advance(entry.spec.identity.id, S.BOUND, self.now)

    @rule(name=NAMES)
    def turn(self, name: str) -> None:
        """A pause lends the CPU; going on takes it back, or changes nothing where it is in use."""
        entry = self.core.get("sb-" + name * 26)
        if entry is None:
            return
        sandbox, asked = entry.spec.identity.id, entry.spec.resources.cpu_milli
        before = self.core.used.cpu_milli
        if entry.status.state is S.RUNNING:
            assert self.core.advance(sandbox, S.PAUSED, self.now)
            assert self.core.used.cpu_milli == before - asked
        elif entry.status.state is S.PAUSED:
            if why := self.core.take_back(sandbox):
                assert before + asked > self.core.inventory.cpu_milli
                assert why == (
                    f"capacity: cpu: asked {asked}, free {self.core.inventory.cpu_milli - before}"
                )
                assert self.core.used.cpu_milli == before
            else:
                assert self.core.advance(sandbox, S.RUNNING, self.now)
                assert self.core.used.cpu_milli == before + asked

    @rule(name=NAMES, reason=st.sampled_from([EndReason.STOPPED, EndReason.FENCED]))
    def stop(self, name: str, reason: EndReason) -> None:
        """A stop is taken at most twice: once, and once more if it fences."""
        sandbox = "sb-" + name * 26
        changed = self.core.request_stop(sandbox, Stop(reason), self.now)
        assert not self.core.request_stop(sandbox, Stop(reason), self.now)
        entry = self.core.get(sandbox)
        if changed:
            assert entry is not None
            assert entry.stop == Stop(reason)

    @rule(name=NAMES)
    def heartbeat(self, name: str) -> None:
        """Only the first heartbeat is news."""
        if self.core.heartbeat("sb-" + name * 26, self.now):
            before = self.core.seq
            assert not self.core.heartbeat("sb-" + name * 26, self.now)
            assert before == self.core.seq

    @rule(name=NAMES)
    def acknowledge(self, name: str) -> None:
        """Only ends can be acknowledged, once; then the output goes."""
        entry = self.core.get("sb-" + name * 26)
        if self.core.acknowledge("sb-" + name * 26):
            assert entry is not None
            assert not entry.live
            assert entry.acknowledged
            assert not self.core.acknowledge("sb-" + name * 26)

    @rule(hours=st.sampled_from([1, 25]))
    def forget(self, hours: int) -> None:
        """Only old acknowledged tombstones go."""
        self.now += timedelta(hours=hours)
        for sandbox in self.core.forget(self.now):
            del self.accepted[sandbox]
            assert self.ended.pop(sandbox) == 1

    @rule()
    def restart(self) -> None:
        """A new process with the stored entries says the same, with higher numbers."""
        entries = list(self.core)
        old = self.core.seq
        fresh = Core("n", self.core.incarnation + 1, self.core.inventory)
        for entry in entries:
            fresh.restore(entry)
        assert (fresh.used, fresh.live) == (self.core.used, self.core.live)
        assert fresh.seq > old
        assert fresh.changes(old)[0], "a reader from before the restart gets everything"
        self.core = fresh

    @invariant()
    def used_is_the_sum_over_live(self) -> None:
        """Used = sum over live sandboxes, never above capacity."""
        live = [entry.spec for entry in self.core if entry.live]
        used, have = self.core.used, self.core.inventory
        awake = [entry.spec for entry in self.core if entry.live and not entry.resting]
        assert used.cpu_milli == sum(s.resources.cpu_milli for s in awake)
        assert used.memory_bytes == sum(s.resources.memory_bytes for s in live)
        assert used.disk_bytes == sum(s.resources.disk_bytes for s in live)
        assert used.pids == sum(s.resources.pids for s in live)
        assert self.core.live == len(live) <= have.max_sandboxes
        assert used.cpu_milli <= have.cpu_milli
        assert used.memory_bytes <= have.memory_bytes
        assert used.disk_bytes <= have.disk_bytes
        assert used.pids <= have.pids
        for device in have.devices:
            assert sum(self.core.gpus._uses[device.uuid].clients.values()) <= device.memory_bytes
            holders = [s for s in live if device.uuid in s.devices]
            whole = [s for s in holders if (s.resources.gpu_mode or GpuMode.WHOLE) == "whole"]
            assert not whole or len(holders) == 1

    @invariant()
    def numbers_grow_and_are_unique(self) -> None:
        """Each change has a number of its own; entries are in that order."""
        assert self.core.seq >= self.seq
        self.seq = self.core.seq
        numbers = [entry.status.seq for entry in self.core]
        assert numbers == sorted(set(numbers))

    @invariant()
    def each_accepted_ends_once(self) -> None:
        """What was accepted is there until it has ended, once, and stays ended."""
        assert {entry.spec.identity.id for entry in self.core} == set(self.accepted)
        for entry in self.core:
            times = self.ended.get(entry.spec.identity.id, 0)
            assert times == (0 if entry.live else 1)
            assert (entry.status.end is None) == entry.live
            if entry.status.end is not None and entry.stop is not None:
                assert entry.status.end.reason is entry.stop.reason


TestHistories = Histories.TestCase
TestHistories.settings = settings(stateful_step_count=40)


@pytest.mark.parametrize(
    ("resources", "reason"),
    [
        ({"cpu_milli": 1001}, "capacity: cpu: asked 1001, free 1000"),
        ({"memory_bytes": 2000 << 20}, "capacity: memory: asked 2097152000, free 1048576000"),
        ({"pids": 1001}, "capacity: pids: asked 1001, free 1000"),
        ({"disk_bytes": 2000 << 20}, "capacity: disk: asked 2097152000, free 1048576000"),
        (
            {"gpu_count": 3},
            "capacity: gpu: asked 3 in mode whole with 0 bytes each, free 2 of 2",
        ),
        (
            {"gpu_count": 1, "gpu_mode": "mig"},
            "capacity: gpu: asked 1 in mode mig with 0 bytes each, free 0 of 2",
        ),
    ],
)
def test_refusals_name_dimension_asked_and_free(resources: dict[str, Any], reason: str) -> None:
    """A refusal says what was asked and what there is."""
    assert Core("n", 1, inventory()).admit(spec("1", **resources), NOW).reason == reason


def test_capability_and_clock_refuse() -> None:
    """What the node cannot do, and a node that may not take work, refuse in words."""
    core = Core("n", 1, inventory())
    wanted = spec("1").model_copy(update={"isolation": IsolationLevel.MICROVM})
    assert core.admit(wanted, NOW).reason == (
        "capability: isolation microvm asked, this node offers container"
    )
    core.refuse("clock", "off")
    assert core.admit(spec("1"), NOW).reason == "clock: off"


def test_two_halves_share_a_card_and_a_third_goes_elsewhere() -> None:
    """TEN-06: 400 shares are half of an 80 GB card; whole devices stay free as long as they can."""
    core = Core("n", 1, inventory())
    for name in "123":
        assert core.admit(spec(name, gpu_mode="shares", gpu_shares=400), NOW).accepted
    devices = [entry.spec.devices[0] for entry in core]
    assert devices[0] == devices[1] != devices[2]
    assert not core.admit(spec("4", gpu_count=1), NOW).accepted


def test_stale_epochs_are_refused() -> None:
    """A lower epoch than the highest seen is an error; an equal one is no news."""
    core = Core("n", 1, inventory(), epoch=3)
    assert not core.see_epoch(3)
    assert core.see_epoch(5)
    with pytest.raises(StaleEpochError, match="epoch 4 is stale; this node has seen 5"):
        core.see_epoch(4)


def test_incarnations_on_one_node() -> None:
    """An older copy of a replica is found, and refused when it comes after the newer one."""
    core = Core("n", 1, inventory())
    assert core.admit(spec("1", uid="e", incarnation=1), NOW).accepted
    newer = spec("2", uid="e", incarnation=2)
    assert core.admit(newer, NOW).accepted
    assert core.older_copies(newer) == ["sb-" + "1" * 26]
    assert core.admit(spec("3", uid="e", incarnation=1), NOW).reason.startswith("fenced: ")
    assert core.admit(spec("4", uid="e", incarnation=2), NOW).reason.startswith("fenced: ")
    assert core.admit(spec("5", uid="other", incarnation=1), NOW).accepted


def test_changes_since_a_number() -> None:
    """A reader gets what changed after its number; all of it when its number is too old."""
    core = Core("n", 1, inventory())
    core.admit(spec("1"), NOW)
    number = core.seq
    core.admit(spec("2"), NOW)
    full, entries = core.changes(number)
    assert (full, [e.spec.identity.id[-1] for e in entries]) == (False, ["2"])
    assert core.changes(core.seq) == (False, [])
    assert core.changes(core.seq + 1)[0]
    core.request_stop("sb-" + "1" * 26, Stop(EndReason.STOPPED), NOW)
    core.finish("sb-" + "1" * 26, End(reason=EndReason.STOPPED), NOW)
    core.close("sb-" + "1" * 26, NOW, archive="", partial=False)
    core.acknowledge("sb-" + "1" * 26)
    assert core.forget(NOW) == []
    assert core.forget(NOW + TOMBSTONE_AGE * 2) == ["sb-" + "1" * 26]
    full, entries = core.changes(number)
    assert (full, [e.spec.identity.id[-1] for e in entries]) == (True, ["2"])


def test_heartbeats_are_told_once_to_each_follower_and_for_the_living_only() -> None:
    """After a beat number come the last beats since; an unknown number gets all; no end has one."""
    core = Core("n", 1, inventory())
    for name in "abc":
        core.admit(spec(name), NOW)
    ids = ["sb-" + name * 26 for name in "abc"]
    begun = core.beat
    for seconds, one in enumerate((ids[0], ids[1], ids[0])):
        core.heartbeat(one, NOW + timedelta(seconds=seconds))
    changed = core.seq
    assert core.heartbeats(begun) == {
        ids[0]: NOW + timedelta(seconds=2),
        ids[1]: NOW + timedelta(seconds=1),
    }
    read = core.beat
    assert core.heartbeats(read) == {}
    core.heartbeat(ids[1], NOW + timedelta(seconds=9))
    assert core.heartbeats(read) == {ids[1]: NOW + timedelta(seconds=9)}
    assert core.seq == changed, "a later heartbeat is no change"
    assert set(core.heartbeats(core.beat + 5)) == {ids[0], ids[1]}, "of another life of the node"
    core.finish(ids[1], End(reason=EndReason.COMPLETED), NOW)
    core.close(ids[1], NOW, archive="", partial=False)
    assert set(core.heartbeats(begun)) == {ids[0]}


def test_cpus_of_its_own_are_nobody_elses() -> None:
    """Those of placement where they are free, else others; kept while paused, free at the end."""
    core = Core("n", 1, inventory(cpu_milli=8000, whole_cpus=4))

    def asks(name: str, cpu: int, *cpus: int) -> tuple[bool, list[int], str]:
        asked = spec(name, cpu_milli=cpu)
        asked = asked.model_copy(update={"exclusive_cpus": True, "cpus": list(cpus)})
        answer = core.admit(asked, NOW)
        entry = core.get(asked.identity.id)
        return answer.accepted, entry.spec.cpus if entry else [], answer.reason

    assert asks("a", 1500, 2, 3) == (True, [2, 3], "")
    assert asks("b", 1000, 3) == (True, [0], ""), "the third is taken"
    assert asks("c", 1001) == (False, [], "capacity: cpus of its own: asked 2, free 1")
    assert core.admit(spec("d", cpu_milli=2000), NOW).accepted
    for state in (*ORDER[1:], S.PAUSED):
        core.advance("sb-" + "b" * 26, state, NOW)
    assert asks("e", 2000)[0] is False
    core.request_stop("sb-" + "b" * 26, Stop(EndReason.STOPPED), NOW)
    core.finish("sb-" + "b" * 26, End(reason=EndReason.STOPPED), NOW)
    core.close("sb-" + "b" * 26, NOW, archive="", partial=False)
    assert asks("f", 2000) == (True, [0, 1], "")


def test_what_was_moved_away_comes_back_as_another_copy() -> None:
    """A later incarnation of an id that has ended here is admitted; a repeat of it is not."""
    core = Core("n", 1, inventory())
    assert core.admit(spec("a"), NOW).accepted
    again = core.admit(spec("a", incarnation=2), NOW)
    assert (again.accepted, core.live) == (True, 1), "it lives: the call is a repeat"
    core.request_stop("sb-" + "a" * 26, Stop(EndReason.FENCED, "moved", 0.0), NOW)
    core.finish("sb-" + "a" * 26, End(reason=EndReason.SIGNALED), NOW)
    core.close("sb-" + "a" * 26, NOW, archive="", partial=False)
    assert core.admit(spec("a"), NOW).state is S.ENDED
    back = core.admit(spec("a", incarnation=2), NOW)
    assert (back.state, core.live) == (S.BOUND, 1)
    (entry,) = core
    assert entry.spec.identity.incarnation == 2
    assert core.used.memory_bytes == spec("a").resources.memory_bytes
