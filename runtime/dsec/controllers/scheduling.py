"""From what a stack says about scheduling to policies of queues, preemption, compaction. Pure."""

from dataclasses import replace

from dsec.api.config import SchedulingConfig
from dsec.placement.compaction import CompactionPolicy
from dsec.placement.plans import PreemptionPolicy
from dsec.placement.queueing import KIND_PRESETS, QUEUES, Queue, QueuePolicy


def policy_of(config: SchedulingConfig) -> PreemptionPolicy:
    """Return the policy of an installation; a queue that is named is declared by that."""
    names = {*QUEUES, *config.queue_weights, *config.patient_queues}
    queues = {name: QUEUES.get(name, Queue()) for name in sorted(names)}
    for name, weight in config.queue_weights.items():
        queues[name] = replace(queues[name], weight=weight)
    for name in config.patient_queues:
        queues[name] = replace(queues[name], preempts=False)
    return PreemptionPolicy(
        preempt_after_s=config.preempt_after_seconds,
        pools=frozenset(config.preemption_pools) or None,
        queues=QueuePolicy(
            queues, KIND_PRESETS[config.kind_weights.value], config.queue_order.value
        ),
    )


def compaction_of(config: SchedulingConfig) -> CompactionPolicy:
    """Return when the nodes of an installation are compacted."""
    return CompactionPolicy(
        config.compaction.value,
        config.compaction_after_seconds,
        queues=policy_of(config).queues,
    )
