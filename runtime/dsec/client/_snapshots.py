"""The verbs about snapshots, and about where a sandbox is."""

from urllib.parse import quote, urlencode

from pydantic import BaseModel

from dsec.api.snapshot import SnapshotKind
from dsec.api.snapshot_calls import (
    DrainCall,
    ForkCall,
    MigrateCall,
    PinSnapshot,
    RestoreCall,
    Snapshot,
    Snapshots,
    TakeSnapshot,
)
from dsec.api.wire import KeyedAnswers
from dsec.client._caller import Caller
from dsec.client._messages import Answers, Record, checked, object_of, parse
from dsec.client._transport import new_id


class SnapshotVerbs(Caller):
    """A snapshot is named LINEAGE@NUMBER, as `snapshots` lists them."""

    async def snapshots(
        self, *, experiment: str = "", sandbox: str = "", lineage: str = ""
    ) -> Snapshots:
        """Return the snapshots of the project, newest first, and what cannot be read of them."""
        asked = {"experiment": experiment, "sandbox": sandbox, "lineage": lineage}
        query = urlencode({name: value for name, value in asked.items() if value})
        path = self._at("snapshots") + (f"?{query}" if query else "")
        return parse(Snapshots, (await self._transport.call("GET", path)).content)

    async def snapshot(self, name: str) -> Snapshot:
        """Return one snapshot, with what it was taken of. Raises NotFoundError."""
        return parse(
            Snapshot, (await self._transport.call("GET", self._at("snapshots", name))).content
        )

    async def take_snapshot(self, sandbox_id: str, *, kind: str = "") -> Snapshot:
        """Save a sandbox now; returns once it is stored, which may take minutes."""
        body = checked(TakeSnapshot, kind=SnapshotKind(kind) if kind else None)
        path = self._at("sandboxes", sandbox_id, "snapshot")
        # a repeat would take another one
        response = await self._transport.call("POST", path, content=_text(body), repeatable=False)
        return parse(Snapshot, response.content)

    async def restore_snapshot(
        self, name: str, *, any_image: bool = False, key: str = ""
    ) -> Record:
        """Let what a snapshot was taken of go on from it; a direct sandbox that ended is made anew.

        `how` of the answer: put-back or made. Raises ConflictError where its task has ended.
        """
        body = checked(RestoreCall, any_image=any_image, key=key)
        return await self._record(self._at("snapshots", name, "restore"), body)

    async def fork_snapshot(
        self,
        name: str,
        *,
        count: int = 1,
        key: str = "",
        env: dict[str, str] | None = None,
        image: str = "",
    ) -> Answers:
        """Make new sandboxes of a snapshot, each with its own identity; one answer per sandbox."""
        body = checked(
            ForkCall,
            count=count,
            key=key or new_id(),
            env=env or {},
            image=image,
            any_image=bool(image),
        )
        path = self._at("snapshots", name, "fork")
        response = await self._transport.call("POST", path, content=_text(body), repeatable=True)
        return parse(KeyedAnswers, response.content).answers

    async def verify_snapshot(self, name: str, *, data: bool = True) -> Record:
        """Check a snapshot, and with `data` every byte of it: `good`, figures, `problems`."""
        path = self._at("snapshots", name, "verify") + f"?data={str(data).lower()}"
        return object_of(await self._transport.call("POST", path, repeatable=True))

    async def diff_snapshots(self, name: str, other: str) -> Record:
        """Return the paths in which two snapshots differ, from the older to the newer."""
        path = self._at("snapshots", name, "diff") + f"?{urlencode({'with': other})}"
        return object_of(await self._transport.call("GET", path))

    async def pin_snapshot(self, name: str, *, why: str = "") -> Record:
        """Keep a snapshot from every rule."""
        return await self._record(self._at("snapshots", name, "pin"), checked(PinSnapshot, why=why))

    async def unpin_snapshot(self, name: str) -> Record:
        """Let the rules have a snapshot again."""
        path = self._at("snapshots", name, "unpin")
        return object_of(await self._transport.call("POST", path, repeatable=True))

    async def delete_snapshot(self, name: str) -> Record:
        """Delete a snapshot that nobody has pinned."""
        return object_of(await self._transport.call("DELETE", self._at("snapshots", name)))

    async def collect_snapshots(self, *, wait: bool = True) -> Record:
        """Remove the bytes that no snapshot needs, of all tenants; for operators."""
        path = "/v1/snapshots/gc" + ("" if wait else "?noWait=true")
        return object_of(await self._transport.call("POST", path, repeatable=True))

    async def hibernate(self, sandbox_id: str) -> Record:
        """Save a sandbox and give its node back, until `wake`."""
        path = self._at("sandboxes", sandbox_id, "hibernate")
        return object_of(await self._transport.call("POST", path, repeatable=True))

    async def wake(self, sandbox_id: str) -> Record:
        """Let a sandbox that hibernates go on, wherever there is room."""
        path = self._at("sandboxes", sandbox_id, "wake")
        return object_of(await self._transport.call("POST", path, repeatable=True))

    async def migrate(self, sandbox_id: str, *, node: str = "") -> Record:
        """Move a sandbox with its state; `node` of the answer is where it goes."""
        return await self._record(
            self._at("sandboxes", sandbox_id, "migrate"), checked(MigrateCall, node=node)
        )

    async def drain(
        self, *, node: str = "", pool: str = "", evict: bool = False, undo: bool = False
    ) -> Record:
        """Empty a node, or all nodes of a pool; `undo` lets work come back. For operators."""
        kind, name = ("nodes", node) if node else ("pools", pool)
        path = f"/v1/{kind}/{quote(name, safe='')}/drain"
        return await self._record(path, checked(DrainCall, evict=evict, undo=undo))

    async def _record(self, path: str, body: BaseModel) -> Record:
        response = await self._transport.call("POST", path, content=_text(body), repeatable=True)
        return object_of(response)


def _text(body: BaseModel) -> bytes:
    return body.model_dump_json(by_alias=True, exclude_none=True).encode()
