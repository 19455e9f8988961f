"""What every group of verbs needs: a server, a project, and the paths below it."""

from urllib.parse import quote

import httpx2

from dsec.api.names import dns_name
from dsec.client._transport import CALL_TIMEOUT, PATIENCE, Transport
from dsec.client.context import Context, load


class Caller:
    """A server and a project on it. The groups of verbs build on it, and AsyncClient on them."""

    def __init__(
        self,
        context: Context | None = None,
        *,
        project: str | None = None,
        timeout: float = CALL_TIMEOUT,
        patience: float = PATIENCE,
        inner: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        context = load() if context is None else context
        self.project = project or context.project
        self._transport = Transport(context, timeout=timeout, patience=patience, inner=inner)
        self._patience = patience

    def _experiment(self, name: str, *parts: str) -> str:
        """Return the path of an experiment, by its record's name or by the name as given."""
        return self._at("experiments", dns_name(name), *parts)

    def _at(self, *parts: str) -> str:
        return "/".join(
            [
                "/v1/projects",
                quote(self.project, safe=""),
                *(quote(part, safe="") for part in parts),
            ]
        )
