"""Buckets on AWS for snapshots: each with a key, rules and rights of its own, in its own region."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

import pulumi
import pulumi_aws as aws
from dsec.api.config import Deletion

from dsec_components.common import Component, stack_label

Rule = aws.s3.BucketLifecycleConfigurationRuleArgsDict

ABORT_DAYS = 7
"""Parts of an upload that nobody has ended for so long are nobody's; dsec ends its own in hours."""
KEY_WINDOW_DAYS = 30
"""Until a key is gone for good, and with it all that it has sealed: the most that KMS allows."""
HOME_PREFIXES = ("",)
"""The home bucket is the platform's own: journal, results, snapshots."""
COPY_PREFIXES = ("snapshots/", "probe/")
"""What the copier writes in another region's bucket; that region's journal is not its business."""


@dataclass(frozen=True, slots=True)
class Site:
    """A bucket that is to be made; `prefixes` are those that the roles may use."""

    region: str
    bucket: str
    prefixes: Sequence[str]
    wrapping: str = ""
    """ARN of the key that wraps tenants' keys; empty: the roles use none of KMS."""


class SnapshotBucketsArgs(TypedDict):
    """Inputs of SnapshotBuckets. It is a part of SnapshotStore, and none of its own."""

    sites: list[Any]
    """Of type Site."""
    roles: list[pulumi.Input[str]]
    """Names of the IAM roles that get the rights."""
    version_days: int
    """Days that versions are kept which are no longer the newest; 0: for ever."""
    deletion: Deletion
    """protect keeps everything at destroy."""
    labels: NotRequired[dict[str, pulumi.Input[str]]]
    """Tags of whatever can have tags."""


class SnapshotBuckets(Component):
    """Buckets that nobody outside reads, sealed by keys of their own."""

    rights: pulumi.Output[list[str]]
    """ARNs of the IAM policies, one for each bucket."""

    def __init__(
        self, name: str, args: SnapshotBucketsArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        """Create everything of each site, through a provider of its region."""
        shown = {**args, "sites": [f"{one.region}/{one.bucket}" for one in args["sites"]]}
        super().__init__(name, shown, opts)
        self._args = args
        # labels of the same names as on records: one search finds both
        self._tags = {**args.get("labels", {}), "dsec.dev/stack": stack_label()}
        # a bucket that stays without its rules would lie open: they stay with it
        self._keep = args["deletion"] == Deletion.PROTECT
        arns = [self._site(site) for site in args["sites"]]
        self.rights = pulumi.Output.all(*arns).apply(list)
        self.register_outputs({"rights": self.rights})

    def _site(self, site: Site) -> pulumi.Output[str]:
        """Create one; returns the ARN of the policy with the rights to it."""
        name = f"{self._name_prefix}-{site.region}"
        # a consumer can hand over one AWS provider, and here are several regions
        provider = aws.Provider(name, region=site.region, opts=self._child())
        opts = self._child(provider=provider, retain_on_delete=self._keep)
        about = f"Snapshots of dsec in {site.bucket} ({site.region})"
        key = aws.kms.Key(
            f"{name}-key",
            description=about,
            enable_key_rotation=True,
            deletion_window_in_days=KEY_WINDOW_DAYS,
            tags=self._tags,
            opts=opts,
        )
        bucket = aws.s3.Bucket(
            f"{name}-bucket",
            bucket=site.bucket,
            force_destroy=not self._keep,
            tags=self._tags,
            opts=opts,
        )
        aws.s3.BucketOwnershipControls(
            f"{name}-ownership",
            bucket=bucket.id,
            # access lists are off: rights come from policies alone
            rule={"object_ownership": "BucketOwnerEnforced"},
            opts=opts,
        )
        closed = aws.s3.BucketPublicAccessBlock(
            f"{name}-private",
            bucket=bucket.id,
            block_public_acls=True,
            block_public_policy=True,
            ignore_public_acls=True,
            restrict_public_buckets=True,
            opts=opts,
        )
        versioning = aws.s3.BucketVersioning(
            f"{name}-versioning",
            bucket=bucket.id,
            versioning_configuration={"status": "Enabled"},
            opts=opts,
        )
        aws.s3.BucketServerSideEncryptionConfiguration(
            f"{name}-encryption",
            bucket=bucket.id,
            rules=[
                {
                    "apply_server_side_encryption_by_default": {
                        "sse_algorithm": "aws:kms",
                        "kms_master_key_id": key.arn,
                    },
                    # one call to KMS for many objects
                    "bucket_key_enabled": True,
                }
            ],
            opts=opts,
        )
        aws.s3.BucketLifecycleConfiguration(
            f"{name}-lifecycle",
            bucket=bucket.id,
            rules=lifecycle(self._args["version_days"]),
            opts=pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=versioning)),
        )
        aws.s3.BucketPolicy(
            f"{name}-transport",
            bucket=bucket.id,
            policy=json.dumps(transport_policy(site.bucket, site.region)),
            # AWS changes one of the two at a time
            opts=pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=closed)),
        )
        rights = aws.iam.Policy(
            f"{name}-rights",
            description=about,
            policy=key.arn.apply(lambda arn: json.dumps(access_policy(site, arn))),
            tags=self._tags,
            # no data hangs on rights: they go with the stack
            opts=self._child(provider=provider),
        )
        for at, role in enumerate(self._args["roles"]):
            aws.iam.RolePolicyAttachment(
                f"{name}-rights-{at}",
                role=role,
                policy_arn=rights.arn,
                opts=self._child(provider=provider),
            )
        return rights.arn


def arn_of(bucket: str, region: str) -> str:
    """Return the ARN of a bucket; China and the government have partitions of their own."""
    apart = {"cn": "aws-cn", "us-gov": "aws-us-gov"}
    partition = next((one for start, one in apart.items() if region.startswith(f"{start}-")), "aws")
    return f"arn:{partition}:s3:::{bucket}"


def lifecycle(version_days: int) -> list[Rule]:
    """Return the rules of a bucket. None of them touches an object that dsec has.

    What is collected is dsec's alone to decide; S3 removes parts of broken uploads, and versions
    that dsec has deleted, which would otherwise be paid for ever.
    """
    rules: list[Rule] = [
        {
            "id": "broken-uploads",
            "status": "Enabled",
            "filter": {},
            "abort_incomplete_multipart_upload": {"days_after_initiation": ABORT_DAYS},
        }
    ]
    if version_days:
        rules.append(
            {
                "id": "deleted-versions",
                "status": "Enabled",
                "filter": {},
                "noncurrent_version_expiration": {"noncurrent_days": version_days},
                "expiration": {"expired_object_delete_marker": True},
            }
        )
    return rules


def transport_policy(bucket: str, region: str) -> dict[str, Any]:
    """Return the policy of a bucket: whoever comes, comes over TLS 1.2 or later."""
    arn = arn_of(bucket, region)
    conditions: Mapping[str, dict[str, Any]] = {
        "OnlyTls": {"Bool": {"aws:SecureTransport": "false"}},
        "OnlyNewTls": {"NumericLessThan": {"s3:TlsVersion": "1.2"}},
    }
    return {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Sid": name,
                "Effect": "Deny",
                "Principal": "*",
                "Action": "s3:*",
                "Resource": [arn, f"{arn}/*"],
                "Condition": condition,
            }
            for name, condition in conditions.items()
        ],
    }


def access_policy(site: Site, key: str) -> dict[str, Any]:
    """Return what gateways and controllers may do; `key` is the ARN of the bucket's key.

    They list, read, write and delete objects of theirs. They make no bucket, change no rule, and
    use the key through S3 of this region only.
    """
    arn = arn_of(site.bucket, site.region)
    wrapping: dict[str, Any] = {
        "Sid": "Wrapping",
        "Effect": "Allow",
        "Action": ["kms:Encrypt", "kms:Decrypt"],
        "Resource": [site.wrapping],
    }
    return {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Sid": "List",
                "Effect": "Allow",
                "Action": ["s3:ListBucket"],
                "Resource": [arn],
            },
            {
                "Sid": "Objects",
                "Effect": "Allow",
                "Action": [
                    "s3:GetObject",
                    "s3:PutObject",
                    "s3:DeleteObject",
                    "s3:AbortMultipartUpload",
                ],
                "Resource": [f"{arn}/{one}*" for one in site.prefixes],
            },
            {
                "Sid": "Key",
                "Effect": "Allow",
                "Action": ["kms:GenerateDataKey", "kms:Decrypt"],
                "Resource": [key],
                "Condition": {
                    "StringEquals": {"kms:ViaService": f"s3.{site.region}.amazonaws.com"}
                },
            },
            *([wrapping] if site.wrapping else []),
        ],
    }
