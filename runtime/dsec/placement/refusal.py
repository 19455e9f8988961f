"""One reason why a request has no node."""

from dataclasses import dataclass

from dsec.api.reasons import PendingReason


@dataclass(frozen=True, slots=True)
class Refusal:
    """A typed reason with its figures.

    `asked` and `free` are in the dimension's unit (milli-cores, bytes, counts), or `asked` is the
    label value, isolation level or mode wanted. `free` is the most on any one of `total_nodes`
    eligible nodes, `nodes` is how many of them lack it, `largest` the largest total of one.
    Of a quota: `whose` account or cohort, and which `limit` of it (see quota_words.py); `free` and
    `largest` are that limit's.
    """

    reason: PendingReason
    dimension: str
    asked: int | str = ""
    free: int = 0
    nodes: int = 0
    total_nodes: int = 0
    largest: int = 0
    whose: str = ""
    limit: str = ""
