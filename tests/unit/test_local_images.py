"""What goes into images and how they are named: contexts and digests, without building any."""

from pathlib import Path

import pytest
from dsec.local import images
from dsec.local.images_context import NAMES, inputs_digest, package_list, tree_digest
from dsec.local.processes import LocalError


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a source tree with everything an image is made of."""
    contents = {
        "uv.lock": "locked",
        "runtime/pyproject.toml": '[project]\nversion = "1"',
        "runtime/dsec/__init__.py": "",
        "runtime/dsec/a.py": "a = 1",
        "runtime/init/Cargo.toml": "[package]",
        "runtime/init/src/main.rs": "fn main() {}",
        "runtime/init/bootstrap.sh": "#!/bin/sh",
        "images/runtime/dsec": "#!/bin/sh",
    }
    contents |= {f"images/{name}/Containerfile": f"FROM {name}" for name in NAMES}
    for name, text in contents.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def digests(tree: Path, base: str = "built") -> dict[str, str]:
    """Return the digest of each image's inputs."""
    return {name: inputs_digest(tree, name, base) for name in NAMES}


CHANGES = [
    ("runtime/dsec/a.py", {"runtime", "agent"}),
    ("uv.lock", {"runtime", "agent"}),
    ("runtime/init/src/main.rs", {"agent"}),
    ("runtime/init/bootstrap.sh", {"sandbox-base"}),
    ("images/pause/Containerfile", {"pause"}),
    ("images/base/Containerfile", {"base", "runtime", "agent", "prometheus"}),
    ("images/prometheus/Containerfile", {"prometheus"}),
    ("images/sandbox-base/Containerfile", {"sandbox-base"}),
]


@pytest.mark.parametrize(("path", "affected"), CHANGES)
def test_a_change_renames_exactly_what_it_goes_into(
    tree: Path, path: str, affected: set[str]
) -> None:
    """A tag never means two things, and nothing is built for nothing."""
    before = digests(tree)
    (tree / path).write_text("changed")
    after = digests(tree)
    assert {name for name in NAMES if before[name] != after[name]} == affected


def test_byte_code_and_hidden_files_change_nothing(tree: Path) -> None:
    """Running the code or an editor's swap file must not rebuild images."""
    before = digests(tree)
    cache = tree / "runtime/dsec/__pycache__"
    cache.mkdir()
    (cache / "a.cpython-311.pyc").write_bytes(b"x")
    (tree / "runtime/dsec/.a.py.swp").write_text("x")
    assert digests(tree) == before


def test_another_base_makes_other_images(tree: Path) -> None:
    """The base is part of what is built on it; the others have none."""
    built, public = digests(tree), digests(tree, "python:3.11-slim")
    assert {name for name in NAMES if built[name] != public[name]} == {
        *("runtime", "agent", "prometheus")
    }


def test_an_unknown_image_is_named_with_what_there_is(tree: Path) -> None:
    """The error says what could be meant."""
    with pytest.raises(LocalError, match="none of base, pause"):
        inputs_digest(tree, "agnet", "built")


def test_a_digest_tells_where_one_file_ends(tmp_path: Path) -> None:
    """Moving text from one file to the next is a change."""
    one, two = tmp_path / "a", tmp_path / "b"
    one.write_text("xy")
    two.write_text("z")
    before = tree_digest([one, two], tmp_path)
    one.write_text("x")
    two.write_text("yz")
    assert tree_digest([one, two], tmp_path) != before


def test_a_package_list_may_have_comments(tmp_path: Path) -> None:
    """One package a line."""
    path = tmp_path / "packages"
    path.write_text("# why\ncrun\n\nskopeo  # fetches\n")
    assert package_list(path) == ["crun", "skopeo"]


def test_references_of_this_very_tree() -> None:
    """Every image of a cluster can be named without a registry."""
    names = {images.reference(name) for name in images.CLUSTER_IMAGES}
    assert len(names) == len(images.CLUSTER_IMAGES)
    assert all(name.startswith("dsec/") and len(name.split(":")[1]) == 16 for name in names)


def test_a_silent_registry_is_a_sentence() -> None:
    """Not a traceback of an HTTP library."""
    with pytest.raises(LocalError, match="does not answer"):
        images.stored("127.0.0.1:1", ["pause"])


def test_uv_of_the_cache_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make setup` puts one there where the machine has none, and PATH does not name it."""
    program = tmp_path / "dsec" / "uv" / "bin" / "uv"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho uv of the cache\n")
    program.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    assert images.run_tool("uv", "--version") == "uv of the cache\n"
