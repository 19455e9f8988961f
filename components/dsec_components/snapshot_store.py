"""SnapshotStore: buckets in several regions, who may use them, and what is copied between them."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pulumi
import pulumi_kubernetes as k8s
from dsec.api.config import Deletion
from dsec.api.mistakes import Mistake
from dsec.api.names import dns_name
from dsec.api.replication import ReplicationPolicySpec
from dsec.rules.replication import mistakes

from dsec_components._generated import ReplicationRules
from dsec_components.args import SnapshotCopy, SnapshotHome, SnapshotStoreArgs
from dsec_components.common import Component, merged_labels, meta
from dsec_components.inputs import checked, problem
from dsec_components.record import record

if TYPE_CHECKING:
    from dsec_components.snapshot_buckets import SnapshotBuckets

BUCKET = "dsec"
DAILY = "daily"
"""The policy of a store that names none: with copies somewhere there is a cycle once a day."""
VERSION_DAYS = 30
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


class SnapshotStore(Component):
    """Where snapshots are kept: a bucket here, its copies elsewhere, and the rules of copying.

    On AWS it makes buckets, keys and rights; S3 servers that are named by their endpoints have
    their buckets already.
    """

    policies: pulumi.Output[list[str]]
    """Names of the ReplicationPolicies."""
    rights: pulumi.Output[list[str]]
    """ARNs of the IAM policies of the buckets made here, for principals that are no roles."""

    def __init__(
        self,
        name: str,
        args: SnapshotStoreArgs,
        opts: pulumi.ResourceOptions | None = None,
        *,
        made: "SnapshotBuckets | None" = None,
    ) -> None:
        """Create buckets, Secrets and records. Raises pulumi.InputPropertiesError.

        `made` are the buckets, where the caller has made them already (`buckets_of`): the pods of
        a platform want theirs before there can be a record.
        """
        super().__init__(name, args, opts)
        _check(f"SnapshotStore '{name}'", args)
        buckets = made or buckets_of(f"{name}-buckets", args, self._child())
        self._labels = merged_labels("dsec-snapshots", name, args.get("labels"))
        before: list[pulumi.Resource] = [buckets] if buckets else []
        destinations = []
        for copy in args.get("copies", []):
            secret = copy.get("secret")
            if "access_key" in copy and "secret_key" in copy:
                secret = secret or dns_name(f"{name}-{copy['region']}")
                before.append(self._secret(secret, copy, args))
            destinations.append(_destination(copy, secret))
        policies = policies_of(args)
        for policy, rules in policies.items():
            self._policy(policy, rules, destinations, args, before)
        self.policies = pulumi.Output.from_input(list(policies))
        self.rights = buckets.rights if buckets else pulumi.Output.from_input([])
        self.register_outputs({"policies": self.policies, "rights": self.rights})

    def _secret(
        self, physical: str, copy: SnapshotCopy, args: SnapshotStoreArgs
    ) -> k8s.core.v1.Secret:
        return k8s.core.v1.Secret(
            f"{self._name_prefix}-{copy['region']}-keys",
            metadata=meta(physical, self._labels, namespace=args.get("namespace") or "dsec-system"),
            type="Opaque",
            string_data={
                "accessKey": pulumi.Output.secret(copy["access_key"]),
                "secretKey": pulumi.Output.secret(copy["secret_key"]),
            },
            opts=self._child(),
        )

    def _policy(
        self,
        name: str,
        rules: ReplicationRules,
        destinations: Sequence[dict[str, Any]],
        args: SnapshotStoreArgs,
        before: list[pulumi.Resource],
    ) -> None:
        region = args.get("region") or args["home"]["region"]
        own = region if isinstance(region, str) else args["home"]["region"]

        def judge(spec: ReplicationPolicySpec) -> list[Mistake]:
            return [_as_written(one, name) for one in mistakes(spec, region=own)]

        record(
            f"{self._name_prefix}-{name}-policy",
            "ReplicationPolicy",
            name,
            checked(
                f"SnapshotStore '{self._name_prefix}'",
                ReplicationPolicySpec,
                {**rules, "destinations": list(destinations)},
                path=f"replication.{name}",
                check=judge,
            ),
            labels=self._labels,
            opts=self._child(depends_on=before),
        )


def policies_of(args: SnapshotStoreArgs) -> dict[str, ReplicationRules]:
    """Return the policies by name: those that are asked for, else one of every day."""
    if not args.get("copies"):
        return {}
    return dict(args.get("replication") or {DAILY: {}})


def buckets_of(
    name: str, args: SnapshotStoreArgs, opts: pulumi.ResourceOptions
) -> "SnapshotBuckets | None":
    """Create the buckets that a store has on AWS; None where it makes none."""
    asked: list[tuple[SnapshotHome | SnapshotCopy, bool]] = [(args["home"], True)]
    asked += [(one, False) for one in args.get("copies", [])]
    wanted = [(one, own) for one, own in asked if _made(one)]
    if not wanted:
        return None
    # the SDK of AWS takes seconds to import, and most stacks want nothing of it
    from dsec_components.snapshot_buckets import (
        COPY_PREFIXES,
        HOME_PREFIXES,
        Site,
        SnapshotBuckets,
    )

    key = args.get("kms_key", "")
    sites = [
        Site(
            one["region"],
            one.get("bucket") or BUCKET,
            HOME_PREFIXES if own else COPY_PREFIXES,
            wrapping=key if own else "",
        )
        for one, own in wanted
    ]
    return SnapshotBuckets(
        name,
        {
            "sites": sites,
            "roles": args.get("roles", []),
            "version_days": args.get("version_days", VERSION_DAYS),
            "deletion": Deletion(args.get("deletion", Deletion.PROTECT)),
            "labels": args.get("labels", {}),
        },
        opts,
    )


def _made(site: SnapshotHome | SnapshotCopy) -> bool:
    return site.get("create", True) and not site.get("endpoint")


def _check(what: str, args: SnapshotStoreArgs) -> None:
    """Find what would only fail later. Raises pulumi.InputPropertiesError with every mistake."""
    copies = args.get("copies", [])
    found = _names(args["home"], copies)
    for at, one in enumerate(copies):
        missing = {"access_key", "secret_key"} - one.keys()
        if len(missing) == 1:
            rule, path = "both keys, or none", f"copies[{at}].{missing.pop()}"
            found.append(Mistake(path, None, rule, f"must be there: a copy has {rule}"))
    if args.get("replication") and not copies:
        rule = "a bucket in another region"
        found.append(Mistake("copies", None, rule, f"must have {rule}: there are policies"))
    key = args.get("kms_key", "")
    if key and not (key.startswith("arn:") and ":kms:" in key):
        rule = "the ARN of a KMS key"
        found.append(Mistake("kmsKey", key, rule, f"must be {rule}"))
    days = args.get("version_days", VERSION_DAYS)
    if days < 0:
        found.append(Mistake("versionDays", days, "0 or more", "must be 0 or more"))
    if found:
        raise problem(what, found)


def _names(home: SnapshotHome, copies: Sequence[SnapshotCopy]) -> list[Mistake]:
    """Find buckets that cannot have their names: on AWS all regions share them."""
    found = []
    sites: list[tuple[str, SnapshotHome | SnapshotCopy]] = [("home", home)]
    sites += [(f"copies[{at}]", one) for at, one in enumerate(copies)]
    seen: dict[str, str] = {}
    for path, site in sites:
        bucket = site.get("bucket") or BUCKET
        if not _BUCKET.fullmatch(bucket):
            rule = "3 to 63 letters, digits, dots and hyphens, in lower case"
            found.append(Mistake(f"{path}.bucket", bucket, rule, f"must be {rule}"))
        if _made(site) and bucket in seen:
            told = f"must be another name: {seen[bucket]}.bucket is {bucket}, too"
            found.append(Mistake(f"{path}.bucket", bucket, "a name of its own", told))
        if _made(site):
            seen.setdefault(bucket, path)
    return found


def _destination(copy: SnapshotCopy, secret: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {"region": copy["region"], "bucket": copy.get("bucket") or BUCKET}
    if copy.get("endpoint"):
        found["endpoint"] = copy["endpoint"]
    return found if secret is None else {**found, "secret": secret}


def _as_written(one: Mistake, policy: str) -> Mistake:
    """Return a mistake of a record with the path of the input that it comes from."""
    path = one.path.removeprefix("spec.")
    inside = path.startswith("destinations[")
    path = path.replace("destinations", "copies", 1) if inside else f"replication.{policy}.{path}"
    return Mistake(path, one.value, one.allowed, one.message)
