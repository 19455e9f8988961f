"""The agent as a program: `python -m dsec.agent`. SIGTERM ends it and leaves sandboxes running."""

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import structlog

from dsec.agent.config import AgentConfig, ConfigError, load, pairs, registry_of, split_address
from dsec.agent.serving import Host
from dsec.agent.spool import SpoolError
from dsec.agent.state import StateError
from dsec.agent.substrates.simulated import PROFILES, SimulatedSubstrate
from dsec.world import logs
from dsec.world.clock import SystemClock, system_randomness
from dsec.world.serve import Listener
from dsec.world.substrate import Substrate, SubstrateError

EXIT_USAGE = 2
_log = structlog.get_logger(__name__)


def parser() -> argparse.ArgumentParser:
    """Return the parser; every flag can also be DSEC_AGENT_<NAME>, or stand in --config."""
    flags = argparse.ArgumentParser(prog="python -m dsec.agent", description=__doc__)
    flags.add_argument("--config", type=Path, help="JSON or YAML file with settings")
    flags.add_argument("--state-dir", type=Path, help="where everything is kept")
    flags.add_argument("--gateway", help="URL of the gateway")
    flags.add_argument("--ca", type=Path, help="CA that the gateway is verified with")
    flags.add_argument("--token-file", type=Path, help="join token or projected token")
    flags.add_argument("--node-name", help="name that the node registers as")
    flags.add_argument("--listen", help="IP:PORT to serve on; port 0 takes a free one")
    flags.add_argument("--advertise", help="IP:PORT that gateways reach, if not --listen")
    flags.add_argument("--metrics-listen", help="IP:PORT for /metrics; default: nowhere")
    flags.add_argument("--init", type=Path, help="the dsec-init program")
    flags.add_argument("--registry", help="host:port for images that name none")
    flags.add_argument("--plain-http", action="append", help="a registry without TLS; repeatable")
    flags.add_argument(
        "--local-roots", action="store_true", default=None, help="take rootfs:PATH images"
    )
    flags.add_argument("--cgroup", help="parent of all sandboxes' cgroups")
    flags.add_argument("--pool", help="pool that the node belongs to")
    flags.add_argument("--labels", help="labels of the node: a=b,c=d")
    flags.add_argument("--cpu-overcommit", type=float, help="factor on the cores, 1 to 16")
    flags.add_argument(
        "--substrate", choices=["container", "simulated"], default="container", help="what runs"
    )
    flags.add_argument("--profile", choices=sorted(PROFILES), default="cpu", help="if simulated")
    return flags


def substrate_of(options: argparse.Namespace, config: AgentConfig) -> Substrate:
    """Return the substrate that was chosen. Raises ConfigError, SubstrateError, OSError."""
    if options.substrate == "simulated":
        return SimulatedSubstrate(
            PROFILES[options.profile], SystemClock(), system_randomness(), node=config.node_name
        )
    from dsec.agent.images import ImageStore
    from dsec.agent.substrates.oci import OciSubstrate

    host, plain = registry_of(config)
    state = config.state_dir / "substrate"
    images = ImageStore(
        state / "images",
        default_registry=host,
        plain_http=plain,
        local_roots=config.local_roots,
    )
    return OciSubstrate(state, cgroup=config.cgroup, init=config.init, images=images)


async def serve(config: AgentConfig, substrate: Callable[[], Substrate]) -> None:
    """Run one agent until SIGTERM or SIGINT."""
    host = Host(config.listen, config.advertise, SystemClock(), system_randomness())
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    metrics: Listener | None = None
    try:
        await host.add(config, substrate())
        if config.metrics_listen:
            # a node works without being watched: whoever has the port may keep it
            try:
                metrics = Listener(*split_address(config.metrics_listen))
                await metrics.start(host.metrics_app())
            except OSError as error:
                _log.warning("no metrics", listen=config.metrics_listen, error=str(error))
        serving = asyncio.create_task(host.serve())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
            await stopping
        serving.cancel()
    finally:
        if metrics is not None:
            await metrics.close()
        await host.close()


def main() -> int:
    """Run the program; every expected failure is a sentence on standard error."""
    options = parser().parse_args()
    logs.configure()
    try:
        values = vars(options)
        if options.labels is not None:
            values["labels"] = pairs(options.labels)
        config = load(values)
        logs.configure(config.log_level)
        # the container substrate starts tasks of its own: it is made inside the loop
        asyncio.run(serve(config, lambda: substrate_of(options, config)))
    except ConfigError as error:
        sys.stderr.write(f"dsec.agent: {error}\n")
        return EXIT_USAGE
    except (OSError, ValueError, StateError, SpoolError, SubstrateError) as error:
        sys.stderr.write(f"dsec.agent: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
