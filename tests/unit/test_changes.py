"""What an edit changes: field by field, by name, with what follows it."""

from dsec.api.changes import changes
from dsec.api.documents import parse
from dsec.api.experiment import ExperimentSpec, Role

DOCUMENT = """
name: walk
priority: high
roles:
  - {role: trainer, replicas: 1, image: base, resource: {cpu: 1, mem: 1G}}
  - {role: sim, replicas: 8, image: base, resource: {cpu: 1, mem: 1G}}
"""


def told(old: str, new: str) -> list[tuple[str, object, object, str]]:
    """Return the changes between two texts."""
    found = changes(parse(old).spec, parse(new).spec)
    return [(one.path, one.old, one.new, one.effect) for one in found]


def test_an_edit_is_told_field_by_field() -> None:
    """Roles are found by name, and each field says whether running replicas follow it."""
    edited = DOCUMENT.replace("replicas: 8, image: base", "replicas: 6, image: other:2")
    edited = edited.replace("priority: high", "priority: low")
    assert told(DOCUMENT, edited) == [
        ("priority", "high", "low", "live"),
        ("roles[sim].replicas", 8, 6, "live"),
        ("roles[sim].image", "base", "other:2", "new replicas only"),
    ]


def test_what_means_the_same_is_no_change() -> None:
    """A comment, another order of roles, and a default that is written out."""
    *head, trainer, sim = DOCUMENT.splitlines()
    swapped = "\n".join([*head, sim, trainer, "queue: default # a comment"])
    assert told(DOCUMENT, swapped) == []
    assert parse(DOCUMENT).spec.source_digest != parse(swapped).spec.source_digest


def test_parts_that_come_and_go() -> None:
    """A role that is added is shown whole, one that is taken away, too."""
    one, two = (ExperimentSpec(roles=roles) for roles in ([Role(name="a")], [Role(name="b")]))
    found = {change.path: (change.old, change.new) for change in changes(one, two)}
    assert found == {"roles[a]": ({"name": "a"}, None), "roles[b]": (None, {"name": "b"})}
    labelled = one.model_copy(update={"labels": {"team": "x"}})
    assert [change.path for change in changes(one, labelled)] == ["labels[team]"]
