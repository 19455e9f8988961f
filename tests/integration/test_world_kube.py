"""The Kubernetes record store against a real API server: what reconcilers and gateways rely on."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from cluster import ApiServer
from dsec.api.crds import definitions
from dsec.world.cache import Cache
from dsec.world.clock import SystemClock
from dsec.world.kube import KubeRecords, connect
from dsec.world.records import (
    Access,
    RecordConflictError,
    RecordInvalidError,
    RecordNotFoundError,
    Records,
    RecordsError,
    User,
    WatchExpiredError,
)

pytestmark = pytest.mark.cluster


@pytest.fixture
async def records(apiserver: ApiServer) -> AsyncIterator[KubeRecords]:
    """Return a client of an API server that has the CRDs."""
    done = apiserver.apply(*definitions())
    assert done.returncode == 0, done.stderr
    names = [f"crd/{one['metadata']['name']}" for one in definitions()]
    apiserver.kubectl("wait", "--for=condition=Established", "--timeout=60s", *names)
    store = await connect(apiserver.kubeconfig)
    yield store
    for name in ("t1", "t2", "t3"):
        try:
            held = await store.get("Tenant", name)
            held["metadata"]["finalizers"] = []
            await store.replace(held)
        except RecordNotFoundError:
            pass
        await store.delete("Tenant", name)
    await store.close()


def tenant(name: str, **spec: object) -> dict[str, object]:
    """Build a small record."""
    return {
        "apiVersion": "dsec.dev/v1alpha1",
        "kind": "Tenant",
        "metadata": {"name": name},
        "spec": spec,
    }


async def test_versions_conflicts_and_status(records: Records) -> None:
    """Stale writes lose, status and spec are apart, generation moves with the spec."""
    made = await records.create(tenant("t1", displayName="one"))
    with pytest.raises(RecordConflictError):
        await records.create(tenant("t1"))
    told = await records.replace_status({**made, "status": {"experiments": 3}})
    assert told["metadata"]["generation"] == 1
    with pytest.raises(RecordConflictError):
        await records.replace({**made, "spec": {"displayName": "late"}})
    grown = await records.replace({**told, "spec": {"displayName": "two"}, "status": {}})
    assert grown["metadata"]["generation"] == 2
    assert grown["status"]["experiments"] == 3
    with pytest.raises(RecordNotFoundError):
        await records.get("Tenant", "nobody")
    with pytest.raises(RecordInvalidError, match="displayName"):
        await records.create(tenant("t2", displayName=7))


async def test_apply_owns_what_it_names(records: Records) -> None:
    """A second apply removes what the first named, and leaves what others wrote."""
    await records.apply(tenant("t1", displayName="a", projects=["p"]), "alice")
    await records.apply(tenant("t1", registries=["r/"]), "bob")
    after = await records.apply(tenant("t1", displayName="b"), "alice")
    assert after["spec"] == {"displayName": "b", "registries": ["r/"]}


async def test_finalizers_and_uid(records: Records) -> None:
    """Deletion waits for finalizers; another object's uid is spared; absent is no error."""
    body = tenant("t3")
    body["metadata"] = {"name": "t3", "finalizers": ["dsec.dev/test"]}
    made = await records.create(body)
    with pytest.raises(RecordConflictError):
        await records.delete("Tenant", "t3", uid="00000000-0000-0000-0000-000000000000")
    await records.delete("Tenant", "t3", uid=made["metadata"]["uid"])
    marked = await records.get("Tenant", "t3")
    assert marked["metadata"]["deletionTimestamp"]
    marked["metadata"]["finalizers"] = []
    await records.replace(marked)
    with pytest.raises(RecordNotFoundError):
        await records.get("Tenant", "t3")
    await records.delete("Tenant", "t3")


async def test_watch_in_order_and_expiry(records: Records) -> None:
    """Changes since a list arrive in order; a version that is too old says so."""
    version = (await records.list("Tenant")).resource_version
    made = await records.create(tenant("t1"))
    await records.replace({**made, "spec": {"displayName": "x"}})
    await records.delete("Tenant", "t1")
    watch = records.watch("Tenant", version)
    seen = [(await asyncio.wait_for(anext(watch), 30)).type for _ in range(3)]
    assert seen == ["ADDED", "MODIFIED", "DELETED"]
    await watch.aclose()  # type: ignore[attr-defined]
    with pytest.raises(WatchExpiredError):
        await asyncio.wait_for(anext(records.watch("Tenant", "1")), 30)


async def test_a_cache_follows(records: KubeRecords) -> None:
    """A cache lists, then follows by watch."""
    cache = Cache(records, "Tenant", SystemClock())
    task = asyncio.create_task(cache.run())
    await asyncio.wait_for(cache.synced.wait(), 30)
    seen = asyncio.Event()
    cache.listen(lambda key: seen.set() if key == ("", "t2") else None)
    await records.create(tenant("t2"))
    await asyncio.wait_for(seen.wait(), 30)
    assert cache.get(("", "t2")) is not None
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_reviews(records: Records) -> None:
    """Kubernetes answers who a token is and what a user may."""
    access = Access("get", "sandboxes", "default", subresource="exec")
    assert (await records.allowed(User("root", ("system:masters",)), access))[0]
    assert not (await records.allowed(User("nobody"), access))[0]
    assert await records.authenticate("no such token") is None


async def test_an_absent_server_is_an_unknown_outcome(apiserver: ApiServer) -> None:
    """A server that is not there raises RecordsError, never a library's own error."""
    store = await connect(apiserver.kubeconfig)
    store._api.configuration.host = "https://127.0.0.1:1"
    with pytest.raises(RecordsError):
        await store.get("Tenant", "t1")
    await store.close()
