"""Agents of the simulation that save and restore in virtual time: state is how long one has run.

What the agents do with threads and a real store has tests of its own; here saving takes as long as
the size of the state says, and everything around it is real.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest
from dsec.agent.agent import Agent
from dsec.agent.entry import Entry
from dsec.agent.snapshot_taking import SnapshotFailedError, Wanted
from dsec.agent.snapshots import Snapshots
from dsec.api.lineage import lineage_of
from dsec.api.reasons import EndReason
from dsec.api.sandbox import SandboxState
from dsec.api.snapshot import SnapshotRef
from dsec.snapshots.layout import prefix_of
from dsec.snapshots.refs import body_of, ref_key
from dsec.world.substrate import SubstrateError
from sim_world import Sim

RATE = 50e9 / 45
"""Bytes a second of one step: 50 GB are saved, and restored, in about 90 s (SNAP-13)."""
LEAST_SECONDS = 0.6


@dataclass
class Saving:
    """The store, and what goes wrong with it. `size`: bytes of the state of each sandbox."""

    sim: Sim
    size: float = 0.0
    refuses: int = 0
    unrestorable: int = 0
    damaged: set[tuple[str, int]] = field(default_factory=set)
    held: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    refs: dict[str, list[SnapshotRef]] = field(default_factory=dict)
    ran: dict[tuple[str, int], float] = field(default_factory=dict)
    restored: list[tuple[str, int, float]] = field(default_factory=list)
    """Lineage, number, and seconds that it had run for."""

    @property
    def seconds(self) -> float:
        """How long saving, and restoring, takes."""
        return max(LEAST_SECONDS, self.size / RATE)

    def agent_of(self, entry: Entry) -> Agent:
        """Return the agent that has an entry."""
        return next(one for one in self.sim.agents.values() if one.core.get(_id(entry)) is entry)

    def now_ran(self, entry: Entry) -> float:
        """Return for how long a sandbox has run, over all its copies."""
        substrate = self.sim.substrates[self.agent_of(entry).config.node_name]
        return substrate._ran(substrate._run(_id(entry)))

    async def take(self, entry: Entry, wanted: Wanted) -> SnapshotRef:
        """Hold a sandbox where that is wanted, and save it."""
        if self.refuses:
            self.refuses -= 1
            raise SnapshotFailedError("failed", "the store is full")
        begun, agent = self.sim.clock.monotonic(), self.agent_of(entry)
        self.reasons.append(wanted.reason)
        if wanted.reason == "move":
            self.held.append(_id(entry))
        ran = self.now_ran(entry)
        if wanted.hold and entry.status.state is SandboxState.RUNNING:
            await agent.pause(_id(entry), "it is being saved")
        await self.sim.clock.sleep(self.seconds)
        if agent.config.node_name in self.sim.faults.cut:
            raise SnapshotFailedError("away", "control plane unavailable")
        identity = entry.spec.identity
        lineage = lineage_of(identity)
        refs = self.refs.setdefault(lineage, [])
        ref = SnapshotRef(
            tenant=identity.tenant,
            project=identity.project,
            lineage=lineage,
            seq=len(refs) + 1,
            kind=wanted.kind,
            sandbox=identity.id,
            incarnation=identity.incarnation,
            experiment=identity.experiment,
            node=agent.config.node_name,
            created=self.sim.clock.now(),
            manifest="00",
            files=1,
            bytes=int(self.size),
            stored_bytes=int(self.size / 2),
            seconds=self.sim.clock.monotonic() - begun,
            reason=wanted.reason,
            image=entry.spec.image,
            region="local",
            spec=entry.spec.wire(),
        )
        refs.append(ref)
        key = ref_key(prefix_of(ref.tenant), ref.lineage, ref.seq)
        await self.sim.objects.put(key, body_of(ref))
        self.ran[lineage, ref.seq] = ran
        return ref

    async def restore(self, entry: Entry) -> None:
        """Fetch the newest good one, or the one that is named."""
        asked = entry.spec.restore
        if asked is None:
            return
        await self.sim.clock.sleep(self.seconds)
        if self.unrestorable:
            self.unrestorable -= 1
            raise SubstrateError(EndReason.START_FAILED, "no snapshot can be restored")
        last = asked.seq or len(self.refs.get(asked.lineage, []))
        good = [n for n in range(last, 0, -1) if (asked.lineage, n) not in self.damaged]
        if not good:
            return  # it was lost before its first one
        ran = self.ran[asked.lineage, good[0]]
        substrate = self.sim.substrates[self.agent_of(entry).config.node_name]
        substrate._run(_id(entry)).before = ran
        self.restored.append((asked.lineage, good[0], ran))

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Let all agents save and restore here."""
        saving = self

        async def take(own: Snapshots, wanted: Wanted) -> SnapshotRef:
            ref = await saving.take(wanted.entry, wanted)
            own._exists(wanted.entry, ref)
            return ref

        async def restore(own: Snapshots, entry: Entry) -> None:
            del own
            await saving.restore(entry)

        async def idle(own: Snapshots) -> None:
            del own

        verbs: dict[str, Callable[..., Awaitable[object]]] = {
            "_take": take,
            "restore": restore,
            "run": idle,
        }
        for name, verb in verbs.items():
            patch.setattr(Snapshots, name, verb)


def _id(entry: Entry) -> str:
    return entry.spec.identity.id
