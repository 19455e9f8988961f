"""Pieces of pod specifications that several components use."""

from collections.abc import Mapping

import pulumi
import pulumi_kubernetes as k8s
from dsec.api.meta import GROUP

CONFIG_DIGEST = f"{GROUP}/config-digest"
"""Annotation of pod templates: a changed configuration rolls the pods."""
USER = 65532
"""A user that no distribution gives to anything else."""

RESTRICTED: k8s.core.v1.SecurityContextArgsDict = {
    "allow_privilege_escalation": False,
    "read_only_root_filesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
PLAIN_SECURITY: k8s.core.v1.PodSecurityContextArgsDict = {
    "run_as_non_root": True,
    "run_as_user": USER,
    "run_as_group": USER,
    "fs_group": USER,
    "seccomp_profile": {"type": "RuntimeDefault"},
}


def environment(registry: pulumi.Input[str], *, plain: bool) -> list[k8s.core.v1.EnvVarArgsDict]:
    """Return what a process learns about its own pod, its configuration and its registry.

    `registry` is host:port, or empty; `plain` says that it is spoken to without TLS.
    """
    fields = {
        "POD_NAME": "metadata.name",
        "POD_NAMESPACE": "metadata.namespace",
        "POD_IP": "status.podIP",
        "NODE_NAME": "spec.nodeName",
        "NODE_IP": "status.hostIP",
    }
    return [
        {"name": "DSEC_ROLE_CONFIG", "value": "/etc/dsec/config.json"},
        {"name": "DSEC_DEFAULT_REGISTRY", "value": registry},
        {"name": "DSEC_PLAIN_HTTP_REGISTRIES", "value": registry if plain else ""},
        *(
            {
                "name": name,
                "value_from": {"field_ref": {"field_path": path, "api_version": "v1"}},
            }
            for name, path in fields.items()
        ),
    ]


def probe(path: str, port: str, scheme: str, *, failures: int) -> k8s.core.v1.ProbeArgsDict:
    """Return an HTTP probe, every 5 s."""
    return {
        "http_get": {"path": path, "port": port, "scheme": scheme},
        "period_seconds": 5,
        "timeout_seconds": 4,
        "failure_threshold": failures,
    }


def resources(cpu_milli: int, memory_bytes: int) -> k8s.core.v1.ResourceRequirementsArgsDict:
    """Return CPU that is booked but may burst, and memory that is booked and hard."""
    memory = str(int(memory_bytes))
    return {
        "requests": {"cpu": f"{int(cpu_milli)}m", "memory": memory},
        "limits": {"memory": memory},
    }


def settings_volume(secrets: Mapping[str, str]) -> k8s.core.v1.VolumeArgsDict:
    """Return /etc/dsec: config.json, and each Secret below secrets/<folder>/."""
    keys = {
        "internal": ("token",),
        "tls": ("tls.crt", "tls.key", "ca.crt"),
        "webhook": ("tls.crt", "tls.key"),
        "ca": ("ca.crt", "ca.key"),
        "s3": ("accessKey", "secretKey"),
        "api-keys": ("stack.json",),
        "snapshots": ("keys.json",),
    }
    sources: list[k8s.core.v1.VolumeProjectionArgsDict] = [
        {
            "config_map": {
                "name": "dsec-config",
                "items": [{"key": "config.json", "path": "config.json"}],
            }
        }
    ]
    for folder, name in secrets.items():
        sources.append(
            {
                "secret": {
                    "name": name,
                    # a cloud's own identity needs no keys
                    "optional": folder == "s3",
                    "items": [
                        {"key": key, "path": f"secrets/{folder}/{key}"} for key in keys[folder]
                    ],
                }
            }
        )
    return {"name": "settings", "projected": {"sources": sources, "default_mode": 0o440}}
