"""A recording engine: runs a program against mocks, in preview or in update mode."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pulumi
import pulumi_kubernetes as k8s
import pytest
from pulumi.runtime import rpc
from pulumi.runtime.mocks import MockCallArgs, MockResourceArgs, Mocks


@dataclass
class Registered:
    """One registration as the engine would see it; secrets are envelopes in `inputs`."""

    typ: str
    name: str
    inputs: dict[str, Any]
    provider: str = ""

    @property
    def kubernetes(self) -> bool:
        """True for objects of a cluster."""
        return self.typ.startswith("kubernetes:")


@dataclass
class Recorder(Mocks):
    """Remembers every registration and answers like a cluster that accepts everything."""

    resources: list[Registered] = field(default_factory=list)

    def new_resource(self, args: MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        """Record, and return the inputs with what a server would add."""
        self.resources.append(
            Registered(args.typ, args.name, dict(args.inputs), args.provider or "")
        )
        state = dict(args.inputs)
        if args.typ == "pulumi:index:Stash":
            state["output"] = state["input"]
        if args.typ == "kubernetes:core/v1:Service":
            state["spec"] = {**state["spec"], "clusterIP": "10.96.0.10"}
        if args.typ.startswith("aws:") and not pulumi.runtime.is_dry_run():
            state["arn"] = f"arn:aws:test:::{args.name}"
        return f"{args.name}-id", state

    def call(self, args: MockCallArgs) -> tuple[dict[str, Any], None]:
        """No component calls a function."""
        raise AssertionError(args.token)

    def of(self, typ: str) -> list[Registered]:
        """Return the registrations whose type ends so."""
        return [one for one in self.resources if one.typ.endswith(typ)]

    def named(self, name: str) -> Registered:
        """Return the one registration of that name."""
        (found,) = [one for one in self.resources if one.name == name]
        return found


Run = Callable[..., Recorder]


@pytest.fixture(params=[True, False], ids=["preview", "up"])
def mode(request: pytest.FixtureRequest) -> bool:
    """Both modes of the engine: unknown outputs, and missing ones that are None."""
    return bool(request.param)


@pytest.fixture
def run() -> Run:
    """Return a function that runs a program (which gets options with a provider)."""

    def go(program: Callable[[pulumi.ResourceOptions], Any], *, preview: bool = False) -> Recorder:
        recorder = Recorder()
        # other tests of this process may have ended the loop that the SDK would look for
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        pulumi.runtime.set_mocks(recorder, project="dsec", stack="test", preview=preview)

        @pulumi.runtime.test
        def inside() -> None:
            provider = k8s.Provider("cluster", kubeconfig="{}", cluster_identifier="test")
            program(pulumi.ResourceOptions(provider=provider))

        try:
            inside()
        finally:
            loop.close()
            asyncio.set_event_loop(None)
        return recorder

    return go


def plain(value: Any) -> Any:
    """Return a value without its secret envelopes."""
    if rpc.is_rpc_secret(value):
        return plain(rpc.unwrap_rpc_secret(value))
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return value


def is_secret(value: Any) -> bool:
    """Say whether the engine would keep the value encrypted."""
    return bool(rpc.is_rpc_secret(value))
