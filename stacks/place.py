"""Facts of the place where a stack runs: what no committed configuration can know.

`dsec:site: local` takes them from the local cluster that `dsec local up` made. Any other stack
names its cluster itself: `dsec:kubeconfig` (secret text), or the KUBECONFIG variable.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulumi
from dsec.local import cluster_state

NODE_PORT = 30443
"""Port of the local gateway on the node; nothing outside this machine reaches the node."""
_PLACEHOLDER = re.compile(r"\$\{([a-z-]+)\}")


@dataclass(frozen=True, slots=True)
class Site:
    """A cluster, and what the configuration leaves to the place."""

    kubeconfig: pulumi.Input[str]
    identifier: str
    words: Mapping[str, str] = field(default_factory=dict)
    """What ${name} in the configuration stands for."""
    platform: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of the configuration; what the stack says wins."""
    access_key: pulumi.Input[str] = ""
    secret_key: pulumi.Input[str] = ""


def read(config: pulumi.Config) -> Site:
    """Return the site of this stack. Raises pulumi.RunError that says what is missing."""
    access = config.get_secret("objectStoreAccessKey") or ""
    secret = config.get_secret("objectStoreSecretKey") or ""
    if config.get("site") == "local":
        return _local(config.get("localCluster") or "local")
    identifier = config.get("clusterIdentifier") or pulumi.get_stack()
    kubeconfig: pulumi.Input[str] | None = config.get_secret("kubeconfig")
    if kubeconfig is None:
        path = Path(os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")
        if not path.is_file():
            raise pulumi.RunError(
                f"Stack {pulumi.get_stack()} names no cluster: set dsec:kubeconfig "
                "(pulumi config set --secret dsec:kubeconfig < FILE), or KUBECONFIG to a file."
            )
        kubeconfig = pulumi.Output.secret(path.read_text())
    return Site(kubeconfig, identifier, access_key=access, secret_key=secret)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return two configurations as one; the second wins, field by field."""
    out = dict(base)
    for key, value in over.items():
        inner = out.get(key)
        both = isinstance(value, Mapping) and isinstance(inner, Mapping)
        out[key] = merged(inner, value) if both else value
    return out


def filled(value: Any, words: Mapping[str, str]) -> Any:
    """Replace ${name} in every text. Raises pulumi.RunError for a name that the site lacks."""
    if isinstance(value, str):
        return _PLACEHOLDER.sub(lambda found: _word(found.group(1), words), value)
    if isinstance(value, Mapping):
        return {key: filled(one, words) for key, one in value.items()}
    if isinstance(value, list):
        return [filled(one, words) for one in value]
    return value


def _word(name: str, words: Mapping[str, str]) -> str:
    if name not in words:
        known = ", ".join(sorted(words)) or "none at this site"
        raise pulumi.RunError(f"dsec:platform uses ${{{name}}}; known names: {known}.")
    return words[name]


def _local(name: str) -> Site:
    directory = cluster_state.default_root() / name
    state = cluster_state.load(name, directory)
    images = directory / "images.json"
    if state is None or not images.is_file() or not state.kubeconfig.is_file():
        raise pulumi.RunError(
            f"There is no local cluster {name!r} yet: run `dsec local up`"
            + ("" if name == "local" else f" --name {name}")
            + ", then `pulumi up` again."
        )
    built = json.loads(images.read_text())
    return Site(
        kubeconfig=pulumi.Output.secret(state.kubeconfig.read_text()),
        identifier=f"local-{name}-{state.layout.cluster}",
        words={"registry": state.registry, "sandbox-image": built["sandbox-base"]},
        platform={
            "images": {"runtime": built["runtime"], "agent": built["agent"]},
            # a cluster of an older checkout has none: only a stack that wants it would miss it
            "prometheus": {"image": built.get("prometheus", "")},
            "gateway": {"exposure": "NodePort", "nodePort": NODE_PORT, "host": state.layout.node},
            "agent": {"stateDir": str(state.agent_directory), "cgroup": state.sandbox_cgroup},
            "objectStore": {"endpoint": state.s3_url, "region": "local"},
            "registry": {"host": state.registry, "tls": "lan-insecure"},
            "clusterNetworks": [f"{state.layout.cluster}"],
        },
        access_key=state.s3_access_key,
        secret_key=state.s3_secret_key,
    )
