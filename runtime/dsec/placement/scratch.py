"""The figures of one node while they are changed: plain numbers, quicker than single array cells.

A scratch is loaded from a view's arrays, changed, and stored back as a whole. It knows how claims
change cards, what a node has when nothing runs on it, and where its watermarks lie.
"""

from collections.abc import Iterable, Sequence

from dsec.api.experiment import Stage
from dsec.placement.accelerators import Accelerator, Card, CardState, Claim, idle, summary, take
from dsec.placement.dimensions import WHOLE, Column, saturated
from dsec.placement.request import Node

STAGE_COLUMN = {
    Stage.EXPLORATION.value: Column.EXPLORATION,
    Stage.TRAINING.value: Column.TRAINING,
    Stage.EVALUATION.value: Column.EVALUATION,
}
_HEADROOM, _CPU, _MEMORY = int(Column.HEADROOM), int(Column.CPU), int(Column.MEMORY)
SUMMARY = slice(int(Column.WHOLE), int(Column.SLICES) + 1)
"""Columns that follow from the cards."""
Need = tuple[int, int]
"""A column, and how much is taken of it."""
Marks = tuple[int, int, int, int]
"""Free CPU and memory at which the safe watermark is reached, and the limit."""


class Scratch:
    """The figures of one node while they are changed; `ClusterView.store` writes them back."""

    __slots__ = (
        "cards",
        "changed",
        "columns",
        "marks",
        "node",
        "profile",
        "row",
    )

    def __init__(
        self,
        place: tuple[int, Node, int],
        columns: list[int],
        cards: list[CardState],
        marks: Marks | None,
    ) -> None:
        """Hold a node's figures; `place` is its row, description and number of profile."""
        self.row, self.node, self.profile = place
        self.marks = marks
        self.columns = columns
        self.cards = cards
        self.changed: set[int] = set()
        """Numbers of cards that are to be stored."""

    def take(self, amounts: tuple[int, ...], claims: Sequence[Claim], stage: str = "") -> None:
        """Book; the caller has made sure that it fits. `store` brings the summaries up to date."""
        if claims:
            numbers = {card.uuid: number for number, card in enumerate(self.node.devices)}
            known = [claim for claim in claims if claim.uuid in numbers]
            self.give([numbers[claim.uuid] for claim in known], known)
        self.count(amounts, stage)

    def give(self, numbers: Sequence[int], claims: Sequence[Claim]) -> None:
        """Enter claims on the cards with those numbers."""
        devices, states = self.node.devices, self.cards
        for number, claim in zip(numbers, claims, strict=True):
            take(states[number], devices[number], claim)
        self.changed.update(numbers)

    def count(self, amounts: tuple[int, ...], stage: str = "", times: int = 1) -> None:
        """Book that often what is not of cards."""
        book(self.columns, enumerate(amounts), self.marks, stage, times)

    def shortfall(self, amounts: tuple[int, ...]) -> Column | None:
        """Return the first column that lacks room, or None."""
        for column, amount in enumerate(amounts):
            if amount and self.columns[column] < amount:
                return Column(column)
        return None


def book(
    columns: list[int], needs: Iterable[Need], marks: Marks | None, stage: str, times: int
) -> None:
    """Take what is needed off the columns of a node that often, in place."""
    for column, amount in needs:
        columns[column] -= times * amount
    if stage in STAGE_COLUMN:
        columns[STAGE_COLUMN[stage]] += times
    if marks is not None:
        columns[_HEADROOM] = headroom(marks, columns)


def needs_of(amounts: tuple[int, ...]) -> tuple[Need, ...]:
    """Return the columns that something is taken of, and how much."""
    return tuple([(column, amount) for column, amount in enumerate(amounts) if amount])


def room(
    columns: list[int],
    amounts: tuple[int, ...],
    needs: tuple[Need, ...],
    marks: Marks | None,
    level: int,
) -> int:
    """Return how many times those amounts still fit, cards aside; 0 or less: not once.

    Each must find at least that `level` of the watermarks (see `headroom`); 0 is none.
    """
    fits = min([columns[column] // amount for column, amount in needs])
    if level and marks is not None and fits > 0:
        safe_cpu, safe_memory, cpu, memory = marks
        above = _above(columns, amounts, safe_cpu, safe_memory)
        if level == 1:
            above = max(above, _above(columns, amounts, cpu, memory))
        fits = min(fits, above)
    return fits


def _above(columns: list[int], amounts: tuple[int, ...], cpu: int, memory: int) -> int:
    """Return how many of those may start while CPU and memory are above those figures."""
    cpu, memory = columns[_CPU] - cpu, columns[_MEMORY] - memory
    if cpu <= 0 or memory <= 0:
        return 0
    # rounded up: the last starts just above them
    fits = -(-memory // amounts[_MEMORY])
    return min(fits, -(-cpu // amounts[_CPU])) if amounts[_CPU] else fits


def totals(node: Node) -> list[int]:
    """Return a node's columns as they are when nothing runs on it."""
    found = [0] * len(Column)
    found[Column.MEMORY] = saturated(node.memory_bytes)
    found[Column.PIDS] = saturated(node.pids)
    found[Column.DISK] = saturated(node.disk_bytes)
    found[Column.DENSITY] = saturated(node.sandboxes)
    found[Column.IOPS] = saturated(node.disk_iops)
    found[Column.BANDWIDTH] = saturated(node.disk_bytes_per_second)
    found[Column.CPU] = saturated(node.cpu_milli * node.overcommit_milli // WHOLE)
    found[Column.PINS] = len(node.cpus)
    found[Column.WHOLE : Column.SLICES + 1] = summary([idle(card) for card in node.devices])
    found[Column.HEADROOM] = headroom(marks_of(node), found)
    return found


def marks_of(node: Node) -> Marks | None:
    """Return the watermarks as free amounts: reached at or below them; None where it has none."""
    safe, limit = node.safe_percent, node.limit_percent
    if safe >= 100 and limit >= 100:  # noqa: PLR2004  percent
        return None
    cpu = saturated(node.cpu_milli * node.overcommit_milli // WHOLE)
    memory = saturated(node.memory_bytes)
    # used x 100 >= percent x total, said of what is free
    return (
        cpu * (100 - safe) // 100,
        memory * (100 - safe) // 100,
        cpu * (100 - limit) // 100,
        memory * (100 - limit) // 100,
    )


def headroom(marks: Marks | None, columns: list[int]) -> int:
    """Return where CPU and memory stand: 2 below the safe watermark, 1 below the limit, else 0."""
    if marks is None:
        return 2
    cpu, memory = columns[_CPU], columns[_MEMORY]
    if cpu > marks[0] and memory > marks[1]:
        return 2
    return 1 if cpu > marks[2] and memory > marks[3] else 0


def claim_fits(card: Accelerator, state: CardState, claim: Claim) -> bool:
    """Return whether a card takes a claim now."""
    if not state[Card.OPEN] & 1 << claim.mode:
        return False
    if claim.slices:
        return not state[Card.SLICES] & claim.slices and card.slicing is not None
    if claim.limit and state[Card.COUNT] >= claim.limit:
        return False
    return state[Card.MILLI] >= claim.milli and state[Card.MEMORY] >= claim.memory
