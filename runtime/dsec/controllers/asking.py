"""Waiting work that asks for the place of others, and what is known of those: plain data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dsec.api.sandbox import SandboxState
from dsec.journal.bindings import Binding
from dsec.placement.entries import Entry, alike
from dsec.placement.plans import PreemptionPolicy
from dsec.placement.request import Request


@dataclass(frozen=True, slots=True)
class Seen:
    """What is recorded now: live bindings with a node by id, and what agents say of each."""

    bound: Mapping[str, Binding]
    states: Mapping[str, SandboxState]
    paused: frozenset[str]


@dataclass(frozen=True, slots=True)
class Unit:
    """Waiting work that found no place in a round, whole, with why not."""

    bindings: Sequence[Binding]
    requests: tuple[Request, ...]
    entries: tuple[Entry, ...]
    since: float

    @property
    def first(self) -> Binding:
        """The one that it is named after."""
        return self.bindings[0]

    def kind(self, policy: PreemptionPolicy, now: float) -> str:
        """Return what decides about a plan besides ids: what is refused once is refused again."""
        first, request, waited = self.entries[0], self.requests[0], now - self.since
        return repr(
            (
                [alike(entry) for entry in self.entries],
                (first.priority, first.queue),
                (request.resources, request.labels, request.pools, request.gpu_model),
                request.simulated,
                (waited >= policy.preempt_after_s, waited >= policy.reclaim_after_s),
            )
        )


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
