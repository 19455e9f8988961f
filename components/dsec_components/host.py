"""The dsec plugin: the components for any Pulumi language, and the deletion guard.

The SDK's component host serves components only. The guard is the one resource of this package that
must act while no program runs (`pulumi destroy`), so this host answers its life cycle as well.
"""

import argparse
import asyncio
import sys
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pulumi
from dsec.api.config import Deletion
from google.protobuf import empty_pb2
from pulumi.provider.experimental.component import ComponentProvider
from pulumi.provider.server import ComponentInitError, ProviderServicer
from pulumi.runtime import proto, rpc
from pulumi.runtime.proto import provider_pb2_grpc

from dsec_components.budget import Budget
from dsec_components.common import PACKAGE
from dsec_components.experiment import Experiment
from dsec_components.guard import KubernetesCluster, RefusedError, check
from dsec_components.node_pool import CloudBurstNodePool, OnPremNodePool
from dsec_components.platform import Platform
from dsec_components.registry import ImageRegistry
from dsec_components.runtime import Runtime
from dsec_components.snapshot_store import SnapshotStore
from dsec_components.tenant import Tenant

COMPONENTS = [
    Runtime,
    OnPremNodePool,
    CloudBurstNodePool,
    Tenant,
    Budget,
    ImageRegistry,
    SnapshotStore,
    Experiment,
    Platform,
]
VERSION = "0.1.0"


def component_provider() -> ComponentProvider:
    """Return the provider; its schema is inferred from the components."""
    return ComponentProvider(COMPONENTS, PACKAGE, version=VERSION)


class DsecServicer(ProviderServicer):
    """Answers for the components as the SDK does, and for DeletionGuard."""

    def __init__(
        self,
        provider: ComponentProvider,
        args: list[str],
        engine_address: str,
        guard: Callable[[str, Deletion, str], list[str]] | None = None,
    ) -> None:
        """`guard` is what runs at deletion: kubeconfig, mode, stack; it raises RefusedError."""
        super().__init__(provider, args, engine_address)
        self._guard = guard or _guard

    async def _construct(self, request: Any, context: Any) -> Any:
        """Construct a component; wrong inputs stay what they are, a list of mistakes.

        The SDK wraps what a constructor raises, and would show a traceback in place of the list.
        """
        try:
            return await super()._construct(request, context)
        except ComponentInitError as error:
            if isinstance(error.inner, pulumi.InputPropertiesError):
                raise error.inner from None
            raise

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002 - gRPC names
        """Accept the inputs: the component made them."""
        return proto.CheckResponse(inputs=request.news)

    async def Diff(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002 - gRPC names
        """Any change is an update in place: nothing outside depends on the guard."""
        same = request.old_inputs == request.news
        changes = proto.DiffResponse.DIFF_NONE if same else proto.DiffResponse.DIFF_SOME
        return proto.DiffResponse(changes=changes)

    async def Create(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002 - gRPC names
        """Record the inputs; there is nothing to make."""
        return proto.CreateResponse(id=str(uuid.uuid4()), properties=request.properties)

    async def Read(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002 - gRPC names
        """Return what is recorded: the guard has no state outside."""
        return proto.ReadResponse(
            id=request.id, properties=request.properties, inputs=request.inputs
        )

    async def Update(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002 - gRPC names
        """Record the new inputs."""
        return proto.UpdateResponse(properties=request.news)

    async def Delete(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC names
        """Check whether destroy may go on; a refusal is a sentence, not a traceback."""
        values: dict[str, Any] = {
            key: rpc.unwrap_rpc_secret(value)
            for key, value in rpc.deserialize_properties(request.properties).items()
        }
        abort: Callable[..., Awaitable[None]] = context.abort
        try:
            remarks = await asyncio.to_thread(
                self._guard,
                values["kubeconfig"],
                Deletion(values["deletion"]),
                values["stackLabel"],
            )
        except RefusedError as error:
            await abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            raise
        for remark in remarks:
            sys.stderr.write(f"{remark}\n")
        return empty_pb2.Empty()


def _guard(kubeconfig: str, deletion: Deletion, stack: str) -> list[str]:
    return check(KubernetesCluster(kubeconfig), deletion, stack)


def main(arguments: list[str] | None = None) -> None:
    """Serve until the engine ends this process; the first line printed is the port."""
    parser = argparse.ArgumentParser(description="The dsec Pulumi plugin; started by the engine.")
    parser.add_argument("engine", help="address of the engine, host:port")
    known, _ = parser.parse_known_args(arguments)
    provider = component_provider()

    async def serve() -> None:
        server = grpc.aio.server()
        servicer = DsecServicer(provider, sys.argv[1:], known.engine)
        provider_pb2_grpc.add_ResourceProviderServicer_to_server(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        sys.stdout.write(f"{port}\n")
        sys.stdout.flush()
        await server.wait_for_termination()

    try:
        asyncio.run(serve())
    except KeyboardInterrupt:
        sys.exit(0)
