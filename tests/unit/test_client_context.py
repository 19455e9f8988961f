"""Where the client finds its server: file, environment, and what is said when both are wrong."""

import json
import stat
from pathlib import Path

import pytest
from dsec.client import Context, ContextError, load, save
from dsec.client import context as module


def test_save_and_load(tmp_path: Path) -> None:
    """What is saved is loaded; the file is for its owner only."""
    file = tmp_path / "a" / "context.json"
    wanted = Context(server="https://h:1", api_key="k", ca_file="/ca", project="p")
    save(wanted, file)
    assert wanted == load(file, {})
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [file] == list(file.parent.iterdir())


def test_the_environment_wins(tmp_path: Path) -> None:
    """Each variable overrides its field; an empty one does not."""
    file = save(Context(server="https://h:1", api_key="k"), tmp_path / "context.json")
    found = load(file, {"DSEC_SERVER": "http://x", "DSEC_PROJECT": "q", "DSEC_API_KEY": ""})
    assert Context(server="http://x", api_key="k", project="q") == found


def test_fields_of_a_newer_version_are_ignored(tmp_path: Path) -> None:
    """Two versions of dsec may share the file."""
    file = tmp_path / "context.json"
    file.write_text(json.dumps({"server": "http://x", "later": {"a": 1}}))
    assert load(file, {}).server == "http://x"


@pytest.mark.parametrize("text", ["{", "[]", '{"server": 1}'])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    """The error names the file."""
    file = tmp_path / "context.json"
    file.write_text(text)
    with pytest.raises(ContextError, match=r"context\.json"):
        load(file, {})


def test_a_missing_file_is_an_empty_context(tmp_path: Path) -> None:
    """And an empty context says what to do."""
    context = load(tmp_path / "none", {})
    assert Context() == context
    with pytest.raises(ContextError, match="dsec up --standalone"):
        context.checked()


@pytest.mark.parametrize(
    "context",
    [
        Context(server="ftp://x"),
        Context(server="http://x", ca_file="/does/not/exist"),
        Context(server="http://x", project=""),
    ],
)
def test_an_unusable_context_is_refused(context: Context) -> None:
    """Before a call is tried."""
    with pytest.raises(ContextError):
        context.checked()


def test_the_file_follows_xdg() -> None:
    """XDG_CONFIG_HOME, else ~/.config."""
    assert Path("/x/dsec/context.json") == module.path({"XDG_CONFIG_HOME": "/x"})
    assert Path("/h/.config/dsec/context.json") == module.path({"HOME": "/h"})
