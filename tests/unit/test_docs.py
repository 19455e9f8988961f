"""Docs say what exists: links lead somewhere, commands parse, named tests and files are there."""

import re
import shlex
from pathlib import Path

import pytest
from dsec.api.reasons import EndReason
from dsec.api.sandbox import Identity, Resources, SandboxSpec
from dsec.api.snapshot import SnapshotKind, SnapshotPlan
from dsec.cli.main import COMMANDS, app
from dsec.controllers.moving import Limits
from dsec.controllers.specs import movable
from dsec.placement.backfill import BackfillRules
from typer.main import get_command

ROOT = Path(__file__).parents[2]
PAGES = [
    *ROOT.glob("docs/**/*.md"),
    *(ROOT / name for name in ("README.md", "AGENTS.md", "CONTRIBUTING.md", "SECURITY.md")),
]
IDS = [str(page.relative_to(ROOT)) for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_lead_somewhere(page: Path) -> None:
    """A relative link names a file of this repository."""
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_named_tests_and_files_exist(page: Path) -> None:
    """`tests/...` and `docs/...` in a page are there."""
    for name in re.findall(
        r"`((?:tests|docs|examples|stacks|runtime|tools)/[\w./-]+)", page.read_text()
    ):
        assert "NAME" in name or (ROOT / name).exists(), name


def words_after_dsec(text: str) -> list[list[str]]:
    """Return the words of every `dsec ...` command in code of a page."""
    code = "\n".join(re.findall(r"```(?:sh|bash)?\n(.*?)```", text, re.DOTALL))
    code += "\n" + "\n".join(re.findall(r"`((?:dsec|dsecctl) [^`]+)`", text))
    found = re.findall(r"^\s*(?:\$ )?(?:\.venv/bin/)?(?:dsec|dsecctl) (.+)$", code, re.MULTILINE)
    return [shlex.split(line, comments=True) for line in found]


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_commands_and_options_exist(page: Path) -> None:
    """Every `dsec` command of a page is one, with options that it has."""
    root = get_command(app)
    for given in words_after_dsec(page.read_text()):
        words = [word for word in given if word not in {"--debug", "--output", "json", "...", "…"}]
        if not words or not words[0].isalpha():
            continue
        assert words[0] in COMMANDS, words
        command = root.get_command(None, words[0]).load()
        rest = words[1:]
        while rest and getattr(command, "commands", None) and rest[0] in command.commands:
            command = command.commands[rest.pop(0)]
        known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
        for word in rest[: rest.index("--")] if "--" in rest else rest:
            if word.startswith("-") and word != "-":
                assert word.split("=")[0] in known | {"--help"}, (words, word)


def test_the_readme_program_is_the_example() -> None:
    """And it is short."""
    program = (ROOT / "examples" / "team" / "__main__.py").read_text()
    assert program in (ROOT / "README.md").read_text()


def test_every_end_reason_is_explained_to_researchers() -> None:
    """Bills and retries depend on them."""
    text = (ROOT / "docs" / "researchers.md").read_text()
    for reason in EndReason:
        assert f"`{reason.value}`" in text, reason


def test_on_call_tells_the_times_of_backfill() -> None:
    """Since when room is kept, how long, and for how long not again."""
    rules, page = BackfillRules(), (ROOT / "docs/on-call.md").read_text()
    row = next(line for line in page.splitlines() if "`reserved`" in line)
    for seconds in (rules.head_after, rules.keep, rules.rest):
        assert f" {seconds:.0f} s" in row


def test_what_is_said_of_moves_holds() -> None:
    """How many moves at once, and which kinds of snapshots carry one."""
    page, limits = (ROOT / "docs/snapshots.md").read_text(), Limits()
    assert f"At most {limits.at_once} moves are under way at once, {limits.per_node} from" in page
    saves = "what saves state of kind `state` or `disk`"
    assert saves in (ROOT / "docs/scope.md").read_text()
    assert {one for one in SnapshotKind if moves_by(one)} == {SnapshotKind.STATE, SnapshotKind.DISK}


def moves_by(kind: SnapshotKind) -> bool:
    """Return whether a sandbox that saves this alone can move."""
    spec = SandboxSpec(
        identity=Identity(id="sb-" + "0" * 26, tenant="t", project="p"),
        image="base",
        resources=Resources(cpu_milli=1, memory_bytes=1 << 20),
        snapshot=SnapshotPlan(kinds=[kind]),
    )
    return movable(spec)
