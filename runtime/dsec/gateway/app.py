"""The gateway's HTTP applications: the API (users and agents), the webhook, the metrics."""

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dsec.gateway import (
    agents,
    costs,
    draining,
    experiments,
    joining,
    proxy,
    queues,
    regions,
    sandboxes,
    snapshots,
)
from dsec.gateway.admission import Webhook, admission_route
from dsec.gateway.calls import CORRELATION, Api, correlation_of, route
from dsec.gateway.core import Gateway
from dsec.gateway.errors import ApiError

PROJECT = "/v1/projects/{project}"
EXPERIMENT = PROJECT + "/experiments/{name}"
QUEUES = EXPERIMENT + "/queues"
SANDBOX = PROJECT + "/sandboxes/{sandbox}"
SNAPSHOT = PROJECT + "/snapshots/{ref:path}"
COPIES = "/v1/replicationpolicies"

TABLE = (
    Api("GET", "/v1/whoami", sandboxes.whoami),
    Api("GET", "/v1/version", sandboxes.version),
    Api("POST", PROJECT + "/experiments", experiments.submit, "create", "experiments"),
    Api("GET", PROJECT + "/experiments", experiments.list_all, "list", "experiments"),
    Api("GET", EXPERIMENT, experiments.read, "get", "experiments"),
    Api("DELETE", EXPERIMENT, experiments.delete, "delete", "experiments"),
    Api("GET", EXPERIMENT + "/describe", experiments.describe, "get", "experiments"),
    Api("POST", EXPERIMENT + "/freeze", experiments.freeze, "update", "experiments"),
    Api("POST", EXPERIMENT + "/scale", experiments.scale, "update", "experiments"),
    Api("GET", EXPERIMENT + "/results", experiments.results, "get", "experiments"),
    Api("PUT", PROJECT + "/inputs/{sha256}", experiments.put_input, "create", "experiments"),
    Api("GET", QUEUES, queues.list_all, "get", "experiments", "queues"),
    Api("GET", QUEUES + "/{queue}", queues.read, "get", "experiments", "queues"),
    *(
        # work goes by thousands a second and is no change of what is declared: it is not audited
        Api("POST", f"{QUEUES}/{{queue}}/{verb}", handler, "update", "experiments", "queues", False)
        for verb, handler in queues.HANDLERS.items()
    ),
    Api("POST", PROJECT + "/sandboxes", sandboxes.create, "create", "sandboxes"),
    Api("GET", PROJECT + "/sandboxes", sandboxes.list_all, "list", "sandboxes"),
    Api("GET", SANDBOX, sandboxes.read, "get", "sandboxes"),
    Api("GET", SANDBOX + "/decision", sandboxes.decision, "get", "sandboxes"),
    Api("DELETE", SANDBOX, sandboxes.delete, "delete", "sandboxes"),
    Api("POST", SANDBOX + "/extend", sandboxes.extend, "update", "sandboxes"),
    Api("POST", SANDBOX + "/exec", proxy.run, "create", "sandboxes", "exec"),
    Api("GET", SANDBOX + "/logs", proxy.logs, "get", "sandboxes", "log"),
    Api("POST", SANDBOX + "/snapshot", snapshots.take, "update", "sandboxes"),
    Api("POST", SANDBOX + "/hibernate", snapshots.hibernate, "update", "sandboxes"),
    Api("POST", SANDBOX + "/wake", snapshots.wake, "update", "sandboxes"),
    Api("POST", SANDBOX + "/migrate", snapshots.migrate, "update", "sandboxes"),
    Api("GET", PROJECT + "/snapshots", snapshots.list_all, "list", "sandboxes"),
    Api("GET", SNAPSHOT + "/diff", snapshots.diff, "get", "sandboxes"),
    Api("POST", SNAPSHOT + "/verify", snapshots.check, "get", "sandboxes"),
    Api("POST", SNAPSHOT + "/restore", snapshots.restore, "create", "sandboxes"),
    Api("POST", SNAPSHOT + "/fork", snapshots.fork, "create", "sandboxes"),
    Api("POST", SNAPSHOT + "/pin", snapshots.keep, "update", "sandboxes"),
    Api("POST", SNAPSHOT + "/unpin", snapshots.let_go, "update", "sandboxes"),
    Api("GET", SNAPSHOT, snapshots.read, "get", "sandboxes"),
    Api("DELETE", SNAPSHOT, snapshots.delete, "delete", "sandboxes"),
    Api("POST", "/v1/snapshots/gc", snapshots.collect, "update", "tenants"),
    Api("POST", "/v1/nodes/{node}/drain", draining.node, "update", "sandboxnodes"),
    Api("POST", "/v1/pools/{pool}/drain", draining.pool, "update", "sandboxnodes"),
    Api("GET", "/v1/nodes", sandboxes.nodes, "list", "sandboxnodes"),
    Api("DELETE", "/v1/nodes/{node}", joining.remove, "delete", "sandboxnodes"),
    Api("GET", "/v1/decisions/dump", sandboxes.dump, "get", "sandboxnodes"),
    Api("GET", "/v1/tenants", sandboxes.tenants),
    Api("GET", "/v1/cost", costs.cost),
    Api("GET", "/v1/budgets", costs.budgets),
    Api("POST", "/v1/join-tokens", joining.create, "create", "sandboxnodes"),
    Api("GET", COPIES, regions.policies, "list", "replicationpolicies"),
    Api("POST", COPIES + "/{name}/replicate", regions.replicate, "update", "replicationpolicies"),
    Api("POST", "/v1/failover", regions.failover, "update", "replicationpolicies"),
)
"""Every call of users: method, path, handler, and the access that it needs."""

_ROUTELESS = {
    404: ("not-found", "there is nothing under this path"),
    405: ("method", "this path does not take this method"),
}


def build_app(gateway: Gateway) -> Starlette:
    """Return the API for users and agents."""

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(_: Request) -> Response:
        return JSONResponse({"ready": gateway.ready}, 200 if gateway.ready else 503)

    return Starlette(
        routes=[
            Route("/healthz", health),
            Route("/readyz", ready),
            *(route(gateway, api) for api in TABLE),
            *agents.routes(gateway),
        ],
        exception_handlers={HTTPException: _no_route(gateway)},
    )


def _no_route(gateway: Gateway) -> Callable[[Request, Exception], Response]:
    """Return what answers where no route is: an error like any other."""

    def answer(request: Request, problem: Exception) -> Response:
        status = problem.status_code if isinstance(problem, HTTPException) else 404
        correlation = correlation_of(gateway, request)
        code, message = _ROUTELESS.get(status, ("invalid", "this call cannot be served"))
        response = ApiError(status, code, message).response(correlation)
        response.headers[CORRELATION] = correlation
        return response

    return answer


def build_webhook(gateway: Gateway) -> Starlette:
    """Return the admission webhook."""
    webhook = Webhook(gateway, gateway.config.settings)
    return Starlette(routes=[admission_route(webhook)])


def build_metrics(gateway: Gateway) -> Starlette:
    """Return the scrape endpoint."""

    async def metrics(_: Request) -> Response:
        gateway.metrics.leases.set(gateway.placing.leases.valid())
        gateway.metrics.nodes.set(len(gateway.views.watches))
        await queues.measure(gateway)
        return Response(gateway.metrics.text(), media_type="text/plain; version=0.0.4")

    return Starlette(routes=[Route("/metrics", metrics)])
