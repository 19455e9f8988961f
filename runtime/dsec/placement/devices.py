"""Accelerators of a node: which are free for a request, and what is missing.

A device is given whole (whole, passthrough) or shared by clients of one mode (mps, mig, shares).
Shared clients are bounded by memory: it cannot be compressed (TEN-07).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dsec.api.sandbox import GpuMode, Resources

SHARES_PER_GIB = 10
"""GPU memory shares per GB of device memory; an 80 GB device has 800 (TEN-06). The GB of device
data sheets is the GiB that the driver reports."""
CLIENTS_PER_DEVICE = 12
"""Most clients of one shared device: past it the MPS server is the bottleneck (GPU-04, GPU-05)."""
EXCLUSIVE = frozenset({GpuMode.WHOLE, GpuMode.PASSTHROUGH})


@dataclass(slots=True)
class DeviceView:
    """One device; memory in bytes. `mode` is that of its present clients, empty when idle."""

    uuid: str
    model: str
    memory_bytes: int
    modes: frozenset[str]
    free_memory_bytes: int
    mode: str = ""
    clients: int = 0


def device_memory(asked: Resources) -> int:
    """Return the memory, in bytes, that a request takes of each shared device."""
    shares = asked.gpu_shares * (1 << 30) // SHARES_PER_GIB
    return max(shares, asked.gpu_memory_bytes)


def free_devices(devices: Sequence[DeviceView], asked: Resources) -> tuple[str, ...] | None:
    """Return the devices that a request would get, or None where there are too few."""
    if not asked.gpu_count:
        return ()
    usable = [device.uuid for device in devices if _usable(device, asked)]
    return tuple(usable[: asked.gpu_count]) if len(usable) >= asked.gpu_count else None


def claim(devices: Sequence[DeviceView], asked: Resources, uuids: Sequence[str]) -> None:
    """Book devices for a request, in place."""
    mode = asked.gpu_mode or GpuMode.WHOLE
    for device in devices:
        if device.uuid in uuids:
            device.mode = mode.value
            device.clients += 1
            taken = device.memory_bytes if mode in EXCLUSIVE else device_memory(asked)
            device.free_memory_bytes -= taken


def device_shortfall(devices: Sequence[DeviceView], asked: Resources) -> tuple[str, int, int, int]:
    """Return (dimension, asked, free, total) of the GPU part of a request on one node."""
    usable = sum(1 for device in devices if _usable(device, asked))
    memory = device_memory(asked)
    shared = (asked.gpu_mode or GpuMode.WHOLE) not in EXCLUSIVE
    if shared and memory and asked.gpu_count == 1 and devices and not usable:
        open_to_it = [d for d in devices if d.clients < CLIENTS_PER_DEVICE]
        if open_to_it:
            best = max(d.free_memory_bytes for d in open_to_it)
            if best < memory:
                return "gpu memory", memory, best, max(d.memory_bytes for d in devices)
    return "gpu", asked.gpu_count, usable, len(devices)


def _usable(device: DeviceView, asked: Resources) -> bool:
    mode = asked.gpu_mode or GpuMode.WHOLE
    if mode.value not in device.modes:
        return False
    if mode in EXCLUSIVE:
        return device.clients == 0 and device.memory_bytes >= asked.gpu_memory_bytes
    return (
        device.mode in ("", mode.value)
        and device.clients < CLIENTS_PER_DEVICE
        and device.free_memory_bytes >= device_memory(asked)
    )
