"""The program of the README: its preview names what it makes, against a real API server."""

import os
import subprocess
from pathlib import Path

import pytest
from cluster import ApiServer
from dsec.local import toolchain

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "team"


def pulumi(folder: Path, server: ApiServer, *arguments: str) -> str:
    """Run the engine on the example with a state of its own; return what it printed."""
    state = folder / "state"
    state.mkdir(exist_ok=True)
    environment = {
        **os.environ,
        **toolchain.env(),
        "PULUMI_BACKEND_URL": f"file://{state}",
        "PULUMI_CONFIG_PASSPHRASE": "test",
        "KUBECONFIG": str(server.kubeconfig),
    }
    done = subprocess.run(
        ["pulumi", *arguments, "--non-interactive", "--color", "never"],
        cwd=EXAMPLE,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.cluster
@pytest.mark.pulumi
def test_the_readme_program_previews(apiserver: ApiServer, tmp_path: Path) -> None:
    """Namespace, binding, tenant and experiment, and nothing else."""
    pulumi(tmp_path, apiserver, "stack", "init", "test")
    try:
        shown = pulumi(tmp_path, apiserver, "preview")
    finally:
        (EXAMPLE / "Pulumi.test.yaml").unlink(missing_ok=True)
    for line in ("walkers-walk", "walkers-walk-editors", "walkers-tenant", "walk-experiment"):
        assert line in shown
    assert "8 to create" in shown or "+ 8" in shown
    assert (EXAMPLE / "__main__.py").read_text() in (ROOT / "README.md").read_text()
