"""What a node shows the gateway the first time: a join token, or its machine's AWS identity.

The AWS identity is a call of STS GetCallerIdentity, signed with the role of the machine and not
sent: the gateway sends it and learns from AWS itself who signed. Signed with it are the gateway's
address, the node's name and the key of its certificate request, so that whoever sees the call can
make nothing else of it, and it is void after a minute.
"""

import base64
import hashlib
import json

from dsec.agent.config import AgentConfig
from dsec.agent.uplink import AwayError
from dsec.api.identity import AUDIENCE_HEADER, NODE_HEADER, PREFIX, REQUEST_HEADER, SECONDS
from dsec.api.wire import NodeRegistration
from dsec.world.ec2 import AwsApi, AwsConfig, CloudError


class AwsVoucher:
    """Signs who this machine is. `close` when done."""

    def __init__(self, config: AgentConfig) -> None:
        self._gateway = config.gateway
        self._api = AwsApi(AwsConfig(region=config.join_region, endpoint=config.join_endpoint))

    async def token(self, registration: NodeRegistration) -> str:
        """Return the bearer token for one registration. Raises AwayError: no identity now."""
        headers = {
            AUDIENCE_HEADER: self._gateway,
            NODE_HEADER: registration.name,
            REQUEST_HEADER: hashlib.sha256(registration.csr_pem.encode()).hexdigest(),
        }
        try:
            url = await self._api.signed_url("sts", "GetCallerIdentity", headers, SECONDS)
        except CloudError as error:
            raise AwayError(f"the machine's AWS identity: {error}") from error
        told = json.dumps({"url": url, "headers": headers})
        return PREFIX + base64.urlsafe_b64encode(told.encode()).decode()

    def close(self) -> None:
        """Let its threads go."""
        self._api.close()
