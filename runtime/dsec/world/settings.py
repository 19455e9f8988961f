"""What a process of the control plane is told at its start: config.json, mounted secrets, its pod.

The folder is /etc/dsec in a pod (DSEC_ROLE_CONFIG names its config.json): `config.json` without
secrets, and `secrets/<folder>/<key>` beside it. Every mistake is one sentence.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError

from dsec.api.base import WireModel
from dsec.api.config import ScalingConfig, SchedulingConfig
from dsec.api.suppliers import SuppliersConfig
from dsec.world.s3 import S3Config

CONFIG = "DSEC_ROLE_CONFIG"
BIND = "DSEC_BIND"
"""Address to listen on; by default a pod's own, which network policies guard."""
PORTS = "DSEC_PORTS"
"""Ports other than the usual ones, for several processes on one machine: `api=1,metrics=2`."""

EVERYWHERE = "0.0.0.0"  # noqa: S104 - a pod's own address; network policies decide who reaches it


class SettingsError(Exception):
    """A setting is missing or wrong; the message names it."""


class StoreSettings(WireModel):
    """The object store."""

    endpoint: str = ""
    bucket: str = "dsec"
    region: str = "us-east-1"


class SnapshotSettings(WireModel):
    """What opens the keys of snapshots; without a key of KMS a mounted file does."""

    kms_key: str = ""
    """Key id, alias or ARN; a multi-region key opens what other regions wrapped."""
    kms_region: str = "us-east-1"
    kms_endpoint: str = ""
    """Empty: the region's own."""


class RoleConfig(WireModel):
    """config.json: what every process of the control plane reads."""

    region: str = "local"
    namespace: str = "dsec-system"
    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$")
    presets: dict[str, str] = {}
    object_store: StoreSettings = StoreSettings()
    scheduling: SchedulingConfig = SchedulingConfig()
    scaling: ScalingConfig = ScalingConfig()
    suppliers: SuppliersConfig = SuppliersConfig()
    snapshots: SnapshotSettings = SnapshotSettings()


@dataclass(frozen=True, slots=True)
class RoleSettings:
    """Configuration, secrets and identity of one process."""

    config: RoleConfig
    secrets: Path
    identity: str
    address: str
    bind: str
    ports: Mapping[str, int]

    def port(self, name: str, usual: int) -> int:
        """Return the port of a listener."""
        return self.ports.get(name, usual)

    def path(self, folder: str, key: str) -> Path:
        """Return the file of a mounted secret. Raises SettingsError where it is missing."""
        path = self.secrets / folder / key
        if not path.is_file():
            raise SettingsError(f"{path}: this secret is not mounted")
        return path

    def secret(self, folder: str, key: str) -> str:
        """Return a mounted secret as text. Raises SettingsError, also where it is empty."""
        path = self.path(folder, key)
        if not (text := path.read_text().strip()):
            raise SettingsError(f"{path}: this secret is empty")
        return text

    def store(self) -> S3Config:
        """Return the object store; without mounted keys the environment's own identity is used."""
        known = self.config.object_store
        keys = {}
        for name in ("accessKey", "secretKey"):
            path = self.secrets / "s3" / name
            keys[name] = path.read_text().strip() if path.is_file() else ""
        return S3Config(
            known.bucket, known.endpoint, known.region, keys["accessKey"], keys["secretKey"]
        )


def load(environ: Mapping[str, str] | None = None) -> RoleSettings:
    """Read the settings of this process. Raises SettingsError."""
    environ = os.environ if environ is None else environ
    place = environ.get(CONFIG)
    if not place:
        raise SettingsError(f"{CONFIG}: the path of config.json is wanted in the environment")
    path = Path(place)
    try:
        config = RoleConfig.model_validate(json.loads(path.read_text()))
    except (OSError, ValueError) as problem:
        detail = problem.errors() if isinstance(problem, ValidationError) else problem
        raise SettingsError(f"{path}: {detail}") from problem
    return RoleSettings(
        config,
        path.parent / "secrets",
        environ.get("POD_NAME") or f"process-{os.getpid()}",
        environ.get("POD_IP") or "127.0.0.1",
        environ.get(BIND) or EVERYWHERE,
        _ports(environ.get(PORTS, "")),
    )


def _ports(text: str) -> dict[str, int]:
    found = {}
    for part in filter(None, text.split(",")):
        name, _, number = part.partition("=")
        if not number.isdecimal() or int(number) >= 1 << 16:
            raise SettingsError(f"{PORTS}: {part!r} is no name=port")
        found[name] = int(number)
    return found
