"""Ways to get nodes that failed lately: left alone for a while, then tried with one node. Pure.

A failure speaks of one offering, of all offerings under one quota, or of the whole provider; each
is a key of its own, made here and nowhere else, and an offering is open where all of its keys are.
A failure that nobody knows how to read counts as lack of capacity: falling back to another
offering is right for it, and asking again at once is a storm.
"""

from collections.abc import Iterable, Sequence

from dsec.scaling.nodes.offerings import Offering
from dsec.scaling.nodes.state import Backoff, FleetState

FIRST_S = 180.0
LONGEST_S = 1800.0
OFFERING, QUOTA, PROVIDER, REGION = "offering", "quota", "provider", "region"
"""What a failure speaks of; the first three are those of providers."""
PREEMPTIONS_S = 1800.0
"""A spot region that takes nodes back is left alone longer each time within this time."""


def keys_of(offering: Offering) -> dict[str, str]:
    """Return the keys that an offering hangs on, by what they speak of."""
    gpu = "gpu" if offering.node.devices else "cpu"
    here = f"{offering.provider}/{offering.region}"
    return {
        OFFERING: offering.key,
        QUOTA: f"quota/{here}/{offering.market.value}/{gpu}",
        PROVIDER: f"provider/{offering.provider}",
        REGION: f"region/{here}/{offering.market.value}",
    }


def failed(
    backoffs: Sequence[Backoff],
    offering: Offering,
    now: float,
    *,
    scope: str = OFFERING,
    code: str = "",
    retry_after_s: float | None = None,
) -> tuple[Backoff, ...]:
    """Return the backoffs after a failure: 180 s, doubled with each in a row up to 30 min.

    A scope that is not known counts as the offering's.
    """
    keys = keys_of(offering)
    key = keys.get(scope, keys[OFFERING])
    known = next((one for one in backoffs if one.key == key), None)
    # purchases that were under way together fail together: that is one failure
    failures = 1 if known is None else known.failures + (0 if now < known.until else 1)
    wait = min(LONGEST_S, FIRST_S * 2.0 ** min(failures - 1, 10))
    until = now + max(wait, retry_after_s or 0.0)
    if known is not None:
        until = max(until, known.until) if now < known.until else until
    rest = [one for one in backoffs if one.key != key]
    made = Backoff(key, failures, until, code)
    return tuple(sorted([*rest, made], key=lambda one: one.key))


def succeeded(backoffs: Sequence[Backoff], offering: Offering) -> tuple[Backoff, ...]:
    """Return the backoffs after nodes came: all keys of the offering are open again.

    Not its region: nodes that come and are taken back soon are what it is left alone for.
    """
    keys = {key for scope, key in keys_of(offering).items() if scope != REGION}
    return tuple(one for one in backoffs if one.key not in keys)


def taken_back(backoffs: Sequence[Backoff], offering: Offering, now: float) -> tuple[Backoff, ...]:
    """Return the backoffs after the provider took a spot node back: another place is next."""
    key = keys_of(offering)[REGION]
    known = next((one for one in backoffs if one.key == key), None)
    again = known is not None and now - known.until < PREEMPTIONS_S
    failures = known.failures + 1 if known is not None and again else 1
    until = now + min(LONGEST_S, FIRST_S * 2.0 ** min(failures - 1, 10))
    rest = [one for one in backoffs if one.key != key]
    return tuple(
        sorted([*rest, Backoff(key, failures, until, "taken-back")], key=lambda one: one.key)
    )


def allowance(state: FleetState, offering: Offering) -> tuple[int | None, str]:
    """Return how many nodes may be tried now (None: any number), and the key that says so."""
    found: tuple[int | None, str] = (None, "")
    for scope, key in keys_of(offering).items():
        held = next((one for one in state.backoffs if one.key == key), None)
        if held is None:
            continue
        if scope == REGION:
            # nodes still come there: it is left for another region, not for dearer nodes
            if state.now < held.until and _elsewhere(state, offering):
                return 0, key
            continue
        if state.now < held.until or _probing(state, held):
            return 0, key
        found = (1, key)
    return found


def _elsewhere(state: FleetState, offering: Offering) -> bool:
    """Return whether a like offering is in a region that has not taken nodes back lately."""
    left = {one.key for one in state.backoffs if state.now < one.until}
    return any(
        one.market is offering.market
        and one.region != offering.region
        and bool(one.node.devices) is bool(offering.node.devices)
        and keys_of(one)[REGION] not in left
        for one in state.offerings
    )


def _probing(state: FleetState, held: Backoff) -> bool:
    """Return whether a probe is under way already."""
    return any(
        node.coming and node.requested_at >= held.until and held.key in _keys(node.offering)
        for node in state.nodes
    )


def _keys(offering: Offering) -> Iterable[str]:
    return keys_of(offering).values()
