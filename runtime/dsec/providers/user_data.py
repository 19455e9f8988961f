"""The script that cloud-init runs at a node's first start: the agent's settings, and no secret."""

import base64
import json
from importlib import resources
from string import Template

from dsec.placement.request import SPOT_TAINT
from dsec.providers.aws_settings import AwsPool, AwsSettings
from dsec.providers.aws_tags import utc_text
from dsec.providers.provider import Offered

LARGEST = 16 << 10
"""Bytes of user data, by the API."""
AGENT_PORT = 7443
INSTANCE, ADDRESS = "@INSTANCE@", "@ADDRESS@"
"""What the script puts in from the metadata of its machine."""


def agent_settings(
    settings: AwsSettings, pool: AwsPool, offering: Offered, run_until: float
) -> dict[str, object]:
    """Return the agent's settings as its configuration file has them."""
    spot = str(offering.market) == "spot"
    taints = [one for one in pool.labels.get("taints", "").split(",") if one]
    if spot and SPOT_TAINT not in taints:
        taints.append(SPOT_TAINT)
    labels = {
        **pool.labels,
        **({"taints": ",".join(taints)} if taints else {}),
        "region": offering.region,
        **({"zone": offering.zone} if offering.zone else {}),
        "instance-type": offering.instance_type,
        "market": str(offering.market),
    }
    return {
        "stateDir": "/var/lib/dsec",
        "gateway": settings.gateway,
        "ca": "/etc/dsec/ca.crt",
        "nodeName": INSTANCE,
        "uid": INSTANCE,
        "listen": f"0.0.0.0:{AGENT_PORT}",
        "advertise": f"{ADDRESS}:{AGENT_PORT}",
        "pool": offering.pool,
        "labels": labels,
        "join": "aws",
        "joinRegion": offering.region,
        "runUntil": utc_text(run_until),
        "watchSpot": spot,
    }


def render(settings: AwsSettings, pool: AwsPool, offering: Offered, run_until: float) -> str:
    """Return the script. Raises ValueError where it is longer than the API takes."""
    told = json.dumps(agent_settings(settings, pool, offering, run_until), sort_keys=True)
    text = Template((resources.files("dsec.providers") / "user_data.sh").read_text()).substitute(
        ca=_folded(settings.ca_pem), settings=_folded(told)
    )
    if len(text.encode()) > LARGEST:
        raise ValueError(f"user data of pool {offering.pool}: more than {LARGEST} bytes")
    return text


def _folded(text: str) -> str:
    """Return text in base64: whatever is in it, the shell sees letters only."""
    return base64.encodebytes(text.encode()).decode().strip()
