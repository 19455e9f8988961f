"""Bindings of keyed creates: from a template, each its own; ids that sort by time."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from dsec.api.sandbox import Identity, Resources
from dsec.api.tenant import TenantSpec
from dsec.api.wire import KeyedCreate
from dsec.journal.bindings import Binding
from dsec.journal.keyed import keyed_binding, new_id
from ulid import ULID

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    """A clock that stands where it is put."""

    def __init__(self, now: datetime) -> None:
        self._now = now

    def now(self) -> datetime:
        """Return its time."""
        return self._now

    def monotonic(self) -> float:
        """Return nothing of use."""
        return 0.0

    async def sleep(self, seconds: float) -> None:
        """Never called."""
        raise AssertionError(seconds)


def made(key: str, sandbox: str, **changes: Any) -> Binding:
    """Return the binding of a create."""
    values: dict[str, Any] = {
        "image": "i",
        "resources": Resources(cpu_milli=100, memory_bytes=1 << 26),
        "env": {"A": "1"},
        "labels": {"gpu-type": "t4"},
        **changes,
    }
    return keyed_binding(
        KeyedCreate(key=key, **values),
        image="i@sha256:1",
        tenant="t",
        project="p",
        rights=TenantSpec(),
        sandbox=sandbox,
        correlation=f"call of {key}",
        now=NOW,
    )


def test_each_of_a_batch_is_its_own() -> None:
    """Creates that ask for the same differ in key, id and call, and change no other."""
    ids = [f"sb-{number:026d}" for number in range(3)]
    found = [made(f"k{number}", sandbox) for number, sandbox in enumerate(ids)]
    assert [one.id for one in found] == ids == [one.spec.identity.id for one in found]
    assert [one.key for one in found] == ["k0", "k1", "k2"]
    assert [one.spec.identity.correlation_id for one in found] == [
        f"call of k{n}" for n in range(3)
    ]
    assert len({one.body_hash for one in found}) == 1
    first = found[0]
    first.node, first.spec.devices, first.spec.identity.incarnation = "n", ["d"], 2
    assert [(b.node, b.spec.devices, b.spec.identity.incarnation) for b in found[1:]] == [
        ("", [], 1)
    ] * 2
    # what is written and read again is the same: nothing of it was skipped by not validating
    again = Binding.model_validate_json(found[1].model_dump_json(by_alias=True))
    assert again == found[1]


@pytest.mark.parametrize(
    "changes",
    [{"item": "x"}, {"stdin": ""}, {"command": ["true"]}, {"env": {}}, {"image": "j"}],
)
def test_what_is_asked_differently_is_another_body(changes: dict[str, Any]) -> None:
    """A repeat of a key is told from a create that asks for something else."""
    one, other = made("k", f"sb-{'0' * 26}"), made("k", f"sb-{'0' * 26}", **changes)
    assert one.body_hash != other.body_hash
    if "image" not in changes:
        assert one.spec != other.spec


def test_ids_are_ulids_that_sort_by_time() -> None:
    """An id holds its time and its random bits, as the identifiers of other tools do."""
    rng = random.Random(1)  # noqa: S311 - repeatable ids
    ids = [new_id(Clock(NOW + timedelta(milliseconds=n)), rng) for n in range(50)]
    assert ids == sorted(ids)
    for number, sandbox in enumerate(ids):
        Identity(id=sandbox, tenant="t", project="p")
        parsed = ULID.from_str(sandbox.removeprefix("sb-").upper())
        assert parsed.datetime == NOW + timedelta(milliseconds=number)
