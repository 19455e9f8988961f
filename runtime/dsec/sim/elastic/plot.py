"""A picture of runs: nodes, queue and spend over time."""

from collections.abc import Mapping, Sequence
from pathlib import Path


def draw(curves: Mapping[str, Sequence[tuple[float, int, int, float]]], path: Path) -> None:
    """Write a picture; the ending of the path says which kind.

    `curves`: name -> (seconds, nodes, waiting, cost per hour) of each sample.
    """
    import matplotlib as mpl

    # no window is opened, and no display is needed
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(3, 1, sharex=True, figsize=(10, 8), layout="constrained")
    for name, curve in curves.items():
        hours = [row[0] / 3600 for row in curve]
        for axis, column in zip(axes, (1, 2, 3), strict=True):
            axis.plot(hours, [row[column] for row in curve], label=name, linewidth=0.8)
    for axis, label in zip(axes, ("nodes", "waiting", "USD per hour"), strict=True):
        axis.set_ylabel(label)
    axes[0].legend()
    axes[-1].set_xlabel("hours")
    figure.savefig(path)
    plt.close(figure)
