"""The Secrets and the ConfigMap that pods mount; every value that is secret stays marked so."""

import base64
import hashlib
import ipaddress
import json
from collections.abc import Mapping
from typing import Any, NotRequired

import pulumi
import pulumi_kubernetes as k8s

from dsec_components.common import Component, Placed, merged_labels, meta
from dsec_components.keys import Keys, Leaf, keys_of, stash_seed

API_KEY_ID = "stack"
"""The one API key that the stack itself makes; people get theirs from it."""


class SettingsArgs(Placed):
    """Inputs of Settings."""

    config: dict[str, Any]
    """What every process reads: no secrets."""
    host: NotRequired[pulumi.Input[str]]
    """Name or address that clients use, for the gateway's certificate."""
    object_store_secret: NotRequired[str]
    """Name of the Secret with the object store's keys."""
    access_key: NotRequired[pulumi.Input[str]]
    """Access key id of the object store."""
    secret_key: NotRequired[pulumi.Input[str]]
    """Secret access key of the object store."""


class Settings(Component):
    """Configuration, certificate authority, certificates and tokens of the control plane."""

    ca_certificate: pulumi.Output[str]
    """The certificate authority of this installation, as PEM."""
    api_key: pulumi.Output[str]
    """An administrator's API key. Secret."""

    def __init__(
        self, name: str, args: SettingsArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        """Create one ConfigMap and the Secrets; keys are drawn once and kept in the state."""
        super().__init__(name, args, opts)
        self._namespace = args["namespace"]
        self._labels = merged_labels("dsec-settings", name, args.get("labels"))
        seed = stash_seed(f"{name}-seed", self._child())
        namespace = pulumi.Output.from_input(args["namespace"])
        host = pulumi.Output.from_input(args.get("host") or "")
        material = pulumi.Output.all(seed, namespace, host).apply(
            lambda known: _material(keys_of(known[0]), known[1], known[2])
        )
        # a certificate authority's certificate is for everyone
        self.ca_certificate = pulumi.Output.unsecret(material.apply(lambda made: made["ca.crt"]))
        self.api_key = material.apply(lambda made: made["apiKey"])
        text = pulumi.Output.json_dumps(args["config"], sort_keys=True, indent=1)
        self._config = k8s.core.v1.ConfigMap(
            f"{name}-config",
            metadata=meta("dsec-config", self._labels, namespace=self._namespace),
            data={"config.json": text},
            opts=self._child(),
        )
        secrets: dict[str, dict[str, str]] = {
            "dsec-ca": {"ca.crt": "ca.crt", "ca.key": "ca.key"},
            "dsec-internal": {"token": "internalToken"},
            "dsec-snapshot-keys": {"keys.json": "snapshotKeys"},
            "dsec-api-keys": {f"{API_KEY_ID}.json": "apiKeyEntry"},
        }
        for part in ("gateway", "controller", "webhook"):
            secrets[f"dsec-{part}-tls"] = {
                "tls.crt": f"{part}.crt",
                "tls.key": f"{part}.key",
                "ca.crt": "ca.crt",
            }
        for physical, entries in secrets.items():
            self._secret(physical, {key: material[value] for key, value in entries.items()})
        store = {"accessKey": args.get("access_key"), "secretKey": args.get("secret_key")}
        if all(store.values()):
            self._secret(
                args.get("object_store_secret", "dsec-object-store"),
                {key: pulumi.Output.secret(value) for key, value in store.items() if value},
            )
        # pods roll when what they read at start changes; a digest gives nothing away
        self._digest = pulumi.Output.unsecret(
            pulumi.Output.all(text, material, *store.values()).apply(digest_of)
        )
        self.register_outputs({"ca_certificate": self.ca_certificate, "api_key": self.api_key})

    def _secret(self, physical: str, values: Mapping[str, pulumi.Output[str]]) -> None:
        k8s.core.v1.Secret(
            f"{self._name_prefix}-{physical.removeprefix('dsec-')}",
            metadata=meta(physical, self._labels, namespace=self._namespace),
            type="Opaque",
            data={key: value.apply(_base64) for key, value in values.items()},
            opts=self._child(),
        )

    @property
    def digest(self) -> pulumi.Output[str]:
        """A digest of everything that pods read at their start."""
        return self._digest


def _material(keys: Keys, namespace: str, host: str) -> dict[str, str]:
    made = {
        "ca.crt": keys.ca,
        "ca.key": keys.ca_key,
        "internalToken": keys.token("internal"),
        "snapshotKeys": json.dumps({"keys": [{"name": "stack", "key": _wrapping(keys)}]}),
        "apiKey": f"dsec_{API_KEY_ID}_{keys.token('api-key')}",
    }
    made["apiKeyEntry"] = json.dumps(
        {
            "id": API_KEY_ID,
            "sha256": hashlib.sha256(made["apiKey"].encode()).hexdigest(),
            "user": "dsec:stack",
            "groups": ["dsec.dev:admins"],
        },
        sort_keys=True,
    )
    for part in ("gateway", "controller", "webhook"):
        service = f"dsec-{part}"
        names = [service, f"{service}.{namespace}", f"{service}.{namespace}.svc"]
        names += [f"{service}.{namespace}.svc.cluster.local", "localhost"]
        addresses = ["127.0.0.1"]
        if part == "gateway" and host:
            (addresses if _is_address(host) else names).append(host)
        leaf = Leaf(service, service, tuple(names), tuple(addresses))
        made[f"{part}.crt"], made[f"{part}.key"] = keys.leaf(leaf)
    return made


def _wrapping(keys: Keys) -> str:
    """Return the key that wraps the data keys of tenants' snapshots, base64."""
    return base64.b64encode(bytes.fromhex(keys.token("snapshots"))).decode()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def digest_of(values: Any) -> str:
    """Return a digest of plain data; pods that carry it roll when the data changes."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:32]


def _base64(value: str) -> str:
    return base64.b64encode(value.encode()).decode()
