"""A gateway asks the node that its lane names, also where it has read its own rows back."""

from types import SimpleNamespace
from typing import Any

from dsec.api.wire import CreateAnswer
from dsec.gateway.lane import LaneWriter
from dsec.gateway.placing import Placing
from dsec.journal.bindlog import BindLog
from dsec.journal.lanes import LanedReader, shard_of
from dsec.world.clock import system_randomness
from dsec.world.memory import MemoryObjects
from test_lanes_journal import Times, bind


class ReadBack(MemoryObjects):
    """A store whose answers come later than a look of the same process at what was written."""

    reader: LanedReader | None = None

    async def put_if_absent(self, key: str, data: bytes) -> str:
        """Write, and let the reader look before the answer."""
        tag = await super().put_if_absent(key, data)
        if self.reader is not None:
            await self.reader.refresh()
        return tag


async def test_after_a_refusal_the_node_of_the_new_row_is_asked() -> None:
    """The binding in the reader's state is another object than the gateway's own then."""
    objects, clock = ReadBack(), Times()
    leader = BindLog(objects, clock, "c")
    await leader.open()
    await leader.begin(1)
    await leader.append([], {"a": 0})
    reader = LanedReader(objects)
    await reader.open()
    await reader.refresh()
    objects.reader = reader
    lane = LaneWriter("a", objects, clock, reader, "gw")
    row = bind(1)
    assert row.binding is not None
    want = row.binding
    shard = shard_of(want.tenant, want.key)
    assert lane.grant({shard}, 0)
    await lane.commit(row, shard=shard, lease="l1")
    assert reader.state.by_id[want.id] is not want

    first, asked = want.node, list[str]()

    def watch(node: str) -> Any:
        async def create(_epoch: int, specs: list[Any], **_: Any) -> list[CreateAnswer]:
            asked.append(node)
            return [CreateAnswer(id=specs[0].identity.id, accepted=node != first)]

        return SimpleNamespace(client=SimpleNamespace(create=create))

    def place(*_: Any) -> Any:
        return SimpleNamespace(node="elsewhere", devices=()), None

    near: Any = SimpleNamespace(place=place, release=lambda _id: None)
    views: Any = SimpleNamespace(bind_log=reader, watch=watch)
    leases: Any = SimpleNamespace(drop_lost=lambda: None)
    placing = Placing(leases, near, views, clock, system_randomness())
    answer = await placing._start(want, lane, 1)
    assert answer is not None
    assert asked == [first, "elsewhere"]
    assert answer.node == reader.state.by_id[want.id].node == "elsewhere"
