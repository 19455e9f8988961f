"""The verbs about regions: copies of snapshots in others, and taking over from one that is lost."""

from collections.abc import Sequence
from urllib.parse import quote

from dsec.client._caller import Caller
from dsec.client._messages import Record, Records, items_of, object_of


class RegionVerbs(Caller):
    """For operators: replication policies are records of the cluster."""

    async def replication(self) -> Records:
        """Return the replication policies: `name`, `spec`, `status` with lag and recovery point."""
        return items_of(await self._transport.call("GET", "/v1/replicationpolicies"))

    async def replicate(self, policy: str) -> Record:
        """Have a cycle of a policy run now; `asked` is what `status.handled` will be after it.

        Raises NotFoundError.
        """
        path = f"/v1/replicationpolicies/{quote(policy, safe='')}/replicate"
        return object_of(await self._transport.call("POST", path, repeatable=True))

    async def failover(
        self,
        lost: str,
        *,
        projects: Sequence[str] = (),
        rehearse: bool = False,
        verify: bool = False,
        why: str = "",
    ) -> Record:
        """Take over the experiments of a lost region in the region that is asked.

        `rehearse` changes nothing. The answer has `rows` (what became of each experiment, and the
        work that is lost), `steps` with their seconds, `recoveryPointSeconds`. Repeating it is no
        error. Raises InvalidError where the region is the one that answers.
        """
        body = {
            "lost": lost,
            "projects": list(projects),
            "rehearse": rehearse,
            "verify": verify,
            "why": why,
        }
        return object_of(
            await self._transport.call("POST", "/v1/failover", json=body, repeatable=True)
        )
