"""The reference page of the rules, made from them; `python -m dsec.rules.reference` prints it."""

import sys

from dsec.rules import BUCKET_RULES, COPY_RULES, EXPERIMENT_RULES, HOST, POOL_RULES

_HEAD = """<!-- Generated: .venv/bin/python -m dsec.rules.reference > docs/reference/rules.md -->
# Rules

These rules judge experiments, alike in `pulumi preview` (policies `dsec-<rule>`), at admission and
in the HTTP API; `scaling` and `spending` judge node pools, `copies`, `transit` and `copy-residency`
ReplicationPolicies, `closed-buckets` and `sealed-buckets` what a stack makes on AWS (only at
preview); the last one judges ordinary workloads in namespaces of projects. Each finding names the
field, the rule and the remedy. `policies/README.md` says how a stack tightens them.

| rule | it must | because | remedy |
|---|---|---|---|
"""


def render() -> str:
    """Return the page as Markdown."""
    rows = [
        f"| {one.name} | {one.must} | {one.why} | {one.remedy} |\n"
        for one in (*EXPERIMENT_RULES, *POOL_RULES, *COPY_RULES, *BUCKET_RULES, HOST)
    ]
    return _HEAD + "".join(rows)


if __name__ == "__main__":
    sys.stdout.write(render())
