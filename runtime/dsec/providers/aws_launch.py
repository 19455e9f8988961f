"""How a purchase becomes one launch: the pool's template by its content, and the call's parameters.

One purchase names one offering, so it is one RunInstances call: its client token makes a repeat
harmless, a count from one up takes what there is, and each launch carries user data of its own, in
which the node reads its end. A fleet request has neither user data nor an end per purchase.
"""

import hashlib
import json
from typing import Any

from dsec.providers.aws_calls import Calls
from dsec.providers.aws_settings import AwsPool, AwsSettings
from dsec.providers.aws_tags import INSTALLATION, Tags, as_list, specifications
from dsec.providers.provider import Wanted
from dsec.world.ec2 import CloudError

DIGITS = 24
"""Hexadecimal digits of a template's content in its name."""
EXISTS = "InvalidLaunchTemplateName.AlreadyExistsException"


def template_data(pool: AwsPool) -> dict[str, Any]:
    """Return what all machines of a pool share.

    A shutdown from inside terminates: so a node that has reached its end costs nothing more. The
    metadata service answers to tokens only, and not past the machine's own network stack, so that
    no sandbox can speak as the node.
    """
    data: dict[str, Any] = {
        "ImageId": pool.image,
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": 1,
        },
        "BlockDeviceMappings": [
            {
                "DeviceName": pool.root_device,
                "Ebs": {
                    "VolumeSize": pool.root_gib,
                    "VolumeType": "gp3",
                    "Encrypted": True,
                    "DeleteOnTermination": True,
                },
            }
        ],
    }
    if pool.security_groups:
        data["SecurityGroupIds"] = list(pool.security_groups)
    if pool.instance_profile:
        data["IamInstanceProfile"] = {"Name": pool.instance_profile}
    return data


def template_name(settings: AwsSettings, pool: AwsPool) -> str:
    """Return the name of a pool's template, which says what is in it: it never changes."""
    content = json.dumps(template_data(pool), sort_keys=True)
    return f"dsec-{settings.installation}-{hashlib.sha256(content.encode()).hexdigest()[:DIGITS]}"


async def ensure_template(calls: Calls, name: str, pool: AwsPool, tags: Tags) -> None:
    """Make a pool's template where it is missing. Raises CloudError."""
    try:
        await calls.call(
            "ec2",
            "create_launch_template",
            LaunchTemplateName=name,
            ClientToken=name[-DIGITS:],
            LaunchTemplateData=template_data(pool),
            TagSpecifications=[{"ResourceType": "launch-template", "Tags": tags}],
        )
    except CloudError as error:
        # the name is the content's: one that exists is the same
        if error.code != EXISTS:
            raise


def run_parameters(
    pool: AwsPool,
    purchase: Wanted,
    *,
    template: str,
    count: int,
    token: str,
    tags: Tags,
    user_data: str,
) -> dict[str, Any]:
    """Return the parameters of the launch; of one token they are the same at every repeat."""
    offering = purchase.offering
    spot = str(offering.market) == "spot"
    found: dict[str, Any] = {
        "LaunchTemplate": {"LaunchTemplateName": template, "Version": "$Latest"},
        "InstanceType": offering.instance_type,
        "MinCount": 1,
        "MaxCount": count,
        "ClientToken": token,
        # the client encodes it
        "UserData": user_data,
        "TagSpecifications": specifications(tags, spot=spot),
    }
    if offering.zone:
        found["Placement"] = {"AvailabilityZone": offering.zone}
    if subnet := pool.subnets.get(offering.zone):
        found["SubnetId"] = subnet
    if spot:
        found["InstanceMarketOptions"] = {
            "MarketType": "spot",
            "SpotOptions": {
                "SpotInstanceType": "one-time",
                "InstanceInterruptionBehavior": "terminate",
            },
        }
    if str(offering.market) == "reserved" and pool.capacity_reservation:
        found["CapacityReservationSpecification"] = {
            "CapacityReservationTarget": {"CapacityReservationId": pool.capacity_reservation}
        }
    return found


def installation_tags(settings: AwsSettings, pool: AwsPool) -> Tags:
    """Return the tags of what belongs to a pool and to no purchase."""
    return as_list({**pool.tags, INSTALLATION: settings.installation})
