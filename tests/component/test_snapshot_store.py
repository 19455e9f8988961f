"""SnapshotStore: two regions on AWS or of one's own, who may do what there, what is copied."""

import json
from collections.abc import Mapping
from typing import Any

import pulumi
import pytest
from conftest import Recorder, Registered, Run, is_secret, plain
from dsec.api.config import Deletion, platform_config
from dsec.api.mistakes import DocumentError
from dsec.api.replication import ReplicationPolicySpec
from dsec_components.platform import Platform, platform_args
from dsec_components.snapshot_store import SnapshotStore

TWO: dict[str, Any] = {
    "home": {"region": "eu-central-1", "bucket": "lab"},
    "copies": [{"region": "eu-west-1", "bucket": "lab-copies"}],
    "roles": ["gateway", "controller"],
    "replication": {"daily": {"residency": ["eu-west-1"], "min_copies": 1}},
}
OWN: dict[str, Any] = {
    "home": {"region": "hall-1", "endpoint": "http://s3.hall-1:8333"},
    "copies": [
        {
            "region": "hall-2",
            "endpoint": "https://s3.hall-2:8333",
            "access_key": "ak-id",
            "secret_key": "sk-val",
        }
    ],
}
IMAGES = {"runtime": "registry/dsec:1", "agent": "registry/agent:1"}


def store(run: Run, args: Mapping[str, Any], *, preview: bool = False) -> Recorder:
    """Return what a store makes."""
    return run(lambda opts: SnapshotStore("s", dict(args), opts), preview=preview)


def refused(run: Run, args: Mapping[str, Any]) -> str:
    """Return what a store says about inputs that it does not take."""
    with pytest.raises(pulumi.InputPropertiesError) as error:
        store(run, args)
    return str(error.value.message)


def policy(made: Recorder, name: str = "s-daily-policy") -> dict[str, Any]:
    """Return the spec of a ReplicationPolicy."""
    return dict(plain(made.named(name).inputs)["spec"])


def on_aws(made: Recorder) -> list[Registered]:
    """Return what is made on AWS."""
    return [one for one in made.resources if one.typ.startswith("aws:")]


def test_two_regions_are_shown_with_their_rules(mode: bool, run: Run) -> None:
    """IAC-08: a preview has both buckets with all that guards them, and the policy between."""
    made = store(run, TWO, preview=mode)
    kinds = [one.typ.rpartition(":")[2] for one in on_aws(made)]
    for kind in (
        *("Bucket", "BucketPublicAccessBlock", "BucketOwnershipControls", "BucketVersioning"),
        *("BucketServerSideEncryptionConfiguration", "BucketLifecycleConfiguration"),
        *("BucketPolicy", "Key", "Policy"),
    ):
        assert kinds.count(kind) == 2, kind
    assert kinds.count("RolePolicyAttachment") == 4
    assert policy(made) == {
        "residency": ["eu-west-1"],
        "minCopies": 1,
        "destinations": [{"region": "eu-west-1", "bucket": "lab-copies"}],
    }
    assert made.of("core/v1:Secret") == []


def test_each_region_has_a_provider_of_its_own(mode: bool, run: Run) -> None:
    """Nothing is made wherever the shell's AWS_REGION points at."""
    made = store(run, TWO, preview=mode)
    regions = {
        one.name: plain(one.inputs)["region"]
        for one in made.resources
        if one.typ == "pulumi:providers:aws"
    }
    assert regions == {
        "s-buckets-eu-central-1": "eu-central-1",
        "s-buckets-eu-west-1": "eu-west-1",
    }
    for one in on_aws(made):
        provider = next(name for name in regions if f"::{name}::" in one.provider)
        assert one.name.startswith(f"{provider}-")


def test_a_bucket_is_closed_sealed_and_versioned(run: Run) -> None:
    """By the bucket's own key, which turns over; nobody outside, and nobody without TLS."""
    made = store(run, TWO)
    name = "s-buckets-eu-west-1"
    private = plain(made.named(f"{name}-private").inputs)
    assert {key: one for key, one in private.items() if key != "bucket"} == {
        "blockPublicAcls": True,
        "blockPublicPolicy": True,
        "ignorePublicAcls": True,
        "restrictPublicBuckets": True,
    }
    (sealed,) = plain(made.named(f"{name}-encryption").inputs)["rules"]
    assert sealed["applyServerSideEncryptionByDefault"]["sseAlgorithm"] == "aws:kms"
    assert plain(made.named(f"{name}-key").inputs)["enableKeyRotation"] is True
    versions = plain(made.named(f"{name}-versioning").inputs)["versioningConfiguration"]
    assert versions == {"status": "Enabled"}
    said = json.loads(plain(made.named(f"{name}-transport").inputs)["policy"])["Statement"]
    assert {one["Effect"] for one in said} == {"Deny"}
    assert said[0]["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    assert said[0]["Resource"] == ["arn:aws:s3:::lab-copies", "arn:aws:s3:::lab-copies/*"]


def test_no_lifecycle_rule_touches_what_dsec_has(run: Run) -> None:
    """What goes is collected by dsec; S3 ends broken uploads, and forgets what dsec has deleted."""

    def rules(days: int) -> list[dict[str, Any]]:
        made = store(run, TWO | {"version_days": days})
        return list(plain(made.named("s-buckets-eu-west-1-lifecycle").inputs)["rules"])

    uploads, versions = rules(14)
    assert uploads["abortIncompleteMultipartUpload"] == {"daysAfterInitiation": 7}
    assert versions["noncurrentVersionExpiration"] == {"noncurrentDays": 14}
    for one in (uploads, versions):
        assert not {"days", "date"} & one.get("expiration", {}).keys()
        assert "transitions" not in one
    assert rules(0) == [uploads]


def rights(run: Run, region: str) -> list[dict[str, Any]]:
    """Return the statements of what the roles may do in a region."""
    made = store(run, TWO)
    text = plain(made.named(f"s-buckets-{region}-rights").inputs)["policy"]
    return list(json.loads(text)["Statement"])


def test_the_roles_may_do_what_dsec_does_and_no_more(run: Run) -> None:
    """No bucket is made or changed, no wildcard is used, and another region's journal is closed."""
    home, copies = rights(run, "eu-central-1"), rights(run, "eu-west-1")
    for one in (*home, *copies):
        assert one["Effect"] == "Allow"
        assert not [action for action in one["Action"] if "*" in action]
    actions = {action for one in copies for action in one["Action"]}
    assert actions == {
        *("s3:ListBucket", "s3:GetObject", "s3:PutObject", "s3:DeleteObject"),
        *("s3:AbortMultipartUpload", "kms:GenerateDataKey", "kms:Decrypt"),
    }
    assert home[1]["Resource"] == ["arn:aws:s3:::lab/*"]
    assert copies[1]["Resource"] == [
        "arn:aws:s3:::lab-copies/snapshots/*",
        "arn:aws:s3:::lab-copies/probe/*",
    ]
    assert copies[2]["Condition"] == {
        "StringEquals": {"kms:ViaService": "s3.eu-west-1.amazonaws.com"}
    }


def test_a_platform_wraps_tenants_keys_by_kms_where_it_is_told(run: Run) -> None:
    """Pods read the key's name, and only the home's roles may wrap and open with it."""
    key = "arn:aws:kms:eu-central-1:1:key/mrk-1"
    inputs: Any = {
        "images": IMAGES,
        "kubeconfig": "apiVersion: v1",
        "object_store": {"region": "eu-central-1", "bucket": "lab"},
        "snapshots": {"copies": TWO["copies"], "kms_key": key},
    }
    made = run(lambda opts: Platform("dsec", inputs, opts))
    config = json.loads(made.named("dsec-runtime-settings-config").inputs["data"]["config.json"])
    assert config["snapshots"] == {"kmsKey": key, "kmsRegion": "eu-central-1"}
    home, away = (
        json.loads(plain(made.named(f"dsec-buckets-{region}-rights").inputs)["policy"])["Statement"]
        for region in ("eu-central-1", "eu-west-1")
    )
    assert home[3]["Action"] == ["kms:Encrypt", "kms:Decrypt"]
    assert home[3]["Resource"] == [key]
    assert len(away) == 3


def test_tags_reach_whatever_has_tags(mode: bool, run: Run) -> None:
    """The user's, and the stack that made it."""
    made = store(run, TWO | {"labels": {"team": "x"}}, preview=mode)
    tagged = [one for one in on_aws(made) if one.typ.rpartition(":")[2] in {"Bucket", "Key"}]
    tagged += made.of("iam/policy:Policy")
    assert len(tagged) == 6
    for one in tagged:
        assert plain(one.inputs)["tags"] == {"team": "x", "dsec.dev/stack": "dsec.test"}, one.name


@pytest.mark.parametrize("deletion", list(Deletion))
def test_what_holds_data_stays_where_deletion_is_protected(
    deletion: Deletion, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its rules and its key; purge empties the bucket first."""
    kept: dict[str, bool] = {}
    usual = pulumi.CustomResource.__init__

    def watch(self: Any, t: str, name: str, *rest: Any, **named: Any) -> None:
        opts = next(
            (one for one in (*rest, *named.values()) if isinstance(one, pulumi.ResourceOptions)),
            None,
        )
        kept[name] = bool(opts and opts.retain_on_delete)
        usual(self, t, name, *rest, **named)

    monkeypatch.setattr(pulumi.CustomResource, "__init__", watch)
    made = store(run, TWO | {"deletion": deletion})
    protected = deletion is Deletion.PROTECT
    for one in on_aws(made):
        holds = "-rights" not in one.name
        assert kept[one.name] == (protected and holds), one.name
    bucket = plain(made.named("s-buckets-eu-west-1-bucket").inputs)
    assert bucket["forceDestroy"] is not protected


def test_servers_of_ones_own_get_secrets_and_nothing_of_aws(mode: bool, run: Run) -> None:
    """Their keys are secret wherever they show, and the record names where they lie."""
    made = store(run, OWN, preview=mode)
    assert on_aws(made) == []
    assert [one for one in made.resources if one.typ == "pulumi:providers:aws"] == []
    (secret,) = made.of("core/v1:Secret")
    assert secret.inputs["metadata"]["name"] == "s-hall-2"
    assert plain(secret.inputs)["stringData"] == {"accessKey": "ak-id", "secretKey": "sk-val"}
    data = secret.inputs["stringData"]
    assert is_secret(data) or all(is_secret(one) for one in data.values())
    component = next(one for one in made.resources if one.typ == "dsec:index:SnapshotStore")
    shown = component.inputs["copies"]
    assert is_secret(shown) or all(is_secret(shown[0][key]) for key in ("access_key", "secret_key"))
    (destination,) = policy(made)["destinations"]
    assert destination == {
        "region": "hall-2",
        "bucket": "dsec",
        "endpoint": "https://s3.hall-2:8333",
        "secret": "s-hall-2",
    }
    ReplicationPolicySpec.model_validate(policy(made))


def test_a_store_that_copies_says_so_without_a_word(run: Run) -> None:
    """HA-13: a place for copies alone makes them, once a day; without one there is no policy."""
    bare = {key: one for key, one in TWO.items() if key != "replication"}
    assert policy(store(run, bare)).keys() == {"destinations"}
    assert ReplicationPolicySpec.model_validate(policy(store(run, bare))).interval_seconds == 86400
    alone = {"home": TWO["home"]}
    assert store(run, alone).of(":ReplicationPolicy") == []


def _copy(**changes: Any) -> dict[str, Any]:
    return {"copies": [TWO["copies"][0] | changes]}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (_copy(endpoint="http://s3.example"), "copies[0].endpoint: copies are encrypted in tr"),
        (_copy(region="eu-central-1"), "copies[0].region: eu-central-1 is where the snapshots"),
        (_copy(region="us-1"), "copies[0].region: us-1 is not in spec.residency"),
        (_copy(bucket="lab"), "copies[0].bucket: must be another name: home.bucket is lab, too"),
        (_copy(bucket="Lab"), "copies[0].bucket: must be 3 to 63 letters"),
        (_copy(access_key="a"), "copies[0].secret_key: must be there: a copy has both keys"),
        ({"copies": []}, "copies: must have a bucket in another region"),
        ({"kms_key": "alias/mine"}, "kmsKey: must be the ARN of a KMS key"),
        ({"version_days": -1}, "versionDays: must be 0 or more"),
        (
            {"replication": {"daily": {"min_copies": 2}}},
            "replication.daily.minCopies: 2 copies need as many destinations",
        ),
        ({"replication": {"daily": {"kinds": ["freeze"]}}}, "replication.daily.kinds[0]: freeze"),
        ({"replication": {"daily": {"intervall": 2}}}, "replication.daily.intervall: unknown key"),
    ],
)
def test_a_store_that_protects_nothing_is_refused(
    changes: dict[str, Any], said: str, run: Run
) -> None:
    """Before anything is sent, with the path of what was written and what is allowed."""
    assert said in refused(run, TWO | changes)


def test_a_platform_makes_its_bucket_before_its_pods(mode: bool, run: Run) -> None:
    """The home is the object store; the policy comes after the definitions of the records."""
    inputs: Any = {
        "images": IMAGES,
        "kubeconfig": "apiVersion: v1",
        "region": "eu-central-1",
        "object_store": {"region": "eu-central-1", "bucket": "lab"},
        "snapshots": {"copies": TWO["copies"]},
    }
    made = run(lambda opts: Platform("dsec", inputs, opts), preview=mode)
    order = [one.name for one in made.resources]
    assert order.index("dsec-buckets-eu-central-1-bucket") < order.index(
        "dsec-runtime-gateway-deployment"
    )
    assert order.index("dsec-runtime-definitions") < order.index("dsec-snapshots-daily-policy")
    assert len(made.of("s3/bucket:Bucket")) == 2


def test_an_object_store_of_ones_own_is_used_as_it_is(run: Run) -> None:
    """An endpoint says that the bucket is there."""
    config = platform_config(
        {
            "images": IMAGES,
            "objectStore": {"endpoint": "https://s3.example", "region": "hall-1"},
            "region": "hall-1",
            "snapshots": {
                "copies": [{"region": "hall-2", "endpoint": "https://s3-2.example", "secret": "k"}],
                "replication": {"hourly": {"intervalSeconds": 3600}},
            },
        }
    )
    made = run(lambda opts: Platform("dsec", platform_args(config, "apiVersion: v1"), opts))
    assert on_aws(made) == []
    assert policy(made, "dsec-snapshots-hourly-policy")["intervalSeconds"] == 3600


def test_a_configuration_names_what_cannot_be() -> None:
    """Every mistake with its path in the file."""
    with pytest.raises(DocumentError) as error:
        platform_config({"images": IMAGES, "snapshots": {"copies": [{"bukket": "a"}]}})
    paths = {one.path for one in error.value.mistakes}
    assert "snapshots.copies[0].bukket" in paths
    assert "snapshots.copies[0].region" in paths
