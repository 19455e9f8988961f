"""`dsec doctor`: tables of facts and what they must lead to, and the command around it."""

import dataclasses
import json
from typing import Any

import pytest
import typer
from dsec.cli import doctor as command
from dsec.local import doctor_probe
from dsec.local.doctor import Verdict, findings, packages_to_install, plan
from dsec.local.doctor_facts import PACKAGES, Facts, Way
from dsec.local.toolchain_table import TOOLS
from typer.testing import CliRunner

COMPLETE = Facts(
    packages={package.name: "1.0" for package in PACKAGES},
    tools={tool.name: "cache" for tool in TOOLS},
    contexts=("kind-dsec",),
    images=True,
)


def judged(**changes: Any) -> dict[str, Any]:
    """Return the findings of a complete machine with some facts changed, by name."""
    return {f.name: f for f in findings(dataclasses.replace(COMPLETE, **changes))}


def test_complete_machine_is_ready_for_everything() -> None:
    """A machine with everything has nothing to do for any way."""
    assert {f.verdict for f in findings(COMPLETE)} == {Verdict.OK}
    assert all(f.remedy == "" for f in findings(COMPLETE))
    for way in Way:
        assert plan(COMPLETE, way).ready
        assert plan(COMPLETE, way).megabytes == 0


@pytest.mark.parametrize(
    ("changes", "name", "verdict", "blocked", "words"),
    [
        ({"root": False}, "root", "missing", "standalone local tests", "sudo"),
        ({"system": "Darwin"}, "system", "missing", "standalone local tests", "virtual machine"),
        ({"machine": "riscv64"}, "system", "missing", "standalone local tests", "Linux"),
        ({"cgroup": ""}, "control groups", "missing", "standalone local tests", "mount"),
        (
            {"cgroup": "v1", "controllers": frozenset({"cpu", "memory"})},
            "control groups",
            "missing",
            "standalone local tests",
            "pids",
        ),
        (
            {"namespaces": frozenset({"mnt"})},
            "namespaces",
            "missing",
            "standalone local tests",
            "net",
        ),
        (
            {"filesystems": frozenset({"erofs"})},
            "overlayfs",
            "missing",
            "standalone local tests",
            "modprobe overlay",
        ),
        ({"filesystems": frozenset({"overlay"})}, "EROFS", "note", "", "modprobe erofs"),
        ({"nftables": False}, "nftables in the kernel", "missing", "local tests", "nf_tables"),
        ({"memory_mib": 2000}, "memory", "note", "", "close"),
        ({"python": (3, 10)}, "Python", "missing", "standalone local existing tests", "3.11"),
        ({"uv": None}, "uv", "missing", "local tests", "pip install uv"),
        ({"rust": None}, "Rust", "missing", "standalone local tests", "rustup"),
        ({"rust": (1, 70)}, "Rust", "missing", "standalone local tests", "rustup"),
        ({"rust": None, "init_given": True}, "Rust", "note", "", "rustup"),
        ({"loop_devices": False}, "loop devices", "note", "", "modprobe loop"),
        ({"go": None}, "Go", "note", "", "not needed now"),
        ({"contexts": ()}, "kubeconfig", "missing", "existing", "KUBECONFIG"),
        (
            {"static_libc": False},
            "C library for static programs",
            "missing",
            "standalone local tests",
            "libc6-dev",
        ),
    ],
)
def test_one_lack(
    changes: dict[str, Any], name: str, verdict: str, blocked: str, words: str
) -> None:
    """One lack has one finding, stops exactly the ways that need it, and says what helps."""
    facts = dataclasses.replace(COMPLETE, **changes)
    wrong = [f for f in findings(facts) if f.verdict is not Verdict.OK]
    assert [f.name for f in wrong] == [name]
    assert wrong[0].verdict == verdict
    assert words in wrong[0].remedy
    assert {way for way in Way if not plan(facts, way).ready} == {
        Way(way) for way in blocked.split()
    }


@pytest.mark.parametrize("package", [package.name for package in PACKAGES])
def test_missing_package_is_installed_by_fix(package: str) -> None:
    """An absent package names its command and is what --fix installs."""
    have = {name: text for name, text in COMPLETE.packages.items() if name != package}
    found = judged(packages=have)[package]
    needed_for = next(p for p in PACKAGES if p.name == package).ways
    if package == "crun":  # runc is a substitute
        assert found.verdict is Verdict.OK
        return
    assert found.remedy == f"apt-get install {package}"
    assert found.needs_root
    assert packages_to_install([found], [Way.LOCAL]) == [package]
    assert packages_to_install([found], [Way.EXISTING]) == []
    assert set(found.ways) == set(needed_for)


def test_without_apt_nothing_is_installed_for_you() -> None:
    """On another distribution the remedy is in words, and --fix does nothing."""
    found = findings(dataclasses.replace(COMPLETE, packages={}, apt=False))
    assert packages_to_install(found, list(Way)) == []
    assert "package manager" in next(f.remedy for f in found if f.name == "buildah")


def test_standalone_needs_one_runtime() -> None:
    """One runtime is enough, crun or runc."""
    neither = dataclasses.replace(COMPLETE, packages={})
    assert plan(neither, Way.STANDALONE).missing == ("crun", "e2fsprogs", "skopeo")
    some = {"runc": "1.1", "e2fsprogs": "1.47", "skopeo": "1.9"}
    with_runc = dataclasses.replace(COMPLETE, packages=some)
    assert plan(with_runc, Way.STANDALONE).ready


def test_tools_to_build_cost_time_and_disk_but_do_not_stop() -> None:
    """Missing tools that can be built or downloaded only change the estimate."""
    facts = dataclasses.replace(COMPLETE, tools={}, cpus=2)
    local = plan(facts, Way.LOCAL)
    assert local.ready
    core_minutes = sum(tool.core_minutes for tool in TOOLS)
    assert local.minutes == pytest.approx(core_minutes / 2 + 1.5, abs=0.1)
    assert local.megabytes == sum(tool.megabytes for tool in TOOLS) + 4500
    assert any("9 tools" in line for line in local.installs)
    assert plan(facts, Way.STANDALONE).minutes < 1
    assert plan(facts, Way.EXISTING).minutes < local.minutes
    faster = plan(dataclasses.replace(facts, release_hosts=True), Way.LOCAL)
    assert faster.minutes < 5


def test_tools_that_cannot_be_had_stop() -> None:
    """Without Go, checkout or release hosts, missing tools stop a way."""
    found = judged(tools={}, go=None)
    assert found["Go"].verdict is Verdict.MISSING
    assert found["etcd"].verdict is Verdict.MISSING
    assert "needs Go and a checkout" in found["etcd"].remedy
    assert judged(tools={}, go=None, release_hosts=True)["etcd"].verdict is Verdict.NOTE
    assert judged(tools={}, checkout=False)["etcd"].verdict is Verdict.MISSING


def test_full_disk_stops() -> None:
    """A way that needs more disk than is free cannot start."""
    facts = dataclasses.replace(COMPLETE, tools={}, disk_free_mib=1000)
    assert any("disk" in text for text in plan(facts, Way.LOCAL).missing)
    assert plan(facts, Way.STANDALONE).ready


# the command


def invoke(monkeypatch: pytest.MonkeyPatch, facts: Facts, *arguments: str) -> Any:
    """Run the command on a machine with these facts."""
    monkeypatch.setattr(command, "probe", lambda: facts)
    app = typer.Typer()
    app.command()(command.doctor)
    return CliRunner().invoke(app, list(arguments))


def test_exit_code_and_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON has camelCase keys; the exit code is 0 only when every way can start."""
    good = invoke(monkeypatch, COMPLETE, "--output", "json")
    assert good.exit_code == 0
    answer = json.loads(good.stdout)
    assert answer["ready"] is True
    assert {way["way"] for way in answer["ways"]} == {"standalone", "local", "tests"}
    assert "needsRoot" in answer["checks"][0]
    bad = invoke(monkeypatch, dataclasses.replace(COMPLETE, uv=None), "--output", "json")
    assert bad.exit_code == 1
    assert json.loads(bad.stdout)["ready"] is False


def test_only_the_named_way_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """--for limits both what is shown and what decides."""
    facts = dataclasses.replace(COMPLETE, uv=None)
    assert invoke(monkeypatch, facts, "--for", "standalone").exit_code == 0
    done = invoke(monkeypatch, facts, "--for", "local")
    assert done.exit_code == 1
    assert "cannot start" in done.stdout
    assert "pip install uv" in done.stdout


def test_fix_asks_before_it_changes_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal and without --yes nothing runs; with --yes exactly one command does."""
    ran: list[list[str]] = []

    class Done:
        returncode = 0

    def run(words: list[str], **_: object) -> Done:
        ran.append(words)
        return Done()

    monkeypatch.setattr(command.subprocess, "run", run)
    lacking = {name: v for name, v in COMPLETE.packages.items() if name not in {"skopeo", "runc"}}
    facts = dataclasses.replace(COMPLETE, packages=lacking)

    refused = invoke(monkeypatch, facts, "--fix")
    assert refused.exit_code == 2
    assert "--yes" in refused.output
    assert ran == []

    not_root = invoke(monkeypatch, dataclasses.replace(facts, root=False), "--fix", "--yes")
    assert not_root.exit_code == 1
    assert "needs root" in not_root.output
    assert ran == []

    invoke(monkeypatch, facts, "--fix", "--yes")
    assert ran == [
        ["apt-get", "update", "--quiet"],
        ["apt-get", "install", "--yes", "--no-install-recommends", "runc", "skopeo"],
    ]


# the probe


def test_cgroups_of_each_layout(tmp_path: Any) -> None:
    """All three layouts of control groups are told apart."""
    assert doctor_probe.cgroups(tmp_path / "none") == ("", frozenset())
    one = tmp_path / "v1"
    for name in ("cpu,cpuacct", "memory", "systemd"):
        (one / name).mkdir(parents=True)
    assert doctor_probe.cgroups(one) == ("v1", frozenset({"cpu", "cpuacct", "memory"}))
    (one / "unified").mkdir()
    assert doctor_probe.cgroups(one)[0] == "hybrid"
    two = tmp_path / "v2"
    two.mkdir()
    (two / "cgroup.controllers").write_text("cpu memory pids\n")
    assert doctor_probe.cgroups(two) == ("v2", frozenset({"cpu", "memory", "pids"}))


def test_contexts_of_several_files_one_of_them_broken(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KUBECONFIG may list files; a broken one does not hide the others."""
    (tmp_path / "a").write_text("contexts: [{name: one}, {name: two}]\n")
    (tmp_path / "b").write_text("contexts: {{{\n")
    (tmp_path / "c").write_text("just text\n")
    monkeypatch.setenv("KUBECONFIG", ":".join(str(tmp_path / name) for name in "abcd"))
    assert doctor_probe.contexts() == ("one", "two")


def test_probe_of_this_machine_runs() -> None:
    """The probe works on the machine that runs the tests."""
    facts = doctor_probe.probe()
    assert facts.cpus >= 1
    assert facts.python[0] == 3
    assert findings(facts)


@pytest.mark.parametrize(("answer", "count"), [(True, 2), (False, 0)])
def test_at_a_terminal_the_answer_decides(
    monkeypatch: pytest.MonkeyPatch, answer: bool, count: int
) -> None:
    """At a terminal the command is shown and asked about; no means that nothing changes."""
    ran: list[object] = []

    class Done:
        returncode = 0

    monkeypatch.setattr(command.subprocess, "run", lambda *words, **_: ran.append(words) or Done())
    monkeypatch.setattr(command.sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(command.typer, "confirm", lambda *_, **__: answer)
    if answer:
        command.install(["crun"], COMPLETE, yes=False)
    else:
        with pytest.raises(typer.Exit):
            command.install(["crun"], COMPLETE, yes=False)
    assert len(ran) == count
