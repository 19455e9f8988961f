"""Refusals name whom room is kept for as its owner calls it."""

import pytest
from dsec.api.reasons import PendingReason
from dsec.controllers.rounds import named
from dsec.placement.refusal import Refusal
from dsec.placement.request import Decision
from dsec.placement.words import explain
from test_planner import binding


@pytest.mark.parametrize(
    ("experiment", "tenant", "words"),
    [
        ("train-7b", "t", "kept for experiment train-7b, which"),
        ("", "t", "kept for sb-00000000000000000000000001, which"),
        ("train-7b", "other", "kept for work of another tenant, which"),
    ],
)
def test_room_is_kept_for_work_by_its_name(experiment: str, tenant: str, words: str) -> None:
    """By the experiment's name, not its uid; the names of other tenants stay theirs."""
    head, asker = binding(1, tenant=tenant), binding(2)
    head.spec.identity.experiment = experiment
    kept = Refusal(PendingReason.RESERVED, "uid-1", 1)
    told = named(Decision(asker.id, refusals=(kept,)), asker, {"uid-1": head})
    assert words in explain(told.refusals)


def test_what_is_not_kept_for_anybody_is_told_as_it_is() -> None:
    """Other reasons, and heads that are gone."""
    found = (Refusal(PendingReason.CAPACITY, "cpu", 1), Refusal(PendingReason.RESERVED, "gone", 1))
    asker = binding(2)
    assert named(Decision(asker.id, refusals=found), asker, {}).refusals == found
