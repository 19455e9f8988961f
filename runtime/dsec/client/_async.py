"""The asynchronous client: one method per verb of the API.

Owns a pool of connections: use it with `async with`, or call `close`. Nothing else is kept, so a
client that is lost loses nothing. Every write is safe to repeat: creates carry a key, applies a
name, inputs a digest; the client repeats them itself while the outcome is not known.
"""

from types import TracebackType
from typing import Self

from dsec.client._costs import CostVerbs
from dsec.client._experiments import ExperimentVerbs
from dsec.client._messages import Record, Records, items_of, object_of
from dsec.client._queues import QueueVerbs
from dsec.client._regions import RegionVerbs
from dsec.client._sandboxes import SandboxVerbs
from dsec.client._snapshots import SnapshotVerbs
from dsec.client.errors import DsecError


class AsyncClient(CostVerbs, ExperimentVerbs, QueueVerbs, RegionVerbs, SandboxVerbs, SnapshotVerbs):
    """The verbs of dsec. Raises the errors of `dsec.client.errors` and nothing else.

    Without a context, the user's own is used (see `dsec.client.context`). `inner` replaces the
    network in tests. Times are in seconds.
    """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def nodes(self) -> Records:
        """Return the nodes, with what is free on each."""
        return items_of(await self._transport.call("GET", "/v1/nodes"))

    async def tenants(self) -> Records:
        """Return the tenants that the caller may see."""
        return items_of(await self._transport.call("GET", "/v1/tenants"))

    async def whoami(self) -> Record:
        """Return who the server takes the caller for."""
        return object_of(await self._transport.call("GET", "/v1/whoami"))

    async def version(self) -> Record:
        """Return the version of the server and of its protocol."""
        return object_of(await self._transport.call("GET", "/v1/version"))

    async def ready(self) -> bool:
        """Say whether the server answers that it is ready; never raises."""
        try:
            await self._transport.once("GET", "/readyz")
        except DsecError:
            return False
        return True
