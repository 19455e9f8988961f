"""What programs ask for from inside their sandboxes: work from queues, and a count of their role.

The agent of a node makes these calls with the node's certificate and names the sandbox. What that
is worth is looked up in the bind log: the copy on that very node must be the one that counts, and
the call reaches the queues of its own experiment and its own role only.
"""

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dsec.api.base import WireModel
from dsec.api.experiment import MAX_REPLICAS
from dsec.api.records import Experiment
from dsec.api.sandbox import Identity
from dsec.api.status import Override
from dsec.gateway import queues
from dsec.gateway.calls import read_model
from dsec.gateway.core import Gateway
from dsec.gateway.errors import ApiError, not_found
from dsec.gateway.overrides import override, requested, scaled
from dsec.gateway.standing import calling_node
from dsec.scaling.replicas.requests import own_request
from dsec.world.tls import peer_of

SCALE_BYTES = 4096


class OwnScale(WireModel):
    """The count that a task wants of its role; a role that is named must be its own."""

    replicas: int = Field(ge=0, le=MAX_REPLICAS)
    role: str = ""


async def queue(gateway: Gateway, request: Request) -> Response:
    """Work with a queue of the sandbox's own experiment."""
    identity = await _caller(gateway, request)
    desk = queues.Desk(
        gateway,
        request,
        identity.project,
        identity.experiment_uid,
        request.path_params["queue"],
        identity.id,
    )
    verb = request.path_params.get("verb")
    if verb is None:
        return await queues.status(desk)
    if verb not in queues.ACTS:
        raise not_found(f"{verb} of a queue; there are {', '.join(queues.ACTS)}")
    return await queues.ACTS[verb](desk)


async def scale(gateway: Gateway, request: Request) -> Response:
    """Take down what count the sandbox's task wants; an elastic role's scaler decides on it."""
    identity = await _caller(gateway, request)
    asked = await read_model(request, OwnScale, SCALE_BYTES)
    try:
        count = own_request(
            identity,
            project=identity.project,
            experiment=identity.experiment,
            role=asked.role or identity.role,
            count=asked.replicas,
        )
    except ValueError as problem:
        raise ApiError(403, "denied", str(problem)) from None
    elastic = False

    def change(experiment: Experiment) -> list[Override]:
        nonlocal elastic
        resolved = experiment.status.resolved
        roles = (resolved.spec if resolved else experiment.spec).roles
        elastic = any(one.name == identity.role and one.elastic is not None for one in roles)
        way = requested if elastic else scaled
        return way(experiment, identity.role, count, by=identity.id, at=gateway.clock.now())

    await override(gateway, identity.project, identity.experiment, change)
    return JSONResponse({"role": identity.role, "replicas": count, "scalerDecides": elastic})


async def _caller(gateway: Gateway, request: Request) -> Identity:
    """Return the sandbox that a call is made for. Raises ApiError 401, 403, 409."""
    node = await calling_node(gateway, peer_of(request.scope))
    sandbox = request.path_params["sandbox"]
    state = (await gateway.views.fresh_log()).state
    if not state.effective(sandbox, node):
        state = (await gateway.views.fresh_log(newest=True)).state
    binding = state.by_id.get(sandbox)
    if binding is None or binding.node != node:
        raise ApiError(403, "denied", f"{sandbox[:64]} is no sandbox of {node}")
    if not binding.live:
        raise ApiError(409, "fenced", f"{sandbox} has ended: it can do nothing any more")
    identity = binding.spec.identity
    if not identity.experiment_uid:
        raise ApiError(409, "no-experiment", f"{sandbox} belongs to no experiment")
    return identity
