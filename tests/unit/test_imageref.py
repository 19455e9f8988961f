"""Image references: the table of what parses, and how, and what does not."""

import pytest
from dsec.api.imageref import parse

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("busybox", ("", "busybox", "", "")),
        ("lowercase:Uppercase", ("", "lowercase", "Uppercase", "")),
        ("test.com:5000", ("", "test.com", "5000", "")),
        ("test.com/repo:tag", ("test.com", "repo", "tag", "")),
        ("test:5000/repo", ("test:5000", "repo", "", "")),
        ("localhost:5000/team/x:dev", ("localhost:5000", "team/x", "dev", "")),
        ("localhost/x", ("localhost", "x", "", "")),
        ("team/x", ("", "team/x", "", "")),
        ("MyHost:5000/repo", ("MyHost:5000", "repo", "", "")),
        ("MyHost/repo", ("MyHost", "repo", "", "")),
        ("r.io/a__b/c-d.e:v1.0_x-2", ("r.io", "a__b/c-d.e", "v1.0_x-2", "")),
        ("[2001:db8::1]:5000/repo", ("[2001:db8::1]:5000", "repo", "", "")),
        (f"r.io/aspnet:8.0@{DIGEST}", ("r.io", "aspnet", "8.0", DIGEST)),
        (f"x@{DIGEST}", ("", "x", "", DIGEST)),
        (f"localhost:5000/r:1.0@{DIGEST}", ("localhost:5000", "r", "1.0", DIGEST)),
    ],
)
def test_parses_and_writes_back(text: str, parts: tuple[str, str, str, str]) -> None:
    """Each reference has one reading, and writes back as it was."""
    ref = parse(text)
    assert (ref.registry, ref.repository, ref.tag, ref.digest) == parts
    assert str(ref) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "missing"),
        (":tag", "missing"),
        ("Uppercase:tag", "lower-case"),
        ("r.io/Upper/x", "lower-case"),
        ("r.io/a..b", "lower-case"),
        ("r.io/a//b", "lower-case"),
        ("r.io/x:" + "t" * 129, "tag"),
        ("r.io/x:-a", "tag"),
        ("x@sha256:short", "digest"),
        ("x@sha256:" + "A" * 64, "sha256"),
        ("x@sha256:" + "a" * 63, "sha256"),
        ("x@", "digest"),
        ("r_.io/x", "registry"),
        ("r.io:port/x", "registry"),
        ("a" * 64, "image ID"),
        ("r.io/" + "a/" * 126 + "abcdef", "longer"),
        ("r.io/a b", "lower-case"),
    ],
)
def test_refuses_and_says_what(text: str, said: str) -> None:
    """The error quotes the reference and names the part."""
    with pytest.raises(ValueError, match="image") as refused:
        parse(text)
    assert said in str(refused.value)
