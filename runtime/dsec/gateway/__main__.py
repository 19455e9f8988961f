"""The gateway as a program: `python -m dsec.gateway`. Stateless; any number may run.

Serves the API for users and agents over TLS (a client certificate is asked for, and needed by
agents only), the admission webhook on a port of its own, and the metrics.
"""

import asyncio
import ssl
import sys
from pathlib import Path

import structlog

from dsec.api.suppliers import AwsSupplier
from dsec.gateway import ca
from dsec.gateway.app import build_app, build_metrics, build_webhook
from dsec.gateway.core import Gateway, GatewayConfig
from dsec.gateway.identity import AwsIdentity
from dsec.providers.opening import open_aws
from dsec.rules import Settings
from dsec.snapshots.keys import KeyFileError, KeySource, KmsKeys, read_key_file
from dsec.world import heap, logs
from dsec.world.clock import SystemClock, system_randomness
from dsec.world.http import NetworkPlain, NetworkTls
from dsec.world.kms import AwsKms
from dsec.world.kube import connect
from dsec.world.records import RecordsError
from dsec.world.s3 import S3Objects
from dsec.world.serve import Listener, run_until, stop_on_signals
from dsec.world.settings import RoleSettings, SettingsError, load
from dsec.world.tls import client_context, server_context

API_PORT, WEBHOOK_PORT, METRICS_PORT = 8443, 9443, 9090
EXIT_USAGE = 2

log = structlog.get_logger()


async def serve(settings: RoleSettings) -> None:
    """Run one gateway until SIGTERM or SIGINT."""
    authority = ca.load(settings.secret("ca", "ca.crt"), settings.secret("ca", "ca.key"))
    certificate, key = settings.path("tls", "tls.crt"), settings.path("tls", "tls.key")
    outgoing = client_context(settings.path("ca", "ca.crt"))
    outgoing.load_cert_chain(certificate, key)
    incoming = server_context(certificate, key, settings.path("ca", "ca.crt"), required=False)
    namespace = settings.config.namespace
    records = await connect()
    objects = S3Objects(settings.store())
    gateway = Gateway(
        records,
        objects,
        NetworkTls(outgoing),
        clock=SystemClock(),
        randomness=system_randomness(),
        ca=authority,
        config=GatewayConfig(
            identity=settings.identity,
            internal_secret=settings.secret("internal", "token"),
            namespace=namespace,
            region=settings.config.region,
            agent_account=f"system:serviceaccount:{namespace}:dsec-agent",
            settings=Settings(),
            aws=_aws(settings.config.suppliers.aws),
            snapshot_keys=_snapshot_keys(settings),
        ),
    )
    stop = stop_on_signals()
    usual = {"api": API_PORT, "webhook": WEBHOOK_PORT, "metrics": METRICS_PORT}
    listeners = [Listener(settings.bind, settings.port(*one)) for one in usual.items()]
    await listeners[0].start(build_app(gateway), incoming)
    await listeners[1].start(build_webhook(gateway), _webhook_tls(settings))
    await listeners[2].start(build_metrics(gateway))
    running = asyncio.ensure_future(gateway.run())
    try:
        await run_until(running, stop)
    finally:
        # stop to accept before the views go: what is under way may end well
        for listener in listeners:
            await listener.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        objects.close()
        await records.close()


def _aws(told: AwsSupplier | None) -> AwsIdentity | None:
    """Return what asks AWS who calls, where machines of AWS may join."""
    if told is None:
        return None
    return AwsIdentity(
        NetworkPlain(),
        open_aws(told, SystemClock(), system_randomness()).find,
        told.gateway,
        frozenset(told.accounts),
        frozenset(told.node_roles),
        told.endpoint,
    )


def _snapshot_keys(settings: RoleSettings) -> KeySource | None:
    """Return what opens the keys of snapshots: KMS, or a mounted file; None: none are taken."""
    told = settings.config.snapshots
    if told.kms_key:
        return KmsKeys(AwsKms(told.kms_region, told.kms_endpoint), told.kms_key)
    path = settings.secrets / "snapshots" / "keys.json"
    if not path.is_file():
        return None
    return read_key_file(path, system_randomness(), mounted=True)


def _webhook_tls(settings: RoleSettings) -> ssl.SSLContext:
    """Return the webhook's TLS: the API server shows no certificate of ours."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    files: tuple[Path, Path] = (
        settings.path("webhook", "tls.crt"),
        settings.path("webhook", "tls.key"),
    )
    context.load_cert_chain(*files)
    return context


def main() -> int:
    """Run the program; every expected failure is a sentence on standard error."""
    logs.configure()
    heap.settle()
    try:
        settings = load()
        logs.configure(settings.config.log_level)
        asyncio.run(serve(settings))
    except (SettingsError, KeyFileError) as problem:
        sys.stderr.write(f"dsec.gateway: {problem}\n")
        return EXIT_USAGE
    except (OSError, ValueError, RecordsError) as problem:
        sys.stderr.write(f"dsec.gateway: {problem}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
