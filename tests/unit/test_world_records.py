"""What every record store must do: one suite over memory, files and (in e2e) Kubernetes."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from dsec.world.files import DirectoryBusyError, FileRecords
from dsec.world.memory import AccessRule, AccessTable, MemoryRecords
from dsec.world.records import (
    Access,
    RecordConflictError,
    RecordNotFoundError,
    Records,
    RecordsError,
    User,
    WatchExpiredError,
)

Open = Callable[[], Records]


def experiment(name: str = "one", **spec: object) -> dict[str, object]:
    """Build a record the way the API server takes it."""
    return {
        "apiVersion": "dsec.dev/v1alpha1",
        "kind": "Experiment",
        "metadata": {"name": name, "namespace": "lab"},
        "spec": spec or {"replicas": 1},
    }


@pytest.fixture(params=["memory", "files"])
def records(request: pytest.FixtureRequest, tmp_path: Path) -> Records:
    """Return an empty store of each kind."""
    return MemoryRecords() if request.param == "memory" else FileRecords(tmp_path)


async def test_create_read_and_the_second_create_conflicts(records: Records) -> None:
    """A new record has an identity, a version and generation 1; its name is taken."""
    made = await records.create(experiment())
    assert made["metadata"]["uid"]
    assert made["metadata"]["generation"] == 1
    assert await records.get("Experiment", "one", "lab") == made
    with pytest.raises(RecordConflictError):
        await records.create(experiment())
    with pytest.raises(RecordNotFoundError):
        await records.get("Experiment", "two", "lab")


async def test_a_stale_write_loses(records: Records) -> None:
    """Of two writers that read the same version, exactly one wins."""
    first = await records.create(experiment())
    changed = await records.replace({**first, "spec": {"replicas": 2}})
    assert changed["metadata"]["generation"] == 2
    with pytest.raises(RecordConflictError):
        await records.replace({**first, "spec": {"replicas": 3}})
    with pytest.raises(RecordConflictError):
        await records.replace_status({**first, "status": {"x": 1}})


async def test_status_and_spec_are_written_apart(records: Records) -> None:
    """A status write leaves spec and generation, a spec write leaves status."""
    made = await records.create({**experiment(), "status": {"ignored": True}})
    assert "status" not in made
    told = await records.replace_status({**made, "spec": {"replicas": 9}, "status": {"ready": 1}})
    assert told["spec"] == {"replicas": 1}
    assert told["metadata"]["generation"] == 1
    grown = await records.replace({**told, "spec": {"replicas": 2}, "status": {}})
    assert grown["status"] == {"ready": 1}


async def test_apply_owns_what_it_names(records: Records) -> None:
    """A second apply removes what the first named, and leaves what others wrote."""
    await records.apply(experiment(a=1, b={"c": 2, "d": 3}), "alice")
    await records.apply(experiment(e=5), "bob")
    after = await records.apply(experiment(a=1, b={"c": 4}), "alice")
    assert after["spec"] == {"a": 1, "b": {"c": 4}, "e": 5}
    again = await records.apply(experiment(a=1, b={"c": 4}), "alice")
    assert again["metadata"]["resourceVersion"] == after["metadata"]["resourceVersion"]


async def test_finalizers_delay_deletion(records: Records) -> None:
    """A record with a finalizer is marked, and goes when the last finalizer goes."""
    body = experiment()
    body["metadata"] = {"name": "one", "namespace": "lab", "finalizers": ["dsec.dev/collect"]}
    await records.create(body)
    await records.delete("Experiment", "one", "lab")
    marked = await records.get("Experiment", "one", "lab")
    assert marked["metadata"]["deletionTimestamp"]
    marked["metadata"]["finalizers"] = []
    await records.replace(marked)
    with pytest.raises(RecordNotFoundError):
        await records.get("Experiment", "one", "lab")
    await records.delete("Experiment", "one", "lab")


async def test_delete_by_uid_spares_a_successor(records: Records) -> None:
    """Deleting the old object by uid leaves a new one of the same name."""
    made = await records.create(experiment())
    with pytest.raises(RecordConflictError):
        await records.delete("Experiment", "one", "lab", uid="another")
    await records.delete("Experiment", "one", "lab", uid=made["metadata"]["uid"])


async def test_list_by_namespace_and_label(records: Records) -> None:
    """A list is filtered and names the version at which to watch."""
    labelled = experiment("b")
    labelled["metadata"] = {"name": "b", "namespace": "lab", "labels": {"team": "x"}}
    await records.create(experiment("a"))
    await records.create(labelled)
    await records.create({"kind": "Namespace", "metadata": {"name": "lab"}})
    names = [r["metadata"]["name"] for r in (await records.list("Experiment", "lab")).items]
    assert names == ["a", "b"]
    picked = await records.list("Experiment", selector="team=x")
    assert [r["metadata"]["name"] for r in picked.items] == ["b"]
    assert (await records.list("Experiment", "other")).items == []


async def test_watch_tells_every_change_once_and_in_order(records: Records) -> None:
    """Changes since the list arrive in order, earlier ones do not."""
    await records.create(experiment("before"))
    version = (await records.list("Experiment")).resource_version
    watch = records.watch("Experiment", version)
    made = await records.create(experiment())
    await records.create({"kind": "Namespace", "metadata": {"name": "noise"}})
    await records.replace({**made, "spec": {"replicas": 2}})
    await records.delete("Experiment", "one", "lab")
    seen = [(await asyncio.wait_for(anext(watch), 5)).type for _ in range(3)]
    assert seen == ["ADDED", "MODIFIED", "DELETED"]


def test_files_survive_and_old_watches_expire(tmp_path: Path) -> None:
    """A second process sees all records, watchers of the first must list again."""

    async def write() -> str:
        store = FileRecords(tmp_path)
        await store.create(experiment("kept"))
        gone = await store.create(experiment("gone"))
        await store.delete("Experiment", "gone", "lab", uid=gone["metadata"]["uid"])
        with pytest.raises(DirectoryBusyError):
            FileRecords(tmp_path)
        store.close()
        return (await store.list("Experiment")).resource_version

    version = asyncio.run(write())

    async def read() -> None:
        store = FileRecords(tmp_path)
        assert [r["metadata"]["name"] for r in (await store.list("Experiment")).items] == ["kept"]
        await store.create(experiment("later"))
        with pytest.raises(WatchExpiredError):
            await anext(store.watch("Experiment", version))

    asyncio.run(read())


async def test_a_lost_answer_has_an_effect() -> None:
    """The fault hook fails before a write, or does it and loses the answer."""
    verdicts = {"one": "before", "two": "after"}
    store = MemoryRecords(
        fault=lambda op, where: verdicts[where.rpartition("/")[2]] if op == "create" else ""
    )
    for name in verdicts:
        with pytest.raises(RecordsError):
            await store.create(experiment(name))
    assert [r["metadata"]["name"] for r in (await store.list("Experiment")).items] == ["two"]


async def test_the_access_table_names_subject_verb_resource_and_place() -> None:
    """What no row grants is denied; a subresource is a resource of its own."""
    rule = AccessRule(("team",), ("get",), ("sandboxes",), ("lab",))
    ann = User("ann", ("team",))
    store = MemoryRecords(access=AccessTable([rule], {"secret": ann, "gw:bound": ann}))
    assert await store.allowed(ann, Access("get", "sandboxes", "lab")) == (True, "")
    for denied in (
        Access("create", "sandboxes", "lab"),
        Access("get", "sandboxes", "other"),
        Access("get", "sandboxes", "lab", subresource="exec"),
    ):
        assert not (await store.allowed(ann, denied))[0]
    assert not (await store.allowed(User("bob"), Access("get", "sandboxes", "lab")))[0]
    assert await store.authenticate("secret") == ann
    assert await store.authenticate("bound", "gw") == ann
    assert await store.authenticate("bound") is None
