"""Settings of an agent: from flags, the environment (DSEC_AGENT_*) and a JSON or YAML file.

A flag wins over the environment, the environment over the file. Every mistake is reported at once.
"""

import ipaddress
import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError, ValidationInfo, field_validator

from dsec.api.base import Model

PREFIX = "DSEC_AGENT_"


class ConfigError(Exception):
    """A setting is wrong; one line per mistake with field, value and what is allowed."""


class AgentConfig(Model):
    """One agent. Durations are in seconds, sizes in bytes."""

    state_dir: Path = Field(description="Where everything that outlives the process is kept.")
    gateway: str = Field(description="URL of the gateway that the agent registers at.")
    node_name: str = Field(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")
    ca: Path | None = Field(default=None, description="CA that the gateway is verified with.")
    token_file: Path | None = Field(
        default=None, description="Join token or projected ServiceAccount token."
    )
    listen: str = Field(default="127.0.0.1:0", description="IP:PORT to serve on.")
    advertise: str = Field(
        default="", description="IP:PORT or https URL that gateways reach; default: listen."
    )
    metrics_listen: str = Field(
        default="", description="IP:PORT to serve /metrics on, without TLS; empty: nowhere."
    )
    uid: str = Field(default="", description="Lasting identifier; default: the machine's.")
    cgroup: str = Field(default="/dsec", description="Parent of all sandboxes' cgroups.")
    init: Path | None = Field(default=None, description="dsec-init; default: on PATH.")
    registry: str = Field(default="", description="host:port for images without a registry.")
    plain_http: list[str] = Field(default=[], description="Registries spoken to without TLS.")
    local_roots: bool = Field(
        default=False,
        description="Take rootfs:PATH images; for a machine whose users own it.",
    )
    registry_file: Path = Field(
        default=Path("/etc/dsec/registry.json"),
        description="What the stack says about its registry ({host, tls}); may be absent.",
    )
    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$")
    pool: str = ""
    labels: dict[str, str] = {}
    cpu_overcommit: float = Field(
        default=1.0, ge=1.0, le=16.0, description="Factor on the CPU that the node offers."
    )
    max_sandboxes: int | None = Field(
        default=None, ge=1, le=100_000, description="Most live sandboxes; default: 2000."
    )
    reserved_cpu_milli: int = Field(
        default=0, ge=0, description="CPU that is not offered, in thousandths of a core."
    )
    reserved_memory_bytes: int | None = Field(
        default=None,
        ge=0,
        description="Memory that is not offered; default: a sixteenth, at most 1 GiB.",
    )
    sandbox_heartbeat_seconds: float | None = Field(
        default=None, gt=0, description="Heartbeat period of sandboxes; default: their own."
    )
    start_deadline_seconds: float | None = Field(
        default=None, gt=0, description="Time to a first heartbeat; default: the sandbox's own."
    )
    heartbeat_seconds: float = Field(default=15.0, gt=0, description="Time between registrations.")
    archive_patience: float = Field(
        default=3600.0,
        ge=0,
        description="How long an ended sandbox waits for the gateway to take its scene, before "
        "its resources are given back without it.",
    )
    inline_output: int = Field(
        default=1 << 16, ge=0, description="Output that travels with an end, per stream."
    )
    uploads: int = Field(default=8, ge=1, description="Scenes uploaded at the same time.")
    snapshots: int = Field(
        default=2, ge=1, description="Snapshots read at the same time; the others wait."
    )
    snapshot_spool_bytes: int = Field(
        default=4 << 30,
        ge=0,
        description="Disk, per tenant, for what of snapshots waits to be sent.",
    )
    snapshot_bytes_per_second: float | None = Field(
        default=None, gt=0, description="Of one snapshot, sent or fetched; default: no bound."
    )
    final_snapshot_seconds: float = Field(
        default=120.0, ge=0, description="How long an end waits for the last snapshot before it."
    )
    run_until: datetime | None = Field(
        default=None, description="UTC time at which the node ends by itself; default: never."
    )
    wind_down_seconds: float = Field(
        default=300.0, ge=1, description="Before run_until: sandboxes end and are archived."
    )
    warn_seconds: float = Field(
        default=600.0, ge=0, description="Before the wind-down: owners are warned."
    )
    shutdown: list[str] = Field(
        default=["systemctl", "poweroff"],
        min_length=1,
        description="Command that ends the machine for good at run_until.",
    )
    watch_spot: bool = Field(
        default=False, description="Ask the machine's metadata whether it is taken away."
    )
    metadata_url: str = Field(
        default="http://169.254.169.254", description="The metadata service of the machine."
    )
    join: str = Field(
        default="token",
        pattern="^(token|aws)$",
        description="What admits the node first: token_file, or the machine's AWS role.",
    )
    join_region: str = Field(default="", description="AWS region whose STS vouches for the node.")
    join_endpoint: str = Field(default="", description="STS to sign for; default: the region's.")
    durable: bool = Field(default=True, description="False: no fsync; for simulated nodes only.")

    @field_validator("gateway")
    @classmethod
    def _url(cls, value: str) -> str:
        if not value.startswith(("http://", "https://")):
            raise ValueError("an http:// or https:// URL is wanted")
        return value.rstrip("/")

    @field_validator("run_until")
    @classmethod
    def _aware(cls, value: datetime | None) -> datetime | None:
        if value is not None and value.tzinfo is None:
            raise ValueError("a time with its zone is wanted, for example 2027-01-15T08:00:00Z")
        return value

    @field_validator("listen", "metrics_listen")
    @classmethod
    def _address(cls, value: str, info: ValidationInfo) -> str:
        if value or info.field_name == "listen":
            split_address(value)
        return value


def split_address(value: str) -> tuple[str, int]:
    """Return host and port of IP:PORT. Raises ValueError."""
    host, _, port = value.rpartition(":")
    host = host.strip("[]")
    try:
        ipaddress.ip_address(host)
        number = int(port)
    except ValueError as error:
        raise ValueError("IP:PORT is wanted, for example 10.0.0.1:7443") from error
    if not 0 <= number < 1 << 16:
        raise ValueError("the port must be between 0 and 65535")
    return host, number


def load(flags: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> AgentConfig:
    """Merge file, environment and flags (None: not given). Raises ConfigError."""
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    if flags.get("config") is not None:
        values |= _read(Path(flags["config"]))
    for name in AgentConfig.model_fields:
        if (text := environ.get(PREFIX + name.upper())) is not None:
            values[name] = _parsed(name, text)
        if flags.get(name) is not None:
            values[name] = flags[name]
    try:
        return AgentConfig.model_validate(values)
    except ValidationError as error:
        lines = [
            f"{'.'.join(map(str, mistake['loc']))}: {mistake['msg']} (got {mistake['input']!r})"
            for mistake in error.errors()
        ]
        raise ConfigError("\n".join(lines)) from error


def pairs(text: str) -> dict[str, str]:
    """Read `a=b,c=d`. Raises ConfigError."""
    result: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals:
            raise ConfigError(f"labels: {part!r} is no key=value")
        result[key] = value
    return result


def _parsed(name: str, text: str) -> Any:
    """Return a setting from its text in the environment."""
    if name == "labels":
        return pairs(text)
    if name == "plain_http":
        return _list(text)
    if name == "shutdown":
        return text.split()
    return text


def _list(text: str) -> list[str]:
    return [item for piece in text.split(",") if (item := piece.strip())]


def registry_of(
    config: AgentConfig, environ: Mapping[str, str] | None = None
) -> tuple[str, frozenset[str]]:
    """Return the default registry and those without TLS, the stack's own included.

    DSEC_DEFAULT_REGISTRY and DSEC_PLAIN_HTTP_REGISTRIES add to the settings, as they do for every
    dsec program that reads images. Raises ConfigError when the file is there but unreadable.
    """
    environ = os.environ if environ is None else environ
    plain = {*config.plain_http, *_list(environ.get("DSEC_PLAIN_HTTP_REGISTRIES", ""))}
    host = config.registry or environ.get("DSEC_DEFAULT_REGISTRY", "")
    if config.registry_file.exists():
        told = _read(config.registry_file)
        host = host or str(told.get("host", ""))
        if told.get("tls") == "lan-insecure" and told.get("host"):
            plain.add(str(told["host"]))
    return host, frozenset(plain)


def _read(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"config: {path}: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"config: {path} holds no mapping")
    names = {str(field.alias): name for name, field in AgentConfig.model_fields.items()}
    return {names.get(str(key), str(key)): value for key, value in data.items()}
