"""Waiting work that asks for the place of others, and what is known of those: plain data."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dsec.api.sandbox import SandboxState
from dsec.controllers.translating import unit_of
from dsec.journal.bindings import Binding
from dsec.placement.plans import PreemptionPolicy


@dataclass(frozen=True, slots=True)
class Seen:
    """What is recorded now: live bindings with a node, by id, and what agents say.

    `states` has those that are paused or on their way out.
    """

    bound: Mapping[str, Binding]
    states: Mapping[str, SandboxState]
    paused: frozenset[str]


@dataclass(frozen=True, slots=True)
class Unit:
    """Waiting work that found no place in a round, whole."""

    bindings: Sequence[Binding]
    since: float

    @property
    def first(self) -> Binding:
        """The one that it is named after."""
        return self.bindings[0]

    def kind(self, policy: PreemptionPolicy, now: float) -> tuple[object, ...]:
        """Return what decides about a plan besides ids: what is refused once is refused again."""
        first, waited = self.first, now - self.since
        identity = first.spec.identity
        return (
            first.tenant,
            identity.project,
            # replicas of a role ask for the same, and so do keyed creates of one body
            first.body_hash,
            "" if first.gang else identity.role,
            len(self.bindings),
            waited >= policy.preempt_after_s,
            waited >= policy.reclaim_after_s,
        )


def units(waiting: Iterable[Binding], waits: Mapping[str, float]) -> list[Unit]:
    """Return waiting work as units, in order; `waits` says since when each waits, by its key."""
    groups: dict[str, list[Binding]] = {}
    for binding in waiting:
        groups.setdefault(unit_of(binding), []).append(binding)
    return [
        Unit(group, min(waits[key_of(binding)] for binding in group)) for group in groups.values()
    ]


def key_of(binding: Binding) -> str:
    """Return the name of work that the bind log knows over all leaders."""
    return f"{binding.tenant}/{binding.key}"


def name_of(asker: Binding | None, tenant: str) -> str:
    """Return the words for work that displaces: to another tenant only whose it is."""
    if asker is None:
        return "work that may ask for its place"
    identity = asker.spec.identity
    if asker.tenant != tenant:
        return f"work of tenant {asker.tenant} (priority {asker.priority})"
    name = f"{identity.project}/{identity.experiment}" if identity.experiment else asker.key
    return f"{name} (priority {asker.priority})"
