"""The parts of a local cluster, as data: programs, arguments, order and readiness."""

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path

from dsec.local.cluster_config import SERVICE_ACCOUNT_ISSUER, Keys
from dsec.local.cluster_dns import PORT as DNS_PORT
from dsec.local.cluster_state import API_PORT, REGISTRY_PORT, ClusterState
from dsec.local.network import S3_PORT
from dsec.local.pki import Pair
from dsec.local.processes import Part, Probe

TOOLS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
PROGRAMS = (*TOOLS, "kube-proxy", "containerd", "docker-registry", "weed")
"""Everything a plan runs; found by the caller."""


def plan(state: ClusterState, keys: Keys, programs: Mapping[str, Path]) -> list[Part]:
    """Return all parts in the order of their start. Files they name exist by then."""
    return [
        _registry(state, programs),
        _s3(state, programs),
        _etcd(state, keys, programs),
        _api_server(state, keys, programs),
        _controller_manager(state, keys, programs),
        _scheduler(state, programs),
        _dns(state),
        _containerd(state, programs),
        _kubelet(state, programs),
        _proxy(state, programs),
    ]


def digest(*paths: Path) -> str:
    """Return a digest of the files' contents; an absent file counts as empty."""
    whole = hashlib.sha256()
    for path in paths:
        content = path.read_bytes() if path.exists() else b""
        whole.update(f"{path}\0{len(content)}\0".encode() + content)
    return whole.hexdigest()


def _registry(state: ClusterState, programs: Mapping[str, Path]) -> Part:
    config = state.etc / "registry.yaml"
    return Part(
        name="registry",
        argv=(str(programs["docker-registry"]), "serve", str(config)),
        probe=Probe(f"http://{state.layout.node}:{REGISTRY_PORT}/v2/"),
        inputs=digest(config),
    )


def _s3(state: ClusterState, programs: Mapping[str, Path]) -> Part:
    config = state.etc / "s3.json"
    # its parts talk over sockets at fixed names in /tmp: each cluster gets a /tmp of its own, in a
    # mount namespace that ends with the process. Program and data may lie below the real /tmp: they
    # are reached through the open file and the working directory, which no mount can hide
    script = (
        'cd "$0" && exec 9<"$1" && shift && mount --bind s3-tmp /tmp && exec /proc/self/fd/9 "$@"'
    )
    here = "/proc/self/cwd"
    command = (
        *state.network.enter_storage(),
        *("unshare", "--mount", "--propagation=private", "sh", "-c", script),
        str(state.directory),
        str(programs["weed"]),
        "-logtostderr",
        "server",
        f"-dir={here}/s3",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-filer",
        "-s3",
        f"-s3.ip.bind={state.layout.storage}",
        f"-s3.port={S3_PORT}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        f"-s3.config={here}/{config.relative_to(state.directory)}",
        "-s3.iam=false",
        # one small machine: small volume files, and no reserve that a full disk would break
        "-master.volumeSizeLimitMB=1024",
        "-volume.max=0",
        "-volume.minFreeSpace=1",
        # nobody balances load over one volume server: it may stop at once
        "-volume.preStopSeconds=0",
    )
    probe = Probe(f"http://{state.layout.storage}:{S3_PORT}/status")
    # it takes its time to say goodbye to itself; what it has answered for is written by then
    return Part("s3", command, probe=probe, inputs=digest(config), stop_seconds=2.0)


def _etcd(state: ClusterState, keys: Keys, programs: Mapping[str, Path]) -> Part:
    server, client = keys.certificates["etcd"], keys.certificates["apiserver-etcd"]
    authority = str(keys.etcd_authority.cert)
    command = (
        str(programs["etcd"]),
        "--name=local",
        f"--data-dir={state.directory / 'etcd'}",
        "--listen-client-urls=https://127.0.0.1:2379",
        "--advertise-client-urls=https://127.0.0.1:2379",
        "--listen-peer-urls=https://127.0.0.1:2380",
        "--initial-advertise-peer-urls=https://127.0.0.1:2380",
        "--initial-cluster=local=https://127.0.0.1:2380",
        f"--cert-file={server.cert}",
        f"--key-file={server.key}",
        f"--trusted-ca-file={authority}",
        "--client-cert-auth",
        f"--peer-cert-file={server.cert}",
        f"--peer-key-file={server.key}",
        f"--peer-trusted-ca-file={authority}",
        "--peer-client-cert-auth",
        # records here are worth a few seconds on a power cut, and a laptop's fsync is slow
        "--unsafe-no-fsync",
        "--log-level=warn",
    )
    probe = Probe("https://127.0.0.1:2379/health", authority, str(client.cert), str(client.key))
    return Part(name="etcd", argv=command, probe=probe, inputs=digest(server.cert))


def _api_server(state: ClusterState, keys: Keys, programs: Mapping[str, Path]) -> Part:
    server, kubelet = keys.certificates["apiserver"], keys.certificates["apiserver-kubelet"]
    etcd, authority = keys.certificates["apiserver-etcd"], str(keys.authority.cert)
    command = (
        str(programs["kube-apiserver"]),
        f"--bind-address={state.layout.node}",
        f"--advertise-address={state.layout.node}",
        f"--secure-port={API_PORT}",
        "--etcd-servers=https://127.0.0.1:2379",
        f"--etcd-cafile={keys.etcd_authority.cert}",
        f"--etcd-certfile={etcd.cert}",
        f"--etcd-keyfile={etcd.key}",
        f"--client-ca-file={authority}",
        f"--tls-cert-file={server.cert}",
        f"--tls-private-key-file={server.key}",
        f"--kubelet-certificate-authority={authority}",
        f"--kubelet-client-certificate={kubelet.cert}",
        f"--kubelet-client-key={kubelet.key}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-key-file={keys.service_accounts.cert}",
        f"--service-account-signing-key-file={keys.service_accounts.key}",
        f"--service-account-issuer={SERVICE_ACCOUNT_ISSUER}",
        f"--service-cluster-ip-range={state.layout.services}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--anonymous-auth=false",
        "--profiling=false",
        f"--audit-log-path={state.run.logs / 'audit.log'}",
        f"--audit-policy-file={state.etc / 'audit.yaml'}",
        "--audit-log-maxsize=32",
        "--audit-log-maxbackup=1",
    )
    admin = keys.certificates["admin"]
    probe = Probe(f"{state.server}/readyz", authority, str(admin.cert), str(admin.key))
    inputs = digest(server.cert, etcd.cert, kubelet.cert, keys.service_accounts.key)
    return Part("kube-apiserver", command, after=("etcd",), probe=probe, inputs=inputs)


def _controller_manager(state: ClusterState, keys: Keys, programs: Mapping[str, Path]) -> Part:
    config = state.etc / "controller-manager.kubeconfig"
    command = (
        str(programs["kube-controller-manager"]),
        "--bind-address=127.0.0.1",
        f"--kubeconfig={config}",
        f"--root-ca-file={keys.authority.cert}",
        f"--service-account-private-key-file={keys.service_accounts.key}",
        *_signing(keys.authority),
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        "--profiling=false",
    )
    inputs = digest(config, keys.service_accounts.key)
    name = "kube-controller-manager"
    return Part(name, command, after=("kube-apiserver",), probe=_tcp(10257), inputs=inputs)


def _signing(authority: Pair) -> tuple[str, str]:
    return (
        f"--cluster-signing-cert-file={authority.cert}",
        f"--cluster-signing-key-file={authority.key}",
    )


def _scheduler(state: ClusterState, programs: Mapping[str, Path]) -> Part:
    config = state.etc / "scheduler.kubeconfig"
    command = (
        str(programs["kube-scheduler"]),
        "--bind-address=127.0.0.1",
        f"--kubeconfig={config}",
        f"--authentication-kubeconfig={config}",
        f"--authorization-kubeconfig={config}",
        "--leader-elect=false",
        "--profiling=false",
    )
    after, inputs = ("kube-apiserver",), digest(config)
    return Part("kube-scheduler", command, after=after, probe=_tcp(10259), inputs=inputs)


def _dns(state: ClusterState) -> Part:
    config, address = state.etc / "dns.kubeconfig", state.layout.node
    command = (sys.executable, "-m", "dsec.local.cluster_dns", address, str(config))
    probe = Probe(f"tcp://{address}:{DNS_PORT}")
    return Part("dns", command, after=("kube-apiserver",), probe=probe, inputs=digest(config))


def _containerd(state: ClusterState, programs: Mapping[str, Path]) -> Part:
    config = state.etc / "containerd.toml"
    return Part(
        name="containerd",
        argv=(str(programs["containerd"]), "--config", str(config)),
        probe=Probe(f"unix://{state.containerd_socket}"),
        inputs=digest(config),
    )


def _kubelet(state: ClusterState, programs: Mapping[str, Path]) -> Part:
    config, client = state.etc / "kubelet.yaml", state.etc / "kubelet.kubeconfig"
    command = (
        str(programs["kubelet"]),
        f"--config={config}",
        f"--kubeconfig={client}",
        f"--root-dir={state.directory / 'kubelet'}",
        f"--cert-dir={state.pki}",
        f"--hostname-override={state.node_name}",
        f"--node-ip={state.layout.node}",
    )
    return Part(
        name="kubelet",
        argv=command,
        after=("kube-apiserver", "containerd"),
        probe=Probe("http://127.0.0.1:10248/healthz"),
        inputs=digest(config, client),
    )


def _proxy(state: ClusterState, programs: Mapping[str, Path]) -> Part:
    config, client = state.etc / "proxy.yaml", state.etc / "proxy.kubeconfig"
    return Part(
        name="kube-proxy",
        argv=(str(programs["kube-proxy"]), f"--config={config}"),
        after=("kube-apiserver",),
        probe=Probe("http://127.0.0.1:10256/livez"),
        inputs=digest(config, client),
    )


def _tcp(port: int) -> Probe:
    return Probe(f"tcp://127.0.0.1:{port}")
