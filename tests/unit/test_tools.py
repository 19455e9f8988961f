"""The tool chain: the table agrees with what is pinned, and every way to get a tool works."""

import dataclasses
import hashlib
import http.server
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dsec.cli import tools as command
from dsec.local import toolchain, toolchain_get
from dsec.local.toolchain_table import (
    PULUMI_KUBERNETES_VERSION,
    TEST_TOOLS,
    TOOLS,
    Places,
    Release,
    Tool,
    UnknownToolError,
    inputs_hash,
    installed_folder,
    select,
)
from typer.testing import CliRunner

CHECKOUT = Path(__file__).parents[2]


# the table


def test_versions_are_the_pinned_ones() -> None:
    """Each module of tools/ requires exactly the version of the table."""
    pinned = {
        "etcd": "go.etcd.io/etcd/server/v3",
        "kubernetes": "k8s.io/kubernetes",
        "pulumi": "github.com/pulumi/pulumi/pkg/v3",
        "pulumi-yaml": "github.com/pulumi/pulumi-yaml",
    }
    for tool in (*TOOLS, *TEST_TOOLS):
        text = (CHECKOUT / "tools" / tool.module / "go.mod").read_text()
        if tool.module in pinned:
            assert re.search(rf"\s{re.escape(pinned[tool.module])} v{tool.version}\b", text)
            assert tool.package in text, f"`go get -tool {tool.package}` is missing"
        for module, _ in tool.beside:
            assert module in text


def test_provider_matches_the_locked_python_package() -> None:
    """The engine warns when the SDK is newer than the plugin."""
    lock = tomllib.loads((CHECKOUT / "uv.lock").read_text())
    (locked,) = [p["version"] for p in lock["package"] if p["name"] == "pulumi-kubernetes"]
    assert locked == PULUMI_KUBERNETES_VERSION


def test_select_keeps_table_order_and_knows_aliases() -> None:
    """Order is the table's; the plugin has a short name too."""
    names = [tool.name for tool in select(["pulumi-kubernetes", "etcd"], TOOLS)]
    assert names == ["etcd", "pulumi-resource-kubernetes"]
    assert select(None, TOOLS) == list(TOOLS)


def test_select_names_what_is_unknown_and_what_is_allowed() -> None:
    """All wrong names are in one message."""
    with pytest.raises(UnknownToolError, match="no such tool: a, b; allowed: etcd, kube") as error:
        select(["b", "etcd", "a"], TOOLS)
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("etcd Version: 3.6.16\nGit SHA: x\nGo Version: go1.26.8\n", "3.6.16"),
        ("Kubernetes v1.34.4\n", "1.34.4"),
        ("Client Version: v1.34.4\nKustomize Version: v5.7.1\n", "1.34.4"),
        ('Client Version: version.Info{Major:"1", GitVersion:"v1.20.5+dsc"}', "1.20.5+dsc"),
        ("3.274.1\n", "3.274.1"),
        ("v3.274.1-alpha.1\n", "3.274.1-alpha.1"),
        ("no number 1.2\n", None),
    ],
)
def test_version_in_output(text: str, version: str | None) -> None:
    """The first full version number of what a program prints is its version."""
    assert toolchain.version_in(text) == version


DIGEST = "a" * 64


@pytest.mark.parametrize(
    ("listing", "expected"),
    [
        (f"{DIGEST}\n", DIGEST),
        (f"{'b' * 64}  other\n{DIGEST.upper()}  file\n", DIGEST),
        (f"{DIGEST} *file\n", DIGEST),
        (f"{DIGEST}  ./file\n", DIGEST),
        (f"{DIGEST}  file.sig\n", None),
        ("<html>not found</html>\n", None),
        ("", None),
    ],
)
def test_expected_digest(listing: str, expected: str | None) -> None:
    """Lists of sha256sum and single digests are read; anything else says nothing."""
    assert toolchain_get.expected_digest(listing, "file") == expected


@pytest.mark.parametrize(
    ("stderr", "words"),
    [
        (
            'go: x@v1: Get "https://p/x": dial tcp: lookup p: no such host',
            "module proxy",
        ),
        ("go: go.mod requires go >= 1.26.6 (running go 1.20.1)", "needs Go 1.26.6 or newer"),
        ("write /tmp/x: no space left on device", "disk is full"),
        ("a\nb\nmain.go:3: undefined: x", "undefined: x"),
        ("", "no output"),
    ],
)
def test_why_build_failed(stderr: str, words: str) -> None:
    """The sentence says what to do, not only what Go printed."""
    assert words in toolchain_get.why_build_failed(TOOLS[0], stderr, "1.26.6")


# a small tool, built by a stand-in for Go

GO = """#!/bin/sh
echo "$@" >> {log}
case "$1" in
list) echo {beside}; exit 0 ;;
esac
while [ "$1" != "-o" ]; do shift; done
sleep {seconds}
printf '#!/bin/sh\\necho v1.2.3\\n' > "$2"
chmod +x "$2"
"""

TOOL = Tool(
    name="sample",
    version="1.2.3",
    module="sample",
    package="example.org/sample",
    ldflags="-s",
    release=Release("http://127.0.0.1:9/sample", "http://127.0.0.1:9/sample.sha256"),
    core_minutes=1,
    megabytes=1,
    version_command=("--version",),
)

Setup = Callable[..., Places]


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    """Return a function that lays out places with a fake Go."""

    def make(*, go: bool = True, seconds: float = 0, script: str | None = None) -> Places:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        module = tmp_path / "tools" / "sample"
        module.mkdir(parents=True, exist_ok=True)
        (module / "go.mod").write_text("module sample\n\ngo 1.26.0\n")
        if go:
            text = script or GO.format(log=tmp_path / "go.log", beside=module, seconds=seconds)
            (folder / "go").write_text(text)
            (folder / "go").chmod(0o755)
        return Places(
            cache=tmp_path / "cache",
            source=tmp_path / "tools",
            path=f"{folder}:/usr/bin:/bin",
            plugins=tmp_path / "plugins",
        )

    return make


@pytest.fixture(autouse=True)
def no_other_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the tests away from the machine's own Go."""
    monkeypatch.setattr(toolchain_get, "_GO_FALLBACK", Path("/nonexistent/go"))


def test_build_then_cache(setup: Setup, tmp_path: Path) -> None:
    """The first call builds with the flags of the table; the second runs nothing."""
    places = setup()
    events: list[toolchain_get.Event] = []
    programs = toolchain.ensure(["sample"], events.append, places=places, tools=(TOOL,))
    assert programs == {"sample": installed_folder(TOOL, places) / "sample"}
    (line,) = (tmp_path / "go.log").read_text().splitlines()
    assert line.startswith("build -trimpath -ldflags -s -o ")
    assert line.endswith(" example.org/sample")
    assert toolchain_get.origin(programs["sample"]) == "build"
    assert [e.phase for e in events][-1] == "done"
    assert next(e for e in events if e.phase == "building").estimate == pytest.approx(
        60 / (os.cpu_count() or 1)
    )
    again: list[toolchain_get.Event] = []
    assert toolchain.ensure(None, again.append, places=places, tools=(TOOL,)) == programs
    assert again == []
    assert len((tmp_path / "go.log").read_text().splitlines()) == 1


def test_other_inputs_are_another_folder(setup: Setup) -> None:
    """Flags, sums and the processor count; the time does not."""
    places = setup()
    first = inputs_hash(TOOL, places)
    assert inputs_hash(TOOL, places) == first
    assert inputs_hash(dataclasses.replace(TOOL, ldflags="-w"), places) != first
    assert inputs_hash(TOOL, dataclasses.replace(places, machine="arm64")) != first
    assert places.source is not None
    (places.source / "sample" / "go.sum").write_text("x\n")
    assert inputs_hash(TOOL, places) != first


def test_files_beside_the_program(setup: Setup, tmp_path: Path) -> None:
    """What a tool reads at run time is copied from its module, and may be removed with it."""
    places = setup()
    (tmp_path / "tools" / "sample" / "data.json").write_text("{}")
    (tmp_path / "tools" / "sample" / "data.json").chmod(0o444)
    tool = dataclasses.replace(TOOL, beside=(("example.org/sample", "data.json"),))
    program = toolchain.ensure(None, places=places, tools=(tool,))["sample"]
    (program.parent / "data.json").write_text("writable")


def test_interrupted_build_leaves_nothing_that_counts(setup: Setup) -> None:
    """A left-over partial folder is cleared; a folder without its program does not count."""
    places = setup()
    final = installed_folder(TOOL, places)
    (places.cache / ".partial" / final.name).mkdir(parents=True)
    (places.cache / ".partial" / final.name / "sample").write_text("half")
    final.mkdir(parents=True)
    assert toolchain.lookup(TOOL, places) is None
    program = toolchain.ensure(None, places=places, tools=(TOOL,))["sample"]
    assert "v1.2.3" in program.read_text()
    assert list((places.cache / ".partial").iterdir()) == []


def test_two_at_once_build_once(setup: Setup, tmp_path: Path) -> None:
    """The second one waits for the first one's result."""
    places = setup(seconds=1.2)
    results: list[dict[str, Path]] = []
    waited: list[toolchain_get.Event] = []

    def work() -> None:
        results.append(toolchain.ensure(None, waited.append, places=places, tools=(TOOL,)))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 2
    assert results[0] == results[1]
    assert len((tmp_path / "go.log").read_text().splitlines()) == 1
    assert any(event.phase == "waiting" for event in waited)


def test_interrupt_ends_the_build(setup: Setup, tmp_path: Path) -> None:
    """Ctrl-C comes back at once, ends the compiler and installs nothing."""
    script = f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 60\n"
    places = setup(script=script)

    def interrupt(event: toolchain_get.Event) -> None:
        if event.phase == "building" and (tmp_path / "pid").exists():
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        toolchain.ensure(None, interrupt, places=places, tools=(TOOL,))
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert toolchain.lookup(TOOL, places) is None


def test_offline_without_go_says_all_that_is_missing(setup: Setup) -> None:
    """Each tool has a line: why no download, why no build, what helps."""
    places = setup(go=False)
    other = dataclasses.replace(TOOL, name="second")
    with pytest.raises(toolchain.ToolchainError) as error:
        toolchain.ensure(None, places=places, tools=(TOOL, other))
    text = str(error.value)
    assert list(error.value.missing) == ["sample", "second"]
    assert text.count("127.0.0.1:9 is not reachable") == 2
    assert text.count("https://go.dev/dl") == 2


def test_offline_module_proxy(setup: Setup) -> None:
    """Go's own failure becomes a sentence with a remedy; what did build stays."""
    places = setup(script="#!/bin/sh\necho 'go: dial tcp: i/o timeout' >&2\nexit 1\n")
    with pytest.raises(toolchain.ToolchainError, match=r"module proxy .* is not reachable"):
        toolchain.ensure(None, places=places, tools=(TOOL,))


def test_bare_installation_cannot_build(setup: Setup) -> None:
    """Without a checkout there are no sources."""
    places = dataclasses.replace(setup(), source=None)
    with pytest.raises(toolchain.ToolchainError, match="a checkout of dsec"):
        toolchain.ensure(None, places=places, tools=(TOOL,))


@pytest.mark.parametrize(("version", "taken"), [("1.2.3", True), ("1.2.4", False)])
def test_program_on_path(setup: Setup, tmp_path: Path, version: str, taken: bool) -> None:
    """Only exactly the version is taken, and the program is asked once."""
    places = setup()
    program = tmp_path / "bin" / "sample"
    program.write_text(f"#!/bin/sh\necho asked >> {tmp_path}/asked\necho v{version}\n")
    program.chmod(0o755)
    for _ in range(2):
        found = toolchain.lookup(TOOL, places)
        assert (found is not None) is taken
        assert found is None or (found.source, found.program) == ("PATH", program)
    assert (tmp_path / "asked").read_text() == "asked\n"
    program.write_text("#!/bin/sh\necho v1.2.3 changed\n")
    assert toolchain.lookup(TOOL, places) is not None


# releases


@pytest.fixture
def releases() -> Iterator[tuple[str, dict[str, bytes]]]:
    """Serve files from memory on loopback; yields the address and the files."""
    files: dict[str, bytes] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(404)
            self.end_headers()

        def do_GET(self) -> None:
            body = files.get(self.path)
            self.send_response(404 if body is None else 200)
            self.send_header("content-length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", files
    server.shutdown()
    server.server_close()


def test_release_is_preferred_and_verified(
    setup: Setup, releases: tuple[str, dict[str, bytes]]
) -> None:
    """A release with the right digest is installed without Go."""
    address, files = releases
    places = setup(go=False)
    body = b"#!/bin/sh\necho v1.2.3\n"
    files["/amd64/sample"] = body
    files["/sums"] = f"{hashlib.sha256(body).hexdigest()}  sample\n".encode()
    tool = dataclasses.replace(
        TOOL, release=Release(f"{address}/{{arch}}/sample", f"{address}/sums")
    )
    program = toolchain.ensure(None, places=places, tools=(tool,))["sample"]
    assert program.read_bytes() == body
    assert os.access(program, os.X_OK)
    assert toolchain_get.origin(program) == "release"


def test_release_archive_is_laid_out_beside_the_program(
    setup: Setup, releases: tuple[str, dict[str, bytes]]
) -> None:
    """The folder inside the archive is dropped, its other programs come along."""
    address, files = releases
    places = setup(go=False)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name in ("sample", "companion"):
            info = tarfile.TarInfo(f"inner/{name}")
            info.size, info.mode = 4, 0o755
            tar.addfile(info, io.BytesIO(b"text"))
    body = packed.getvalue()
    files["/s-x64.tar.gz"] = body
    files["/sums"] = f"{hashlib.sha256(body).hexdigest()}  s-x64.tar.gz\n".encode()
    release = Release(f"{address}/s-{{x64}}.tar.gz", f"{address}/sums", folder="inner")
    tool = dataclasses.replace(TOOL, release=release)
    program = toolchain.ensure(None, places=places, tools=(tool,))["sample"]
    names = {path.name for path in program.parent.iterdir()}
    assert names == {"sample", "companion", toolchain_get.MANIFEST}


@pytest.mark.parametrize(
    ("sums", "words"),
    [(f"{DIGEST}  sample\n", "was thrown away"), ("", "has no line for sample")],
)
def test_unverified_release_is_refused(
    setup: Setup, releases: tuple[str, dict[str, bytes]], sums: str, words: str
) -> None:
    """A wrong or missing digest keeps nothing; with Go the build follows, without it says why."""
    address, files = releases
    files.update({"/sample": b"evil", "/sums": sums.encode()})
    tool = dataclasses.replace(TOOL, release=Release(f"{address}/sample", f"{address}/sums"))
    with pytest.raises(toolchain.ToolchainError, match=words):
        toolchain.ensure(None, places=setup(go=False), tools=(tool,))
    program = toolchain.ensure(None, places=setup(), tools=(tool,))["sample"]
    assert toolchain_get.origin(program) == "build"
    assert b"evil" not in program.read_bytes()


# the environment


def installed(places: Places, tool: Tool, origin: str, *names: str) -> Path:
    """Pretend that a tool was installed; returns its folder."""
    folder = installed_folder(tool, places)
    folder.mkdir(parents=True)
    for name in (tool.name, *names):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    (folder / toolchain_get.MANIFEST).write_text(json.dumps({"origin": origin}))
    return folder


def tool_named(name: str) -> Tool:
    """Return a row of the real table."""
    return next(tool for tool in TOOLS if tool.name == name)


def test_environment_puts_our_language_host_beside_a_built_engine(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine finds it beside itself, so it does not warn; plugins are not downloaded."""
    for name in ("PULUMI_PYTHON_CMD", "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION"):
        monkeypatch.delenv(name, raising=False)
    places = setup()
    folder = installed(places, tool_named("pulumi"), "build")
    plugin = installed(places, tool_named("pulumi-resource-kubernetes"), "build")
    variables = toolchain.env(places)
    bin_folder = Path(variables["PATH"].split(":")[0])
    host = bin_folder / toolchain.LANGUAGE_HOST
    assert host.resolve() == folder / toolchain.LANGUAGE_HOST
    assert str(places.source) in host.read_text()
    assert os.access(host, os.X_OK)
    assert (bin_folder / toolchain.DYNAMIC_PROVIDER).exists()
    assert variables["PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION"] == "1"
    # the provider is where the engine keeps plugins, not on PATH, where it would warn
    assert not (bin_folder / "pulumi-resource-kubernetes").exists()
    link = places.plugins / "resource-kubernetes-v4.25.0" / "pulumi-resource-kubernetes"
    assert link.resolve().parent == plugin
    nested = toolchain.env(dataclasses.replace(places, path=variables["PATH"]))
    assert nested["PATH"] == variables["PATH"]


def test_environment_prefers_the_official_language_host(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release brings its own host, and may download plugins."""
    monkeypatch.delenv("PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION", raising=False)
    places = setup()
    names = (toolchain.LANGUAGE_HOST, toolchain.DYNAMIC_PROVIDER)
    folder = installed(places, tool_named("pulumi"), "release", *names)
    variables = toolchain.env(places)
    host = Path(variables["PATH"].split(":")[0]) / toolchain.LANGUAGE_HOST
    assert host.resolve() == folder / toolchain.LANGUAGE_HOST
    assert host.read_text() == "#!/bin/sh\n"
    assert "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION" not in variables


# the command


@pytest.fixture
def nothing_here(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> Places:
    """Let the command see places without any tool."""
    places = dataclasses.replace(setup(go=False), path="/nonexistent")
    monkeypatch.setattr(Places, "of", classmethod(lambda _cls, _environ=None: places))
    return places


def test_list_as_json(nothing_here: Places) -> None:
    """Every row, with what is here."""
    installed(nothing_here, tool_named("etcd"), "build")
    done = CliRunner().invoke(command.app, ["list", "--output", "json"])
    assert done.exit_code == 0
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert set(rows) == {tool.name for tool in TOOLS}
    assert rows["etcd"]["source"] == "cache"
    assert rows["kubelet"]["path"] is None


def test_path_prints_what_is_here_and_fails_for_the_rest(nothing_here: Places) -> None:
    """Scripts get paths on standard output and a reason on standard error."""
    folder = installed(nothing_here, tool_named("etcd"), "build")
    done = CliRunner().invoke(command.app, ["path", "etcd", "kubelet"])
    assert done.exit_code == 1
    assert done.stdout == f"{folder / 'etcd'}\n"
    assert "kubelet" in done.stderr


@pytest.mark.usefixtures("nothing_here")
def test_env_prints_shell_commands() -> None:
    """The output can be given to eval."""
    done = CliRunner().invoke(command.app, ["env"])
    assert done.exit_code == 0
    assert re.search(r"^export PATH=\S*/bin-[0-9a-f]{12}:/nonexistent$", done.stdout, re.MULTILINE)


def test_terminated_install_leaves_no_compiler(tmp_path: Path) -> None:
    """SIGTERM, as a caller sends it that gives up, ends the build too."""
    go = tmp_path / "go"
    go.write_text(
        f"#!/bin/sh\necho $$ > {tmp_path}/pid.new\nmv {tmp_path}/pid.new {tmp_path}/pid\n"
        "exec sleep 60\n"
    )
    go.chmod(0o755)
    variables = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        # no release may be fetched for this
        "HTTPS_PROXY": "http://127.0.0.1:9",
    }
    install = subprocess.Popen(
        [sys.executable, "-m", "dsec.cli.main", "tools", "install", "etcd"],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + 30
    while not (tmp_path / "pid").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    install.terminate()
    text, _ = install.communicate(timeout=20)
    assert install.returncode == 130
    assert "Traceback" not in text
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (toolchain_get.Event("x", "building", 65, 420), "1:05 of about 7:00"),
        (toolchain_get.Event("x", "waiting", 5), "0:05"),
        (toolchain_get.Event("x", "done", 61, 420), "1:01"),
        (toolchain_get.Event("x", "failed", 61), ""),
    ],
)
def test_times(event: toolchain_get.Event, words: str) -> None:
    """Elapsed time, and the estimate while there is one."""
    assert command.times(event) == words
