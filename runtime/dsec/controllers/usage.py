"""Which sandbox had which part of which node, and since when: what metering divides a node by.

Followed from the bind log while the leader runs, so that what moved or was forgotten since the last
look is known too; a new leader starts from what the log still has.
"""

from collections.abc import Iterable
from datetime import datetime

from dsec.api.sandbox import Resources
from dsec.cost.metering import SandboxUse
from dsec.cost.pools import MILLI
from dsec.cost.prices import Shape
from dsec.journal.bindings import Binding, Bindings


def path_of(binding: Binding) -> str:
    """Return whose money a sandbox is: its task's, or its project's where it has no task."""
    identity = binding.spec.identity
    base = f"{binding.tenant}/{identity.project}"
    return f"{base}/{identity.experiment}" if identity.experiment else base


def booked(resources: Resources) -> Shape:
    """Return what a sandbox holds of a node; parts of a GPU in thousandths."""
    gpus = resources.gpu_milli or resources.gpu_count * MILLI
    return Shape(resources.cpu_milli, resources.memory_bytes, gpus)


class Usage:
    """Stretches of sandboxes on nodes."""

    def __init__(self, bindings: Bindings, now: datetime) -> None:
        self._bindings = bindings
        self._on: dict[str, dict[tuple[str, float], SandboxUse]] = {}
        self._open: dict[str, tuple[str, tuple[str, float]]] = {}
        self._touched = bindings.follow()
        self.note(bindings.by_id.values(), now)

    def note(self, bindings: Iterable[Binding], now: datetime) -> None:
        """Take note of where sandboxes are, and of those that have ended."""
        for one in bindings:
            if one.node and one.bound_at is not None:
                self._bound(one, one.bound_at.timestamp())
            else:
                self._close(one.id, now.timestamp())

    def refresh(self, now: datetime) -> None:
        """Read what was bound otherwise since the last time."""
        touched, self._touched = self._touched, self._bindings.follow(self._touched)
        for sandbox in touched:
            binding = self._bindings.by_id.get(sandbox)
            if binding is None:
                self._close(sandbox, now.timestamp())
            else:
                self.note([binding], now)

    def on(self, node: str) -> list[SandboxUse]:
        """Return the stretches on a node that are not over, or were not at the last `trim`."""
        return list(self._on.get(node, {}).values())

    def trim(self, node: str, before: float) -> None:
        """Drop what was over before a time: it has been booked."""
        found = self._on.get(node, {})
        kept = {key: one for key, one in found.items() if one.until is None or one.until > before}
        if kept:
            self._on[node] = kept
        else:
            self._on.pop(node, None)

    def _bound(self, binding: Binding, since: float) -> None:
        key = binding.id, since
        held = self._open.get(binding.id)
        if held is not None and held[1] != key:
            self._close(binding.id, since)
        until = binding.ended_at.timestamp() if binding.ended_at is not None else None
        use = SandboxUse(binding.id, path_of(binding), booked(binding.spec.resources), since, until)
        self._on.setdefault(binding.node, {})[key] = use
        if until is None:
            self._open[binding.id] = binding.node, key
        else:
            self._open.pop(binding.id, None)

    def _close(self, sandbox: str, until: float) -> None:
        held = self._open.pop(sandbox, None)
        if held is None:
            return
        node, key = held
        use = self._on.get(node, {}).get(key)
        if use is not None:
            self._on[node][key] = SandboxUse(use.id, use.path, use.booked, use.since, until)
