"""How simulated nodes join: which server, which CA, which token, and where they can be reached.

Looked for in this order: what was given; `join.json` of a standalone server (gateway, ca, token);
the local cluster, where its administrator asks for a token of the agents' service account.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

AUDIENCE = "dsec"
SERVICE_ACCOUNT, NAMESPACE = "dsec-agent", "dsec-system"
TOKEN_SECONDS = 3600
LOOPBACK = "127.0.0.1"


class JoinError(Exception):
    """It is not known how to join; the message says what is missing."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Join:
    """All that a simulated node needs to register. `host` is the address to listen on."""

    gateway: str
    ca: Path | None
    token: str
    host: str
    directory: Path


@dataclass(frozen=True, slots=True)
class Given:
    """What the user said; empty where nothing."""

    name: str = ""
    state_dir: Path | None = None
    gateway: str = ""
    ca: Path | None = None
    token_file: Path | None = None


def state_root() -> Path:
    """Return the directory of this user that holds standalone and local states."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "dsec"


def directory(given: Given) -> Path:
    """Return where simulated nodes keep their files; beside the server that they belong to."""
    if given.state_dir is not None:
        return given.state_dir.absolute() / "sim"
    cluster = state_root() / "local" / (given.name or "local")
    if (cluster / "cluster.json").exists():
        return cluster / "sim"
    return state_root() / "standalone" / "sim"


def find(given: Given) -> Join:
    """Return how to join. Raises JoinError."""
    place = directory(given)
    if given.token_file is not None:
        token = given.token_file.read_text().strip()
        server, ca = _server(given)
        return Join(server, ca, token, _host(place), place)
    standalone = place.parent / "join.json"
    if standalone.exists():
        told = json.loads(standalone.read_text())
        ca = Path(told["ca"]) if told.get("ca") else None
        gateway = given.gateway or told["gateway"]
        return Join(gateway, given.ca or ca, told["token"], LOOPBACK, place)
    kubeconfig = place.parent / "kubeconfig"
    if kubeconfig.exists():
        server, ca = _server(given)
        return Join(server, ca, _service_account_token(kubeconfig), _host(place), place)
    raise JoinError(
        "no server to join is known: start one with 'dsec up --standalone' or 'dsec local up', "
        "or give --gateway, --ca and --token-file"
    )


def _server(given: Given) -> tuple[str, Path | None]:
    """Return URL and CA: as given, else those of the user's context."""
    from dsec.client import context

    known = context.load()
    server = given.gateway or known.server
    if not server:
        raise JoinError("gateway: no server is known; give --gateway URL")
    ca = given.ca or (Path(known.ca_file) if known.ca_file else None)
    return server, ca


def _host(place: Path) -> str:
    """Return this machine's address as the gateway sees it: the link to a local cluster."""
    from dsec.local import cluster_state

    state = cluster_state.load(place.parent.name, place.parent)
    return state.layout.host_end if state is not None else LOOPBACK


def _service_account_token(kubeconfig: Path) -> str:
    """Ask the cluster for a token of the agents' account. Raises JoinError."""
    from kubernetes import client, config
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    api = client.CoreV1Api(config.new_client_from_config(config_file=str(kubeconfig)))
    body = client.AuthenticationV1TokenRequest(
        spec=client.V1TokenRequestSpec(audiences=[AUDIENCE], expiration_seconds=TOKEN_SECONDS)
    )
    try:
        answer = api.create_namespaced_service_account_token(SERVICE_ACCOUNT, NAMESPACE, body)
    except ApiException as error:
        raise JoinError(
            f"the cluster gives no token for {NAMESPACE}/{SERVICE_ACCOUNT} ({error.reason}); "
            "is the platform on it? 'pulumi up --stack local' puts it there"
        ) from error
    except HTTPError as error:
        raise JoinError(f"the cluster of {kubeconfig} does not answer: {error}") from error
    return str(answer.status.token)
