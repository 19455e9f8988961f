"""A Pulumi project in a folder of its own, and a policy pack for it."""

import os
import subprocess
import textwrap
from dataclasses import dataclass
from pathlib import Path

PACK = {
    "pack/PulumiPolicy.yaml": "runtime: python\nversion: 0.0.1\n",
    "pack/__main__.py": """
        from pulumi_policy import EnforcementLevel, PolicyPack, StackValidationPolicy

        def check(args, report):
            print("the pack printed this")
            for resource in args.resources:
                if resource.name == "forbidden":
                    report("a resource must not be called forbidden", resource.urn)

        PolicyPack(
            name="trial-pack",
            policies=[
                StackValidationPolicy(
                    name="no-forbidden-name",
                    description="Names must be allowed.",
                    enforcement_level=EnforcementLevel.MANDATORY,
                    validate=check,
                )
            ],
        )
        """,
}


@dataclass
class Project:
    """A folder with a Pulumi program and the environment to run it in."""

    folder: Path
    environment: dict[str, str]

    def write(self, files: dict[str, str]) -> None:
        """Write files below the project's folder; the texts may be indented."""
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text).lstrip())

    def pulumi(self, *arguments: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run the engine; fail unless it ends with `code` (None: any)."""
        done = subprocess.run(
            ["pulumi", *arguments, "--non-interactive", "--color", "never"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        assert code is None or done.returncode == code, f"{done.stdout}\n{done.stderr}"
        return done

    def up(self, *arguments: str, code: int | None = 0) -> str:
        """Run `pulumi up` without preview and return all it printed."""
        done = self.pulumi("up", "--yes", "--skip-preview", *arguments, code=code)
        return done.stdout + done.stderr


def variables_for(folder: Path, tools: dict[str, str]) -> dict[str, str]:
    """Return the environment of a project whose state is below `folder`."""
    variables = {
        **os.environ,
        **tools,
        "PULUMI_BACKEND_URL": f"file://{folder}/state",
        "PULUMI_CONFIG_PASSPHRASE": "a passphrase for tests",
        "PULUMI_HOME": str(folder / "home"),
        "PULUMI_STACK": "dev",
    }
    variables.pop("VIRTUAL_ENV", None)
    return variables
