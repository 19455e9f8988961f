"""The search for victims on one node, and leaving out of a plan whom it does not need. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dsec.api.experiment import TaskClass
from dsec.placement.asked import Asked
from dsec.placement.filters import mismatch
from dsec.placement.plans import Asking
from dsec.placement.reclaim import give_back
from dsec.placement.trial import Trial

NODES_TRIED = 32
"""Most nodes that are looked at closely for one asker; the others seem to need more victims."""


@dataclass(frozen=True, slots=True)
class Question:
    """One search: the asker, who may be displaced for it, and the world without earlier victims."""

    trial: Trial
    asking: Asking
    allowed: Mapping[str, int]
    """Victims by id, with their tier: 0 borrowers, 1 softer work."""
    kept: Collection[str]
    own_below: int | None
    may_reclaim: bool

    def quota(self, trial: Trial) -> dict[str, bool] | None:
        """Return who has to give quota back besides those who have left, None: it does not help."""
        found = give_back(
            trial.books(),
            self.asking.entries,
            own_below=self.own_below,
            kept=self.kept,
            others=self.may_reclaim,
        )
        return None if found is None else {one.entry.id: not one.pause for one in found}


def cleared_nodes(question: Question) -> Iterator[Trial]:
    """Yield what clears one node each, tried on a copy of that node alone and pruned there."""
    by_node = _candidates(question)
    for name in _promising(question, by_node):
        small = question.trial.only(name)
        softest = by_node[name]
        largest = sorted(softest, key=lambda id_: _large_first(question, id_))
        orders = [softest] if softest == largest else [softest, largest]
        rests = any(pausable(small, id_) for id_ in softest)
        for stop in (False, True) if rests else (True,):
            for ids in orders:
                cleared = _clear(small, ids, stop=stop)
                if cleared is not None:
                    yield cleared


def _candidates(question: Question) -> dict[str, list[str]]:
    """Return who may leave, node by node, without nodes whose description excludes the asker."""
    request = question.asking.requests[0]
    asked = Asked.of(request)
    on, nodes = question.trial.view.bookings(), question.trial.view.nodes
    found: dict[str, list[str]] = {}
    for id_ in question.allowed:
        found.setdefault(on[id_].node, []).append(id_)
    return {
        name: ids
        for name, ids in found.items()
        if name not in request.avoid and mismatch(nodes[name], request, asked) is None
    }


def _promising(question: Question, by_node: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the nodes to look at closely: those that seem to need the fewest and softest victims.

    By CPU, memory and devices in sum; a node where even all would not be enough comes last.
    """
    asked = question.asking.entries[0].amounts
    entries = question.trial.ledger.entries
    ranks: list[tuple[int, int, int, str]] = []
    for name, ids in by_node.items():
        room = question.trial.view.room(name)
        free = {
            "cpu_milli": room["cpu"],
            "memory_bytes": room["memory"],
            "gpu_milli": max(1000 * room["gpu"], room["gpu share"]),
        }
        enough, worst, count = 1, 0, 0
        for id_ in ids:
            count += 1
            worst = max(worst, entries[id_].priority) if count > 1 else entries[id_].priority
            for dimension in free:
                free[dimension] += entries[id_].amounts.get(dimension, 0)
            if all(free[dimension] >= asked.get(dimension, 0) for dimension in free):
                enough = 0
                break
        ranks.append((enough, worst, count, name))
    return [name for *_, name in sorted(ranks)[:NODES_TRIED]]


def _large_first(question: Question, id_: str) -> tuple[int, bool, int, int]:
    """Return what victims are sorted by so that few large ones go rather than many small."""
    entry = question.trial.ledger.entries[id_]
    asked = question.asking.entries[0].amounts
    size = sum(
        1000 * min(entry.amounts.get(dimension, 0), most) // most
        for dimension, most in asked.items()
    )
    hard = entry.task_class is not TaskClass.PAUSABLE
    return question.allowed[id_], hard, entry.priority, -size


def _clear(small: Trial, ids: Iterable[str], *, stop: bool) -> Trial | None:
    """Let victims of a node leave, softest first, until the asker fits; the needless then stay."""
    for id_ in ids:
        if id_ in small.left:
            continue
        further = small.leave({id_: stop or not pausable(small, id_)})
        if further is None:
            continue
        small = further
        if small.places() is not None:
            return pruned(small, quota=False)
    return None


def pruned(tried: Trial, *, quota: bool = True) -> Trial:
    """Leave out needless victims, and pause instead of stopping where that is enough."""
    works = Trial.works if quota else Trial.places
    for id_ in reversed(list(tried.left)):
        if id_ not in tried.left:
            continue
        rest = {other: stops for other, stops in tried.left.items() if other != id_}
        softer = {**tried.left, id_: False}
        for victims in [rest, softer] if tried.left[id_] and pausable(tried, id_) else [rest]:
            fewer = tried.origin.leave(victims)
            if (
                fewer is not None
                and len(fewer.left) <= len(tried.left)
                and works(fewer) is not None
            ):
                tried = fewer
                break
    return tried


def pausable(trial: Trial, id_: str) -> bool:
    """Return whether a victim may rest instead of ending: by its class, and if it does not yet."""
    entry = trial.origin.ledger.entries[id_]
    return entry.task_class is TaskClass.PAUSABLE and not entry.paused
