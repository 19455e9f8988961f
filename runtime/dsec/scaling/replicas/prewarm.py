"""What to bring to which node before a growth needs it: images and parameters. Pure.

The rounds that confirm a growth are time in which bytes can travel (ELAS-26); a node that is being
bought can pull as soon as it is there (ELAS-19). Losing a warm-up costs time, never correctness.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dsec.api.elastic_status import RoleScaling

MOST_NODES = 256
"""Nodes warmed by one growth: more could not pull at once without filling the registry's link."""


@dataclass(frozen=True, slots=True)
class Blob:
    """Something that a new replica reads first: an image or a file of parameters."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """A node that could take some of the new replicas."""

    name: str
    fits: int
    """How many more replicas of the role it has room for."""
    holds: frozenset[str] = frozenset()
    """Names of blobs that are there."""


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Bring a blob to a node."""

    node: str
    blob: Blob


def coming(state: RoleScaling) -> bool:
    """Return whether a growth is being confirmed, or waits for its cooldown."""
    return state.grow_rounds > 0 and not state.frozen


def warm_ups(
    more: int, blobs: Sequence[Blob], nodes: Sequence[NodeRoom], most: int = MOST_NODES
) -> list[WarmUp]:
    """Return what to bring where so that so many new replicas find it; fewest bytes first.

    Nodes that hold all of it already are filled first, and get nothing.
    """

    def lacking(node: NodeRoom) -> int:
        return sum(one.size_bytes for one in blobs if one.name not in node.holds)

    found: list[WarmUp] = []
    chosen = 0
    for node in sorted(nodes, key=lambda one: (lacking(one), -one.fits, one.name)):
        if more <= 0 or chosen >= most:
            break
        if node.fits > 0:
            more -= node.fits
            missing = [one for one in blobs if one.name not in node.holds]
            chosen += bool(missing)
            found += [WarmUp(node.name, one) for one in missing]
    return found
