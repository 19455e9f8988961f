"""What to do about machines that exist, seen against what was wanted: adopt, end, delete. Pure.

The lists of a provider are the truth about what costs; the purchases that the leader has recorded,
before it made them, are the truth about what was wanted. Whatever is in one and not in the other is
found here, with the reason in words.
"""

from collections import defaultdict
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum

from dsec.providers.provider import Holdings, Phase, ProviderNode

OWNED = "owned"


class Verdict(StrEnum):
    """What becomes of a thing."""

    ADOPT = "adopt"
    END = "end"
    DELETE = "delete"


class Why(StrEnum):
    """The reason of a verdict."""

    LOST_REPLY = "lost-reply"
    """A recorded purchase brought it, though no answer said so: adopt."""
    NOBODY_WANTED = "nobody-wanted"
    """It carries our tags, but no recorded purchase has its token: end."""
    SURPLUS = "surplus"
    """A purchase has brought more than it asked: end the newest."""
    PAST_RUN_UNTIL = "past-run-until"
    """Its paid time is over, and it has not ended by itself: end."""
    NEVER_JOINED = "never-joined"
    """Its agent did not register in time: end."""
    NO_RUN_UNTIL = "no-run-until"
    """Its tag of the end is missing or unreadable, so nothing bounds it: end."""
    UNATTACHED = "unattached"
    """A volume of ours that hangs on no machine: delete."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to do; `node` is its name where an agent may have registered under it."""

    verdict: Verdict
    why: Why
    id: str
    words: str
    node: str = ""
    token: str = ""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A purchase as the leader has recorded it, and the nodes that it knows of it."""

    count: int
    known: AbstractSet[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Patience:
    """How long things may look wrong, in seconds; lists of a provider lag by seconds."""

    unknown: float = 120.0
    """A purchase recorded by a leader whose record this one has not read yet."""
    join: float = 600.0
    """From launch to registration: ten times a slow boot."""
    past_end: float = 120.0
    """The node ends itself first: its archive may take its whole wind-down."""
    volume: float = 600.0
    """Between the end of a machine and the deletion of its volumes AWS shows them unattached."""


def reconcile(
    holdings: Holdings,
    recorded: Mapping[str, Recorded],
    joined: AbstractSet[str],
    now: float,
    patience: Patience | None = None,
) -> tuple[Finding, ...]:
    """Return what to do, the same for the same input; `now` in UTC seconds.

    Own machines cost the same on and off, and somebody may use them by hand: none is ended here.

    `recorded` is by token; `joined` are names of nodes that have registered. An incomplete list is
    as good as a complete one: nothing is concluded from what is not in it.
    """
    limits = patience or Patience()
    alive = [node for node in holdings.nodes if node.phase.costs or node.phase is Phase.STOPPED]
    findings = [
        finding
        for node in alive
        if node.phase is not Phase.ENDING
        and (finding := _judge(node, recorded, joined, now, limits)) is not None
    ]
    ending = {one.id for one in findings if one.verdict is Verdict.END}
    findings += _surplus([node for node in alive if node.id not in ending], recorded)
    findings += [
        Finding(
            Verdict.DELETE,
            Why.UNATTACHED,
            volume.id,
            f"volume {volume.id} hangs on no machine for {_minutes(now - volume.created_at)}",
            token=volume.token,
        )
        for volume in holdings.volumes
        if now - volume.created_at > limits.volume
    ]
    surplus = {one.id for one in findings if one.why is Why.SURPLUS}
    return tuple(
        one for one in findings if not (one.verdict is Verdict.ADOPT and one.id in surplus)
    )


def _judge(
    node: ProviderNode,
    recorded: Mapping[str, Recorded],
    joined: AbstractSet[str],
    now: float,
    limits: Patience,
) -> Finding | None:
    age = now - node.launched_at
    end, purchase = node.run_until, recorded.get(node.token)
    known = purchase is not None
    wrong = (
        (end is None and age > limits.unknown, Why.NO_RUN_UNTIL, "carries no time of its end"),
        (
            end is not None and now > end + limits.past_end,
            Why.PAST_RUN_UNTIL,
            f"should have ended {_minutes(now - (end or now))} ago",
        ),
        (not known and age > limits.unknown, Why.NOBODY_WANTED, "is of no recorded purchase"),
        (
            known and node.name not in joined and age > limits.join,
            Why.NEVER_JOINED,
            f"has not registered in {_minutes(age)}",
        ),
    )
    for holds, why, words in wrong:
        if holds and node.market != OWNED:
            return _end(node, why, words)
    if purchase is None or node.id in purchase.known:
        return None
    words = f"{node.id} was bought by {node.token}, whose reply was lost"
    return Finding(Verdict.ADOPT, Why.LOST_REPLY, node.id, words, node.name, node.token)


def _surplus(nodes: list[ProviderNode], recorded: Mapping[str, Recorded]) -> list[Finding]:
    """Return an end for each node that a purchase has brought beyond its count, newest first."""
    by_token: dict[str, list[ProviderNode]] = defaultdict(list)
    for node in nodes:
        if node.token in recorded and node.market != OWNED:
            by_token[node.token].append(node)
    found = []
    for token, members in by_token.items():
        known = recorded[token].known
        members.sort(key=lambda node: (node.id not in known, node.launched_at, node.id))
        found += [
            _end(node, Why.SURPLUS, f"is more than the {recorded[token].count} that were bought")
            for node in members[recorded[token].count :]
        ]
    return found


def _end(node: ProviderNode, why: Why, words: str) -> Finding:
    return Finding(Verdict.END, why, node.id, f"{node.id} {words}", node.name, node.token)


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min"
