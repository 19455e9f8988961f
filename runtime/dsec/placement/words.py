"""Refusals in words: the dimension, what was asked, what is free, and what would start it."""

from collections.abc import Callable, Sequence

from dsec.api.reasons import PendingReason
from dsec.placement.preemption_words import preemption_sentence
from dsec.placement.quota_words import quota_sentence
from dsec.placement.refusal import Refusal

BYTES = frozenset({"memory", "disk", "gpu memory", "disk bandwidth"})
NAMES = {
    "cpu": "CPU",
    "memory": "memory",
    "disk": "disk",
    "pids": "processes",
    "density": "sandboxes on the node",
    "gpu": "GPUs",
    "gpu memory": "GPU memory",
    "sandboxes": "sandboxes",
    "disk iops": "disk operations per second",
    "disk bandwidth": "disk bandwidth",
    "exclusive cpus": "exclusive CPUs",
    "gpu share": "thousandths of one GPU",
    "gpu slice": "GPU slices",
    "gpu clients": "clients of one GPU",
    "watermark": "watermark",
}


def amount(dimension: str, value: int | str) -> str:
    """Return a figure with its unit: `8 cores`, `32 GB`, `4 GiB`, `2`."""
    if not isinstance(value, int):
        return value
    if dimension == "cpu":
        return f"{value / 1000:g} {'core' if value == 1000 else 'cores'}"  # noqa: PLR2004 - milli
    if dimension in BYTES:
        return size(value) + ("/s" if dimension == "disk bandwidth" else "")
    return str(value)


def size(value: int) -> str:
    """Return bytes in the largest unit that divides them nicely, binary or decimal."""
    if value == 0:
        return "0 B"
    for power in (4, 3, 2):
        decimal, letter = 1000**power, "?KMGT"[power]
        if value % decimal == 0:
            return f"{value // decimal} {letter}B"
    for power in (4, 3, 2, 1):
        binary, letter = 1024**power, "?KMGT"[power]
        if value >= binary:
            return f"{round(value / binary, 1):g} {letter}iB"
    return f"{value} B"


def sentence(refusal: Refusal) -> str:
    """Return one refusal as a sentence with its remedy."""
    return _SENTENCES[refusal.reason](refusal)


def explain(refusals: Sequence[Refusal]) -> str:
    """Return all refusals of one request as one line, the most limiting first."""
    return "; also ".join(sentence(refusal) for refusal in refusals)


def _capacity(refusal: Refusal) -> str:
    if refusal.dimension == "agent":
        return (
            "agent: asked 1, free 0: every node with room has just refused it; starts when one of "
            "them takes it, which is asked again within seconds"
        )
    if refusal.dimension == "watermark":
        return _watermark(refusal)
    name = NAMES.get(refusal.dimension, refusal.dimension)
    asked = amount(refusal.dimension, refusal.asked)
    free = amount(refusal.dimension, refusal.free)
    where = (
        "the node" if refusal.total_nodes == 1 else f"any of {refusal.total_nodes} eligible nodes"
    )
    never = isinstance(refusal.asked, int) and refusal.asked > refusal.largest
    remedy = f"a node with {asked} free joins" if never else f"{asked} on one node are free again"
    largest = (
        f" (the largest has {amount(refusal.dimension, refusal.largest)} in all)" if never else ""
    )
    return f"{name}: asked {asked}, free at most {free} on {where}{largest}; starts when {remedy}"


def _watermark(refusal: Refusal) -> str:
    safe = refusal.asked == 2  # noqa: PLR2004  as in Column.HEADROOM
    asked = "a node below its safe watermark" if safe else "a node below its limit watermark"
    remedy = (
        "sandboxes end there, or it is declared pausable"
        if safe
        else "sandboxes end there, or paused ones are moved away"
    )
    return f"watermark: asked {asked}, free 0 of {refusal.total_nodes}; starts when {remedy}"


def _quota(refusal: Refusal) -> str:
    dimension = refusal.dimension
    if dimension == "tenant":
        return (
            f"quota of tenant: asked {refusal.asked}, free 0: there is no such Tenant; starts when "
            f"its record is there again"
        )
    if refusal.limit:
        return quota_sentence(refusal, amount)
    return (
        f"quota of {NAMES.get(dimension, dimension)}: asked {amount(dimension, refusal.asked)}, "
        f"free {amount(dimension, refusal.free)} of {amount(dimension, refusal.largest)}; starts "
        f"when other sandboxes of the tenant end or the quota is raised"
    )


def _label(refusal: Refusal) -> str:
    return (
        f"label {refusal.dimension}={refusal.asked}: asked a node that carries it, free 0: "
        f"{_nobody(refusal, 'carries', 'carry')} it; starts when a node with that label joins"
    )


def _capability(refusal: Refusal) -> str:
    asked = "a node that offers it" if refusal.asked == "it" else refusal.asked
    return (
        f"{refusal.dimension}: asked {asked}, free 0: "
        f"{_nobody(refusal, 'offers', 'offer')} it; starts when a node that does joins"
    )


def _gang(refusal: Refusal) -> str:
    return (
        f"gang: asked {refusal.asked} replicas together, free room for {refusal.free}; starts when "
        f"the whole gang fits"
    )


def _no_nodes(refusal: Refusal) -> str:
    return f"{refusal.dimension}: asked 1, free 0: none is ready; starts when one joins"


def _image(refusal: Refusal) -> str:
    if refusal.dimension != "image":
        return (
            f"image: asked {refusal.asked}, free 0: {refusal.dimension}; starts when a node can "
            f"use it, which is tried again and again"
        )
    return (
        f"image: asked {refusal.asked}, free 0: it cannot be resolved; starts when the registry "
        f"has it and answers"
    )


def _input(refusal: Refusal) -> str:
    return (
        f"items: asked {refusal.asked}, free 0: {refusal.dimension}; starts when they have been "
        f"uploaded as text"
    )


def _control_plane(refusal: Refusal) -> str:
    if refusal.dimension == "round":
        return (
            "control plane: asked 1 round of placement, free 0: the next looks at it; starts by "
            "itself in seconds"
        )
    return (
        "control plane: asked 1 leader, free 0: one is being elected; starts by itself in seconds"
    )


def _invalid(refusal: Refusal) -> str:
    name = NAMES.get(refusal.dimension, refusal.dimension)
    if not isinstance(refusal.asked, int):
        return f"{name}: asked {refusal.asked}, free 0: nothing can serve it; starts when changed"
    if refusal.largest:
        return (
            f"{name}: asked {refusal.asked}, free to ask is at most {refusal.largest}; starts when "
            f"less is asked"
        )
    return (
        f"{name}: asked {refusal.asked}, free to ask is {refusal.free} or more; starts when more "
        f"is asked"
    )


def _health(refusal: Refusal) -> str:
    return (
        f"node health: asked a ready node, free 0: {refusal.nodes} of {refusal.total_nodes} "
        f"{'is' if refusal.nodes == 1 else 'are'} {refusal.dimension}; starts when one is ready"
    )


def _taint(refusal: Refusal) -> str:
    return (
        f"taint {refusal.dimension}: asked a node without it, free 0: {refusal.nodes} of "
        f"{refusal.total_nodes} {'carries' if refusal.nodes == 1 else 'carry'} it; starts when a "
        f"node without it joins, or the task tolerates it"
    )


def _pool(refusal: Refusal) -> str:
    return (
        f"{refusal.dimension}: asked {refusal.asked}, free 0: {refusal.nodes} of "
        f"{refusal.total_nodes} nodes {'is' if refusal.nodes == 1 else 'are'} for other work; "
        f"starts when a node for it joins"
    )


def _topology(refusal: Refusal) -> str:
    level = refusal.dimension
    return (
        f"topology: asked {refusal.asked} replicas of a group in one {level}, free 0: no {level} "
        f"has room for all of them; starts when one has"
    )


def _reserved(refusal: Refusal) -> str:
    return (
        f"reserved: asked {refusal.asked}, free 0: the room is kept for {refusal.dimension}, which "
        f"has waited longer; starts when that has started or ended, or when it would end before"
    )


def _nobody(refusal: Refusal, one: str, many: str) -> str:
    if refusal.total_nodes == 1:
        return f"the only node does not {many}"
    return f"none of {refusal.total_nodes} nodes {one}"


def _budget(refusal: Refusal) -> str:
    return str(refusal.asked)


_SENTENCES: dict[PendingReason, Callable[[Refusal], str]] = {
    PendingReason.CAPACITY: _capacity,
    PendingReason.QUOTA: _quota,
    PendingReason.LABEL: _label,
    PendingReason.CAPABILITY: _capability,
    PendingReason.GANG: _gang,
    PendingReason.NO_NODES: _no_nodes,
    PendingReason.IMAGE: _image,
    PendingReason.INPUT: _input,
    PendingReason.CONTROL_PLANE: _control_plane,
    PendingReason.INVALID: _invalid,
    PendingReason.HEALTH: _health,
    PendingReason.TAINT: _taint,
    PendingReason.POOL: _pool,
    PendingReason.TOPOLOGY: _topology,
    PendingReason.RESERVED: _reserved,
    PendingReason.PREEMPTION: preemption_sentence,
    PendingReason.BUDGET: _budget,
}
