"""The conflicts between the sources that are settings here: preset names and defaults."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Conflict:
    """One setting: what it is about, the names that may be chosen, and the default."""

    subject: str
    names: tuple[str, ...]
    default: str


CONFLICTS: Mapping[str, Conflict] = {
    "CONF-01": Conflict(
        "preemption", ("guaranteed", "pausable", "preemptible"), default="guaranteed"
    ),
    "CONF-02": Conflict(
        "scaling of replicas",
        (
            "role-queue",
            "node-load",
            "cpu-target",
            "throughput",
            "throughput-dynamic",
            "three-signal",
        ),
        default="three-signal",
    ),
    "CONF-04": Conflict(
        "what a threshold of throughput means",
        ("edge", "level", "throughput-dynamic"),
        default="edge",
    ),
    "CONF-05": Conflict(
        "what a snapshot holds", ("state", "checkpoint", "disk", "freeze"), default="state"
    ),
    "CONF-08": Conflict("unit of CPU shares", ("absolute", "relative"), default="absolute"),
    "CONF-09": Conflict(
        "snapshot interval",
        ("ckpt-600", "ckpt-300", "state-5m", "state-15m", "state-30m", "adaptive"),
        default="state-15m",
    ),
    "CONF-10": Conflict(
        "isolation", ("container", "microvm", "gvisor", "function"), default="container"
    ),
    "CONF-11": Conflict("log keeping", ("stream-all", "sampled", "warn-only"), default="sampled"),
    "CONF-21": Conflict(
        "when a node is lost", ("failover-fast", "partition-safe"), default="failover-fast"
    ),
    "CONF-24": Conflict("workspace", ("private", "shared"), default="private"),
    "CONF-30": Conflict("data path", ("dataset", "data-eval", "data"), default="dataset"),
    "CONF-32": Conflict("installing at run time", ("none", "listed", "venv"), default="none"),
}

INTERVALS: Mapping[str, int] = {
    "ckpt-600": 600,
    "ckpt-300": 300,
    "state-5m": 300,
    "state-15m": 900,
    "state-30m": 1800,
}
"""Seconds of the presets of CONF-09; `adaptive` has none."""

DATA_PATHS: Mapping[str, str] = {
    "dataset": "/dataset",
    "data-eval": "/data/eval",
    "data": "/data",
}
"""Where data sets appear, by preset of CONF-30."""


def interval_preset(kind: str, interval_seconds: int) -> str | None:
    """Return the preset of CONF-09 with that period, for checkpoints or for state; None if none."""
    family = "ckpt-" if kind == "checkpoint" else "state-"
    return next(
        (
            name
            for name, period in INTERVALS.items()
            if period == interval_seconds and name.startswith(family)
        ),
        None,
    )
