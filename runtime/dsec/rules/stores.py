"""The rules for what keeps snapshots: policies of copies, and buckets on AWS.

Pure, as the rules for experiments. `COPY_RULES` judge ReplicationPolicy records: the policy pack at
preview, where values may not be known yet, and admission, which says the same in words of
`dsec.rules.replication`. `BUCKET_RULES` judge resources of AWS by their inputs, and no record.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from dsec.rules.model import Finding, Rule, Subject, each, get, number
from dsec.rules.replication import plain_transport

CLOSED = ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets")
"""What closes a bucket; each is off where it is not said."""
OPEN_LISTS = frozenset({"public-read", "public-read-write", "authenticated-read", "website"})
"""Access lists of AWS that let in whoever comes."""


def copies(subject: Subject) -> Iterator[Finding]:
    """At least one copy is in another region, and as many as are asked for can be."""
    there = [get(one, "region") for _, one in each(subject.spec, "destinations")]
    if not there:
        yield _breach(COPIES, subject, "spec.destinations", "it names no destination")
        return
    wanted = number(get(subject.spec, "minCopies"))
    if wanted is not None and not 1 <= wanted <= len(there):
        what = f"{wanted} copies in {len(there)} destinations cannot be"
        yield _breach(COPIES, subject, "spec.minCopies", what, wanted)
    for at, region in enumerate(there):
        if region in there[:at]:
            path = f"spec.destinations[{at}].region"
            yield _breach(COPIES, subject, path, f"{region} is there twice", region)


def transit(subject: Subject) -> Iterator[Finding]:
    """Bytes are encrypted on their way."""
    for at, one in each(subject.spec, "destinations"):
        endpoint = get(one, "endpoint")
        if isinstance(endpoint, str) and (why := plain_transport(endpoint)):
            path = f"spec.destinations[{at}].endpoint"
            yield _breach(TRANSIT, subject, path, why, endpoint)


def copy_residency(subject: Subject) -> Iterator[Finding]:
    """Copies lie where the policy itself and the stack allow it."""
    own = [region for _, region in each(subject.spec, "residency")]
    bounds = ((own, "spec.residency"), (list(subject.settings.regions), "the stack's regions"))
    for at, one in each(subject.spec, "destinations"):
        region = get(one, "region")
        for allowed, whose in bounds:
            if allowed and region not in allowed:
                what = f"{region} is none of {whose} ({', '.join(map(str, allowed))})"
                path = f"spec.destinations[{at}].region"
                yield _breach(COPY_RESIDENCY, subject, path, what, region)


def closed(subject: Subject) -> Iterator[Finding]:
    """Nobody outside reads a bucket: by its block, its access list, or its policy."""
    if subject.kind == "BucketPublicAccessBlock":
        for key in CLOSED:
            if get(subject.spec, key) is not True:
                yield _breach(CLOSED_BUCKETS, subject, key, f"{key} is off")
    elif subject.kind in {"Bucket", "BucketAcl"}:
        given = get(subject.spec, "acl")
        if given in OPEN_LISTS:
            yield _breach(CLOSED_BUCKETS, subject, "acl", f"{given} lets others in", given)
    elif subject.kind == "BucketPolicy":
        yield from _open_statements(subject)


def _open_statements(subject: Subject) -> Iterator[Finding]:
    text = get(subject.spec, "policy")
    try:
        policy = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        yield _breach(CLOSED_BUCKETS, subject, "policy", "it is no JSON")
        return
    statements = get(policy, "Statement")
    if isinstance(statements, Mapping):
        # one alone may stand without a list
        policy = {"Statement": [statements]}
    for at, one in each(policy, "Statement"):
        # whom a condition lets in is for people to judge; "*" without any is everyone
        if get(one, "Effect") == "Allow" and _anyone(one) and not get(one, "Condition"):
            what = f"its statement {at} lets everyone in"
            yield _breach(CLOSED_BUCKETS, subject, f"policy.Statement[{at}].Principal", what)


def _anyone(statement: Any) -> bool:
    principal = get(statement, "Principal")
    if isinstance(principal, Mapping):
        principal = get(principal, "AWS")
    return principal == "*" or any(one == "*" for _, one in each({"of": principal}, "of"))


def sealed(subject: Subject) -> Iterator[Finding]:
    """What rests in a bucket is sealed by a key of its owner."""
    rules = each(subject.spec, "rules")
    if not rules:
        yield _breach(SEALED_BUCKETS, subject, "rules", "no rule seals anything")
    for at, rule in rules:
        asked = get(rule, "applyServerSideEncryptionByDefault")
        path = f"rules[{at}].applyServerSideEncryptionByDefault"
        used = get(asked, "sseAlgorithm")
        if used not in {"aws:kms", "aws:kms:dsse"}:
            what = f"it is sealed by {used or 'nothing'}, not by a key of KMS"
            yield _breach(SEALED_BUCKETS, subject, f"{path}.sseAlgorithm", what, used)
        elif not get(asked, "kmsMasterKeyId"):
            what = "the key is that of all buckets of the account"
            yield _breach(SEALED_BUCKETS, subject, f"{path}.kmsMasterKeyId", what)


def _breach(rule: Rule, subject: Subject, path: str, what: str, value: Any = None) -> Finding:
    message = f"The {subject} must {rule.must}: {what} (rule {rule.name})."
    return Finding(rule.name, path, message, rule.remedy, value=value)


COPIES = Rule(
    "copies",
    "name as many other regions as it wants copies, at least one",
    "What is only in one region is lost with it (HA-13).",
    "Name destinations in different regions, and keep minCopies within their number.",
    copies,
)
TRANSIT = Rule(
    "transit",
    "send copies over TLS",
    "Training data is read on the wire by whoever stands at it (HA-14).",
    "Use an endpoint with https://, or none for the cloud's own.",
    transit,
)
COPY_RESIDENCY = Rule(
    "copy-residency",
    "copy to allowed regions only",
    "A copy in another country has left its region as much as its original would (HA-16, CONF-29).",
    "Name destinations among spec.residency and the regions of the stack.",
    copy_residency,
)
CLOSED_BUCKETS = Rule(
    "closed-buckets",
    "let nobody in from outside",
    "A bucket that is open for a moment has been read.",
    "Set all four of the public access block, use no open access list, and name principals.",
    closed,
)
SEALED_BUCKETS = Rule(
    "sealed-buckets",
    "be sealed by a KMS key of its own",
    "Whoever may read the bucket must also be allowed to use the key, and a key can be withdrawn.",
    "Use sseAlgorithm aws:kms with kmsMasterKeyId.",
    sealed,
)

COPY_RULES: tuple[Rule, ...] = (COPIES, TRANSIT, COPY_RESIDENCY)
"""Every rule for ReplicationPolicies, in the order in which findings are shown."""
BUCKET_RULES: tuple[Rule, ...] = (CLOSED_BUCKETS, SEALED_BUCKETS)
"""Every rule for buckets on AWS."""
BUCKET_KINDS = {
    CLOSED_BUCKETS.name: ("Bucket", "BucketAcl", "BucketPolicy", "BucketPublicAccessBlock"),
    SEALED_BUCKETS.name: ("BucketServerSideEncryptionConfiguration",),
}
"""Which resources each of them reads."""
