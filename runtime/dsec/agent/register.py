"""Registration: the node introduces itself, and again every few seconds as its heartbeat."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from dsec.agent.agent import Agent
from dsec.agent.tls import CertificateStore
from dsec.agent.uplink import REVOKED, AwayError, RefusedError, backoff
from dsec.api.wire import NodeAdmission, NodeRegistration
from dsec.world.clock import Randomness, until

CLOCK_LIMIT = 0.5
"""Seconds that a node's clock may be off: with more it takes no work."""

_log = structlog.get_logger(__name__)


class Registrar:
    """Keeps one agent registered.

    `certificates` is None inside one process, where the network itself says who calls. What admits
    the node first is read from `token_file`, or made by `voucher` for each registration.
    `on_admission` is told each answer (keys, CA); `on_certificate` when the identity has changed: a
    new certificate is stored, or the old one has expired or was revoked.
    """

    def __init__(
        self,
        agent: Agent,
        endpoint: str,
        randomness: Randomness,
        *,
        certificates: CertificateStore | None = None,
        token_file: Path | None = None,
        voucher: Callable[[NodeRegistration], Awaitable[str]] | None = None,
        on_admission: Callable[[NodeAdmission], None] = lambda _: None,
        on_certificate: Callable[[], None] = lambda: None,
    ) -> None:
        self._agent = agent
        self._endpoint = endpoint
        self._randomness = randomness
        self._certificates = certificates
        self._token_file = token_file
        self._voucher = voucher
        self._on_admission = on_admission
        self._on_certificate = on_certificate
        self._valid = certificates is not None and certificates.valid(agent.clock.now())
        self.admission: NodeAdmission | None = None

    async def once(self) -> NodeAdmission:
        """Register one time. Raises AwayError, RefusedError, ValueError (a wrong certificate)."""
        agent, store = self._agent, self._certificates
        now = agent.clock.now()
        ask = store is not None and store.due(now)
        if store is not None and self._valid and not store.valid(now):
            await self._identity_changed(valid=False)
        registration = NodeRegistration(
            name=agent.config.node_name,
            uid=agent.uid,
            boot_id=agent.boot_id,
            incarnation=agent.core.incarnation,
            endpoint=self._endpoint,
            pool=agent.config.pool,
            labels=agent.config.labels,
            inventory=agent.core.inventory,
            csr_pem=store.request_pem() if store is not None and ask else "",
            utc=now,
        )
        sent = agent.clock.monotonic()
        try:
            token = await self._token(store, agent, registration)
            admission = await agent.uplink.register(registration, token)
        except RefusedError as error:
            if store is not None and error.code == REVOKED:
                # the node was removed: what vouched for it before may do so again
                store.discard()
                await self._identity_changed(valid=False)
            raise
        self._judge_clock(admission.clock_offset_seconds, agent.clock.monotonic() - sent)
        if store is not None and admission.certificate_pem:
            store.store(admission.certificate_pem, admission.ca_pem)
            await self._identity_changed(valid=True)
        if admission.epoch > agent.core.epoch:
            agent.see_epoch(admission.epoch)
        self.admission = admission
        self._on_admission(admission)
        return admission

    async def begin(self, seconds: float) -> asyncio.Task[None]:
        """Start to keep the node registered; return the task once the first try has worked.

        Raises AwayError when none works in time.
        """
        task = asyncio.create_task(self.keep())
        left = until(self._agent.clock, seconds)
        while self.admission is None:
            if left() <= 0:
                task.cancel()
                raise AwayError(f"no registration within {seconds:g} s")
            await self._agent.clock.sleep(0.05)
        return task

    async def keep(self) -> None:
        """Register until it works, then again at each heartbeat, for ever."""
        attempt = 0
        while True:
            try:
                await self.once()
            except Exception as error:  # noqa: BLE001 - the heartbeat must not stop for anything
                if attempt == 0:
                    _log.warning(
                        "not registered, will repeat",
                        node=self._agent.config.node_name,
                        error=str(error),
                    )
                pause = backoff(attempt, self._randomness)
                attempt += 1
            else:
                # jitter: a thousand nodes that were started together must not call together
                pause = self._agent.config.heartbeat_seconds * (0.9 + self._randomness.random() / 5)
                attempt = 0
            await self._agent.clock.sleep(pause)

    async def _identity_changed(self, *, valid: bool) -> None:
        self._valid = valid
        self._on_certificate()
        await self._agent.uplink.renew(identified=valid)

    async def _token(
        self, store: CertificateStore | None, agent: Agent, registration: NodeRegistration
    ) -> str:
        """Return what vouches for the node, unless a certificate already says who it is.

        Raises AwayError where the machine's own identity cannot be had now.
        """
        if store is not None and store.valid(agent.clock.now()):
            return ""
        if self._voucher is not None:
            return await self._voucher(registration)
        if self._token_file is None:
            return ""
        with contextlib.suppress(OSError):
            return self._token_file.read_text().strip()
        return ""

    def _judge_clock(self, offset: float, round_trip: float) -> None:
        """Take no work while the clock is off by more than the limit, the way there excepted."""
        core = self._agent.core
        if abs(offset) - round_trip > CLOCK_LIMIT:
            core.refuse(
                "clock", f"this node's clock is off by {offset:.1f} s, {CLOCK_LIMIT} s is allowed"
            )
        else:
            core.lift("clock")
