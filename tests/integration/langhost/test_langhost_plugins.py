"""What the engine starts through the host: policy packs, components, dynamic providers."""

import json
from collections.abc import Callable

import pytest
from langhost_project import PACK, Project

pytestmark = pytest.mark.pulumi

Make = Callable[[dict[str, str]], Project]


def test_policy_pack(project: Make) -> None:
    """A mandatory violation stops preview and names pack, rule and resource; without it passes."""
    trial = project(
        {
            **PACK,
            "__main__.py": """
                import pulumi
                name = pulumi.Config().require("name")
                pulumi.ComponentResource("trial:index:Thing", name)
                """,
        }
    )
    command = ("preview", "--policy-pack", "pack", "--config")
    refused = trial.pulumi(*command, "name=forbidden", code=None)
    text = refused.stdout + refused.stderr
    assert refused.returncode > 0
    assert "a resource must not be called forbidden" in text
    assert "no-forbidden-name" in text
    assert "Traceback" not in text

    assert "must not be called" not in trial.pulumi(*command, "name=allowed").stdout


def test_broken_policy_pack_says_why(project: Make) -> None:
    """An error in the pack's own code reaches the user."""
    trial = project(
        {
            "pack/PulumiPolicy.yaml": "runtime: python\nversion: 0.0.1\n",
            "pack/__main__.py": "raise ValueError('the pack is broken')\n",
            "__main__.py": "",
        }
    )
    done = trial.pulumi("preview", "--policy-pack", "pack", code=None)
    assert done.returncode > 0
    assert "the pack is broken" in done.stdout + done.stderr


COMPONENT = {
    "thing/PulumiPlugin.yaml": "runtime: python\n",
    "thing/__main__.py": """
        from typing import TypedDict

        import pulumi
        from pulumi.provider.experimental import component_provider_host

        class ThingArgs(TypedDict):
            word: pulumi.Input[str]

        class Thing(pulumi.ComponentResource):
            loud: pulumi.Output[str]

            def __init__(self, name: str, args: ThingArgs,
                         opts: pulumi.ResourceOptions | None = None) -> None:
                super().__init__("thing:index:Thing", name, {}, opts)
                self.loud = pulumi.Output.from_input(args["word"]).apply(str.upper)
                self.register_outputs({"loud": self.loud})

        if __name__ == "__main__":
            component_provider_host([Thing], "thing", version="0.1.0")
        """,
}


def test_component_package(project: Make) -> None:
    """A folder with PulumiPlugin.yaml has a schema, and a program can use its component."""
    trial = project(
        {
            **COMPONENT,
            "Pulumi.yaml": """
                name: trial
                runtime: python
                plugins:
                  providers:
                    - name: thing
                      path: ./thing
                """,
            "__main__.py": """
                import pulumi

                class Thing(pulumi.ComponentResource):
                    loud: pulumi.Output[str]

                thing = Thing("thing:index:Thing", "one", {"word": "hello", "loud": None},
                              None, remote=True)
                pulumi.export("loud", thing.loud)
                """,
        }
    )
    schema = json.loads(trial.pulumi("package", "get-schema", "./thing").stdout)
    assert schema["name"] == "thing"
    assert schema["resources"]["thing:index:Thing"]["inputProperties"]["word"] == {"type": "string"}
    trial.up()
    assert json.loads(trial.pulumi("stack", "output", "--json").stdout) == {"loud": "HELLO"}


def test_dynamic_provider(project: Make) -> None:
    """A dynamic resource is created, updated and deleted by code of the program."""
    trial = project(
        {
            "__main__.py": """
                import pathlib
                import pulumi
                from pulumi.dynamic import CreateResult, Resource, ResourceProvider, UpdateResult

                class Files(ResourceProvider):
                    def create(self, props):
                        pathlib.Path(props["path"]).write_text(props["text"])
                        return CreateResult(props["path"], dict(props))
                    def update(self, id, old, new):
                        pathlib.Path(new["path"]).write_text(new["text"])
                        return UpdateResult(dict(new))
                    def delete(self, id, props):
                        pathlib.Path(props["path"]).unlink()

                class File(Resource):
                    text: pulumi.Output[str]
                    def __init__(self, name, path, text):
                        super().__init__(Files(), name, {"path": path, "text": text})

                words = pulumi.Config().get("words")
                if words:
                    File("file", *words.split())
                """,
        }
    )
    target = trial.folder / "made.txt"
    for text in ("first", "second"):
        trial.up("--config", f"words={target} {text}")
        assert target.read_text() == text
    trial.up("--config", "words=")
    assert not target.exists()
