"""The hard gate: what may be committed now, and how far what runs may go on. Pure.

A budget with a hard level is never passed, also while the control plane is away:

    spent + sum of rate * (run_until - charged) + sum of wind-down + leases + new <= limit

for every budget on the path account -> project -> task and for the pool, in the escrow of the
region that asks. Every node carries its run-until time and ends by itself when nobody extends it,
so whatever was committed is the most that can come.

Sizes (measured in a simulator over 60 settings, none of which passed its limit): a lease of 30
minutes, renewed when half of it is left, so that work outlives an outage of 15 to 30 minutes. A
new node gets at least ten times its wind-down, else it would spend its money on ending. What is
lost near the limit is the wind-down of all that ends together, so the *width* is refused and not
the end: n <= left * 0.9 / cost of (ten wind-downs + one). Run-until times are spread by up to 10 %
either way, by the name of the node, so that not all snapshots are written in the same minute.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum

from dsec.api.budget import BudgetAction
from dsec.cost.amounts import HOURS, ZERO
from dsec.cost.budgets import GROWS, RENEWS, Standing, ancestors
from dsec.cost.commitments import Commitment, Terms, furthest, latest, promised, terms
from dsec.cost.words import refusal_words

_SCALE = 1 << 32


@dataclass(frozen=True, slots=True)
class LeaseRules:
    """How long nodes are paid for ahead. Seconds."""

    length: int = 1800
    renew_below: float = 0.5
    """Renewed when less than this part of the length is left."""
    wind_downs: int = 10
    """A new node lives at least this many wind-downs."""
    stagger: float = 0.1
    use_of_left: Decimal = Decimal("0.9")
    """Part of what is left that new nodes may take at their least length."""
    step: int = 60
    """A renewal shorter than this is not worth a call to the provider."""


class Blocked(StrEnum):
    """Why a budget refuses."""

    AMOUNT = "amount"
    """It does not cover it."""
    STOPPED = "stopped"
    """A level that was reached stops growth, or work."""
    CURRENCY = "currency"
    """It counts another currency than the price is in."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many of what was asked may be had, until when, and who refuses the rest."""

    asked: int
    width: int
    run_until: float
    """For each of `width`."""
    refused_by: str = ""
    """Name of the budget that refuses first; empty: nothing was refused."""
    path: str = ""
    blocked: Blocked | None = None
    words: str = ""

    @property
    def allowed(self) -> bool:
        """Whether all of it may be had."""
        return self.width >= self.asked


@dataclass(frozen=True, slots=True)
class Renewal:
    """How far a commitment goes on. `run_until` is never below the old one."""

    run_until: float
    due: bool
    extended: bool
    refused_by: str = ""
    """Name of the budget that stops it short of a whole lease; empty: none does."""
    path: str = ""
    blocked: Blocked | None = None
    words: str = ""


@dataclass(frozen=True, slots=True)
class BudgetState:
    """All budgets with what is promised against them. Immutable: changes return another.

    Build it with `state_of`. `promises` holds, per budget, the sums for its period and the next.
    """

    standings: Mapping[str, tuple[Standing, ...]]
    """By path."""
    commitments: Mapping[str, Commitment]
    promises: Mapping[str, tuple[Decimal, Decimal]] = field(default_factory=dict)

    def on(self, commitment: Commitment) -> list[Standing]:
        """Return the budgets that a commitment counts against, the widest first."""
        return [one for path in commitment.paths for one in self.standings.get(path, ())]

    def all(self) -> list[Standing]:
        """Return every budget, by path."""
        return [one for path in sorted(self.standings) for one in self.standings[path]]

    def committed(self, name: str) -> Decimal:
        """Return what is promised against a budget in its period."""
        return self.promises.get(name, (ZERO, ZERO))[0]

    def room(self, standing: Standing) -> tuple[Decimal, Decimal] | None:
        """Return what may still be committed in the period and the next; None: no level is hard."""
        if standing.hard is None:
            return None
        now, later = self.promises.get(standing.name, (ZERO, ZERO))
        return standing.hard - standing.spent - now, standing.hard - later

    def plus(self, *new: Commitment) -> "BudgetState":
        """Return the state with commitments added, each in the place of an older one of its id."""
        held = dict(self.commitments)
        sums = dict(self.promises)
        for one in new:
            old = held.get(one.id)
            if old is not None:
                self._count(sums, old, -1)
            held[one.id] = one
            self._count(sums, one, 1)
        return replace(self, commitments=held, promises=sums)

    def minus(self, *ids: str) -> "BudgetState":
        """Return the state without commitments; unknown ids are ignored."""
        held = dict(self.commitments)
        sums = dict(self.promises)
        for one in ids:
            gone = held.pop(one, None)
            if gone is not None:
                self._count(sums, gone, -1)
        return replace(self, commitments=held, promises=sums)

    def exhausted(self, standing: Standing, now: float, rules: LeaseRules) -> bool:
        """Return whether a hard budget has come to its end: it is time to take its action.

        That is when what runs on it cannot be given another step of renewal, and the first of it
        has to begin its wind-down within a step.
        """
        room = self.room(standing)
        if room is None:
            return False
        step, first = 0, None
        for one in self.commitments.values():
            if one.rates and standing.allowance.path in one.paths:
                step += terms(one, standing.allowance).cost(rules.step)
                begin = one.run_until - max(one.wind_down_seconds, rules.step)
                first = begin if first is None else min(first, begin)
        return first is not None and now >= first and room[0] < Decimal(step).scaleb(-6)

    def _count(self, sums: dict[str, tuple[Decimal, Decimal]], one: Commitment, sign: int) -> None:
        for standing in self.on(one):
            now, later = promised(one, standing.allowance, standing.span)
            old = sums.get(standing.name, (ZERO, ZERO))
            sums[standing.name] = (old[0] + sign * now, old[1] + sign * later)


def state_of(standings: Iterable[Standing], commitments: Iterable[Commitment] = ()) -> BudgetState:
    """Return the state of all budgets; of commitments of one id the highest revision counts."""
    by_path: dict[str, tuple[Standing, ...]] = {}
    for one in standings:
        path = one.allowance.path
        by_path[path] = (*by_path.get(path, ()), one)
    return BudgetState(by_path, {}).plus(*latest(commitments).values())


def may_commit(
    state: BudgetState,
    want: Commitment,
    now: float,
    *,
    count: int = 1,
    rules: LeaseRules = LeaseRules(),
) -> Verdict:
    """Say how many of `count` equal commitments every budget covers, and until when each.

    `want` describes one, its `run_until` what is wanted (`first_until`). Each gets at least
    `least_until`, also where a lease is shorter, or is not allowed: what runs answers for its whole
    least life, so that asking one by one comes to no more than asking at once. Rates are what is
    compared, so a discount that may end is no discount. Where all of them fit but not for the whole
    time, the time is cut and not the number.
    """
    least = least_until(want, now, rules)
    most = max(want.run_until, least)
    none = Verdict(count, 0, now)
    width, until = count, most
    blame: tuple[Standing, Blocked] | None = None
    for standing in state.on(want):
        blocked = _refusal(standing, want, GROWS)
        if blocked is not None:
            return _verdict(want, state, none, (standing, blocked))
        room = state.room(standing)
        if room is None:
            continue
        found = terms(want, standing.allowance)
        fits = _width(standing, want, found, room=room, least=least, rules=rules)
        if fits is not None and fits < width:
            width, blame = fits, (standing, Blocked.AMOUNT)
    if width <= 0:
        return _verdict(want, state, none, blame)
    for standing in state.on(want):
        room = state.room(standing)
        if room is None:
            continue
        each = (room[0] / width, room[1] / width)
        end = furthest(
            terms(want, standing.allowance),
            want.started,
            want.wind_down_seconds,
            standing.span,
            each,
        )
        until = until if end is None else min(until, end)
    return _verdict(want, state, Verdict(count, width, until), blame)


def first_until(commitment_id: str, now: float, rules: LeaseRules = LeaseRules()) -> float:
    """Return until when a new node is wanted: one lease, spread by its name."""
    return now + rules.length * _spread(commitment_id, rules)


def least_until(want: Commitment, now: float, rules: LeaseRules = LeaseRules()) -> float:
    """Return until when a new node must be covered: the minimum bill or ten wind-downs."""
    return now + max(want.minimum_seconds, rules.wind_downs * want.wind_down_seconds)


def run_until(
    state: BudgetState, commitment_id: str, now: float, *, rules: LeaseRules = LeaseRules()
) -> Renewal:
    """Say how far a commitment may be extended now; raises KeyError for one that is unknown.

    Nothing is shortened here: what was promised stays promised. It is extended only when less than
    half a lease is left, by what every budget covers, and not by less than a step.
    """
    held = state.commitments[commitment_id]
    due = held.run_until - now < rules.renew_below * rules.length
    if not due:
        return Renewal(held.run_until, due=False, extended=False)
    want = now + rules.length * _spread(commitment_id, rules)
    until, blame = _covered(state, held, want)
    extended = until - held.run_until >= rules.step
    until = until if extended else held.run_until
    if blame is None:
        return Renewal(until, due=True, extended=extended)
    standing, why = blame
    words = refusal_words(standing, held, _beside(state, held, standing), why.value, until=until)
    return Renewal(until, True, extended, standing.name, standing.allowance.path, why, words)


def covered_until(state: BudgetState, commitment_id: str, until: float) -> float:
    """Return how far every budget covers a running commitment, at most `until`.

    Not above its own run-until: it cannot be extended. Raises KeyError for one that is unknown.
    """
    return _covered(state, state.commitments[commitment_id], until)[0]


def _covered(
    state: BudgetState, held: Commitment, until: float
) -> tuple[float, tuple[Standing, Blocked] | None]:
    """Return how far a commitment may go, and what stops it short of `until`."""
    blame: tuple[Standing, Blocked] | None = None
    for standing in state.on(held):
        blocked = _refusal(standing, held, RENEWS)
        if blocked is not None:
            return held.run_until, (standing, blocked)
        room = _beside(state, held, standing)
        if room is None:
            continue
        begin = held.charged_from
        if standing.span.start is not None and standing.span.end is not None:
            begin = max(begin, standing.span.start)
        found = terms(held, standing.allowance)
        end = furthest(found, begin, held.wind_down_seconds, standing.span, room)
        if end is not None and end < until:
            until, blame = end, (standing, Blocked.AMOUNT)
    return until, blame


def _beside(
    state: BudgetState, held: Commitment, standing: Standing
) -> tuple[Decimal, Decimal] | None:
    """Return what a budget has left when a commitment that it counts is taken out."""
    room = state.room(standing)
    if room is None:
        return None
    now, later = promised(held, standing.allowance, standing.span)
    return room[0] + now, room[1] + later


def renewals(
    state: BudgetState, now: float, *, rules: LeaseRules = LeaseRules()
) -> tuple[BudgetState, dict[str, Renewal]]:
    """Extend all that is due, what ends first first; returns the state after, and each answer."""
    answers: dict[str, Renewal] = {}
    order = sorted(state.commitments.values(), key=lambda one: (one.run_until, one.id))
    for held in order:
        if not held.rates:
            continue
        answer = run_until(state, held.id, now, rules=rules)
        if not answer.due:
            break
        answers[held.id] = answer
        if answer.extended:
            state = state.plus(
                replace(held, run_until=answer.run_until, revision=held.revision + 1)
            )
    return state, answers


def may_divide(state: BudgetState, want: Commitment, payers: Sequence[str], now: float) -> Verdict:
    """Say whether a running commitment may be divided anew, for example when work joins a node.

    `want` is the commitment with its new payers, `payers` those that join. It is refused where a
    budget does not cover its new part until the run-until time; the old division then stays.
    """
    joined = {path for one in payers for path in ancestors(one)}
    rest = state.minus(want.id)
    for standing in rest.on(want):
        blocked = _refusal(standing, want, GROWS if standing.allowance.path in joined else RENEWS)
        room = rest.room(standing)
        if blocked is None and room is not None:
            need = promised(want, standing.allowance, standing.span)
            blocked = Blocked.AMOUNT if need[0] > room[0] or need[1] > room[1] else None
        if blocked is not None:
            return _verdict(want, rest, Verdict(1, 0, now), (standing, blocked))
    return Verdict(1, 1, want.run_until)


def _width(
    standing: Standing,
    want: Commitment,
    found: Terms,
    *,
    room: tuple[Decimal, Decimal],
    least: float,
    rules: LeaseRules,
) -> int | None:
    """Return how many a budget covers at their least length; None: they cost it nothing."""
    shortest = replace(want, run_until=least)
    each = promised(shortest, standing.allowance, standing.span, found)
    fits = None
    for have, need in zip(room, each, strict=True):
        if need > 0:
            # one alone may use all that is left: the margin is for many that end together
            many = int(have * rules.use_of_left // need)
            some = max(many, 1 if have >= need else 0)
            fits = some if fits is None else min(fits, some)
    return fits


def _refusal(
    standing: Standing, want: Commitment, allowed: frozenset[BudgetAction]
) -> Blocked | None:
    if standing.in_force is not None and standing.in_force not in allowed:
        return Blocked.STOPPED
    if standing.hard is None:
        return None
    unit = standing.allowance.unit
    priced = want.units - HOURS
    if unit not in HOURS and priced and unit not in want.units:
        return Blocked.CURRENCY
    return None


def _verdict(
    want: Commitment,
    state: BudgetState,
    granted: Verdict,
    blame: tuple[Standing, Blocked] | None,
) -> Verdict:
    """Return what was granted, with the budget that refuses the rest."""
    if blame is None:
        return granted
    standing, why = blame
    width, asked = granted.width, granted.asked
    words = refusal_words(standing, want, state.room(standing), why.value, width=width, asked=asked)
    return replace(
        granted,
        refused_by=standing.name,
        path=standing.allowance.path,
        blocked=why,
        words=words,
    )


def _spread(name: str, rules: LeaseRules) -> float:
    """Return a factor around 1 that a name always gets: no draw, so a restart changes nothing."""
    raw = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") / _SCALE
    return 1 + rules.stagger * (2 * raw - 1)
