"""A simulation as a picture: what was booked, what was wasted, and who waited, over time."""

from collections.abc import Sequence
from pathlib import Path

from dsec.sim.measure import Sample


def draw(samples: Sequence[Sample], path: Path, title: str) -> None:
    """Write a picture; the ending of the path says which kind. Raises ValueError for unknown ones.

    Needs matplotlib, which only the extra `plot` installs: ImportError without it.
    """
    from matplotlib.figure import Figure

    hours = [(one.at - samples[0].at) / 3600 for one in samples]
    figure = Figure(figsize=(9, 6), layout="constrained")
    booked, queue = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    for name, label in (("cpu", "CPU"), ("memory", "memory"), ("gpu", "GPU")):
        values = [100 * getattr(one, name) for one in samples]
        booked.step(hours, values, where="post", label=label)
    wasted = [100 * one.fragments for one in samples]
    booked.step(hours, wasted, where="post", label="GPU that no typical job can use", ls=":")
    booked.set(ylabel="% of the cluster", ylim=(0, 102), title=title)
    booked.legend(loc="upper left", fontsize="small")
    queue.step(hours, [one.running for one in samples], where="post", label="running")
    queue.step(hours, [one.waiting for one in samples], where="post", label="waiting")
    queue.set(xlabel="virtual hours", ylabel="jobs", ylim=(0, None))
    queue.legend(loc="upper left", fontsize="small")
    figure.savefig(path, dpi=120)
