"""From a wish to a count that may be taken: ladder, fixed step, or straight to what is computed.

`ladder`: the only counts allowed, rising, empty where any is (ELAS-04). Results are within bounds.
"""

from collections.abc import Sequence


def up(ladder: Sequence[int], step: int, count: int, wanted: int | None, high: int) -> int:
    """Return the next higher count, at most `high`; `count` itself where there is none."""
    if ladder:
        # never past the top, and never between two steps, whatever is the ceiling
        return next((one for one in ladder if count < one <= high), count)
    if wanted is None:
        wanted = count + (step or 1)
    elif step:
        wanted = max(wanted, count + step)
    return max(count, min(wanted, high))


def down(ladder: Sequence[int], step: int, count: int, wanted: int | None, low: int) -> int:
    """Return the next lower count, at least `low`; `count` itself where there is none."""
    if wanted is None:
        wanted = count - (step or 1)
    elif step:
        wanted = max(wanted, count - step)
    least = max(wanted, low)
    if ladder:
        return next((one for one in ladder if least <= one < count), count)
    return min(count, least)


def inside(ladder: Sequence[int], count: int, low: int, high: int) -> int:
    """Return the count nearest to one within bounds: a step of the ladder where one lies there."""
    nearest = min(max(count, low), high)
    within = [one for one in ladder if low <= one <= high]
    if not within or nearest in within:
        return nearest
    return min(within, key=lambda one: (abs(one - nearest), one))
