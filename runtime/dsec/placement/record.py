"""Decision records: what was decided, from what, how it was scored, and why not elsewhere. Pure.

A leader that keeps records does, once per round:

    inputs, before = digests.of(view), view.fork()     # before place(), which books
    decisions = place(view, requests, mix=mix, record=True)
    by_sandbox = records(requests, decisions, before=before, inputs=inputs, at=now)

Equal requests share a record, so a burst costs one. The decision itself can be dumped and made
again offline: see `dumps`.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from datetime import datetime
from functools import lru_cache

from pydantic import TypeAdapter
from pydantic.alias_generators import to_camel

from dsec.api.decisions import DecisionRecord, LedgerFigure, Rejection, Score
from dsec.placement.accelerators import Accelerator
from dsec.placement.asked import canonical
from dsec.placement.entries import Entry
from dsec.placement.ledger import Ledger
from dsec.placement.refusal import Refusal
from dsec.placement.rejected import rejected
from dsec.placement.request import Decision, Node, Request
from dsec.placement.view import ClusterView
from dsec.placement.words import sentence

_REQUEST = TypeAdapter(Request)


class InputsDigest:
    """Digests of a view, round after round: each description is hashed once."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Node, bytes]] = {}

    def of(self, view: ClusterView) -> str:
        """Return the SHA-256 of what a decision is made from: descriptions and free figures."""
        view.settle()
        content = hashlib.sha256()
        known: dict[str, tuple[Node, bytes]] = {}
        for node in view.described:
            seen = self._known.get(node.name)
            if seen is None or seen[0] is not node:
                seen = (node, hashlib.sha256(_described(node).encode()).digest())
            known[node.name] = seen
            content.update(seen[1])
        self._known = known
        content.update(view.columns.tobytes())
        # the widest node that ever was gives the arrays their depth, which says nothing
        for card in range(view.cards.shape[2]):
            if view.cards[:, :, card].any():
                content.update(view.cards[:, :, card].tobytes())
        return content.hexdigest()


def _described(node: Node) -> str:
    """Return a node as text, equal for equal nodes; cards of one kind are written once."""
    values = [
        sorted(value) if isinstance(value, frozenset) else value
        for value in (getattr(node, name) for name in _PLAIN)
    ]
    return f"{values}{[(card.uuid, _kind(replace(card, uuid=''))) for card in node.devices]}"


_PLAIN = tuple(one.name for one in fields(Node) if one.name != "devices")


@lru_cache(maxsize=1024)
def _kind(card: Accelerator) -> str:
    return canonical(card)


def records(
    requests: Sequence[Request],
    decisions: Sequence[Decision],
    *,
    inputs: str,
    at: datetime,
    before: ClusterView | None = None,
    epoch: int = 0,
    figures: Callable[[Request], Sequence[LedgerFigure]] | None = None,
) -> dict[str, DecisionRecord]:
    """Return the record of each class, under the id of every request of that class.

    `requests` and `decisions` are those of one round, in one order. `before` is the view as it
    was; without it only the reasons of refused requests are known. `figures` gives those of the
    quotas of a request (see `ledger_figures`); it is asked once per class. Equal requests share
    one record.
    """
    classes: dict[tuple[object, ...], list[int]] = {}
    members, last = None, None
    for position, request in enumerate(requests):
        # a burst comes in stretches of equal requests, which share their resources
        key = request.class_key()
        if members is None or key != last:
            members, last = classes.setdefault(class_of(request), []), key
        members.append(position)
    found: dict[str, DecisionRecord] = {}
    for number, positions in enumerate(classes.values()):
        first = requests[positions[0]]
        record = DecisionRecord(
            id=_name(inputs, at, epoch, number),
            at=at,
            epoch=epoch,
            inputs=inputs,
            request=asked_of(first),
            asked=len(positions),
            nodes=_counts(decisions[position].node for position in positions),
            rejected=_rejections([decisions[position] for position in positions], before, first),
            scores=_scores(decisions[position] for position in positions),
            ledger=list(figures(first)) if figures else [],
        )
        found.update({requests[position].id: record for position in positions})
    return found


def ledger_figures(ledger: Ledger, entry: Entry) -> list[LedgerFigure]:
    """Return what limits an entry: each dimension of its account and of those above it."""
    chain = ledger.tree.chain(entry.account)
    found = [
        LedgerFigure(
            account=branch.path,
            dimension=dimension,
            asked=asked,
            used=branch.total.get(dimension, 0),
            nominal=branch.nominal.get(dimension),
            ceiling=branch.most(dimension),
        )
        for branch in chain
        for dimension, asked in entry.amounts.items()
        if branch.most(dimension) is not None
    ]
    ledger.tree.prune(chain[0])
    return found


def class_of(request: Request) -> tuple[object, ...]:
    """Return what makes two requests equal for placement: all but their ids."""
    resources, *wishes = request.class_key()
    return (tuple(resources.__dict__.values()), *wishes)


def asked_of(request: Request) -> dict[str, object]:
    """Return what a request asks for as JSON data, without its id and what is default."""
    data = _REQUEST.dump_python(request, mode="json", by_alias=True, exclude_defaults=True)
    return {to_camel(key): value for key, value in data.items() if key != "id"}


def _rejections(
    decisions: Sequence[Decision], before: ClusterView | None, request: Request
) -> list[Rejection]:
    """Return why nodes (or a quota) did not do: of the refused, or else of the view before."""
    refusals = dict.fromkeys(one for decision in decisions for one in decision.refusals)
    if not refusals and before is not None:
        refusals = dict.fromkeys(rejected(before, request))
    found = [
        Rejection(
            reason=one.reason,
            dimension=one.dimension,
            asked=one.asked,
            free=one.free,
            nodes=one.nodes,
            text=sentence(one) if any(decision.refusals for decision in decisions) else _text(one),
        )
        for one in refusals
    ]
    return sorted(found, key=lambda one: -one.nodes)


def _text(refusal: Refusal) -> str:
    """Say what rejected nodes lack where others did: nothing has to change for a start."""
    return sentence(refusal).partition("; starts when ")[0]


def _counts(nodes: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for node in nodes:
        if node:
            found[node] = found.get(node, 0) + 1
    return found


def _scores(decisions: Iterable[Decision]) -> list[Score]:
    """Return the parts of the first chosen node's cost; their sum is left out."""
    placed = next((one for one in decisions if one.node), None)
    parts = placed.scores if placed else ()
    return [Score(name=name, value=round(value, 6)) for name, value in parts if name != "cost"]


def _name(inputs: str, at: datetime, epoch: int, number: int) -> str:
    text = f"{inputs} {at.isoformat()} {epoch} {number}"
    return hashlib.sha256(text.encode()).hexdigest()[:20]
