"""Which question to a Prometheus server is which signal of which role. Pure.

A task's own metrics carry the labels project, experiment and role, as its exporter sets them; a
role's `query` replaces that, with $project, $experiment and $role in it.
"""

import re
from collections.abc import Mapping

from dsec.scaling.signals import Signal

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_MEANS = frozenset(
    {Signal.USE, Signal.CPU, Signal.MEMORY, Signal.GPU, Signal.IO_WAIT, Signal.LATENCY}
)
_OURS: Mapping[str, str] = {Signal.QUEUE_DEPTH: "dsec_queue_depth"}
"""Metrics that dsec itself exports, without a label of the role."""


def query_of(
    signal: str, *, project: str, experiment: str, role: str, query: str | None = None
) -> str | None:
    """Return the PromQL of a signal; None where its name cannot be one of Prometheus.

    Shares of something are averaged over the role's replicas, everything else is summed. Values are
    escaped: a name cannot end the string that it stands in.
    """
    words = {"project": project, "experiment": experiment, "role": role}
    if query is not None:
        return re.sub(
            r"\$(project|experiment|role)\b", lambda found: _quoted(words[found[1]]), query
        )
    if not _NAME.fullmatch(signal):
        return None
    name = _OURS.get(signal, signal)
    labels = {k: v for k, v in words.items() if k != "role" or signal not in _OURS}
    given = ",".join(f'{label}="{_quoted(value)}"' for label, value in labels.items())
    return f"{'avg' if signal in _MEANS else 'sum'}({name}{{{given}}})"


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
