"""From what is recorded to what placement is asked: bindings as requests. Pure."""

from collections.abc import Sequence

from dsec.journal.bindings import Binding
from dsec.placement.request import Request


def request_of(binding: Binding, avoid: Sequence[str] = ()) -> Request:
    """Return what placement is asked for a binding."""
    needs, spec = binding.needs, binding.spec
    return Request(
        id=binding.id,
        resources=spec.resources,
        isolation=spec.isolation,
        labels=tuple(sorted(needs.node_labels.items())),
        tolerations=tuple(needs.tolerations),
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
