"""What must hold for every component, in preview and in update mode."""

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulumi
import pytest
from conftest import Run, is_secret, plain
from dsec.agent.config import load
from dsec.api.config import Deletion, Exposure
from dsec.api.nodes import AgentSettings
from dsec_components.budget import Budget
from dsec_components.experiment import Experiment
from dsec_components.host import COMPONENTS
from dsec_components.node_pool import CloudBurstNodePool, OnPremNodePool
from dsec_components.platform import Platform
from dsec_components.registry import ImageRegistry
from dsec_components.runtime import Runtime
from dsec_components.snapshot_store import SnapshotStore
from dsec_components.tenant import Tenant

ROOT = Path(__file__).parents[2]
IMAGES = {"runtime": "registry/dsec:1", "agent": "registry/agent:1"}
SPEC = {
    "roles": [
        {"name": "w", "image": "i:1", "resources": {"cpu_milli": 100, "memory_bytes": 1 << 26}}
    ]
}
BURST = {
    "supplier": "simulated",
    "max_nodes": 4,
    "max_cost_per_hour": "12.50",
    "offerings": [
        {
            "instance_type": "m7i.8xlarge",
            "markets": ["spot", "on-demand"],
            "cpu_milli": 32_000,
            "memory_bytes": 128 << 30,
        }
    ],
}
MONTH = {"limit": "500", "currency": "EUR", "period": {"every": "month"}}
ARGS: dict[type[pulumi.ComponentResource], Callable[[str], dict[str, Any]]] = {
    Runtime: lambda _: {
        "images": IMAGES,
        "object_store": {"endpoint": "http://s3:1", "access_key": "ak-id", "secret_key": "sk-val"},
    },
    OnPremNodePool: lambda _: {"spec": {"kind": "cpu", "labels": {"region": "r"}}},
    CloudBurstNodePool: lambda _: {"spec": {"kind": "cpu", "scaling": BURST}},
    Budget: lambda _: {"project": "demo", "spec": MONTH},
    Tenant: lambda n: {
        "spec": {"projects": [f"{n}-a", f"{n}-b"], "quota": {"nominal": {"cpu_milli": 4000}}},
        "editors": ["ada", "group:team"],
    },
    ImageRegistry: lambda _: {"host": "r:5000", "mirrors": [{"prefix": "a/", "mirror": "b/"}]},
    SnapshotStore: lambda n: {
        "home": {"region": "eu-1", "bucket": f"{n}-eu"},
        "copies": [{"region": "us-1", "bucket": f"{n}-us"}],
        # a cluster has one policy of a name
        "replication": {f"{n}-daily": {}},
    },
    Experiment: lambda _: {"project": "demo", "spec": SPEC},
    Platform: lambda _: {
        "images": IMAGES,
        "kubeconfig": "apiVersion: v1",
        "registry": {"host": "r:5000"},
        "pools": {"cpu": {}, "burst": {"scaling": BURST}},
        "tenants": {"demo": {"projects": ["demo"]}},
        "budgets": {
            "month": {"project": "demo", "spec": MONTH},
            "burst": {"spec": MONTH | {"scope": "pool", "target": "burst"}},
        },
        "prometheus": {"enabled": True, "image": "registry/prometheus:1"},
        "experiments": {"one": {"project": "demo", "spec": SPEC}},
    },
}


def make(kind: Any, name: str, opts: pulumi.ResourceOptions, **extra: Any) -> Any:
    """Create a component with its usual arguments and some others."""
    return kind(name, {**ARGS[kind](name), **extra}, opts)


def test_every_component_is_tried() -> None:
    """A component that is hosted is in the table above."""
    assert set(COMPONENTS) == set(ARGS)


@pytest.mark.parametrize("kind", COMPONENTS)
def test_two_instances_share_no_name_and_children_carry_their_parents(
    kind: type[pulumi.ComponentResource], mode: bool, run: Run
) -> None:
    """No duplicate URN; a renamed component renames its children."""
    made = run(lambda opts: (make(kind, "first", opts), make(kind, "second", opts)), preview=mode)
    seen = [(one.typ, one.name) for one in made.resources]
    assert len(seen) == len(set(seen))
    strangers = [name for _, name in seen if not name.startswith(("first", "second", "cluster"))]
    assert strangers == []


@pytest.mark.parametrize("kind", COMPONENTS)
def test_preview_shows_what_update_makes(kind: type[pulumi.ComponentResource], run: Run) -> None:
    """No resource hangs on a value that only an update knows."""
    names = [
        {(one.typ, one.name) for one in run(lambda o: make(kind, "one", o), preview=how).resources}
        for how in (True, False)
    ]
    assert names[0] == names[1]


@pytest.mark.parametrize("kind", COMPONENTS)
def test_labels_and_field_manager_reach_every_object(
    kind: type[pulumi.ComponentResource], run: Run
) -> None:
    """The user's labels, the recommended ones and the stack's are on each object."""
    made = run(lambda opts: make(kind, "one", opts, labels={"team": "x"}))
    objects = [one for one in made.resources if one.kubernetes]
    assert objects
    for one in objects:
        metadata = plain(one.inputs["metadata"])
        assert metadata["labels"]["team"] == "x", one.name
        assert metadata["labels"]["app.kubernetes.io/part-of"] == "dsec", one.name
        assert metadata["labels"]["dsec.dev/stack"] == "dsec.test", one.name
        assert metadata["annotations"]["pulumi.com/patchFieldManager"] == "dsec-stack", one.name
        assert "status" not in one.inputs, one.name


@pytest.mark.parametrize("kind", COMPONENTS)
def test_a_provider_is_asked_for(kind: type[pulumi.ComponentResource], run: Run) -> None:
    """The default provider follows whatever context kubectl points at."""
    with pytest.raises(pulumi.RunError, match="explicit Kubernetes provider"):
        run(lambda _: make(kind, "one", pulumi.ResourceOptions()))


@pytest.mark.parametrize("kind", COMPONENTS)
def test_objects_use_the_given_provider(kind: type[pulumi.ComponentResource], run: Run) -> None:
    """No child builds or finds a provider of its own."""
    made = run(lambda opts: make(kind, "one", opts))
    for one in made.resources:
        if one.kubernetes:
            assert "::cluster::" in one.provider, one.name


@pytest.mark.parametrize("kind", [Runtime, Platform])
def test_secrets_stay_secret(kind: type[pulumi.ComponentResource], mode: bool, run: Run) -> None:
    """Keys are secret in every input that holds them, also where they were given plain."""
    store = {"access_key": "ak-id", "secret_key": "sk-val"}
    made = run(lambda opts: make(kind, "one", opts, object_store=store), preview=mode)
    secrets = made.of("core/v1:Secret")
    assert {one.inputs["metadata"]["name"] for one in secrets} >= {
        "dsec-ca",
        "dsec-internal",
        "dsec-object-store",
        "dsec-gateway-tls",
        "dsec-snapshot-keys",
    }
    for one in secrets:
        for key, value in one.inputs["data"].items():
            assert is_secret(value) or is_secret(one.inputs["data"]), f"{one.name}.{key}"
    for one in made.resources:
        assert "sk-val" not in json.dumps(_shown(one.inputs)), one.name


def _shown(value: Any) -> Any:
    """Return what the state shows in clear text."""
    if is_secret(value):
        return "[secret]"
    if isinstance(value, dict):
        return {key: _shown(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_shown(one) for one in value]
    return value


def test_no_component_module_postpones_annotations_or_creates_resources_in_apply() -> None:
    """Two traps of the SDK: string annotations break the schema, apply hides from preview."""
    for path in (ROOT / "components").rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                assert node.module != "__future__", path
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "apply":
                inner = {
                    name
                    for part in ast.walk(node)
                    if part is not node
                    and isinstance(part, ast.Call)
                    and (name := ast.unparse(part.func)).startswith(("k8s.", "pulumi.Res"))
                }
                assert inner == set(), f"{path}: {inner}"


def test_runtime_orders_its_parts(run: Run) -> None:
    """Deployments follow the profile; agents know the gateway's address and hold no secret."""
    made = run(lambda opts: make(Runtime, "rt", opts, profile="production"))
    replicas = {
        one.inputs["metadata"]["name"]: one.inputs["spec"]["replicas"]
        for one in made.of("apps/v1:Deployment")
    }
    assert replicas == {"dsec-gateway": 3, "dsec-controller": 2}
    (agents,) = made.of("apps/v1:DaemonSet")
    pod = plain(agents.inputs)["spec"]["template"]["spec"]
    assert pod["hostPID"] is True
    assert pod["hostNetwork"] is True
    assert pod["automountServiceAccountToken"] is False
    assert pod["hostAliases"] == [
        {"ip": "10.96.0.10", "hostnames": ["dsec-gateway.dsec-system.svc"]}
    ]
    mounts = {one["name"]: one for one in pod["containers"][0]["volumeMounts"]}
    assert mounts["state"]["mountPropagation"] == "Bidirectional"
    projected = pod["volumes"][0]["projected"]["sources"]
    secrets = [one["secret"] for one in projected if "secret" in one]
    assert [[item["key"] for item in one["items"]] for one in secrets] == [["ca.crt"]]


def test_each_pool_has_its_agents_and_its_nodes_carry_its_labels(run: Run) -> None:
    """IAC-01; a single pool keeps the plain name."""
    pools = {
        "a": {"node_selector": {"kind": "a"}, "labels": {"gpu-type": "a100", "region": "r"}},
        "b": {"node_selector": {"kind": "b"}},
    }
    made = run(lambda opts: make(Runtime, "rt", opts, pools=pools))
    found = {}
    for one in made.of("apps/v1:DaemonSet"):
        pod = plain(one.inputs)["spec"]["template"]["spec"]
        told = {item["name"]: item.get("value") for item in pod["containers"][0]["env"]}
        found[one.inputs["metadata"]["name"]] = (
            pod["nodeSelector"],
            told["DSEC_AGENT_POOL"],
            told["DSEC_AGENT_LABELS"],
        )
    assert found == {
        "dsec-agent-a": ({"kind": "a"}, "a", "gpu-type=a100,region=r"),
        "dsec-agent-b": ({"kind": "b"}, "b", ""),
    }
    alone = run(lambda opts: make(Runtime, "rt", opts, pools={"a": pools["a"]}))
    assert [one.inputs["metadata"]["name"] for one in alone.of("apps/v1:DaemonSet")] == [
        "dsec-agent"
    ]


def test_the_agents_of_a_pool_get_its_settings(run: Run) -> None:
    """Every field of AgentSettings reaches the agent, and the agent takes it."""
    given = {
        "heartbeat_seconds": 5,
        "max_sandboxes": 400,
        "reserved_cpu_milli": 500,
        "reserved_memory_bytes": 17_179_869_184,
        "start_deadline_seconds": 90,
    }
    assert set(given) == set(AgentSettings.model_fields)
    pools = {"a": {"agent": given}}
    (agents,) = run(lambda opts: make(Runtime, "rt", opts, pools=pools)).of("apps/v1:DaemonSet")
    pod = plain(agents.inputs)["spec"]["template"]["spec"]
    told = {item["name"]: item.get("value") for item in pod["containers"][0]["env"]}
    told |= {"DSEC_AGENT_NODE_NAME": "n", "DSEC_AGENT_LISTEN": "10.0.0.1:7443"}
    scraped = plain(agents.inputs)["spec"]["template"]["metadata"]["annotations"]
    address = f"$(NODE_IP):{scraped['prometheus.io/port']}"
    assert told.pop("DSEC_AGENT_METRICS_LISTEN") == address
    config = load({}, {name: value for name, value in told.items() if value})
    assert config.sandbox_heartbeat_seconds == 5
    assert config.max_sandboxes == 400
    assert config.reserved_cpu_milli == 500
    assert config.reserved_memory_bytes == 17_179_869_184
    assert config.start_deadline_seconds == 90


def test_a_platform_hands_its_pools_on(run: Run) -> None:
    """The agents of a platform know their pool."""
    made = run(lambda opts: make(Platform, "dsec", opts))
    (agents,) = made.of("apps/v1:DaemonSet")
    pod = plain(agents.inputs)["spec"]["template"]["spec"]
    told = {item["name"]: item.get("value") for item in pod["containers"][0]["env"]}
    assert told["DSEC_AGENT_POOL"] == "cpu"


@pytest.mark.parametrize("other", [{}, {"node_selector": {"kind": "a"}}])
def test_pools_that_share_a_node_are_refused(other: dict[str, Any], run: Run) -> None:
    """Two agents on one node would fight for its port."""
    pools = {"a": {"node_selector": {"kind": "a"}}, "b": other}
    with pytest.raises(pulumi.InputPropertyError) as error:
        run(lambda opts: make(Runtime, "rt", opts, pools=pools))
    assert error.value.property_path == "pools.b.nodeSelector"
    assert "pool a" in error.value.reason


def test_a_changed_profile_changes_deployed_values(run: Run) -> None:
    """IAC-12: one preset, every figure."""
    counts = []
    for profile in ("local", "small", "production"):
        made = run(lambda opts, p=profile: make(Runtime, "rt", opts, profile=p))
        counts.append({one.name: one.inputs["spec"]["replicas"] for one in made.of(":Deployment")})
    gateway, controller = "rt-gateway-deployment", "rt-controller-deployment"
    assert counts == [
        {gateway: 1, controller: 1},
        {gateway: 2, controller: 2},
        {gateway: 3, controller: 2},
    ]


def test_the_webhook_trusts_the_installations_authority(run: Run) -> None:
    """The bundle is the CA, and namespaces of the control plane are exempt."""
    import base64

    made = run(lambda opts: make(Runtime, "rt", opts))
    (hook,) = made.of("ValidatingWebhookConfiguration")
    (rule,) = plain(hook.inputs)["webhooks"]
    bundle = base64.b64decode(rule["clientConfig"]["caBundle"]).decode()
    assert bundle.startswith("-----BEGIN CERTIFICATE-----")
    assert rule["failurePolicy"] == "Fail"
    (expression,) = rule["namespaceSelector"]["matchExpressions"]
    assert expression["values"] == ["kube-system", "dsec-system"]


def test_definitions_are_kept_unless_purged(run: Run) -> None:
    """Every kind is defined, whatever the deletion mode."""
    for deletion in Deletion:
        made = run(lambda opts, d=deletion: make(Runtime, "rt", opts, deletion=d))
        names = {one.inputs["metadata"]["name"] for one in made.of("CustomResourceDefinition")}
        assert names == {
            f"{plural}.dsec.dev"
            for plural in (
                "experiments",
                "tenants",
                "sandboxnodepools",
                "sandboxnodes",
                "sandboximages",
                "budgets",
                "replicationpolicies",
            )
        }


def test_a_node_port_gives_clients_an_address(run: Run) -> None:
    """The URL names the host and the port that clients can reach, and the certificate too."""
    gateway = {"exposure": Exposure.NODE_PORT, "node_port": 30443, "host": "10.0.0.1"}
    urls: list[str] = []

    def program(opts: pulumi.ResourceOptions) -> None:
        made = make(Runtime, "rt", opts, gateway=gateway)
        made.gateway_url.apply(urls.append)

    made = run(program)
    assert urls == ["https://10.0.0.1:30443"]
    service = made.named("rt-gateway-service").inputs["spec"]
    assert service["type"] == "NodePort"
    assert service["ports"][0]["nodePort"] == 30443


def test_an_agentless_installation_waits_for_nothing(run: Run) -> None:
    """Where no kubelet runs, no pod can become ready and no webhook can answer."""
    made = run(lambda opts: make(Runtime, "rt", opts, await_ready=False))
    assert made.of("ValidatingWebhookConfiguration") == []
    for one in [*made.of("apps/v1:Deployment"), *made.of("apps/v1:DaemonSet")]:
        assert plain(one.inputs["metadata"])["annotations"]["pulumi.com/skipAwait"] == "true"
