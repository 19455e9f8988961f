"""How often a long-running process looks for reference cycles.

The standard thresholds suit short programs: a control plane keeps most of what it makes, and a
third of its time went into looking through it. Almost everything is freed by its reference count;
what is left to the collector (tasks and their exceptions) can wait.
"""

import gc

YOUNG, MIDDLE, OLD = 50_000, 20, 20
"""New containers before a look at the young ones, and looks before one further back: with a few
hundred bytes each, about 10 MiB of garbage at most wait for the first look."""


def settle() -> None:
    """Leave out what is loaded by now, which is no garbage, and look less often from now on."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
