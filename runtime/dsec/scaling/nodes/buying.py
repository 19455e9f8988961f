"""What to buy for what is needed: the most useful node for its price, again and again.

Classes of waiting work are filled into one empty node of each shape, the largest first, or what
takes little CPU per card first, whichever is worth more. What the filling is worth (each class at
its cheapest proportional price) over the node's price is the score. The best is taken as often as
its filling goes into what is left. Own machines come first, then reserved ones, then spot and
on-demand together: on-demand for work that may not be interrupted, and for other work only where
spot has failed and it has waited.

Limits, backoffs and the budget gate are asked at every step; where one says no the next best is
taken in the same pass. Fillings are exact sums, and the real placement has the last word on each.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from dsec.api.scaling import Market
from dsec.scaling.nodes.choices import Choice, Choices
from dsec.scaling.nodes.filling import CPU, Fill, least_price, verified
from dsec.scaling.nodes.limits import Room
from dsec.scaling.nodes.offerings import Offering
from dsec.scaling.nodes.plans import Gate, Purchase, RegionStage, Why
from dsec.scaling.nodes.regions import stage_of
from dsec.scaling.nodes.state import Pending, tier_of

STAGES: tuple[tuple[Market, ...], ...] = (
    (Market.OWNED,),
    (Market.RESERVED,),
    (Market.SPOT, Market.ON_DEMAND),
)
STEPS = 4096
"""Most steps of one stage; each takes something, so that this only stops a mistake."""


@dataclass(slots=True, eq=False)
class Step:
    """So many nodes of one offering, what goes on each, and for whom."""

    offering: Offering
    count: int
    why: Why
    fill: Fill
    covers: list[Pending]
    region: RegionStage | None = None
    paths: tuple[str, ...] = ()
    places: tuple[tuple[str, ...], ...] = ()
    """What goes on each node; empty where that is not known."""


class Stop(NamedTuple):
    """What stops a purchase. `budget`: the path that refuses, where it is one of the buyers'."""

    why: Why
    detail: str = ""
    budget: str = ""


class Buyer:
    """Finds nodes for classes of work; one per plan, and what it took counts in what follows."""

    def __init__(self, choices: Choices, gate: Gate) -> None:
        self.choices, self.gate = choices, gate
        self.state, self.rules = choices.state, choices.rules
        self.room = Room(self.state, self.rules)
        self.steps: list[Step] = []
        self._probes: set[str] = set()
        buffered = any(one.request.resources.gpu_count for one in self.state.buffers)
        self._headroom = self.rules.headroom_with_buffer if buffered else self.rules.headroom

    def buy(self, numbers: Sequence[int], *, region: str = "") -> list[Step]:
        """Find nodes for classes; what finds none keeps `left`, and `blocked` says why."""
        first = len(self.steps)
        if not numbers:
            return []
        order = self.choices.sorted(numbers)
        for markets in STAGES:
            tier = [
                one
                for one in self.choices.every
                if one.offering.market in markets and (not region or one.offering.region == region)
            ]
            self._stage(self.choices.open(tier, order))
        return self.steps[first:]

    def more(self, pool: str, count: int, why: Why) -> tuple[int, "Stop"]:
        """Take nodes of a pool whatever for, the cheapest way first, spot last.

        Returns how many are missing, and what stopped it.
        """
        stop = Stop(Why.NO_OFFERING)
        own = [one for one in self.choices.every if one.offering.pool == pool]
        for choice in sorted(own, key=_steady):
            if count and choice.closed in (Why.BACKED_OFF, Why.FROZEN):
                stop = Stop(choice.closed, choice.detail)
            elif count:
                taken, stopped = self._afford(choice, count, ())
                stop = stopped or stop
                if taken:
                    self._enter(Step(choice.offering, taken, why, [], []))
                    count -= taken
        return count, stop

    def drop(self, step: Step, count: int) -> None:
        """Give back nodes of a step that turned out to be of no use."""
        self.room.take(step.offering, -count)
        step.count -= count
        if not step.count:
            self.steps.remove(step)

    @property
    def taken(self) -> list[Purchase]:
        """What was taken so far, as the gate reads it."""
        return [
            Purchase(one.offering, one.count, "", one.why, paths=one.paths) for one in self.steps
        ]

    # -- the greedy -----------------------------------------------------------------------------

    def _stage(self, tier: Sequence[Choice]) -> None:
        for _ in range(STEPS):
            for choice in tier:
                if choice.stale:
                    self._rate(choice)
            best = max(tier, key=_order, default=None)
            if best is None or best.score <= 0:
                return
            self._take(best, tier)

    def _rate(self, choice: Choice) -> None:
        groups = self.choices.groups
        choice.stale, choice.score = False, 0.0
        for order in (choice.order, choice.light):
            payable = order
            if choice.barred:
                payable = [one for one in order if groups[one].budget not in choice.barred]
            fill, idle = choice.shape.fill(payable, groups)
            if all(number in choice.riders for number, _ in fill):
                continue
            worth = sum(groups[number].ref * count for number, count in fill)
            if idle < choice.shape.cards:
                worth += self._headroom * self.choices.per_card * idle
            score = worth / least_price(choice.offering.price_per_hour)
            if score > choice.score:
                choice.score, choice.fill = score, fill

    def _take(self, best: Choice, tier: Iterable[Choice]) -> None:
        """Take the best as often as its filling goes, or note why it cannot be had."""
        groups = self.choices.groups
        fill = verified(best.shape.node, best.fill, groups)
        if all(number in best.riders for number, _ in fill):
            # the sums said that it fits an empty node, the placement does not
            number = best.fill[0][0]
            best.shape.takes[number] = None
            self._forget({number}, tier)
            return
        count = min(groups[number].left // fits for number, fits in fill)
        budgets = sorted({groups[number].budget for number, _ in fill} - {""})
        taken, stop = self._afford(best, count, budgets)
        if stop is not None:
            whose = best.order if stop.budget not in budgets else [number for number, _ in fill]
            for number in whose:
                if groups[number].left and stop.budget in ("", groups[number].budget):
                    groups[number].blocked.setdefault(stop.why, stop.detail)
        if not taken:
            if stop is not None and stop.budget in budgets:
                best.barred.add(stop.budget)
            else:
                best.order = best.light = []
            best.stale = True
            return
        covers, places = self._divide(fill, taken)
        region = None
        if len(self.choices.regions) > 1 and covers:
            group = groups[fill[0][0]]
            able = self.choices.able(group, best.offering.market)
            region = stage_of(best.offering, able, self.rules, group.members[0])
        why = Why.PENDING if covers else Why.BUFFER
        paths = tuple(sorted({groups[number].budget for number, _ in fill} - {""}))
        self._enter(Step(best.offering, taken, why, fill, covers, region, paths, places))
        best.stale = True
        self._forget({number for number, _ in fill}, tier)

    def _divide(self, fill: Fill, count: int) -> tuple[list[Pending], tuple[tuple[str, ...], ...]]:
        """Take members of classes for so many nodes; return them, and the ids for each node."""
        covers: list[Pending] = []
        places: list[list[str]] = [[] for _ in range(count)]
        for number, fits in fill:
            group = self.choices.groups[number]
            members = group.take(fits * count)
            if not group.buffer:
                covers += members
                for at, ids in enumerate(places):
                    ids += [one.request.id for one in members[at * fits : (at + 1) * fits]]
        return covers, tuple(tuple(ids) for ids in places)

    def _afford(
        self, choice: Choice, count: int, budgets: Sequence[str]
    ) -> tuple[int, "Stop | None"]:
        """Return how many nodes limits, probes and budgets allow; and what stops the rest."""
        left, limit = self.room.left(choice.offering)
        stop = Stop(Why.LIMIT, limit) if left < count else None
        if choice.probe:
            tries = 0 if choice.probe in self._probes else 1
            if tries < min(left, count):
                left, stop = tries, Stop(Why.BACKED_OFF, choice.probe)
        count = min(count, left)
        if count:
            answer = self.gate.width(choice.offering, count, budgets, self.taken)
            if answer.width < count:
                count = max(0, answer.width)
                stop = Stop(Why.BUDGET, answer.words, answer.refused_by)
        if count and choice.probe:
            self._probes.add(choice.probe)
        return count, stop

    def _enter(self, step: Step) -> None:
        self.room.take(step.offering, step.count)
        self.steps.append(step)

    def _forget(self, numbers: set[int], tier: Iterable[Choice]) -> None:
        """Rate those again whose filling counted on more than is left."""
        groups = self.choices.groups
        for choice in tier:
            choice.stale = choice.stale or any(
                number in numbers
                and (groups[number].left < count or choice.shape.takes.get(number) is None)
                for number, count in choice.fill
            )

    # -- purchases ------------------------------------------------------------------------------

    def purchases(self, leaving: set[str]) -> tuple[Purchase, ...]:
        """Return all steps as purchases: one per offering and reason, with tokens and names.

        `leaving`: ids of work whose nodes are taken back.
        """
        merged: dict[tuple[str, Why], Step] = {}
        for step in self.steps:
            why = step.why
            if any(one.request.id in leaving for one in step.covers):
                why = Why.REPLACEMENT
            known = merged.get((step.offering.key, why))
            if known is None:
                merged[step.offering.key, why] = replace(step, why=why, covers=[*step.covers])
            else:
                known.count += step.count
                known.covers += step.covers
                known.places += step.places
                known.paths = tuple(sorted({*known.paths, *step.paths}))
        return tuple(self._purchase(number, one) for number, one in enumerate(merged.values()))

    def _purchase(self, number: int, step: Step) -> Purchase:
        """Return one purchase; its token is the same wherever the same plan is made."""
        state, offering, covers = self.state, step.offering, step.covers
        text = f"{state.scope}/{state.serial}/{number}/{step.why}/{offering.key}/{step.count}"
        token = hashlib.sha256(text.encode()).hexdigest()[:32]
        since = min((one.since for one in covers), default=state.now)
        return Purchase(
            offering,
            step.count,
            token,
            step.why,
            covers=tuple(one.request.id for one in covers),
            paths=step.paths,
            places=step.places if len(step.places) == step.count else (),
            names=tuple(f"{offering.pool}-{token[:12]}-{one}" for one in range(step.count)),
            triggered_at=max(since, 0.0) if covers and since >= 0 else None,
            images=_most_wanted(one.request.image for one in covers),
            datasets=_most_wanted(name for one in covers for name in one.request.datasets),
            region=step.region,
        )


def _order(choice: Choice) -> tuple[float, int, str]:
    # of equal scores the larger node: fewer of them
    return choice.score, choice.shape.total[CPU], choice.offering.key


def _steady(choice: Choice) -> tuple[bool, int, float, str]:
    offering = choice.offering
    spot = offering.market is Market.SPOT
    return spot, tier_of(offering), float(offering.price_per_hour), offering.key


def _most_wanted(names: Iterable[str]) -> tuple[str, ...]:
    counts: dict[str, int] = {}
    for name in names:
        if name:
            counts[name] = counts.get(name, 0) + 1
    return tuple(sorted(counts, key=lambda name: (-counts[name], name)))
