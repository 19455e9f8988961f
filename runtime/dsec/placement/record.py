"""Decision records and dumps: what was decided and from what, and the same decision again, offline.

A leader that keeps records does, once per round:

    inputs, before = digests.of(view), view.fork()     # before place(), which books
    decisions = place(view, requests, mix=mix, record=True)
    by_sandbox = records(requests, decisions, before=before, inputs=inputs, at=now)

Equal requests share a record, so a burst costs one. A `DecisionDump` is everything that `place`
read, as JSON; `replay` runs the real code on it and compares. Pure.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from functools import lru_cache
from typing import Any

from pydantic import Field, TypeAdapter
from pydantic.alias_generators import to_camel

from dsec.api.base import WireModel
from dsec.api.decisions import DecisionRecord, LedgerFigure, Rejection, Score
from dsec.placement.accelerators import Accelerator
from dsec.placement.accounts import Account
from dsec.placement.asked import canonical
from dsec.placement.engine import place
from dsec.placement.entries import Entry
from dsec.placement.ledger import Ledger
from dsec.placement.mix import Mix
from dsec.placement.refusal import Refusal
from dsec.placement.rejected import rejected
from dsec.placement.request import Decision, Node, Request
from dsec.placement.rounds import Wanted, decide
from dsec.placement.scores import Weights
from dsec.placement.view import ClusterView
from dsec.placement.words import sentence

VERSION = 1
"""Of the dump's form."""

_REQUEST = TypeAdapter(Request)


class DumpError(ValueError):
    """A dump that cannot be replayed; the message says why."""

    exit_code = 2


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
    ledger: Mapping[str, Sequence[LedgerFigure]] | None = None,
) -> dict[str, DecisionRecord]:
    """Return the record of each class, under the id of every request of that class.

    `requests` and `decisions` are those of one round, in one order. `before` is the view as it was;
    without it only the reasons of refused requests are known. `ledger` gives the figures of an
    account before the round, by tenant. Equal requests share one record object.
    """
    classes: dict[tuple[object, ...], list[int]] = {}
    for position, request in enumerate(requests):
        classes.setdefault(class_of(request), []).append(position)
    found: dict[str, DecisionRecord] = {}
    for number, members in enumerate(classes.values()):
        first = requests[members[0]]
        record = DecisionRecord(
            id=_name(inputs, at, epoch, number),
            at=at,
            epoch=epoch,
            inputs=inputs,
            request=asked_of(first),
            asked=len(members),
            nodes=_counts(decisions[position].node for position in members),
            rejected=_rejections([decisions[position] for position in members], before, first),
            scores=_scores(decisions[position] for position in members),
            ledger=list((ledger or {}).get(first.tenant, ())),
        )
        found.update({requests[position].id: record for position in members})
    return found


def class_of(request: Request) -> tuple[object, ...]:
    """Return what makes two requests equal for placement: all but their ids."""
    return (tuple(request.resources.__dict__.values()), *(getattr(request, f) for f in _CLASS))


_CLASS = tuple(one.name for one in fields(Request) if one.name not in {"id", "resources"})


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
    placed = next((one for one in decisions if one.node), None)
    return [Score(name=name, value=value) for name, value in (placed.scores if placed else ())]


def _name(inputs: str, at: datetime, epoch: int, number: int) -> str:
    text = f"{inputs} {at.isoformat()} {epoch} {number}"
    return hashlib.sha256(text.encode()).hexdigest()[:20]


class Held(WireModel):
    """One booking of a dumped view."""

    request: Request
    node: str
    devices: tuple[str, ...] = ()
    cpus: tuple[int, ...] = ()
    paused: bool = False


class Books(WireModel):
    """The ledger of a dump, and what each request counts in it."""

    accounts: list[Account]
    spare: dict[str, dict[str, int]] = {}
    live: list[Entry] = []
    leases: list[Entry] = []
    holds: list[tuple[Entry, float]] = []
    wanted: list[Entry] = Field(default=[], description="In the order of the requests.")


class DecisionDump(WireModel):
    """Everything that one round of decisions was made from, and what came out."""

    version: int = VERSION
    at: datetime
    epoch: int = 0
    inputs: str
    nodes: list[Node]
    bookings: list[Held] = []
    books: Books | None = Field(default=None, description="Unset: quota was not looked at.")
    mix: dict[str, Any] | None = None
    weights: Weights
    requests: list[Request]
    decisions: list[Decision] = []


class Replay(WireModel):
    """What a replay found: whether the same came out, and the records of what did."""

    same: bool
    requests: int
    nodes: int
    differences: list[str] = []
    records: list[DecisionRecord] = []


def dump(
    view: ClusterView,
    requests: Sequence[Request],
    *,
    at: datetime,
    epoch: int = 0,
    ledger: Ledger | None = None,
    entries: Sequence[Entry] = (),
    mix: Mix | None = None,
    weights: Weights | None = None,
) -> DecisionDump:
    """Return a dump, taken before the decision; the caller sets `decisions` afterwards.

    `entries` are those of the requests, in their order, where the ledger is asked.
    """
    return DecisionDump(
        at=at,
        epoch=epoch,
        inputs=InputsDigest().of(view),
        nodes=list(view.described),
        bookings=[
            Held(request=b.request, node=b.node, devices=b.devices, cpus=b.cpus, paused=b.paused)
            for b in view.bookings().values()
        ],
        books=None if ledger is None else _books(ledger, entries),
        mix=None if mix is None else mix.state(),
        weights=weights or Weights(),
        requests=list(requests),
    )


def _books(ledger: Ledger, wanted: Sequence[Entry]) -> Books:
    accounts = [one.account for one in ledger.tree.branches.values() if one.account is not None]
    return Books(
        accounts=accounts,
        spare={name: dict(amounts) for name, amounts in ledger.tree.spare.items()},
        live=list(ledger.entries.values()),
        leases=list(ledger.leases.values()),
        holds=list(ledger.holds.values()),
        wanted=list(wanted),
    )


def replay(taken: DecisionDump) -> Replay:
    """Decide again with today's code, and compare. Raises DumpError where that makes no sense."""
    if taken.version != VERSION:
        raise DumpError(f"version: {taken.version}: this program replays version {VERSION} only")
    view = _view(taken)
    inputs, before = InputsDigest().of(view), view.fork()
    mix = None if taken.mix is None else Mix.from_state(taken.mix)
    if taken.books is None:
        decisions = place(view, taken.requests, mix=mix, weights=taken.weights, record=True)
    else:
        decisions = decide(
            view,
            _ledger(taken.books),
            [Wanted(r, e) for r, e in zip(taken.requests, taken.books.wanted, strict=True)],
            mix=mix,
            weights=taken.weights,
            record=True,
        )
    found = [] if inputs == taken.inputs else [f"inputs: dumped {taken.inputs}, replayed {inputs}"]
    for then, now in zip(taken.decisions, decisions, strict=True):
        if (then.node, then.devices, then.cpus) != (now.node, now.devices, now.cpus):
            found.append(f"{then.id}: dumped {_where(then)}, replayed {_where(now)}")
    made = records(
        taken.requests, decisions, inputs=inputs, before=before, at=taken.at, epoch=taken.epoch
    )
    return Replay(
        same=not found,
        requests=len(taken.requests),
        nodes=len(taken.nodes),
        differences=found,
        records=list({record.id: record for record in made.values()}.values()),
    )


def _view(taken: DecisionDump) -> ClusterView:
    view = ClusterView(taken.nodes)
    try:
        for held in taken.bookings:
            decision = Decision(held.request.id, held.node, held.devices, cpus=held.cpus)
            view.book(held.request, decision, force=True)
            if held.paused:
                view.pause(held.request.id)
    except ValueError as error:
        raise DumpError(f"bookings: {error}") from error
    return view


def _ledger(books: Books) -> Ledger:
    ledger = Ledger()
    for name, amounts in books.spare.items():
        ledger.put_cohort(name, amounts)
    for account in sorted(books.accounts, key=lambda one: one.path.count("/")):
        ledger.tree.put(account)  # as it stood, also where a share was lowered since
    ledger.rebuild(books.live)
    for entry in books.leases:
        ledger.lease(entry)
    for entry, until in books.holds:
        ledger.hold(entry, until)
    return ledger


def _where(decision: Decision) -> str:
    if not decision.node:
        return "nowhere"
    devices = f" with {', '.join(decision.devices)}" if decision.devices else ""
    return f"{decision.node}{devices}"
