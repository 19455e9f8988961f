"""One leader by a Lease. A Lease elects, it does not fence: the bind log and the agents do that.

`acquire` waits for the office and returns the epoch (the Lease's leaseTransitions, which grows
with every term). `hold` renews until it cannot, then raises OfficeLostError: whoever runs it must
stop deciding at once. In a real process `hold` runs on a thread of its own, so that a long
decision cannot cost the office. Expiry is judged by the local clock, from when a change of the
Lease was seen, never by comparing two machines' clocks.
"""

from dataclasses import dataclass
from datetime import datetime

import structlog

from dsec.api.internal import ENDPOINT_ANNOTATION, LEASE
from dsec.world.clock import Clock
from dsec.world.records import (
    Record,
    RecordConflictError,
    RecordNotFoundError,
    Records,
    RecordsError,
)

DURATION = 6.0
"""Seconds without a renewal after which others take over; with POLL and the opening of the log a
new leader decides within ten seconds of the old one's last sign."""
RENEW_EVERY = 1.5
GIVE_UP = 4.0
"""A leader that could not renew for this long stops, before anyone else can have the office."""
POLL = 1.0

log = structlog.get_logger()


class OfficeLostError(Exception):
    """This process leads no longer; everything that decides must stop."""


def stamp(now: datetime) -> str:
    """Return a Kubernetes MicroTime."""
    return now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass(slots=True)
class _Seen:
    version: str = ""
    at: float = 0.0


class Election:
    """One candidate. `endpoint` is where gateways find the controller while it leads."""

    def __init__(
        self, records: Records, clock: Clock, *, identity: str, endpoint: str, namespace: str
    ) -> None:
        self._records = records
        self._clock = clock
        self._identity = identity
        self._endpoint = endpoint
        self._namespace = namespace
        self._held: Record | None = None
        self._renewed = 0.0

    def over(self, records: Records) -> "Election":
        """Return this candidate, with its office, over another connection to the records."""
        other = Election(
            records,
            self._clock,
            identity=self._identity,
            endpoint=self._endpoint,
            namespace=self._namespace,
        )
        other._held, other._renewed = self._held, self._renewed
        return other

    async def acquire(self, minimum: int = 0) -> int:
        """Wait for the office and return its epoch, above `minimum` (the log's last epoch)."""
        seen = _Seen()
        while True:
            try:
                epoch = await self._try(seen, minimum)
            except (RecordConflictError, RecordsError) as problem:
                log.info("election goes on", why=str(problem))
                epoch = 0
            if epoch:
                log.info("leads", identity=self._identity, epoch=epoch)
                return epoch
            await self._clock.sleep(POLL)

    async def hold(self) -> None:
        """Renew for ever. Raises OfficeLostError; cancel it to stop, then `release`."""
        while True:
            await self._clock.sleep(RENEW_EVERY)
            await self._renew()

    async def release(self) -> None:
        """Give the office back, so that another takes over at once. Never raises."""
        if self._held is None:
            return
        try:
            # the renewing thread has written it since
            lease = await self._records.get("Lease", LEASE, self._namespace)
            mine, spec = self._held["spec"], lease.get("spec", {})
            if spec.get("leaseTransitions") == mine["leaseTransitions"]:
                free = {**spec, "holderIdentity": "", "leaseDurationSeconds": 1}
                await self._records.replace({**lease, "spec": free})
        except (RecordConflictError, RecordNotFoundError, RecordsError) as problem:
            log.info("office not released", why=str(problem))
        self._held = None

    async def _try(self, seen: _Seen, minimum: int) -> int:
        started = self._clock.monotonic()
        try:
            lease = await self._records.get("Lease", LEASE, self._namespace)
        except RecordNotFoundError:
            fresh = self._lease({}, minimum + 1)
            self._held = await self._records.create(fresh)
            self._renewed = started
            return minimum + 1
        spec = lease.get("spec", {})
        version = lease["metadata"]["resourceVersion"]
        if version != seen.version:
            seen.version, seen.at = version, started
        # an earlier process of this very pod is dead, or this one would not run
        free = spec.get("holderIdentity") in (None, "", self._identity)
        patience = float(spec.get("leaseDurationSeconds") or DURATION)
        if not free and started - seen.at < patience:
            return 0
        epoch = max(int(spec.get("leaseTransitions") or 0), minimum) + 1
        self._held = await self._records.replace(self._lease(lease, epoch))
        self._renewed = started
        return epoch

    async def _renew(self) -> None:
        if self._held is None:
            raise OfficeLostError("the office was released")
        started = self._clock.monotonic()
        if started - self._renewed > DURATION:
            # this process stood still: someone else may lead, so nothing is written any more
            raise OfficeLostError(f"no renewal for {started - self._renewed:.1f} s")
        spec = {**self._held["spec"], "renewTime": stamp(self._clock.now())}
        try:
            self._held = await self._records.replace({**self._held, "spec": spec})
            self._renewed = started
        except (RecordConflictError, RecordNotFoundError) as problem:
            await self._own_write(problem)
        except RecordsError as problem:
            log.warning("renewal failed", error=str(problem))
        if self._clock.monotonic() - self._renewed > GIVE_UP:
            raise OfficeLostError(f"could not renew for {GIVE_UP:g} s")

    async def _own_write(self, problem: Exception) -> None:
        """Tell a conflict with our own renewal, whose answer was lost, from a lost office."""
        try:
            lease = await self._records.get("Lease", LEASE, self._namespace)
        except (RecordNotFoundError, RecordsError):
            raise OfficeLostError(f"the lease is gone: {problem}") from problem
        mine = self._held["spec"] if self._held else {}
        spec = lease.get("spec", {})
        same = all(
            spec.get(name) == mine.get(name) for name in ("holderIdentity", "leaseTransitions")
        )
        if not same:
            raise OfficeLostError(
                f"{spec.get('holderIdentity') or 'nobody'} has the office"
            ) from problem
        self._held = lease

    def _lease(self, old: Record, epoch: int) -> Record:
        now = stamp(self._clock.now())
        meta = old.get("metadata", {"name": LEASE, "namespace": self._namespace})
        annotations = {**meta.get("annotations", {}), ENDPOINT_ANNOTATION: self._endpoint}
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {**meta, "annotations": annotations},
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": int(DURATION),
                "acquireTime": now,
                "renewTime": now,
                "leaseTransitions": epoch,
            },
        }
