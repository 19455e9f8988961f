"""Configuration files of the cluster's programs, as pure text from the cluster's state.

Settings that look odd are there for machines such as CI runners: cgroup v1, no right to lower an
oom score, no free choice of kernel. Each says which.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import yaml

from dsec.local.cluster_dns import DOMAIN
from dsec.local.cluster_state import BUCKET, REGISTRY_PORT, ClusterState
from dsec.local.network import BRIDGE
from dsec.local.pki import (
    Pair,
    Wanted,
    ensure_authority,
    ensure_certificate,
    ensure_signing_key,
    kubeconfig,
)

SERVICE_ACCOUNT_ISSUER = f"https://kubernetes.default.svc.{DOMAIN}"


@dataclass(frozen=True, slots=True)
class Keys:
    """Every certificate of the cluster by role; kubeconfigs are made of the client ones."""

    authority: Pair
    etcd_authority: Pair
    service_accounts: Pair
    certificates: dict[str, Pair]


def ensure_keys(state: ClusterState) -> Keys:
    """Make or renew all keys and certificates."""
    node = f"system:node:{state.node_name}"
    authority = ensure_authority(state.pki, "cluster-ca")
    etcd = ensure_authority(state.pki, "etcd-ca")
    api_names = (
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        f"kubernetes.default.svc.{DOMAIN}",
        "localhost",
        "127.0.0.1",
        state.layout.node,
        state.layout.kubernetes,
        state.layout.cluster_end,
    )
    wanted = [
        Wanted("apiserver", "kube-apiserver", names=api_names, server=True, client=False),
        Wanted("apiserver-kubelet", "kube-apiserver", ("system:masters",)),
        Wanted("controller-manager", "system:kube-controller-manager"),
        Wanted("scheduler", "system:kube-scheduler"),
        # the account that Kubernetes' own bootstrap rules let read Services and Endpoints
        Wanted("dns", "system:serviceaccount:kube-system:kube-dns"),
        Wanted("proxy", "system:kube-proxy", ("system:node-proxier",)),
        Wanted("kubelet", node, ("system:nodes",)),
        Wanted(
            "kubelet-server",
            node,
            ("system:nodes",),
            names=(state.node_name, state.layout.node),
            server=True,
            client=False,
        ),
        Wanted("admin", "dsec-local-admin", ("system:masters",)),
        Wanted("user", "dsec-local-user", ("dsec:users",)),
    ]
    etcd_wanted = [
        Wanted("etcd", "etcd", names=("localhost", "127.0.0.1"), server=True),
        Wanted("apiserver-etcd", "kube-apiserver"),
    ]
    certificates = {w.name: ensure_certificate(state.pki, authority, w) for w in wanted}
    certificates |= {w.name: ensure_certificate(state.pki, etcd, w) for w in etcd_wanted}
    signing = ensure_signing_key(state.pki, "service-accounts")
    return Keys(authority, etcd, signing, certificates)


def render(state: ClusterState, keys: Keys, pause: str, cni_programs: str) -> dict[Path, str]:
    """Return the content of every configuration file by path.

    `pause` is the image that holds a pod's namespaces; `cni_programs` the plugins' directory.
    """
    etc = state.etc
    files = {
        etc / "kubelet.yaml": yaml.safe_dump(_kubelet(state, keys)),
        etc / "proxy.yaml": yaml.safe_dump(_proxy(state)),
        etc / "registry.yaml": yaml.safe_dump(_registry(state)),
        etc / "s3.json": json.dumps(_s3(state), indent=1),
        etc / "audit.yaml": yaml.safe_dump(_audit()),
        etc / "containerd.toml": _containerd(state, pause, cni_programs),
        etc / "cni" / "10-dsec.conflist": json.dumps(_cni(state), indent=1),
        etc / "hosts" / state.registry / "hosts.toml": _registry_host(state),
        state.kubeconfig: _kubeconfig(state, keys, "admin"),
        state.directory / "kubeconfig-user": _kubeconfig(state, keys, "user"),
    }
    for client in ("controller-manager", "scheduler", "proxy", "dns", "kubelet"):
        files[etc / f"{client}.kubeconfig"] = _kubeconfig(state, keys, client)
    return files


def _kubeconfig(state: ClusterState, keys: Keys, client: str) -> str:
    name = f"dsec-{state.name}"
    return kubeconfig(state.server, keys.authority, keys.certificates[client], client, name)


def _kubelet(state: ClusterState, keys: Keys) -> dict[str, object]:
    server = keys.certificates["kubelet-server"]
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": state.layout.node,
        "healthzBindAddress": "127.0.0.1",
        "readOnlyPort": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(keys.authority.cert)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(server.cert),
        "tlsPrivateKeyFile": str(server.key),
        "clusterDomain": DOMAIN,
        "clusterDNS": [state.layout.node],
        "containerRuntimeEndpoint": f"unix://{state.containerd_socket}",
        "podLogsDir": str(state.directory / "pod-logs"),
        "volumePluginDir": str(state.directory / "kubelet" / "volume-plugins"),
        "cgroupRoot": state.cgroup,
        # the driver that needs no systemd, on cgroup v1 too, and beside swap
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
        "failSwapOn": False,
        "localStorageCapacityIsolation": False,
        "makeIPTablesUtilChains": False,
        # a lower score needs CAP_SYS_RESOURCE
        "oomScoreAdj": 0,
        # a developer's disk is often fuller than a server's may be
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "1%",
        },
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "serializeImagePulls": False,
        "shutdownGracePeriod": "0s",
    }


def _proxy(state: ClusterState) -> dict[str, object]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "hostnameOverride": state.node_name,
        "clusterCIDR": state.layout.pods,
        "bindAddress": state.layout.node,
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "oomScoreAdj": 0,
        "clientConnection": {"kubeconfig": str(state.etc / "proxy.kubeconfig")},
        # these are the host's alone to set; a network namespace cannot
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
    }


def _audit() -> dict[str, object]:
    """Who asked for what and what was answered; not the routine reads of the cluster itself."""
    routine = {"level": "None", "verbs": ["get", "list", "watch"], "userGroups": ["system:nodes"]}
    leases = {
        "level": "None",
        "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}],
    }
    everything = {"level": "Metadata", "omitStages": ["RequestReceived"]}
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "rules": [routine, leases, everything],
    }


def _registry(state: ClusterState) -> dict[str, object]:
    return {
        "version": "0.1",
        "log": {"level": "warn", "accesslog": {"disabled": True}},
        "storage": {
            "filesystem": {"rootdirectory": str(state.directory / "registry")},
            "delete": {"enabled": True},
        },
        "http": {"addr": f"{state.layout.node}:{REGISTRY_PORT}"},
    }


def _registry_host(state: ClusterState) -> str:
    return (
        f'server = "http://{state.registry}"\n'
        f'[host."http://{state.registry}"]\n'
        '  capabilities = ["pull", "resolve"]\n'
    )


def _s3(state: ClusterState) -> dict[str, object]:
    key = {"accessKey": state.s3_access_key, "secretKey": state.s3_secret_key}
    actions = [f"{verb}:{BUCKET}" for verb in ("Admin", "Read", "Write", "List", "Tagging")]
    return {"identities": [{"name": "dsec", "credentials": [key], "actions": actions}]}


def _cni(state: ClusterState) -> dict[str, object]:
    layout = state.layout
    pool = {"subnet": layout.pods, "rangeStart": layout.first_pod, "rangeEnd": layout.last_pod}
    bridge = {
        "type": "bridge",
        "bridge": BRIDGE,
        "isGateway": True,
        # a pod may reach itself through its own Service
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": str(state.directory / "cni"),
            "ranges": [[{**pool, "gateway": layout.node}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    return {"cniVersion": "1.0.0", "name": f"dsec-{state.name}", "plugins": [bridge]}


def _containerd(state: ClusterState, pause: str, cni_programs: str) -> str:
    base = state.directory / "containerd"
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    quoted = json.dumps  # TOML's basic strings are JSON's, for paths
    return f"""\
version = 2
root = {quoted(str(base / "root"))}
state = {quoted(str(base / "run"))}
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp",
]

[grpc]
  address = {quoted(str(state.containerd_socket))}

[{cri}]
  sandbox_image = {quoted(pause)}
  # a lower oom score needs CAP_SYS_RESOURCE; runc dies without a word where it is refused
  restrict_oom_score_adj = true
  # so that removing the state removes the pods' network namespaces
  netns_mounts_under_state_dir = true
  stream_server_address = "127.0.0.1"
  [{cri}.cni]
    bin_dir = {quoted(cni_programs)}
    conf_dir = {quoted(str(state.etc / "cni"))}
  [{cri}.registry]
    config_path = {quoted(str(state.etc / "hosts"))}
  [{cri}.containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [{cri}.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [{cri}.containerd.runtimes.runc.options]
        SystemdCgroup = false
        Root = {quoted(str(base / "runc"))}
"""
