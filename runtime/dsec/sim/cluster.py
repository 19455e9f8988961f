"""Machines and jobs of a trace as nodes and requests of placement."""

from dsec.api.sandbox import GpuMode, IsolationLevel, Resources
from dsec.placement.accelerators import Accelerator
from dsec.placement.request import Node, Request
from dsec.sim.trace import WHOLE, Job, Machine

LEAST_MEMORY = 1 << 20
CLIENTS = 1000
"""A trace knows no limit of those who share a card."""
EVERY_ISOLATION = frozenset(IsolationLevel)


def node_of(machine: Machine, prefix: str = "") -> Node:
    """Return a node that offers every isolation; the prefix changes the order of nodes."""
    name = prefix + machine.name
    cards = tuple(
        Accelerator(
            f"{name}-{card}",
            machine.model,
            machine.card_memory_bytes,
            (GpuMode.WHOLE, GpuMode.SHARES),
            CLIENTS,
        )
        for card in range(machine.gpus)
    )
    return Node(
        name,
        machine.cpu_milli,
        machine.memory_bytes,
        devices=cards,
        labels=(("gpu-type", machine.model),) if machine.gpus else (),
        isolation=EVERY_ISOLATION,
    )


def request_of(job: Job, id_: str) -> Request:
    """Return a job as a request; one that asks for no CPU or memory gets the least there is."""
    return Request(
        id_,
        Resources(
            cpu_milli=max(job.cpu_milli, 1),
            memory_bytes=max(job.memory_bytes, LEAST_MEMORY),
            gpu_count=job.gpus,
            gpu_milli=job.milli if job.milli < WHOLE else 0,
        ),
        isolation=IsolationLevel(job.isolation),
        gpu_model="|".join(job.models) if job.gpus else "",
        image=job.image,
    )


def cards_of(devices: tuple[str, ...]) -> tuple[int, ...]:
    """Return the numbers of a decision's cards."""
    return tuple(int(device.rpartition("-")[2]) for device in devices)
