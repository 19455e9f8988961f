"""Agents of the simulation that save and restore: state is how long a sandbox has run for."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from dsec.agent.substrates.simulated import SimulatedSubstrate
from dsec.api.lineage import lineage_of
from dsec.api.reasons import EndReason
from dsec.api.sandbox import SandboxSpec, SandboxState
from dsec.api.snapshot import SnapshotAnswer, SnapshotCall, SnapshotKind, SnapshotRef
from dsec.world.agents import AgentClient, AgentRefusedError
from dsec.world.substrate import Started, SubstrateError
from sim_world import Sim


@dataclass
class Saving:
    """The store, and how long saving and restoring take, in seconds."""

    sim: Sim
    save: float = 0.6
    restore: float = 0.6
    refuses: int = 0
    unrestorable: int = 0
    held: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    refs: dict[str, list[SnapshotRef]] = field(default_factory=dict)
    ran: dict[tuple[str, int], float] = field(default_factory=dict)

    async def snapshot(self, client: AgentClient, sandbox: str, call: SnapshotCall) -> Any:
        """Hold a sandbox, and save it."""
        await client.use()  # through gates and faults, as any call
        agent = self.sim.agents[client.endpoint.rsplit("/", 1)[-1]]
        agent.see_epoch(call.epoch)
        entry = agent.core.get(sandbox)
        if self.refuses or entry is None or not entry.live:
            self.refuses -= 1
            raise AgentRefusedError("snapshot-failed", "the store is full")
        self.reasons.append(call.reason)
        if call.reason == "move":
            self.held.append(sandbox)
        if entry.status.state is SandboxState.RUNNING:
            await agent.pause(sandbox, "it is being saved")
        await self.sim.clock.sleep(self.save)
        ran = self.sim.substrates[agent.config.node_name]._ran(
            self.sim.substrates[agent.config.node_name]._run(sandbox)
        )
        identity = entry.spec.identity
        lineage = lineage_of(identity)
        refs = self.refs.setdefault(lineage, [])
        ref = SnapshotRef(
            tenant=identity.tenant,
            project=identity.project,
            lineage=lineage,
            seq=len(refs) + 1,
            kind=call.kind or SnapshotKind.STATE,
            sandbox=sandbox,
            incarnation=identity.incarnation,
            created=self.sim.clock.now(),
            manifest="00",
            files=1,
            bytes=1000,
            stored_bytes=500,
            seconds=self.save,
        )
        refs.append(ref)
        self.ran[lineage, ref.seq] = ran
        await client.use()
        return SnapshotAnswer(epoch=call.epoch, ref=ref)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Let all agents save and restore here."""
        saving = self

        async def snapshot(client: AgentClient, sandbox: str, call: SnapshotCall) -> Any:
            return await saving.snapshot(client, sandbox, call)

        patch.setattr(AgentClient, "snapshot", snapshot)
        create = SimulatedSubstrate.create

        async def restored(substrate: SimulatedSubstrate, spec: SandboxSpec) -> Started:
            asked = spec.restore
            before = 0.0
            if asked is not None:
                await saving.sim.clock.sleep(saving.restore)
                if saving.unrestorable:
                    saving.unrestorable -= 1
                    raise SubstrateError(EndReason.START_FAILED, "no snapshot can be restored")
                refs = saving.refs.get(asked.lineage, [])
                seq = asked.seq or len(refs)
                before = saving.ran.get((asked.lineage, seq), 0.0)
            started = await create(substrate, spec)
            substrate._run(spec.identity.id).before = before
            return started

        patch.setattr(SimulatedSubstrate, "create", restored)
