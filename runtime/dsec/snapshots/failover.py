"""Failover between regions: who may go on, from what, and in which order. Decisions are pure.

The order of CONF-21 holds for a region as it does for a node: observe, isolate, recover. To isolate
is to take the home of an experiment by its next epoch in the store that is left: from then on what
the lost region writes counts for nothing, whether it knows or not. Only what is isolated is made
again. A region that returns reads the epochs of the others before it starts anything, and parks
what it no longer owns.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from dsec.api.snapshot import SnapshotRef
from dsec.snapshots.cards import Card, cards
from dsec.snapshots.homes import Home, HomeTakenError, homes, later, root_of, take_home
from dsec.snapshots.refs import list_refs
from dsec.snapshots.routing import Residency
from dsec.snapshots.standing import age_of, by_lineage
from dsec.world.objects import ObjectStore, ObjectStoreError

RESTORE_FROM = "dsec.dev/restore-from"
"""Annotation of an Experiment that was made again: whose snapshots its replicas start from."""


class Stage(StrEnum):
    """What is done about a part that is silent."""

    OBSERVE = "observe"
    """Nothing: short losses of contact are harmless."""
    ISOLATE = "isolate"
    """Fence it; nothing runs elsewhere yet."""
    RECOVER = "recover"
    """It is fenced: start again elsewhere."""


@dataclass(frozen=True, slots=True)
class Partition:
    """Times of CONF-21, in seconds of silence; None: only a person declares it lost."""

    observe: float | None
    verdict: float = 0.0
    """After it is isolated, until recovery."""


PARTITIONS: Mapping[str, Partition] = {
    "failover-fast": Partition(observe=30.0, verdict=60.0),
    "partition-safe": Partition(observe=120.0),
    # a region is too much to move for a link that comes back: people say so
    "region": Partition(observe=None),
}


def stage(
    preset: Partition, silent: float, *, isolated_for: float | None = None, declared: bool = False
) -> Stage:
    """Return what to do now. `isolated_for`: seconds since it was fenced; None: it is not.

    Recovery never comes before isolation, whatever the times say.
    """
    if isolated_for is not None:
        done = declared or isolated_for >= preset.verdict
        return Stage.RECOVER if done else Stage.ISOLATE
    lost = declared or (preset.observe is not None and silent >= preset.observe)
    return Stage.ISOLATE if lost else Stage.OBSERVE


class Fate(StrEnum):
    """What failover does with one experiment."""

    TAKE = "take"
    """Its home is taken, and it is made again from its newest copy."""
    FRESH = "take, without state"
    """There is no copy of its state: it would start anew."""
    RESIDENCY = "stays: residency"
    """Its data may not be used in this region."""
    ELSEWHERE = "stays: lives elsewhere"
    """Its home is neither the lost region nor this one."""
    HERE = "is here"
    """This region has taken it already."""
    MADE = "was made again"
    """Another failover has done all of it."""
    ENDED = "has ended"
    """There is nothing to continue."""


TAKEN = frozenset({Fate.TAKE, Fate.FRESH})


@dataclass(frozen=True, slots=True)
class Copy:
    """The newest copy of one replica's state."""

    lineage: str
    seq: int
    age_seconds: float
    """Work that is lost with it: its recovery point now."""


@dataclass(frozen=True, slots=True)
class Case:
    """One experiment of a lost region."""

    card: Card
    fate: Fate
    epoch: int
    """The home epoch that it has, or gets."""
    copies: tuple[Copy, ...]
    why: str

    @property
    def lost_seconds(self) -> float | None:
        """Work that is lost at most; None: all of it."""
        return max((one.age_seconds for one in self.copies), default=None)


@dataclass(frozen=True, slots=True)
class Survey:
    """What a region's own store says about one repository."""

    prefix: str
    cards: tuple[Card, ...]
    homes: Mapping[str, Home]
    refs: tuple[SnapshotRef, ...]


async def survey(objects: ObjectStore, prefix: str) -> Survey:
    """Read a repository. Raises ObjectStoreError."""
    return Survey(
        prefix,
        tuple(await cards(objects, prefix)),
        {home.root: home for home in await homes(objects, prefix)},
        (await list_refs(objects, prefix)).refs,
    )


def plan(found: Survey, *, lost: str, here: str, residency: Residency, now: datetime) -> list[Case]:
    """Return what failover from one region to another does with each experiment. Pure.

    It repeats: what was taken before is `HERE`, and `MADE` once it goes on.
    """
    lineages = by_lineage(found.refs)
    try:
        regions = residency.of(found.prefix)
    except LookupError:
        # nobody here knows where its data may be: nowhere
        regions = frozenset()
    made_from = {card.origin for card in found.cards if card.origin}
    cases = []
    for card in sorted(found.cards, key=lambda one: (one.project, one.name, one.root)):
        home = found.homes.get(card.root)
        region = home.region if home is not None else card.region
        epoch = home.epoch if home is not None else card.home_epoch
        copies = tuple(
            Copy(lineage, refs[0].seq, age_of(refs[0], now))
            for lineage, refs in sorted(lineages.items())
            if root_of(lineage) == card.root
        )
        fate, why = _lives(card, region, lost=lost, here=here) or _comes(
            card, copies, regions, here
        )
        if card.root in made_from and fate is not Fate.ENDED:
            fate, why = Fate.MADE, "it goes on from its snapshots already"
        if fate in TAKEN:
            epoch += 1
        cases.append(Case(card, fate, epoch, copies, why))
    return cases


def _lives(card: Card, region: str, *, lost: str, here: str) -> tuple[Fate, str] | None:
    """Return why an experiment is not to be moved; None: it lived in the lost region."""
    if card.ended:
        return Fate.ENDED, "it had ended before"
    if region == here:
        return Fate.HERE, f"its home is {here}"
    if region != lost:
        return Fate.ELSEWHERE, f"its home is {region}"
    return None


def _comes(
    card: Card, copies: tuple[Copy, ...], regions: frozenset[str] | None, here: str
) -> tuple[Fate, str]:
    own = card.record.get("spec", {}).get("residency") or ()
    for allowed in (regions, frozenset(own) if own else None):
        if allowed is not None and here not in allowed:
            may = ", ".join(sorted(allowed)) or "no region that is known here"
            return Fate.RESIDENCY, f"its data may be in {may}, not in {here}"
    if not copies:
        return Fate.FRESH, "no snapshot of it has come here"
    return Fate.TAKE, f"from {len(copies)} snapshots"


async def isolate(
    objects: ObjectStore, prefix: str, case: Case, *, here: str, who: str, why: str, now: datetime
) -> Home:
    """Take the home of one experiment: the fence, before anything is made again. Idempotent.

    Raises HomeTakenError where somebody else has it, ObjectStoreError.
    """
    root = case.card.root
    wanted = Home(root=root, region=here, epoch=case.epoch, at=now, who=who, why=why)
    try:
        return await take_home(objects, prefix, wanted)
    except HomeTakenError:
        known = {home.root: home for home in await homes(objects, prefix)}.get(root)
        # an earlier try of this very failover
        if known is not None and (known.region, known.epoch) == (here, case.epoch):
            return known
        raise


def again(card: Card) -> dict[str, object]:
    """Return the record that makes an experiment again, from its card. Pure."""
    meta = card.record.get("metadata", {})
    annotations = {**meta.get("annotations", {}), RESTORE_FROM: card.root}
    return {
        "apiVersion": card.record.get("apiVersion"),
        "kind": card.record.get("kind"),
        "metadata": {
            "name": card.name,
            "namespace": card.project,
            "labels": dict(meta.get("labels", {})),
            "annotations": annotations,
        },
        "spec": card.record.get("spec", {}),
    }


@dataclass(frozen=True, slots=True)
class Return:
    """What a region that comes back has to leave alone, by root."""

    parked: Mapping[str, Home]
    unread: tuple[str, ...] = ()
    """Regions whose store did not answer: what they took is not known."""


async def returning(
    mine: ObjectStore,
    others: Mapping[str, ObjectStore],
    prefixes: Iterable[str],
    roots: Iterable[str],
    *,
    here: str,
) -> Return:
    """Compare the homes of all stores, and return which experiments live elsewhere now.

    Raises ObjectStoreError where one's own store does not answer.
    """
    wanted, unread = set(roots), []
    best: dict[str, Home] = {}

    def take(found: Iterable[Home]) -> None:
        for home in found:
            if home.root in wanted:
                best[home.root] = later(best.get(home.root), home) or home

    for prefix in prefixes:
        take(await homes(mine, prefix))
        for region, store in others.items():
            try:
                take(await homes(store, prefix))
            except ObjectStoreError:
                unread.append(region)
    parked = {root: home for root, home in best.items() if home.region != here}
    return Return(parked, tuple(sorted(set(unread))))
