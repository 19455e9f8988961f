"""Membership of an Auto Scaling group, for those who watch their machines there.

The group buys nothing by itself: a group that replaced a node which has reached its end would spend
what nobody has allowed. So its own launches are suspended, nodes are bought as everywhere and then
attached, and an end takes them out of the group.
"""

from collections.abc import Sequence

from dsec.providers.aws_calls import Calls
from dsec.providers.aws_errors import failure_of
from dsec.providers.provider import EndAnswer, Failure
from dsec.world.ec2 import CloudError

SUSPENDED = ("Launch", "ReplaceUnhealthy", "AZRebalance", "AlarmNotification", "ScheduledActions")
ATTACHED_AT_ONCE, DESCRIBED_AT_ONCE = 20, 50
"""Instances in one call, by the API."""


async def attach(calls: Calls, group: str, instances: Sequence[str]) -> Failure | None:
    """Make instances members of a group; return why not, where that fails. Idempotent."""
    try:
        await calls.call(
            "autoscaling",
            "suspend_processes",
            AutoScalingGroupName=group,
            ScalingProcesses=list(SUSPENDED),
        )
        members = await _groups_of(calls, instances)
        new = [one for one in instances if one not in members]
        for start in range(0, len(new), ATTACHED_AT_ONCE):
            await calls.call(
                "autoscaling",
                "attach_instances",
                AutoScalingGroupName=group,
                InstanceIds=new[start : start + ATTACHED_AT_ONCE],
            )
    except CloudError as error:
        # a repeat after a lost reply may find what it has done itself
        return None if "already" in error.message else failure_of(error)
    return None


async def end_members(calls: Calls, instances: Sequence[str]) -> EndAnswer:
    """End those of the instances that are members of a group, so that it shrinks with them."""
    ended: set[str] = set()
    failed: dict[str, Failure] = {}
    try:
        members = await _groups_of(calls, instances)
    except CloudError as error:
        return EndAnswer(failed=dict.fromkeys(instances, failure_of(error)))
    for instance in members:
        try:
            await calls.call(
                "autoscaling",
                "terminate_instance_in_auto_scaling_group",
                InstanceId=instance,
                ShouldDecrementDesiredCapacity=True,
            )
            ended.add(instance)
        except CloudError as error:
            failed[instance] = failure_of(error)
    return EndAnswer(frozenset(ended), failed)


async def _groups_of(calls: Calls, instances: Sequence[str]) -> dict[str, str]:
    """Return instance to group, of those that are in one. Raises CloudError."""
    found: dict[str, str] = {}
    for start in range(0, len(instances), DESCRIBED_AT_ONCE):
        answer = await calls.call(
            "autoscaling",
            "describe_auto_scaling_instances",
            InstanceIds=list(instances[start : start + DESCRIBED_AT_ONCE]),
        )
        for one in answer.get("AutoScalingInstances", []):
            if one.get("LifecycleState", "").startswith(("Terminat", "Detach")):
                continue
            found[one["InstanceId"]] = one["AutoScalingGroupName"]
    return found
