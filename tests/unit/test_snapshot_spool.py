"""What of snapshots waits on a node's disk, and in which order it leaves."""

from pathlib import Path

import pytest
from dsec.agent.snapshot_spool import DeniedError, SpooledObjects
from dsec.agent.snapshot_taking import erase
from dsec.world.clock import SystemClock
from dsec.world.memory import MemoryObjects
from dsec.world.objects import NotFoundError, ObjectStoreError, PreconditionError

P = "snapshots/t/"


class Store(MemoryObjects):
    """A store that can be away, or refuse; remembers what was created, in order."""

    def __init__(self) -> None:
        super().__init__(self._fault)
        self.away = False
        self.denies = False
        self.created: list[str] = []

    def _fault(self, operation: str, key: str) -> str:
        if self.denies:
            raise DeniedError(key)
        if not self.away and operation == "put_if_absent":
            self.created.append(key)
        return "before" if self.away else ""


def spooled(store: Store, folder: Path, most: int = 1000) -> SpooledObjects:
    """Return a spool that asks an away store again at once."""
    made = SpooledObjects(store, folder, SystemClock(), most=most)
    made._clock = _Hasty()
    return made


def names(folder: Path) -> list[str]:
    """Return what lies in a directory."""
    return sorted(path.name for path in folder.iterdir())


class _Hasty(SystemClock):
    """A clock by which every wait is over."""

    def __init__(self) -> None:
        self._time = 0.0

    def monotonic(self) -> float:
        self._time += 1000.0
        return self._time


async def test_what_waits_is_readable_and_leaves_packs_first(tmp_path: Path) -> None:
    """Whatever came first; what is there already is no failure; a restart loses nothing."""
    store = Store()
    spool = spooled(store, tmp_path)
    with spool.behind():
        await spool.put_if_absent(f"{P}index/1", b"index")
        await spool.put_if_absent(f"{P}packs/aa/a", b"pack-a")
        with pytest.raises(PreconditionError):
            await spool.put_if_absent(f"{P}packs/aa/a", b"pack-a")
    assert store.created == []
    assert (await spool.get(f"{P}packs/aa/a"))[0] == b"pack-a"
    assert await spool.get_range(f"{P}packs/aa/a", 1, 3) == b"ack"
    assert [one.key for one in await spool.list(f"{P}packs/")] == [f"{P}packs/aa/a"]
    again = spooled(store, tmp_path)
    assert again.waiting == 11
    await store.put(f"{P}packs/aa/a", b"pack-a")
    await again.flush()
    assert store.created == [f"{P}packs/aa/a", f"{P}index/1"]
    assert (again.waiting, names(tmp_path)) == (0, [])


async def test_while_the_store_is_away_a_save_goes_on_from_memory(tmp_path: Path) -> None:
    """Index lists and the collector's state as last heard; creates within the bound."""
    store = Store()
    spool = spooled(store, tmp_path, most=8)
    await store.put(f"{P}index/1", b"i")
    await spool.list(f"{P}index/")
    with pytest.raises(NotFoundError):
        await spool.get(f"{P}gc/state.json")
    store.away = True
    assert [one.key for one in await spool.list(f"{P}index/")] == [f"{P}index/1"]
    with pytest.raises(NotFoundError):
        await spool.get(f"{P}gc/state.json")
    await spool.put_if_absent(f"{P}writers/w.json", b"{}")
    await spool.put(f"{P}writers/w.json", b"{1}")
    await spool.put_if_absent(f"{P}packs/aa/a", b"pack")
    with pytest.raises(ObjectStoreError):
        await spool.put_if_absent(f"{P}packs/bb/b", b"too much")
    with pytest.raises(ObjectStoreError):
        await spool.list(f"{P}packs/")
    await spool.delete(f"{P}writers/w.json")
    store.away = False
    await spool.flush()
    assert store.created == [f"{P}packs/aa/a"]


async def test_what_is_refused_is_not_kept(tmp_path: Path) -> None:
    """The store answers: it is not away, and nothing waits for it to change its mind."""
    store = Store()
    spool = spooled(store, tmp_path)
    store.denies = True
    with pytest.raises(DeniedError):
        await spool.put_if_absent(f"{P}packs/aa/a", b"pack")
    store.denies = False
    with spool.behind():
        await spool.put_if_absent(f"{P}packs/aa/a", b"pack")
    store.denies = True
    with pytest.raises(DeniedError):
        await spool.flush()
    spool.drop(P)
    assert names(tmp_path) == []


def test_what_is_erased_was_overwritten_before(tmp_path: Path) -> None:
    """A second name of the file shows what is left of its content."""
    path, other = tmp_path / "seen", tmp_path / "other"
    path.write_bytes(b"names" * 1000)
    other.hardlink_to(path)
    erase(path)
    erase(path)
    assert not path.exists()
    assert other.read_bytes() == bytes(5000)
