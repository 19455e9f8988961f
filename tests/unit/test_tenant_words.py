"""What `dsec describe tenant` and `dsec get tenants` say of quota that is lent to gateways."""

from typing import Any

from dsec.cli.tenant_words import lent, tenant_lines


def tenant(**status: Any) -> dict[str, Any]:
    """Return a tenant's record."""
    return {
        "metadata": {"name": "team"},
        "spec": {
            "projects": ["lab"],
            "quota": {"nominal": {"cpuMilli": 8000, "sandboxes": 10}},
        },
        "status": status,
    }


def test_what_is_lent_is_told_and_counts_as_used() -> None:
    """Owned, used, lent, and what is left of it."""
    one = tenant(
        used={"cpuMilli": 2000, "memoryBytes": 1 << 30, "gpuCount": 0, "sandboxes": 4},
        leased={"cpuMilli": 1500, "memoryBytes": 0, "gpuCount": 0, "sandboxes": 3},
        experiments=2,
        keyed=4,
    )
    assert lent(one) == "1.5 cores, 3 sandboxes"
    text = "\n".join(tenant_lines(one))
    assert "tenant team: lab projects, 2 tasks, 4 single sandboxes" in text
    assert "owns        8 cores, 10 sandboxes" in text
    assert (
        "lent        1.5 cores, 3 sandboxes: lent to gateways for single creates, counted as used "
        "until it is given back" in text
    )
    assert "free        4.5 cores, 3 sandboxes" in text


def test_nothing_lent_and_no_quota() -> None:
    """A tenant without limits, of which no gateway holds anything."""
    one = tenant()
    one["spec"]["quota"] = {}
    text = "\n".join(tenant_lines(one))
    assert lent(one) == ""
    assert "whatever there is: no quota is set" in text
    assert "nothing: no gateway creates for it now" in text
    assert "free" not in text
