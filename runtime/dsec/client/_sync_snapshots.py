"""The synchronous verbs about snapshots; see `SnapshotVerbs`."""

from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, TypeVar

from dsec.api.snapshot_calls import Snapshot, Snapshots
from dsec.client._async import AsyncClient
from dsec.client._messages import Answers, Record

T = TypeVar("T")


class SnapshotCalls(ABC):
    """Forwards each verb to the asynchronous client."""

    _client: AsyncClient

    @abstractmethod
    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call to its end."""

    def snapshots(self, *, experiment: str = "", sandbox: str = "", lineage: str = "") -> Snapshots:
        """Return the snapshots of the project, newest first, and what cannot be read of them."""
        return self._wait(
            self._client.snapshots(experiment=experiment, sandbox=sandbox, lineage=lineage)
        )

    def snapshot(self, name: str) -> Snapshot:
        """Return one snapshot, with what it was taken of. Raises NotFoundError."""
        return self._wait(self._client.snapshot(name))

    def take_snapshot(self, sandbox_id: str, *, kind: str = "") -> Snapshot:
        """Save a sandbox now; returns once it is stored, which may take minutes."""
        return self._wait(self._client.take_snapshot(sandbox_id, kind=kind))

    def restore_snapshot(self, name: str, *, any_image: bool = False, key: str = "") -> Record:
        """Let what a snapshot was taken of go on from it; a direct sandbox that ended is made anew.

        `how` of the answer: put-back or made. Raises ConflictError where its task has ended.
        """
        return self._wait(self._client.restore_snapshot(name, any_image=any_image, key=key))

    def fork_snapshot(
        self,
        name: str,
        *,
        count: int = 1,
        key: str = "",
        env: dict[str, str] | None = None,
        image: str = "",
    ) -> Answers:
        """Make new sandboxes of a snapshot, each with its own identity; one answer per sandbox."""
        return self._wait(
            self._client.fork_snapshot(name, count=count, key=key, env=env, image=image)
        )

    def verify_snapshot(self, name: str, *, data: bool = True) -> Record:
        """Check a snapshot, and with `data` every byte of it: `good`, figures, `problems`."""
        return self._wait(self._client.verify_snapshot(name, data=data))

    def diff_snapshots(self, name: str, other: str) -> Record:
        """Return the paths in which two snapshots differ, from the older to the newer."""
        return self._wait(self._client.diff_snapshots(name, other))

    def pin_snapshot(self, name: str, *, why: str = "") -> Record:
        """Keep a snapshot from every rule."""
        return self._wait(self._client.pin_snapshot(name, why=why))

    def unpin_snapshot(self, name: str) -> Record:
        """Let the rules have a snapshot again."""
        return self._wait(self._client.unpin_snapshot(name))

    def delete_snapshot(self, name: str) -> Record:
        """Delete a snapshot that nobody has pinned."""
        return self._wait(self._client.delete_snapshot(name))

    def collect_snapshots(self, *, wait: bool = True) -> Record:
        """Remove the bytes that no snapshot needs, of all tenants; for operators."""
        return self._wait(self._client.collect_snapshots(wait=wait))

    def hibernate(self, sandbox_id: str) -> Record:
        """Save a sandbox and give its node back, until `wake`."""
        return self._wait(self._client.hibernate(sandbox_id))

    def wake(self, sandbox_id: str) -> Record:
        """Let a sandbox that hibernates go on, wherever there is room."""
        return self._wait(self._client.wake(sandbox_id))

    def migrate(self, sandbox_id: str, *, node: str = "") -> Record:
        """Move a sandbox with its state; `node` of the answer is where it goes."""
        return self._wait(self._client.migrate(sandbox_id, node=node))

    def drain(
        self, *, node: str = "", pool: str = "", evict: bool = False, undo: bool = False
    ) -> Record:
        """Empty a node, or all nodes of a pool; `undo` lets work come back. For operators."""
        return self._wait(self._client.drain(node=node, pool=pool, evict=evict, undo=undo))
