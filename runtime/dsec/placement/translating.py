"""From what is recorded to what placement is asked: bindings as requests. Pure."""

from collections.abc import Sequence

from dsec.api.experiment import TaskClass
from dsec.journal.bindings import Binding, Needs
from dsec.placement.request import SPOT_TAINT, Request


def request_of(binding: Binding, avoid: Sequence[str] = ()) -> Request:
    """Return what placement is asked for a binding."""
    needs, spec = binding.needs, binding.spec
    return Request(
        id=binding.id,
        resources=spec.resources,
        isolation=spec.isolation,
        labels=tuple(sorted(needs.node_labels.items())),
        tolerations=_tolerations(needs),
        pools=tuple(needs.pools),
        gpu_model=needs.gpu_model,
        gang=binding.gang,
        simulated=needs.simulated,
        features=tuple(needs.features),
        avoid=tuple(sorted(set(avoid))),
        tenant=binding.tenant,
        queue=needs.queue,
        stage=needs.stage,
        priority=binding.priority,
        task_class=needs.task_class,
        image=spec.image,
        datasets=tuple(needs.datasets),
        near=needs.near,
        spread=needs.spread,
        exclusive_cpus=spec.exclusive_cpus,
    )


def _tolerations(needs: Needs) -> tuple[str, ...]:
    """Return what is declared; work that may be interrupted goes on spot nodes as well."""
    if needs.task_class is TaskClass.GUARANTEED or SPOT_TAINT in needs.tolerations:
        return tuple(needs.tolerations)
    return (*needs.tolerations, SPOT_TAINT)
