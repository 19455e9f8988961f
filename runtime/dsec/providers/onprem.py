"""Own machines: the inventory is the SandboxNode records that say how they are switched.

To buy is to switch a parked machine on, to end is to switch it off. Who holds a machine is an
annotation of its record, written before the machine is touched: of two who want the same one the
record store lets one win, and whoever repeats a purchase finds what it holds. Nothing else is kept.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import structlog

from dsec.api.nodes import SandboxNodeSpec
from dsec.api.power import PowerControl
from dsec.providers.power import Power, PowerError, PowerState
from dsec.providers.provider import (
    BuyAnswer,
    EndAnswer,
    Failure,
    FailureKind,
    Fence,
    Holdings,
    Phase,
    ProviderEvent,
    ProviderNode,
    Scope,
    Wanted,
)
from dsec.world.clock import Clock
from dsec.world.records import (
    Record,
    RecordConflictError,
    RecordInvalidError,
    RecordNotFoundError,
    Records,
    RecordsError,
)

TOKEN, OFFERING, RUN_UNTIL, EPOCH = (
    f"dsec.dev/{name}" for name in ("token", "offering", "run-until", "epoch")
)
STARTED, PARKED, FAILED = (
    f"dsec.dev/{name}" for name in ("powered-at", "parked-at", "power-failed-at")
)
FORCE_SECONDS = 120.0
"""A machine that was asked to shut down and is on after this gets its power cut."""
FAILED_SECONDS = 600.0
"""A machine that could not be switched is left alone for so long."""
AT_ONCE = 16
"""Controllers asked at the same time."""
INSTANCE_TYPE = "instance-type"
"""Label of a node's make, as offerings name it."""

log = structlog.get_logger()

Annotations = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Machine:
    """One record with a way to switch it."""

    record: Record
    spec: SandboxNodeSpec
    control: PowerControl

    @property
    def name(self) -> str:
        """The node's name."""
        return str(self.record["metadata"]["name"])

    def note(self, key: str) -> str:
        """Return an annotation."""
        return str((self.record["metadata"].get("annotations") or {}).get(key, ""))

    def number(self, key: str) -> float | None:
        """Return an annotation that is a time in UTC seconds; None where it is none."""
        try:
            return float(self.note(key))
        except ValueError:
            return None

    @property
    def ready(self) -> bool:
        """Whether the control plane sees its agent."""
        conditions = (self.record.get("status") or {}).get("conditions", [])
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


class OnPremProvider:
    """The own machines of an installation."""

    def __init__(self, records: Records, power: Power, clock: Clock) -> None:
        self._records = records
        self._power = power
        self._clock = clock
        self._fence = Fence()
        self._asking = asyncio.Semaphore(AT_ONCE)

    async def buy(self, purchase: Wanted, *, epoch: int, run_until: float) -> BuyAnswer:
        """See `NodeProvider.buy`. A machine that cannot be switched is passed over for the next."""
        self._fence.admit(epoch)
        try:
            machines = [one for one in await self._machines() if _fits(one, purchase)]
        except RecordsError as error:
            return BuyAnswer(purchase.token, purchase.count, failure=_unknown(str(error)))
        held = [one for one in machines if one.note(TOKEN) == purchase.token]
        free = [one for one in machines if not one.note(TOKEN) and self._usable(one)]
        got: list[ProviderNode] = []
        why = ""
        for candidate in [*held, *free]:
            if len(got) >= purchase.count:
                break
            phase = await self._phase(candidate)
            if phase is not Phase.STOPPED and not candidate.note(TOKEN):
                continue
            try:
                machine = await self._hold(candidate, purchase, epoch, run_until)
                got.append(await self._start(machine, phase))
            except (PowerError, RecordsError, RecordConflictError, RecordNotFoundError) as error:
                why = str(error)
                log.warning("not switched on", node=candidate.name, error=why)
        failure = None
        if len(got) < purchase.count:
            words = f"{len(got)} of {purchase.count} machines of {purchase.offering.key} came"
            words += f"; {why}" if why else ": no more are parked"
            failure = Failure(FailureKind.CAPACITY, Scope.OFFERING, "parked", words)
        return BuyAnswer(purchase.token, purchase.count, tuple(got), failure)

    async def list(self) -> Holdings:
        """See `NodeProvider.list`: machines that are on, and those that somebody holds."""
        try:
            machines = await self._machines()
        except RecordsError as error:
            return Holdings(complete=False, failure=_unknown(str(error)))
        phases = await asyncio.gather(*(self._phase(machine) for machine in machines))
        nodes = tuple(
            _node(machine, phase) for machine, phase in zip(machines, phases, strict=True)
        )
        self._fence.learn(node.epoch for node in nodes)
        return Holdings(nodes)

    async def end(self, nodes: Iterable[str], *, epoch: int) -> EndAnswer:
        """See `NodeProvider.end`: shut down and parked; with force where that has taken too long.

        What runs there is the caller's to move away first.
        """
        self._fence.admit(epoch)
        ended: set[str] = set()
        failed: dict[str, Failure] = {}
        for name in nodes:
            try:
                await self._park(name, epoch)
                ended.add(name)
            except RecordNotFoundError:
                ended.add(name)
            except (PowerError, RecordInvalidError) as error:
                words = str(error)
                failed[name] = Failure(FailureKind.REFUSED, Scope.OFFERING, "power", words)
            except (RecordsError, RecordConflictError) as error:
                failed[name] = _unknown(str(error))
        return EndAnswer(frozenset(ended), failed)

    async def extend(self, nodes: Iterable[str], run_until: float, *, epoch: int) -> EndAnswer:
        """See `NodeProvider.extend`. Own machines cost the same on and off: none ends by itself."""
        self._fence.admit(epoch)
        ended: set[str] = set()
        failed: dict[str, Failure] = {}
        for name in nodes:
            try:
                notes = {RUN_UNTIL: repr(run_until), EPOCH: str(epoch)}
                await self._annotate(await self._records.get("SandboxNode", name), notes)
                ended.add(name)
            except (RecordsError, RecordConflictError, RecordNotFoundError) as error:
                failed[name] = _unknown(str(error))
        return EndAnswer(frozenset(ended), failed)

    async def remove_volumes(self, volumes: Iterable[str], *, epoch: int) -> EndAnswer:
        """See `NodeProvider.remove_volumes`: own machines have no volumes of ours."""
        self._fence.admit(epoch)
        return EndAnswer(frozenset(volumes))

    async def events(self) -> tuple[ProviderEvent, ...]:
        """See `NodeProvider.events`: nobody takes own machines away."""
        return ()

    async def close(self) -> None:
        """See `NodeProvider.close`: nothing is held."""

    # ------------------------------------------------------------------ inside

    def _now(self) -> float:
        return self._clock.now().timestamp()

    def _usable(self, machine: Machine) -> bool:
        failed = machine.number(FAILED)
        return failed is None or self._now() - failed > FAILED_SECONDS

    async def _machines(self) -> tuple[Machine, ...]:
        """Return the machines that can be switched, by name. Raises RecordsError."""
        found = []
        for record in (await self._records.list("SandboxNode")).items:
            spec = SandboxNodeSpec.model_validate(record.get("spec") or {})
            if spec.power is not None:
                found.append(Machine(record, spec, spec.power))
        return tuple(sorted(found, key=lambda machine: machine.name))

    async def _state(self, machine: Machine) -> PowerState:
        """Ask whether a machine is on; unknown where nobody can say."""
        try:
            async with self._asking:
                return await self._power.state(machine.name, machine.control)
        except PowerError as error:
            log.warning("no word about a machine's power", node=machine.name, error=str(error))
            return PowerState.UNKNOWN

    async def _phase(self, machine: Machine) -> Phase:
        """Return whether a machine is on; where nobody can say, by what its agent shows."""
        state = await self._state(machine)
        if state is not PowerState.UNKNOWN:
            return _PHASES[state]
        if machine.ready:
            return Phase.RUNNING
        return Phase.STARTING if machine.note(TOKEN) else Phase.STOPPED

    async def _hold(
        self, machine: Machine, purchase: Wanted, epoch: int, run_until: float
    ) -> Machine:
        """Write into its record who holds a machine, before it is touched. Raises as `Records`."""
        if machine.note(TOKEN) == purchase.token:
            return machine
        notes: Annotations = {
            TOKEN: purchase.token,
            OFFERING: purchase.offering.key,
            RUN_UNTIL: repr(run_until),
            EPOCH: str(epoch),
            STARTED: repr(self._now()),
            PARKED: None,
            FAILED: None,
        }
        return replace(machine, record=await self._annotate(machine.record, notes))

    async def _start(self, machine: Machine, phase: Phase) -> ProviderNode:
        """Switch a held machine on; one that cannot be switched is let go again."""
        # a card that wakes its machine does not say whether it has heard: it is called again
        known = phase is Phase.STARTING and machine.control.wake_on_lan is None
        if phase is Phase.RUNNING or known:
            return _node(machine, phase)
        try:
            await self._power.on(machine.name, machine.control)
        except PowerError:
            await self._annotate(machine.record, {TOKEN: None, FAILED: repr(self._now())})
            raise
        return _node(machine, Phase.STARTING)

    async def _park(self, name: str, epoch: int) -> None:
        record = await self._records.get("SandboxNode", name)
        spec = SandboxNodeSpec.model_validate(record.get("spec") or {})
        if spec.power is None:
            raise PowerError(f"{name}: its record does not say how it is switched")
        machine = Machine(record, spec, spec.power)
        asked = machine.number(PARKED)
        if await self._state(machine) is PowerState.OFF:
            await self._annotate(record, {TOKEN: None, PARKED: repr(asked or self._now())})
            return
        force = asked is not None and self._now() - asked > FORCE_SECONDS
        if asked is None:
            # the hold stays until it is off: nobody else may switch it meanwhile
            notes = {PARKED: repr(self._now()), EPOCH: str(epoch)}
            await self._annotate(record, notes)
        await self._power.off(name, machine.control, force=force)

    async def _annotate(self, record: Record, notes: Annotations) -> Record:
        """Change annotations (None removes) of exactly this version. Raises as `Records`."""
        metadata: dict[str, Any] = dict(record["metadata"])
        known = {**(metadata.get("annotations") or {}), **notes}
        metadata["annotations"] = {key: value for key, value in known.items() if value is not None}
        return await self._records.replace({**record, "metadata": metadata})


_PHASES = {
    PowerState.ON: Phase.RUNNING,
    PowerState.OFF: Phase.STOPPED,
    PowerState.STARTING: Phase.STARTING,
    PowerState.ENDING: Phase.ENDING,
}


def _fits(machine: Machine, purchase: Wanted) -> bool:
    offering, labels = purchase.offering, machine.spec.labels
    return (
        machine.spec.pool == offering.pool
        and labels.get(INSTANCE_TYPE, "") in ("", offering.instance_type)
        and (not offering.zone or labels.get("zone", "") in ("", offering.zone))
    )


def _node(machine: Machine, phase: Phase) -> ProviderNode:
    epoch = machine.note(EPOCH)
    return ProviderNode(
        id=machine.name,
        name=machine.name,
        offering=machine.note(OFFERING),
        pool=machine.spec.pool or "",
        token=machine.note(TOKEN),
        phase=phase,
        launched_at=machine.number(STARTED) or 0.0,
        run_until=machine.number(RUN_UNTIL),
        epoch=int(epoch) if epoch.isdecimal() else 0,
        market="owned",
        zone=machine.spec.labels.get("zone", ""),
    )


def _unknown(words: str) -> Failure:
    return Failure(FailureKind.UNKNOWN, Scope.PROVIDER, "records", words, unsure=True)
