"""Builders for tests of money: budgets, commitments, prices, and a provider that bills."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction

from dsec.api.budget import BudgetAction, BudgetLevelKind
from dsec.cost.amounts import HOUR, ZERO, ceil_micro, over
from dsec.cost.budgets import Allowance, Level, standing
from dsec.cost.clocks import TOLERANCE, Mark, advanced
from dsec.cost.commitments import Commitment, Payer
from dsec.cost.entries import Entry, EntryKind, row_of
from dsec.cost.flows import committed, released
from dsec.cost.gate import (
    BudgetState,
    LeaseRules,
    first_until,
    may_commit,
    renewals,
    state_of,
)
from dsec.cost.ledger import Ledger
from dsec.cost.metering import NodeUse, cells, entries, meter
from dsec.cost.periods import FOREVER, Period, Span
from dsec.cost.prices import NodePrice, Shape, of_total

TASK = "acme/vision/walk"
GIB = 1 << 30
NODE = Shape(4000, 16 * GIB)
RULES = LeaseRules()


def usd(text: str | int) -> Decimal:
    """Return an amount."""
    return Decimal(text)


def allowance(
    limit: str | int,
    path: str = "acme",
    *,
    unit: str = "USD",
    period: Period = FOREVER,
    action: BudgetAction = BudgetAction.DEGRADE,
    kind: BudgetLevelKind = BudgetLevelKind.HARD,
    regions: tuple[tuple[str, int], ...] = (),
    alerts: tuple[int, ...] = (50, 80, 100),
) -> Allowance:
    """Return a budget named after its path."""
    return Allowance(
        path.replace("/", "-"),
        path,
        usd(limit),
        unit,
        period,
        (Level(100, kind, action),),
        alerts,
        regions,
    )


def commitment(
    name: str = "n",
    price: str | int = 1,
    *,
    payers: Iterable[str] = (TASK,),
    now: float = 0.0,
    wind_down: int = 300,
    until: float | None = None,
    pool: str = "burst",
) -> Commitment:
    """Return a node's commitment that starts now, wanted for one lease."""
    return Commitment(
        name,
        {"USD": usd(price)},
        tuple(Payer(path) for path in payers),
        now,
        first_until(name, now) if until is None else until,
        wind_down_seconds=wind_down,
        pool=pool,
    )


def state(
    allowances: Iterable[Allowance], commitments: Iterable[Commitment] = (), *, now: float = 0.0
) -> BudgetState:
    """Return the state of budgets on which nothing was spent."""
    return state_of([standing(one, lambda *_: ZERO, now) for one in allowances], commitments)


def price(per_hour: str | int, shape: Shape = NODE) -> NodePrice:
    """Return a node's price."""
    return of_total(usd(per_hour), shape, "USD")


@dataclass
class Machine:
    """A node at the provider: it ends by itself, whoever is away, and takes a while to."""

    want: Commitment
    price: NodePrice
    run_until: float
    wind_down: int
    """Seconds that its end really takes."""
    closing: Decimal = ZERO
    ends_at: float | None = None

    def step(self, now: float) -> None:
        """Let time pass: at its run-until time it winds down."""
        if self.ends_at is None and now >= self.run_until:
            self.ends_at = self.run_until + self.wind_down

    def use(self) -> NodeUse:
        """Return its life, as the provider tells it."""
        return NodeUse(
            self.want.id,
            self.price,
            self.want.started,
            self.ends_at,
            pool=self.want.pool,
            region=self.want.region,
            minimum_seconds=self.want.minimum_seconds,
            payers=self.want.payers,
        )

    def billed(self, now: float, span: Span) -> Fraction:
        """Return what the provider bills for the part of its life in a span, up to now."""
        use = self.use()
        end = use.end if use.end is not None else int(-(-now // 1))
        begin = use.begin
        if span.start is not None:
            begin = max(begin, int(span.start))
        if span.end is not None:
            end = min(end, int(span.end))
        found = over(self.price.per_hour, max(0, end - begin))
        done = use.end is not None and use.end <= now
        return found + (Fraction(self.closing) if done and (use.end or 0) in span else 0)


@dataclass
class World:
    """A true time, a provider with machines, and a controller that can be away or lie in time."""

    allowances: tuple[Allowance, ...]
    region: str = ""
    now: float = 0.0
    wall_off: float = 0.0
    boots: float = 1000.0
    machines: dict[str, Machine] = field(default_factory=dict)
    rows: list[dict[str, object]] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    mark: Mark | None = None
    closed: set[str] = field(default_factory=set)
    made: int = 0
    rules: LeaseRules = RULES

    def __post_init__(self) -> None:
        """Begin with a clock that is right: the first mark has nothing to be compared with."""
        self.time()

    def time(self) -> float:
        """Return the controller's time: its wall clock may be wrong."""
        self.mark = advanced(self.mark, self.now + self.wall_off, self.boots, "boot")
        return self.mark.utc

    def book(self, new: Iterable[Entry]) -> None:
        """Append entries and store their rows."""
        self.rows += [row_of(one) for one in self.ledger.extend(new)]

    def state(self) -> BudgetState:
        """Return what the gate sees."""
        now = self.time()
        found = [
            standing(one, self.ledger.spent, now, region=self.region) for one in self.allowances
        ]
        return state_of(found, self.ledger.open())

    def buy(
        self,
        per_hour: str | int,
        count: int = 1,
        *,
        payers: Iterable[str] = (TASK,),
        wind_down: int = 300,
        real: float = 1.0,
        closing: str = "0",
    ) -> int:
        """Buy as many as the gate allows; `real`: part of the wind-down that is used."""
        now = self.time()
        if self.mark is None or not self.mark.trusted:
            return 0
        # what a trusted clock may be off is billed to us: the provider may have begun before
        now -= TOLERANCE
        self.made += 1
        name = f"{self.region}node{self.made}"
        want = replace(
            commitment(name, per_hour, payers=payers, now=now, wind_down=wind_down),
            closing={"USD": usd(closing)},
            region=self.region,
        )
        verdict = may_commit(self.state(), want, now, count=count, rules=self.rules)
        for at in range(verdict.width):
            one = replace(want, id=f"{name}-{at}", run_until=verdict.run_until)
            self.book(committed(self.ledger, one, now))
            # the provider bills from its own time, which is the true one
            self.machines[one.id] = Machine(
                replace(one, started=self.now),
                price(per_hour),
                verdict.run_until,
                int(wind_down * real),
                usd(closing),
            )
        return verdict.width

    def renew(self) -> int:
        """Extend what is due; returns how many were."""
        _, answers = renewals(self.state(), self.time(), rules=self.rules)
        done = 0
        for name, answer in answers.items():
            machine = self.machines[name]
            machine.step(self.now)
            if not answer.extended or machine.ends_at is not None:
                continue
            held = next(one for one in self.ledger.open() if one.id == name)
            new = replace(held, run_until=answer.run_until, revision=held.revision + 1)
            self.book(committed(self.ledger, new, self.time()))
            machine.run_until = answer.run_until
            done += 1
        return done

    def end(self, name: str) -> None:
        """Give a node back now; it winds down."""
        machine = self.machines[name]
        machine.step(self.now)
        if machine.ends_at is None:
            machine.ends_at = self.now + machine.wind_down

    def meter(self) -> None:
        """Book what is over; close the books of machines that are gone."""
        self.time()
        now = self.now  # a cell is booked when its reports are in, never ahead of the node's time
        for name, machine in self.machines.items():
            if name in self.closed:
                continue
            machine.step(self.now)
            use = machine.use()
            for cell in cells(use, now, self.ledger.charged_until(name)):
                self.book(entries(meter(use, [], cell), now))
            if use.end is not None and use.end <= now:
                self._close(name, machine, use.end)

    def _close(self, name: str, machine: Machine, at: float) -> None:
        payers = machine.want.payers
        if machine.closing:
            each = ceil_micro(Fraction(machine.closing) / len(payers))
            self.book(
                Entry(
                    f"closing/{name}/{payer.path}",
                    EntryKind.CONSUME,
                    at,
                    payer.path,
                    {"USD": each},
                    f"archive/{name}",
                    at,
                    at,
                    machine.want.region,
                    machine.want.pool,
                    what="storage",
                )
                for payer in payers
            )
        self.book(released(self.ledger, name, at))
        self.closed.add(name)

    def restart(self) -> None:
        """Forget everything but the stored rows."""
        books = self.ledger.books()
        self.ledger = Ledger.rebuild(self.rows)
        assert self.ledger.books() == books

    def pass_time(self, seconds: float) -> None:
        """Let true time pass without a controller."""
        self.now += seconds
        self.boots += seconds
        for machine in self.machines.values():
            machine.step(self.now)

    def run(self, seconds: float, *, step: float = 60.0) -> None:
        """Let time pass with a controller that meters and renews."""
        end = self.now + seconds
        while self.now < end:
            self.pass_time(min(step, end - self.now))
            self.meter()
            self.renew()

    def bill(self, one: Allowance, at: float) -> Fraction:
        """Return what the provider bills up to now for a budget, in its period that holds `at`."""
        span = one.period.span(at)
        total = Fraction(0)
        for machine in self.machines.values():
            mine, whole = machine.want.part_of(one.path)
            if mine:
                total += machine.billed(self.now, span) * mine / whole
        return total

    def check(self) -> None:
        """No budget is passed, in the period that is and in the one that was."""
        for one in self.allowances:
            limit = one.share(self.region)
            span = one.period.span(self.now)
            moments = [self.now] if span.start is None else [self.now, span.start - 1]
            for at in moments:
                spent = self.bill(one, at)
                assert spent <= Fraction(limit) + Fraction(1, 10**5), (one.name, at, float(spent))


def burn(world: World) -> Mapping[str, Decimal]:
    """Return what runs, per hour, by node."""
    return {
        name: one.price.per_hour
        for name, one in world.machines.items()
        if one.ends_at is None or one.ends_at > world.now
    }


def hours(count: float) -> float:
    """Return hours in seconds."""
    return count * HOUR
