"""The one list of reasons: why a sandbox ended, and why one has not started."""

from enum import StrEnum


class EndReason(StrEnum):
    """Why a sandbox ended. Stable names: users, bills and retries depend on them."""

    COMPLETED = "completed"
    """The main command exited with status 0."""
    FAILED = "failed"
    """The main command exited with another status."""
    SIGNALED = "signaled"
    """The main command was killed by a signal that dsec did not send."""
    OOM_KILLED = "oom-killed"
    """The kernel killed a process of the sandbox at its memory limit."""
    PIDS_LIMIT = "pids-limit"
    """The command failed after forks had been refused at the process limit."""
    DISK_FULL = "disk-full"
    """The command failed after its writable space had run out."""
    OUTPUT_LIMIT = "output-limit"
    """The command was ended because it wrote more output than its hard cap."""
    DEADLINE = "deadline"
    """The maximum run time passed."""
    HEARTBEAT_LOST = "heartbeat-lost"
    """Its program gave no sign of life for too long, and nobody asked to keep it."""
    IDLE = "idle"
    """It did nothing for too long, or was paused for too long, and nobody asked to keep it."""
    START_DEADLINE = "start-deadline"
    """The sandbox did not register in time."""
    MOUNT_TIMEOUT = "mount-timeout"
    """Workspace or data did not appear within the mount wait."""
    START_FAILED = "start-failed"
    """The runtime could not start the main command; the message says why."""
    IMAGE_PULL_FAILED = "image-pull-failed"
    """The image could not be fetched or verified."""
    STOPPED = "stopped"
    """A user or the end of the experiment stopped it."""
    FROZEN = "frozen"
    """The experiment was frozen: the scene is archived and the resources are given back."""
    FENCED = "fenced"
    """A newer incarnation of the same replica exists; this copy's effects are void."""
    PREEMPTED = "preempted"
    """It gave its place to work that may ask for it, or its node ended; the message says which."""
    OVER_BUDGET = "over-budget"
    """A budget that pays for it is spent and ends work; its results were collected first."""
    NODE_LOST = "node-lost"
    """The node did not come back; closed from the dispatch row."""
    INFRASTRUCTURE = "infrastructure"
    """dsec itself failed; never the task's fault."""

    @property
    def blames_platform(self) -> bool:
        """True where the platform and not the task is at fault: such ends are safe to retry."""
        return self in _PLATFORM


_PLATFORM = frozenset(
    {
        EndReason.START_DEADLINE,
        EndReason.MOUNT_TIMEOUT,
        EndReason.IMAGE_PULL_FAILED,
        EndReason.FENCED,
        EndReason.PREEMPTED,
        EndReason.NODE_LOST,
        EndReason.INFRASTRUCTURE,
    }
)


class PendingReason(StrEnum):
    """Why a replica has no node yet; `dsec describe` turns it into a sentence."""

    CAPACITY = "capacity"
    """Every eligible node lacks some dimension."""
    QUOTA = "quota"
    """The tenant's quota is used up."""
    LABEL = "label"
    """No node carries a label that the request needs."""
    CAPABILITY = "capability"
    """No node can do what the request asks (microVM, PVC, GPU mode)."""
    IMAGE = "image"
    """The image cannot be resolved to a digest."""
    INPUT = "input"
    """The items of the batch were not uploaded, or cannot be read."""
    NO_NODES = "no-nodes"
    """No node is ready."""
    GANG = "gang"
    """It would fit alone, but not together with its gang."""
    CONTROL_PLANE = "control-plane"
    """The control plane is electing or catching up."""
    INVALID = "invalid"
    """The request can never be right: a figure or a pair of wishes that nothing can serve."""
    HEALTH = "health"
    """The nodes that would do are degraded, cordoned or not ready."""
    TAINT = "taint"
    """The nodes that would do are kept for work that tolerates their taint."""
    POOL = "pool"
    """The nodes that would do are in pools for another kind or size of work."""
    TOPOLOGY = "topology"
    """The part of the topology that its group must not leave is full."""
    RESERVED = "reserved"
    """It would delay work that has waited longer, for which the room is kept."""
    BUDGET = "budget"
    """A budget that pays for it has reached a level at which nothing is added."""
    PREEMPTION = "preemption"
    """It would have to displace other work, and may not, or not yet."""
