"""The verbs about money: what was spent, and what budgets say."""

from urllib.parse import urlencode

from dsec.client._caller import Caller
from dsec.client._messages import Record, Records, items_of, object_of


class CostVerbs(Caller):
    """Read only: limits are set by records, not by clients."""

    async def costs(
        self, by: str = "task", *, since: str = "", until: str = "", zone: str = ""
    ) -> Record:
        """Return what was spent that the caller may read, `by` tenant, project, task, pool or day.

        `since` and `until` are ISO dates or times, taken to whole hours (UTC where they name no
        zone); empty: all time. `zone` decides where days begin. Amounts are exact decimal text per
        currency: `items` (rows), `total`, `pools` (used and idle), `savings`. Raises InvalidError.
        """
        asked = {"by": by, "from": since, "to": until, "zone": zone}
        query = urlencode({name: value for name, value in asked.items() if value})
        return object_of(await self._transport.call("GET", f"/v1/cost?{query}"))

    async def budgets(self) -> Records:
        """Return the budgets that the caller may read: `name`, `project`, `spec`, `status`."""
        return items_of(await self._transport.call("GET", "/v1/budgets"))
