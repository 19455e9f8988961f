"""The controller as a program: `python -m dsec.controllers`. One of several leads.

SIGTERM releases the office, so that another takes over at once. The Lease is renewed on a thread of
its own with a connection of its own: a long decision cannot cost the office, and when the office is
lost the process ends at once, whatever the decision is doing.
"""

import asyncio
import os
import sys
import threading
from collections.abc import Awaitable, Callable

import structlog

from dsec.controllers.app import build_app
from dsec.controllers.controller import Controller, ControllerConfig
from dsec.controllers.election import Election, OfficeLostError
from dsec.controllers.metrics import build_metrics
from dsec.controllers.outside import World
from dsec.controllers.replica_scaler import Switches
from dsec.controllers.scheduling import compaction_of, policy_of
from dsec.journal.bindlog import FencedError
from dsec.providers.opening import open_providers
from dsec.world import heap, logs
from dsec.world.clock import SystemClock, system_randomness
from dsec.world.http import NetworkPlain, NetworkTls
from dsec.world.kube import connect
from dsec.world.objects import ObjectStoreError
from dsec.world.prometheus import PrometheusMetrics
from dsec.world.records import RecordsError
from dsec.world.registry import HttpRegistry
from dsec.world.remote import RemoteStores
from dsec.world.s3 import S3Objects
from dsec.world.serve import Listener, run_until, stop_on_signals
from dsec.world.settings import RoleSettings, SettingsError, load
from dsec.world.tls import client_context

INTERNAL_PORT, METRICS_PORT = 8081, 9090
EXIT_USAGE, EXIT_LOST = 2, 3

log = structlog.get_logger()


def hold_on_thread(election: Election) -> Callable[[], Awaitable[None]]:
    """Return a `hold` that renews on a thread; the process ends when the office is lost."""

    def renew(stop: threading.Event) -> None:
        async def run() -> None:
            records = await connect()
            try:
                holding = asyncio.ensure_future(election.over(records).hold())
                while not holding.done() and not stop.is_set():
                    await asyncio.wait({holding}, timeout=0.2)
                if holding.done():
                    holding.result()
                holding.cancel()
            finally:
                await records.close()

        try:
            asyncio.run(run())
        except (OfficeLostError, RecordsError) as problem:
            log.warning("office lost, this process ends", why=str(problem))
            # nothing may be decided any more, not even what is half done
            os._exit(EXIT_LOST)
        except BaseException:
            # whatever it was: nobody renews now, so this process must not go on deciding
            log.exception("the lease is not renewed any more, this process ends")
            os._exit(EXIT_LOST)

    async def hold() -> None:
        stop = threading.Event()
        thread = threading.Thread(target=renew, args=(stop,), name="lease", daemon=True)
        thread.start()
        try:
            await asyncio.Event().wait()
        finally:
            stop.set()
            await asyncio.to_thread(thread.join, 2.0)

    return hold


async def serve(settings: RoleSettings) -> None:
    """Run one controller until SIGTERM, SIGINT or the end of its term."""
    secret = settings.secret("internal", "token")
    context = client_context(settings.path("ca", "ca.crt"))
    context.load_cert_chain(settings.path("tls", "tls.crt"), settings.path("tls", "tls.key"))
    clock = SystemClock()
    records = await connect()
    objects = S3Objects(settings.store())
    # registries are strangers: they see no certificate of ours, and theirs are the world's
    registry = HttpRegistry.from_environment(NetworkPlain())
    scaling = settings.config.scaling
    metrics = PrometheusMetrics(scaling.prometheus) if scaling.prometheus else None
    suppliers = open_providers(
        settings.config.suppliers,
        records=records,
        objects=objects,
        clock=clock,
        randomness=system_randomness(),
        namespace=settings.config.namespace,
        ca_pem=settings.path("ca", "ca.crt").read_text(),
    )
    controller = Controller(
        World(
            records,
            objects,
            NetworkTls(context),
            clock,
            system_randomness(),
            registry,
            metrics,
            suppliers=suppliers,
            region=settings.config.region,
            stores=RemoteStores(records, settings.config.namespace).open,
        ),
        ControllerConfig(
            identity=settings.identity,
            endpoint=f"http://{settings.address}:{settings.port('internal', INTERNAL_PORT)}",
            namespace=settings.config.namespace,
            region=settings.config.region,
            preemption=policy_of(settings.config.scheduling),
            switches=Switches(scaling.replicas, scaling.growth, scaling.shrink),
            compaction=compaction_of(settings.config.scheduling),
        ),
        hold=hold_on_thread,
    )
    usual = {"internal": INTERNAL_PORT, "metrics": METRICS_PORT}
    listeners = [Listener(settings.bind, settings.port(*one)) for one in usual.items()]
    stop = stop_on_signals()
    await listeners[0].start(build_app(controller, secret))
    await listeners[1].start(build_metrics(controller))
    await trusted(objects, clock)
    running = asyncio.ensure_future(controller.run())
    try:
        await run_until(running, stop)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        for listener in listeners:
            await listener.close()
        objects.close()
        await registry.close()
        for supplier in suppliers.values():
            await supplier.close()
        if metrics is not None:
            await metrics.close()
        await records.close()


async def trusted(objects: S3Objects, clock: SystemClock) -> None:
    """Wait for the object store and prove that it keeps conditions.

    Raises ObjectStoreError after a minute, or at once where conditions are ignored.
    """
    end = clock.monotonic() + 60
    while True:
        try:
            await objects.ensure_bucket()
            await objects.probe()
        except ObjectStoreError as problem:
            if "ignores" in str(problem) or clock.monotonic() > end:
                raise
            log.info("waiting for the object store", error=str(problem))
            await clock.sleep(1.0)
        else:
            return


def main() -> int:
    """Run the program; every expected failure is a sentence on standard error."""
    logs.configure()
    heap.settle()
    try:
        settings = load()
        logs.configure(settings.config.log_level)
        asyncio.run(serve(settings))
    except SettingsError as problem:
        sys.stderr.write(f"dsec.controllers: {problem}\n")
        return EXIT_USAGE
    except (FencedError, OfficeLostError) as problem:
        sys.stderr.write(f"dsec.controllers: the term is over: {problem}\n")
        return EXIT_LOST
    except (OSError, RecordsError, ObjectStoreError) as problem:
        sys.stderr.write(f"dsec.controllers: {problem}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
