"""What a stack says about queues and preemption reaches the leader's policy, or is refused."""

import json
from pathlib import Path

import pytest
from dsec.api.config import SchedulingConfig, platform_config
from dsec.api.mistakes import DocumentError
from dsec.controllers.scheduling import policy_of
from dsec.placement.plans import PreemptionPolicy
from dsec.placement.queueing import KIND_PRESETS
from dsec.world.settings import CONFIG, SettingsError, load

IMAGES = {"images": {"runtime": "r", "agent": "a"}}


def test_nothing_said_is_the_default() -> None:
    """A minute, every pool, equal weights, order of arrival."""
    assert policy_of(SchedulingConfig()) == PreemptionPolicy()


def test_everything_said_is_heard() -> None:
    """TEN-09, TEN-13, TEN-15, TEN-23, SCHED-16."""
    config = platform_config(
        IMAGES
        | {
            "pools": {"small": {}},
            "scheduling": {
                "preemptAfterSeconds": 5,
                "preemptionPools": ["small"],
                "queueOrder": "phase",
                "kindWeights": "evaluation-first",
                "queueWeights": {"debug": 8, "night": 0},
                "patientQueues": ["night"],
            },
        }
    )
    policy = policy_of(config.scheduling)
    assert (policy.preempt_after_s, policy.pools) == (5, {"small"})
    assert (policy.queues.order, policy.queues.kinds) == ("phase", KIND_PRESETS["evaluation-first"])
    night, debug = policy.queues.queue("night"), policy.queues.queue("debug")
    assert (night.weight, night.preempts, debug.weight, debug.long) == (0, False, 8, False)


@pytest.mark.parametrize(
    ("said", "path"),
    [
        ({"preemptionPools": ["none"]}, "scheduling.preemptionPools[0]"),
        ({"preemptAfterSeconds": -1}, "scheduling.preemptAfterSeconds"),
        ({"queueOrder": "age"}, "scheduling.queueOrder"),
        ({"queueWeights": {"debug": -1}}, "scheduling.queueWeights.debug"),
    ],
)
def test_mistakes_are_named(said: dict[str, object], path: str) -> None:
    """Each with its path."""
    with pytest.raises(DocumentError) as caught:
        platform_config(IMAGES | {"scheduling": said})
    assert [one.path for one in caught.value.mistakes] == [path]


def test_a_controller_reads_it_from_its_file(tmp_path: Path) -> None:
    """Also in Python spelling, as components write it."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"scheduling": {"preempt_after_seconds": 7}}))
    assert policy_of(load({CONFIG: str(file)}).config.scheduling).preempt_after_s == 7
    file.write_text(json.dumps({"scheduling": {"preemptAfterSeconds": "soon"}}))
    with pytest.raises(SettingsError, match="preemptAfterSeconds"):
        load({CONFIG: str(file)})
