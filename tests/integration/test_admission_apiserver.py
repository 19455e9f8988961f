"""Admission against a real API server: red lines that it holds itself, and the webhook over TLS."""

import base64
import datetime as dt
import ipaddress
import json
import threading
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import yaml
from cluster import ApiServer
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from dsec.api.crds import definitions
from dsec.api.tenant import TenantSpec
from dsec.gateway.admission import Webhook, admission_route
from ports import free_ports
from starlette.applications import Starlette

pytestmark = pytest.mark.cluster

TENANTS = {
    "lab": TenantSpec.model_validate({"projects": ["gait"], "registries": ["registry.example/"]})
}


def experiment(name: str, namespace: str = "gait", **role: Any) -> dict[str, Any]:
    """Return an Experiment with one role."""
    base = {
        "name": "sim",
        "image": "registry.example/sim:1",
        "resources": {"cpuMilli": 1000, "memoryBytes": 1 << 30},
    }
    return {
        "apiVersion": "dsec.dev/v1alpha1",
        "kind": "Experiment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"roles": [base | role]},
    }


def pod(namespace: str, **spec: Any) -> dict[str, Any]:
    """Return a Pod."""
    base = {"containers": [{"name": "c", "image": "i"}], "automountServiceAccountToken": False}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": namespace},
        "spec": base | spec,
    }


@pytest.fixture(scope="module")
def api(apiserver: ApiServer) -> ApiServer:
    """Return an API server with the CRDs, the policies, and two namespaces, one of a tenant."""
    assert apiserver.apply(*definitions()).returncode == 0
    names = [f"crd/{one['metadata']['name']}" for one in definitions()]
    apiserver.kubectl("wait", "--for=condition=Established", "--timeout=60s", *names)
    labels = {"dsec.dev/tenant": "lab", "dsec.dev/project": "gait"}
    for name, label in (("gait", labels), ("plain", {})):
        record = {"apiVersion": "v1", "kind": "Namespace"}
        done = apiserver.apply(record | {"metadata": {"name": name, "labels": label}})
        assert done.returncode == 0, done.stderr
    folder = resources.files("dsec.api") / "admission"
    for entry in folder.iterdir():
        done = apiserver.apply(*yaml.safe_load_all(entry.read_text()))
        assert done.returncode == 0, done.stderr
    wait_until_refused(apiserver, pod("gait", hostPID=True))
    return apiserver


def wait_until_refused(api: ApiServer, record: dict[str, Any]) -> None:
    """Policies take effect some moments after they are stored."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        text = json.dumps(record)
        done = api.kubectl("create", "--dry-run=server", "-f", "-", stdin=text, check=False)
        if done.returncode != 0:
            return
        time.sleep(0.2)
    pytest.fail("the policies never took effect")


def test_policies_have_no_type_mistakes(api: ApiServer) -> None:
    """The server's own check of the expressions finds nothing."""
    listed = json.loads(api.kubectl("get", "validatingadmissionpolicies", "-o", "json").stdout)
    assert len(listed["items"]) == 3
    for one in listed["items"]:
        assert not one.get("status", {}).get("typeChecking", {}).get("expressionWarnings")


def test_a_privileged_experiment_is_refused_without_any_webhook(api: ApiServer) -> None:
    """Resource, rule and remedy, from the API server alone."""
    done = api.apply(experiment("bad", privileged=True))
    assert done.returncode != 0
    assert "The Experiment bad must not run privileged (rule privileged)" in done.stderr
    assert "isolationLevel microvm" in done.stderr
    assert api.apply(experiment("good", privileged=False)).returncode == 0


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"hostPID": True}, "Remove hostPID"),
        ({"hostNetwork": True}, "Remove hostPID"),
        (
            {"containers": [{"name": "c", "image": "i", "securityContext": {"privileged": True}}]},
            "must not run privileged",
        ),
        (
            {
                "initContainers": [
                    {"name": "i", "image": "i", "securityContext": {"privileged": True}}
                ]
            },
            "must not run privileged",
        ),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}, "hostPath volume"),
    ],
)
def test_pods_of_projects_do_not_hold_the_node(
    api: ApiServer, spec: dict[str, Any], words: str
) -> None:
    """In a project's namespace; elsewhere it is not our business."""
    refused = api.apply(pod("gait", **spec))
    assert refused.returncode != 0
    assert words in refused.stderr
    text = json.dumps(pod("plain", **spec))
    assert api.kubectl("create", "--dry-run=server", "-f", "-", stdin=text).returncode == 0


def test_an_ordinary_pod_may_run(api: ApiServer) -> None:
    """Red lines, not a ban."""
    text = json.dumps(pod("gait"))
    assert api.kubectl("create", "--dry-run=server", "-f", "-", stdin=text).returncode == 0


def test_only_who_may_write_tenants_labels_namespaces(api: ApiServer) -> None:
    """A user who may edit namespaces, and nothing of dsec, cannot take one over."""
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "namespaces"},
        "rules": [{"apiGroups": [""], "resources": ["namespaces"], "verbs": ["*"]}],
    }
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "namespaces"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "namespaces",
        },
        "subjects": [{"kind": "User", "name": "ann", "apiGroup": "rbac.authorization.k8s.io"}],
    }
    assert api.apply(role, binding).returncode == 0
    as_ann = ("--as=ann", "label", "namespace", "--overwrite")
    taken = api.kubectl(*as_ann, "plain", "dsec.dev/tenant=ann", check=False)
    assert "must be written by the Tenant controller alone" in taken.stderr
    moved = api.kubectl(*as_ann, "gait", "dsec.dev/tenant=ann", check=False)
    assert moved.returncode != 0
    removed = api.kubectl(*as_ann, "gait", "dsec.dev/tenant-", check=False)
    assert removed.returncode != 0
    assert api.kubectl(*as_ann, "plain", "team=a").returncode == 0
    assert api.kubectl("label", "namespace", "plain", "dsec.dev/tenant=lab").returncode == 0
    assert api.kubectl("label", "namespace", "plain", "dsec.dev/tenant-").returncode == 0


class _Fixed:
    """Tenants that do not change."""

    def tenants(self) -> dict[str, TenantSpec]:
        """Return them."""
        return TENANTS


def certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate for 127.0.0.1 that is its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "webhook")])
    now = dt.datetime.now(dt.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "tls.crt", folder / "tls.key"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths


@pytest.fixture
def webhook(api: ApiServer, tmp_path: Path) -> Iterator[ApiServer]:
    """Serve the route on loopback and register it, with failurePolicy Fail."""
    crt, key = certificate(tmp_path)
    port = free_ports(1)[0]
    app = Starlette(routes=[admission_route(Webhook(_Fixed()))])
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            host="127.0.0.1",
            port=port,
            ssl_certfile=str(crt),
            ssl_keyfile=str(key),
            log_level="error",
        )
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    configuration = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "dsec-records"},
        "webhooks": [
            {
                "name": "records.dsec.dev",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Fail",
                "clientConfig": {
                    "url": f"https://127.0.0.1:{port}/admission",
                    "caBundle": base64.b64encode(crt.read_bytes()).decode(),
                },
                "rules": [
                    {
                        "apiGroups": ["dsec.dev"],
                        "apiVersions": ["*"],
                        "resources": ["experiments", "tenants"],
                        "operations": ["CREATE", "UPDATE"],
                    }
                ],
            }
        ],
    }
    assert api.apply(configuration).returncode == 0
    wait_until_refused(api, experiment("probe", resources={}))
    yield api
    api.kubectl("delete", "validatingwebhookconfiguration", "dsec-records")
    server.should_exit = True
    thread.join(20)


def test_the_webhook_refuses_with_every_error(webhook: ApiServer) -> None:
    """Kubectl shows resource, rule, path and remedy of each; warnings come with what is allowed."""
    bad = experiment("bad", resources={}, image="evil.example/a:1", min=3, replicas=3, max=3)
    bad["spec"]["network"] = {"egress": "open"}
    done = webhook.apply(bad)
    assert done.returncode != 0
    for words in (
        "spec.roles[0].resources.cpuMilli: The Experiment bad must declare hard ceilings",
        "spec.roles[0].resources.memoryBytes",
        "spec.roles[0].image: The Experiment bad must stay within the tenant",
        "spec.network.egress",
        "(rule limits)",
        "Set resources.cpuMilli",
    ):
        assert words in done.stderr, done.stderr
    warned = webhook.apply(experiment("warned", image="registry.example/sim:latest"))
    assert warned.returncode == 0
    assert "moves with the registry" in warned.stderr


def test_the_webhook_guards_namespaces_and_tenants(webhook: ApiServer) -> None:
    """A namespace without tenant runs nothing, and a project has one tenant."""
    stray = webhook.apply(experiment("stray", namespace="plain"))
    assert "namespace plain belongs to no tenant" in stray.stderr
    thief = {
        "apiVersion": "dsec.dev/v1alpha1",
        "kind": "Tenant",
        "metadata": {"name": "thief"},
        "spec": {"projects": ["gait"]},
    }
    assert "project gait belongs to tenant lab" in webhook.apply(thief).stderr
