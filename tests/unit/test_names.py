"""Record names: what fits stays, what does not gets a hash, and two names never meet."""

import re

from dsec.api.names import dns_name
from hypothesis import given
from hypothesis import strategies as st

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def test_a_dns_label_stays() -> None:
    """Nothing is changed without need."""
    assert dns_name("agent-exp-20250614-01") == "agent-exp-20250614-01"


def test_other_names_get_a_hash() -> None:
    """The name stays readable, and its look-alikes get other hashes."""
    names = {dns_name(one) for one in ("ppo_walk", "ppo.walk", "PPO_walk", "ppo walk", "ppo_walk_")}
    assert len(names) == 5
    assert all(one.startswith("ppo-walk-") for one in names)


def test_long_names_with_the_same_start_stay_apart() -> None:
    """Case C09: truncation alone would make them equal."""
    one, two = dns_name("x" * 63 + "a"), dns_name("x" * 63 + "b")
    assert one != two
    assert len(one) == len(two) == 63


@given(st.text(min_size=1, max_size=300))
def test_every_name_becomes_a_label(given_name: str) -> None:
    """Also without one letter that DNS knows; and it is stable."""
    name = dns_name(given_name)
    assert LABEL.fullmatch(name)
    assert dns_name(name) == name


@given(st.lists(st.text(min_size=1, max_size=80), min_size=2, max_size=20, unique=True))
def test_different_names_differ(names: list[str]) -> None:
    """No two given names share a record."""
    assert len({dns_name(one) for one in names}) == len(names)
