"""Preemption: whose place waiting work may take, simulated before anything is done. Pure.

    plan(view, ledger, asking, policy, now)  ->  Plan, or refusals in words

Who may be displaced (never: guaranteed work, trainers, work that is on its way out already):

1. borrowers, for an owner: accounts with more than they own give back, after `reclaim_after_s`;
2. consenting work of lower priority, after `preempt_after_s` of waiting (TEN-09, TEN-10), in pools
   where that is on (TEN-15); consenting work of equal priority in a queue that `gives_way`, at
   once, for work of a queue that does not (SCHED-18).

Work that would be above its tenant's own share displaces only its own tenant's work: else two
borrowers would take turns. Pausable work is paused where that makes enough room, because memory and
devices stay taken; else it is stopped (TEN-12). Its state is synced first (TEN-11).

The plan is the least disturbing of those that work: victims' highest priority, then how many have
to stop, how many there are, and who they are. It is tried on copies of view and ledger with the
real placement, so that filters, topology and devices are all satisfied, and every victim without
which it would still work is left out. A victim takes its gang along where too few of its group
would be left.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from dsec.api.reasons import PendingReason
from dsec.placement.clearing import Question, cleared_nodes, pausable, pruned
from dsec.placement.entries import Entry
from dsec.placement.ledger import Ledger
from dsec.placement.plans import Asking, Displacement, Plan, PreemptionPolicy, Step
from dsec.placement.preemption_words import Hindrance
from dsec.placement.queueing import Queue
from dsec.placement.reclaim import borrower, consents, softness
from dsec.placement.refusal import Refusal
from dsec.placement.trial import Place, Trial, what_if
from dsec.placement.view import ClusterView

Weight = tuple[int, int, int, int, float, list[str]]
"""How much a plan disturbs; smaller is better."""
WHOLE_PLANS = 32
"""Most victims of a plan that are left out one by one in the whole cluster: each such try costs
milliseconds. A larger one is narrowed node by node."""


def plan(
    view: ClusterView,
    ledger: Ledger,
    asking: Asking,
    policy: PreemptionPolicy,
    now: float,
    *,
    place: Place = what_if,
    leaving: Mapping[str, bool] | None = None,
    spared: Collection[str] = (),
) -> Plan | tuple[Refusal, ...]:
    """Return the least disturbing plan for waiting work, or why there is none.

    `leaving`: victims of earlier plans, by id, and whether they stop; they are asked only once.
    `spared`: nodes whose victims would not die. Neither view nor ledger is changed. Raises
    QueueError for a queue that is not declared.
    """
    queue = policy.queues.queue(asking.entries[0].queue)
    on = view.bookings()
    # who does not die on a spared node is counted as staying
    going = {
        id_: stops
        for id_, stops in (leaving or {}).items()
        if id_ not in on or on[id_].node not in spared
    }
    present = Trial(view, ledger, asking.requests, asking.entries, place)
    trial = present.without(going) if going else present
    decisions = trial.works()
    if decisions is not None:
        return Plan(asking, (), decisions, _after(present, going, {}))
    waited = now - asking.waiting_since
    owner = _owner(trial.ledger, asking.entries)
    stubborn = {id_ for name in spared if name in view.nodes for id_ in view.on(name)}
    found = _allowed(trial, asking, policy, queue, waited=waited, owner=owner)
    allowed = {id_: tier for id_, tier in found.items() if id_ not in {*going, *stubborn}}
    patient = queue.preempts and waited >= policy.preempt_after_s
    question = Question(
        trial,
        asking,
        allowed,
        {*going, *stubborn},
        own_below=asking.entries[0].priority if patient else None,
        may_reclaim=waited >= policy.reclaim_after_s,
    )
    best = _least(question)
    if best is not None:
        left = {one.id: one.stops for one in best.displacements}
        return replace(best, after=_after(present, going, left))
    return (_hindrance(question, policy, queue, waited=waited, owner=owner),)


def _after(present: Trial, going: Mapping[str, bool], left: Mapping[str, bool]) -> tuple[str, ...]:
    """Return the victims of earlier plans that this one counts on: none where it works without."""
    if not going:
        return ()
    now = present.leave(left)
    if now is not None and now.works() is not None:
        return ()
    return tuple(id_ for id_ in going if id_ in present.view.bookings())


def _owner(ledger: Ledger, entries: Sequence[Entry]) -> bool:
    """Return whether a tenant is within what it owns with the askers: else it borrows."""
    tenant = ledger.tree.branch(entries[0].tenant)
    for dimension in {d for entry in entries for d in entry.amounts}:
        nominal = tenant.nominal.get(dimension)
        firm = all(entry.guaranteed for entry in entries)
        taken = (tenant.guaranteed if firm else tenant.total).get(dimension, 0)
        more = sum(entry.amounts.get(dimension, 0) for entry in entries)
        if nominal is not None and taken + more > nominal:
            return False
    return True


def _allowed(
    trial: Trial,
    asking: Asking,
    policy: PreemptionPolicy,
    queue: Queue,
    *,
    waited: float,
    owner: bool,
) -> dict[str, int]:
    """Return who may be displaced, with the tier, first victims first."""
    asker = asking.entries[0]
    # without a share of its own nobody may ask back, whatever it asks
    share = trial.ledger.tree.branch(asker.tenant).nominal
    asked = {dimension for entry in asking.entries for dimension in entry.amounts} & set(share)
    mine = {entry.id for entry in asking.entries}
    tiers: dict[str, int] = {}
    for entry in trial.ledger.entries.values():
        if entry.id in mine or not consents(entry):
            continue
        booking = trial.view.bookings().get(entry.id)
        if booking is None:
            continue
        if owner and waited >= policy.reclaim_after_s and borrower(trial.ledger, entry, asked):
            tiers[entry.id] = 0
            continue
        if not owner and entry.tenant != asker.tenant:
            continue
        other = policy.queues.queues.get(entry.queue, Queue())
        returns = other.gives_way and not queue.gives_way and entry.priority <= asker.priority
        patient = queue.preempts and waited >= policy.preempt_after_s
        pool = trial.view.nodes[booking.node].pool
        here = policy.pools is None or pool in policy.pools
        if returns or (patient and here and entry.priority < asker.priority):
            tiers[entry.id] = 1
    entries = trial.ledger.entries
    order = sorted(tiers, key=lambda id_: (tiers[id_], softness(entries[id_])))
    return {id_: tiers[id_] for id_ in order}


def _least(question: Question) -> Plan | None:
    """Return the least disturbing plan that works, or None."""
    trial, asking = question.trial, question.asking
    quota = question.quota(trial)
    found: list[tuple[Weight, Trial]] = []
    if quota is not None:
        base = trial.leave(quota)
        if base is not None and base.works() is not None:
            found.append(_weighed(question, pruned(base)))
    if len(asking.requests) == 1:
        found += _by_node(question)
    else:
        whole = _by_prefix(question, quota)
        if whole is not None:
            found.append(_weighed(question, whole))
    if not found:
        return None
    _, best = min(found, key=lambda one: one[0])
    decisions = best.works()
    if decisions is None:
        return None
    displacements = tuple(_displacement(best, id_, stops=s) for id_, s in best.left.items())
    return Plan(asking, displacements, decisions)


def _by_node(question: Question) -> list[tuple[Weight, Trial]]:
    """Return plans that clear one node each, with their weights.

    Each is found on a copy of that node alone, which is quick; the best are then tried in the whole
    cluster, where topology and the rest of the quota count as well.
    """
    local = [_weighed(question, cleared) for cleared in cleared_nodes(question)]
    local.sort(key=lambda one: one[0])
    found: list[tuple[Weight, Trial]] = []
    for _, cleared in local:
        whole = _completed(question, cleared.left)
        if whole is not None:
            found.append(_weighed(question, whole))
            if len(found) > 1:
                break
    return found


def _by_prefix(question: Question, quota: Mapping[str, bool] | None) -> Trial | None:
    """Return a plan for a gang: the shortest run of victims after which all of it fits, pruned."""
    ids = list(question.allowed)
    for stop in (False, True):
        low, high = 1, len(ids)
        best: Trial | None = None
        while low <= high:
            middle = (low + high) // 2
            victims = dict(quota or {})
            for id_ in ids[:middle]:
                victims.setdefault(id_, stop or not pausable(question.trial, id_))
            tried = question.trial.leave(victims, skip=True)
            if tried is not None and tried.works() is not None:
                best, high = tried, middle - 1
            else:
                low = middle + 1
        if best is not None:
            return _narrowed(question, best)
    return None


def _narrowed(question: Question, best: Trial) -> Trial:
    """Leave out victims on nodes that the gang does not use, and the needless on each it does.

    Node by node, because a gang may need hundreds; a small plan is looked at as a whole instead.
    """
    decisions = best.works()
    if decisions is None or len(best.left) <= WHOLE_PLANS:
        return pruned(best)
    requests = {request.id: request for request in question.asking.requests}
    on = question.trial.view.bookings()
    kept = {id_: stops for id_, stops in best.left.items() if id_ not in on}
    for name in sorted({decision.node for decision in decisions}):
        here = [requests[one.id] for one in decisions if one.node == name]
        victims = {
            id_: stops for id_, stops in best.left.items() if id_ in on and on[id_].node == name
        }
        cleared = question.trial.only(name, here).leave(victims)
        if cleared is not None and cleared.places() is not None:
            victims = pruned(cleared, quota=False).left
        kept |= victims
    narrowed = _completed(question, kept)
    return pruned(best) if narrowed is None else narrowed


def _completed(question: Question, left: Mapping[str, bool]) -> Trial | None:
    """Return the plan of one node in the whole cluster, with what the quota asks for besides."""
    whole = question.trial.leave(left)
    if whole is None:
        return None
    more = question.quota(whole)
    whole = None if more is None else whole.leave(more)
    if whole is None or whole.works() is None:
        return None
    return pruned(whole) if len(whole.left) <= WHOLE_PLANS else whole


def _weighed(question: Question, tried: Trial) -> tuple[Weight, Trial]:
    """Return a plan with how much it disturbs."""
    entries = question.trial.ledger.entries
    victims = [entries[id_] for id_ in tried.left]
    weight = (
        max((victim.priority for victim in victims), default=0),
        sum(tried.left.values()),
        len(victims),
        max((question.allowed.get(victim.id, 0) for victim in victims), default=0),
        -sum(victim.since for victim in victims),
        sorted(victim.id for victim in victims),
    )
    return weight, tried


def _displacement(trial: Trial, id_: str, *, stops: bool) -> Displacement:
    booking = trial.origin.view.bookings().get(id_)
    if booking is None:
        # its node is gone, and it with it: nothing to ask of it, only books to set right
        return Displacement(id_, "", ())
    if trial.origin.ledger.entries[id_].paused:
        # it was synced before it was paused, and cannot be now
        return Displacement(id_, booking.node, (Step.STOP,))
    return Displacement(id_, booking.node, (Step.SYNC, Step.STOP if stops else Step.PAUSE))


def _hindrance(
    question: Question, policy: PreemptionPolicy, queue: Queue, *, waited: float, owner: bool
) -> Refusal:
    """Return the first thing that keeps the asker from displacing anybody."""
    asker = question.asking.entries[0]
    reason = PendingReason.PREEMPTION
    if not queue.preempts and not question.allowed:
        return Refusal(reason, Hindrance.QUEUE, asker.queue)
    if waited < policy.preempt_after_s:
        return Refusal(reason, Hindrance.WAIT, int(policy.preempt_after_s), int(waited))
    if question.allowed:
        return Refusal(reason, Hindrance.USELESS, 1, nodes=len(question.allowed))
    if not owner:
        return Refusal(reason, Hindrance.SHARE, 1, whose=asker.tenant)
    return Refusal(reason, Hindrance.CONSENT, 1)
