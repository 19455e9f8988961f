"""The local cluster's plan and configuration: pure data from the cluster's state."""

import ipaddress
import json
from pathlib import Path

import pytest
import yaml
from dsec.local import cluster_config, cluster_plan, cluster_state
from dsec.local.cluster_config import Keys
from dsec.local.cluster_state import ClusterState
from dsec.local.network import Layout, link_name
from dsec.local.pki import Pair
from dsec.local.processes import LocalError

CERTIFICATES = (
    *("apiserver", "apiserver-kubelet", "apiserver-etcd", "kubelet", "kubelet-server", "etcd"),
    *("controller-manager", "scheduler", "proxy", "dns", "admin", "user"),
)


@pytest.fixture
def state(tmp_path: Path) -> ClusterState:
    """Return a cluster's state without touching the machine."""
    return ClusterState("test", tmp_path / "c", Layout("10.77.0.0/16"), "access", "secret")


@pytest.fixture
def keys(state: ClusterState) -> Keys:
    """Return certificates that have a place and some content."""
    state.pki.mkdir(parents=True)

    def pair(name: str) -> Pair:
        made = Pair(state.pki / f"{name}.crt", state.pki / f"{name}.key")
        made.cert.write_text(name)
        made.key.write_text(name)
        return made

    certificates = {name: pair(name) for name in CERTIFICATES}
    return Keys(pair("cluster-ca"), pair("etcd-ca"), pair("service-accounts"), certificates)


PROGRAMS = {name: Path("/opt") / name for name in cluster_plan.PROGRAMS}


def test_every_part_waits_only_for_parts_before_it(state: ClusterState, keys: Keys) -> None:
    """The order of the plan is an order in which everything can start."""
    seen: set[str] = set()
    for part in cluster_plan.plan(state, keys, PROGRAMS):
        assert set(part.after) <= seen
        seen.add(part.name)
    assert {"etcd", "kube-apiserver", "kubelet", "containerd", "registry", "s3"} <= seen


def test_every_part_has_a_probe(state: ClusterState, keys: Keys) -> None:
    """Ready means that it answered, never that it was started."""
    assert all(part.probe for part in cluster_plan.plan(state, keys, PROGRAMS))


def test_no_part_is_told_to_listen_everywhere(state: ClusterState, keys: Keys) -> None:
    """Each address in arguments and files is loopback or one of the cluster's own."""
    allowed = ipaddress.ip_network(state.layout.cluster)
    files = cluster_config.render(state, keys, "pause:1", "/opt/cni")
    texts = [" ".join(part.argv) for part in cluster_plan.plan(state, keys, PROGRAMS)]
    texts += [files[state.etc / name] for name in ("kubelet.yaml", "proxy.yaml", "registry.yaml")]
    for text in texts:
        assert "0.0.0.0" not in text  # noqa: S104 - that is what it must not be
    kubelet = yaml.safe_load(files[state.etc / "kubelet.yaml"])
    assert ipaddress.ip_address(kubelet["address"]) in allowed
    assert kubelet["readOnlyPort"] == 0


def test_a_new_certificate_restarts_exactly_who_reads_it(state: ClusterState, keys: Keys) -> None:
    """A part's fingerprint covers the files it reads at its start."""
    before = {p.name: p.fingerprint() for p in cluster_plan.plan(state, keys, PROGRAMS)}
    keys.certificates["apiserver"].cert.write_text("renewed")
    after = {p.name: p.fingerprint() for p in cluster_plan.plan(state, keys, PROGRAMS)}
    assert [name for name in before if before[name] != after[name]] == ["kube-apiserver"]


def test_users_and_nodes_open_no_etcd(state: ClusterState, keys: Keys) -> None:
    """Etcd trusts an authority of its own, and asks every caller for a certificate of it."""
    parts = {part.name: part for part in cluster_plan.plan(state, keys, PROGRAMS)}
    assert f"--trusted-ca-file={keys.etcd_authority.cert}" in parts["etcd"].argv
    assert "--client-cert-auth" in parts["etcd"].argv
    assert f"--client-ca-file={keys.authority.cert}" in parts["kube-apiserver"].argv


def test_the_traps_of_small_machines_are_avoided(state: ClusterState, keys: Keys) -> None:
    """Cgroup v1, swap, no CAP_SYS_RESOURCE: each has its setting."""
    files = cluster_config.render(state, keys, "reg/dsec/pause:1", "/usr/lib/cni")
    kubelet = yaml.safe_load(files[state.etc / "kubelet.yaml"])
    assert kubelet["failCgroupV1"] is False
    assert kubelet["failSwapOn"] is False
    assert kubelet["cgroupDriver"] == "cgroupfs"
    assert kubelet["makeIPTablesUtilChains"] is False
    containerd = files[state.etc / "containerd.toml"]
    assert "restrict_oom_score_adj = true" in containerd
    assert 'sandbox_image = "reg/dsec/pause:1"' in containerd
    cni = json.loads(files[state.etc / "cni" / "10-dsec.conflist"])
    assert cni["plugins"][0]["ipam"]["ranges"][0][0]["subnet"] == state.layout.pods


def test_addresses_of_one_cluster_do_not_overlap() -> None:
    """Pods, Services and the link share the /16 without overlap; own addresses are no pod's."""
    layout = Layout("10.77.0.0/16")
    pods, services = ipaddress.ip_network(layout.pods), ipaddress.ip_network(layout.services)
    link = ipaddress.ip_network(f"{layout.host_end}/30", strict=False)
    assert not pods.overlaps(services)
    assert not link.overlaps(pods)
    assert not link.overlaps(services)
    first = ipaddress.ip_address(layout.first_pod)
    assert all(ipaddress.ip_address(a) < first for a in (layout.node, layout.storage))
    assert ipaddress.ip_address(layout.kubernetes) in services


@pytest.mark.parametrize("name", ["", "Local", "a-b", "1a", "elevenchars", "a/b"])
def test_an_unfit_name_is_refused_with_what_is_allowed(tmp_path: Path, name: str) -> None:
    """The name goes into interfaces, cgroups and paths."""
    with pytest.raises(LocalError, match="lower-case letter"):
        cluster_state.ensure(name, tmp_path)


def test_a_directory_too_deep_for_sockets_is_refused(tmp_path: Path) -> None:
    """Linux takes 107 bytes; the error names the directory, not containerd's failure later."""
    with pytest.raises(LocalError, match="state-dir"):
        cluster_state.ensure("local", tmp_path / ("x" * 90))


def test_state_is_made_once(tmp_path: Path) -> None:
    """Network and secrets stay the same over every `up`."""
    path = tmp_path / "s"
    first = cluster_state.ensure("local", path)
    assert cluster_state.ensure("local", path) == first
    assert (path / "cluster.json").stat().st_mode & 0o077 == 0


def test_the_link_name_fits_an_interface() -> None:
    """Linux takes 15 bytes."""
    assert link_name("local") == "dsec-local"
    assert len(link_name("abcdefghij")) == 15
