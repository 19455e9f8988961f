"""One verdict for documents: mistakes of form, of combination and of the rules, in one list."""

import pytest
from dsec.api.mistakes import DocumentError, Mistake
from dsec.api.tenant import TenantSpec
from dsec.rules.verdict import check_document

RIGHTS = TenantSpec.model_validate(
    {
        "projects": ["gait"],
        "documentTenants": ["research_a"],
        "registries": ["registry.example/"],
        "defaults": {"imageMirrors": [{"prefix": "registry.internal/", "mirror": "m.example/"}]},
    }
)
GOOD = """\
name: walk
tenant: research_a
roles:
  - role: sim
    replicas: 2
    resource: {cpu: 1, mem: 1Gi}
    image: registry.internal/sim:latest
"""


def refused(text: str) -> list[Mistake]:
    """Return what is wrong with a document for project gait of tenant lab."""
    with pytest.raises(DocumentError) as caught:
        check_document(text, project="gait", tenant="lab", rights=RIGHTS)
    return caught.value.mistakes


def test_a_good_document_says_what_it_will_run_and_what_should_change() -> None:
    """As asked, resolved, and warned about."""
    done = check_document(GOOD, project="gait", tenant="lab", rights=RIGHTS)
    assert done.parsed.spec.roles[0].image == "registry.internal/sim:latest"
    assert done.resolved.spec.roles[0].image == "m.example/sim:latest"
    assert done.resolved.tenant == "lab"
    (warning,) = done.warnings
    assert "moves with the registry" in warned(warning)


def warned(text: str) -> str:
    """Return a warning; it must be one sentence with its remedy."""
    assert text.startswith("The Experiment walk must ")
    assert text.endswith(".")
    return text


def test_rules_speak_in_the_paths_and_lines_of_the_document() -> None:
    """A finding about roles[0].resources.memoryBytes is shown where the user can mend it."""
    text = GOOD.replace(", mem: 1Gi", "").replace("registry.internal/", "evil.example/")
    text = text.replace("research_a", "stranger") + "    privileged: true\n"
    found = {one.path: one for one in refused(text)}
    assert {path: one.line for path, one in found.items()} == {
        "tenant": 2,
        "roles[0].resource.mem": 6,
        "roles[0].image": 7,
        "roles[0].privileged": 8,
    }
    assert "(rule limits)" in found["roles[0].resource.mem"].message
    assert "or give the tenant defaults" in found["roles[0].resource.mem"].message


def test_mistakes_of_form_and_of_rules_come_together() -> None:
    """In the order of the document, and a field is blamed once."""
    text = GOOD.replace("1Gi", "1Gx") + "    privileged: true\n    prots: 80\npriority: hihg\n"
    found = refused(text)
    assert [(one.line, one.path) for one in found] == [
        (6, "roles[0].resource.mem"),
        (8, "roles[0].privileged"),
        (9, "roles[0].prots"),
        (10, "priority"),
    ]


def test_what_cannot_be_read_is_said() -> None:
    """Without a dialect there is nothing for the rules."""
    (one,) = refused("hello: 1")
    assert "no known dialect" in one.message
