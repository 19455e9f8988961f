"""The metadata service of a cloud machine (IMDSv2): who it is, and whether it is taken away."""

import httpx2

from dsec.world.network import Network

TOKEN_SECONDS = 21_600
"""Life of a session token: the longest there is; it is renewed when it is refused."""
CALL_SECONDS = 2.0
"""The service is on the machine itself: one that has not answered by then is not there."""
_ABSENT, _EXPIRED = 404, 401
_OK = 200


class MetadataError(Exception):
    """The service did not answer as it should; nothing is known."""


class InstanceMetadata:
    """Reads values of one machine. `close` when done."""

    def __init__(self, network: Network, base_url: str) -> None:
        self._client = network.client(base_url, timeout=CALL_SECONDS)
        self._token = ""

    async def get(self, path: str) -> str | None:
        """Return the value at `meta-data/...`, None where there is none. Raises MetadataError."""
        try:
            for _ in range(2):
                if not self._token:
                    self._token = await self._new_token()
                answer = await self._client.get(
                    f"/latest/{path}", headers={"X-aws-ec2-metadata-token": self._token}
                )
                if answer.status_code != _EXPIRED:
                    break
                self._token = ""
        except httpx2.TransportError as error:
            raise MetadataError(f"{path}: {type(error).__name__}: {error}") from error
        if answer.status_code == _ABSENT:
            return None
        if answer.status_code != _OK:
            raise MetadataError(f"{path}: {answer.status_code}")
        return answer.text

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _new_token(self) -> str:
        answer = await self._client.put(
            "/latest/api/token",
            headers={"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)},
        )
        if answer.status_code != _OK:
            raise MetadataError(f"api/token: {answer.status_code}")
        return answer.text
