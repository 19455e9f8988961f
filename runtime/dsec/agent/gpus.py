"""Which sandbox holds which part of which GPU of this node: pure bookkeeping, no driver calls."""

from dataclasses import dataclass, field

from dsec.api.sandbox import GpuMode, Resources
from dsec.api.wire import Device

BYTES_PER_SHARE = 100_000_000
"""TEN-06: ten shares are one (decimal) gigabyte of GPU memory."""
_EXCLUSIVE = frozenset({GpuMode.WHOLE, GpuMode.PASSTHROUGH})


class GpuRefusalError(Exception):
    """The request cannot be served; the message says what was asked and what is free."""


def devices_asked(resources: Resources) -> int:
    """Return how many devices a request touches; any GPU figure at all means at least one."""
    implied = resources.gpu_mode or resources.gpu_memory_bytes or resources.gpu_shares
    return resources.gpu_count or (1 if implied else 0)


@dataclass(slots=True)
class _Use:
    device: Device
    mode: GpuMode | None = None
    clients: dict[str, int] = field(default_factory=dict)

    def free_bytes(self) -> int:
        return self.device.memory_bytes - sum(self.clients.values())


class Gpus:
    """The devices of a node and their holders."""

    def __init__(self, devices: list[Device]) -> None:
        self._uses = {device.uuid: _Use(device) for device in devices}

    def choose(self, resources: Resources, named: list[str]) -> list[str]:
        """Return the UUIDs that a sandbox would get; those named by placement if any are.

        Whole devices take the first free ones; shared ones fill the fullest device that fits, so
        that whole devices stay free. Raises GpuRefusalError.
        """
        count = devices_asked(resources)
        if not count:
            return []
        mode = resources.gpu_mode or GpuMode.WHOLE
        unknown = [uuid for uuid in named if uuid not in self._uses]
        if unknown:
            raise GpuRefusalError(f"gpu: no device {unknown[0]} on this node")
        candidates = [self._uses[uuid] for uuid in named] if named else list(self._uses.values())
        fitting = [use for use in candidates if self._fits(use, mode, resources)]
        if len(fitting) < count:
            raise GpuRefusalError(
                f"gpu: asked {count} in mode {mode} with {self._need(resources)} bytes each, "
                f"free {len(fitting)} of {len(candidates)}"
            )
        if mode not in _EXCLUSIVE:
            fitting.sort(key=_Use.free_bytes)
        return [use.device.uuid for use in fitting[:count]]

    def take(self, sandbox_id: str, uuids: list[str], resources: Resources) -> None:
        """Book devices that `choose` returned. A device that has gone is ignored."""
        mode = resources.gpu_mode or GpuMode.WHOLE
        for uuid in uuids:
            if (use := self._uses.get(uuid)) is not None:
                use.mode = mode
                use.clients[sandbox_id] = self._booked(use, mode, resources)

    def give_back(self, sandbox_id: str) -> None:
        """Return all that a sandbox holds. Idempotent."""
        for use in self._uses.values():
            use.clients.pop(sandbox_id, None)
            if not use.clients:
                use.mode = None

    @staticmethod
    def _need(resources: Resources) -> int:
        return max(resources.gpu_memory_bytes, resources.gpu_shares * BYTES_PER_SHARE)

    def _booked(self, use: _Use, mode: GpuMode, resources: Resources) -> int:
        # without a memory figure a shared client may use all of the device, so it books all of it
        if mode in _EXCLUSIVE:
            return use.device.memory_bytes
        return self._need(resources) or use.device.memory_bytes

    def _fits(self, use: _Use, mode: GpuMode, resources: Resources) -> bool:
        if mode.value not in use.device.modes or self._need(resources) > use.device.memory_bytes:
            return False
        if mode in _EXCLUSIVE:
            return not use.clients
        return use.mode in {None, mode} and self._booked(use, mode, resources) <= use.free_bytes()
