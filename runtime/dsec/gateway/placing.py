"""Single creates that this gateway places itself, out of what the leader has lent it.

Look the key up, choose a node, pay, write the row to the lane, call the agent: in that order, so
that a crash after any of them leaves a sandbox that is bound once and paid once, or nothing. The
agent has the last word; where it refuses, the sandbox is bound to another node, a few times, and
then waits at the leader. Whatever this gateway may not decide is the leader's, as ever: `create`
then returns None.

What is lost in a crash: answers. Their callers repeat them by key, here or anywhere.
"""

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta

from dsec.api.decisions import DecisionRecord
from dsec.api.internal import CreatesCall
from dsec.api.sandbox import SandboxState
from dsec.api.tenant import TenantSpec
from dsec.api.wire import CreateAnswer, KeyedAnswer, KeyedAnswers, KeyedCreate
from dsec.gateway.errors import away
from dsec.gateway.lane import LaneDoubtError, LaneLostError, LaneWriter
from dsec.gateway.leases import Leases
from dsec.gateway.nodes import NearNodes
from dsec.gateway.views import Views
from dsec.journal.bindings import Binding, Row
from dsec.journal.keyed import keyed_binding, new_id, replaceable
from dsec.journal.lanes import Shard, shard_of
from dsec.placement.accounts import amounts_of
from dsec.placement.entries import Entry
from dsec.world.agents import AgentRefusedError, AgentSilentError, AgentStaleError
from dsec.world.clock import Clock, Randomness, until

TRIES = 3
"""Nodes that are asked for one create."""
TOTAL_SECONDS = 4.0
"""No further node is asked after that."""
CALL_SECONDS = 2.0
"""Of one call to an agent: with TOTAL_SECONDS less than the leader leaves a create to a gateway."""
RETRY_AFTER = 1.0
MOST_ACCEPTED = 10_000
"""Of what agents took is kept, until they tell of it themselves."""
REPLICAS = "exp/"
"""Keys of experiments begin so; they are the leader's."""


@dataclass(slots=True)
class Placing:
    """Of one gateway process. `leases.run` has to run beside it."""

    leases: Leases
    near: NearNodes
    views: Views
    clock: Clock
    randomness: Randomness
    _going: dict[tuple[str, str], asyncio.Future[None]] = field(default_factory=dict)
    """Keys that are being bound here now."""
    _accepted: dict[str, str] = field(default_factory=dict)
    """What agents took lately at a call from here, and on which node."""

    async def create(
        self, call: CreatesCall, tenant: str, rights: TenantSpec
    ) -> KeyedAnswers | None:
        """Bind a single create, or say what its key is; None: the leader decides.

        Raises ApiError where the outcome is unknown, ObjectStoreError.
        """
        create = call.batch.creates[0]
        if len(call.batch.creates) > 1 or not _simple(create):
            return None
        self.leases.note(call.project, amounts_of(create.resources), create.image)
        key, shard = (tenant, create.key), shard_of(tenant, create.key)
        if self.leases.holds(shard) is None:
            return None
        image = await self.leases.image(call.project, create.image)
        if image is None:
            return None
        while (other := self._going.get(key)) is not None:
            await asyncio.wait({other})
        want = keyed_binding(
            create,
            image=image,
            tenant=tenant,
            project=call.project,
            rights=rights,
            sandbox=new_id(self.clock, self.randomness),
            correlation=call.correlation_id,
            now=self.clock.now(),
        )
        if self.views.bind_log.state.key(*key) is not None:
            answer = await self._known(want)
        else:
            done = self._going[key] = asyncio.get_running_loop().create_future()
            try:
                answer = await self._bind(want, shard)
            finally:
                del self._going[key]
                done.set_result(None)
        return None if answer is None else KeyedAnswers(answers=[answer])

    # ------------------------------------------------------------------ a known key

    async def _known(self, want: Binding) -> KeyedAnswer | None:
        """Return what a key has become, as the leader would; None: it may be served anew."""
        state = (await self.views.fresh_log(newest=True)).state
        binding = state.key(want.tenant, want.key)
        if binding is None or (binding.live and not binding.node):
            return None
        answer = KeyedAnswer(key=want.key, outcome="exists", id=binding.id, node=binding.node)
        if binding.body_hash != want.body_hash:
            answer.outcome, answer.node = "conflict", ""
            answer.message = (
                f"the key belongs to sandbox {binding.id}, which was asked for differently"
            )
            return answer
        if replaceable(binding):
            return None
        status = self.views.status(binding)
        answer.state = status.state
        if not binding.live:
            answer.message = f"ended: {binding.reason.value if binding.reason else 'unknown'}"
        elif status.state is SandboxState.UNKNOWN or not self._confirmed(binding):
            answer.state = None
            return self._unknown(answer, binding.node)
        return answer

    def _confirmed(self, binding: Binding) -> bool:
        """Return whether its agent has said, here, that it has it."""
        watch = self.views.watch(binding.node)
        told = watch is not None and binding.id in watch.memory.sandboxes
        return told or self._accepted.get(binding.id) == binding.node

    # ------------------------------------------------------------------ a new key

    async def _bind(self, want: Binding, shard: Shard) -> KeyedAnswer | None:
        """Place, pay, write and start. Raises ApiError where the outcome is unknown."""
        decision, why = self.near.place(want, self.leases.purse.epoch)
        if not decision.node:
            return None
        want.node, want.spec.devices = decision.node, list(decision.devices)
        try:
            return await self._pay_and_start(want, shard, why)
        except LaneDoubtError as problem:
            raise away(f"whether it is bound is not known: {problem}; repeat the call") from problem
        finally:
            if want.id not in self.views.bind_log.state.by_id:
                self.near.release(want.id)

    async def _pay_and_start(
        self, want: Binding, shard: Shard, why: DecisionRecord | None
    ) -> KeyedAnswer | None:
        project = want.spec.identity.project
        entry = _entry(want)
        lease = await self.leases.pay(project, entry)
        if not lease:
            return None
        lane = self.leases.holds(shard)
        if lane is None or self.views.bind_log.state.key(want.tenant, want.key) is not None:
            # the shard was away meanwhile, and the leader may have bound the key
            self.leases.purse.refund(lease, entry)
            return None
        epoch = self.leases.purse.epoch
        want.bound_at = self.clock.now()
        row = Row(kind="bind", at=self.clock.now(), binding=want)
        try:
            await lane.commit(row, shard=shard, lease=lease, decision=why)
        except LaneLostError:
            self.leases.purse.refund(lease, entry)
            self.leases.drop_lost()
            return None
        return await self._start(want, lane, epoch)

    async def _start(self, want: Binding, lane: LaneWriter, epoch: int) -> KeyedAnswer | None:
        """Have an agent start it, the next where one refuses; None: it waits at the leader."""
        answer = KeyedAnswer(key=want.key, outcome="bound", id=want.id, node=want.node)
        left, refusing = until(self.clock, TOTAL_SECONDS), list[str]()
        while True:
            try:
                word = await self._ask(want, epoch)
            except AgentStaleError:
                lane.lose("an agent has seen a later leader")
                self.leases.drop_lost()
                return None
            except (AgentSilentError, AgentRefusedError):
                return self._unknown(answer, want.node)
            if word.accepted:
                answer.node, answer.state = want.node, word.state
                self._accepted[want.id] = want.node
                if len(self._accepted) > MOST_ACCEPTED:
                    del self._accepted[next(iter(self._accepted))]
                return answer
            refusing.append(want.node)
            again = len(refusing) < TRIES and left() > 0
            self.near.release(want.id)
            row, why = Row(kind="bind", at=self.clock.now(), id=want.id), None
            if again:
                decision, why = self.near.place(want, epoch, refusing)
                row.node, row.devices = decision.node, list(decision.devices)
            try:
                await lane.commit(row, decision=why)
            except LaneLostError:
                # the leader has it, and goes on from the node that refused
                return None
            if not row.node:
                return None
            # the log's own binding is another object where this process has read the row back
            want.node, want.spec.devices = row.node, row.devices

    async def _ask(self, want: Binding, epoch: int) -> CreateAnswer:
        """Ask the agent of its node. Raises as all calls of agents do."""
        watch = self.views.watch(want.node)
        if watch is None:
            raise AgentSilentError(f"node {want.node} is not known here now")
        before = self.clock.now() + timedelta(seconds=CALL_SECONDS)
        answers = await watch.client.create(epoch, [want.spec], before=before, seconds=CALL_SECONDS)
        found = next((one for one in answers if one.id == want.id), None)
        if found is None:
            raise AgentSilentError(f"node {want.node} says nothing of it")
        return found

    def _unknown(self, answer: KeyedAnswer, node: str) -> KeyedAnswer:
        answer.outcome, answer.retry_after_seconds = "unknown", RETRY_AFTER
        answer.message = f"node {node} is silent; ask again with the same key"
        return answer


def _simple(create: KeyedCreate) -> bool:
    """Return whether a gateway may place it: GPUs are given by the leader, who knows what comes."""
    asked = create.resources
    gpu = asked.gpu_count or asked.gpu_memory_bytes or asked.gpu_shares or asked.gpu_milli
    return not gpu and not create.key.startswith(REPLICAS)


def _entry(binding: Binding) -> Entry:
    """Return what a binding counts in the ledger, as the leader will book it."""
    return Entry(
        binding.id,
        f"{binding.tenant}/{binding.spec.identity.project}",
        amounts_of(binding.spec.resources),
        binding.needs.task_class,
        since=binding.at.timestamp(),
    )
