"""Write what is derived from the models: CRD manifests and the TypedDicts of the components.

`python -m dsec.api.generate` writes, `--check` only compares and fails on a difference.
"""

import argparse
import keyword
import sys
import textwrap
import types
import typing
from enum import StrEnum
from pathlib import Path

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from dsec.api.budget import BudgetSpec
from dsec.api.crds import definitions
from dsec.api.experiment import ExperimentSpec
from dsec.api.nodes import SandboxImageSpec, SandboxNodePoolSpec
from dsec.api.reference import records_page
from dsec.api.replication import ReplicationPolicySpec, ReplicationRules
from dsec.api.tenant import TenantSpec

_HEADER = "# Generated from the record models by `make generate`; edits are lost.\n"
_WIDTH = 100

COMPONENT_MODELS: tuple[type[BaseModel], ...] = (
    ExperimentSpec,
    TenantSpec,
    SandboxNodePoolSpec,
    SandboxImageSpec,
    BudgetSpec,
    ReplicationRules,
    ReplicationPolicySpec,
)
"""Models that stacks write through components."""

_MODULE = '''"""Inputs of the components, one TypedDict per record model. Generated; edits are lost.

Names carry no Args suffix: SDK generators append it. The component analyser needs real types, so
there is no postponed evaluation of annotations here, and closed sets are strings whose words the
description lists.
"""

from typing import NotRequired, TypedDict

import pulumi
'''


class _Dumper(yaml.SafeDumper):
    """Writes every value out, without anchors: people read these files."""

    def ignore_aliases(self, _data: object) -> bool:
        """Never use an anchor."""
        return True


def manifests() -> dict[str, str]:
    """Return the text of each CRD manifest by file name."""
    return {
        f"{one['metadata']['name'].split('.')[0]}.yaml": _HEADER
        + yaml.dump(one, Dumper=_Dumper, sort_keys=False, width=_WIDTH, allow_unicode=True)
        for one in definitions()
    }


def typed_dicts() -> str:
    """Return the text of the components' input types, each class after those it uses."""
    done: dict[str, str] = {}
    for model in COMPONENT_MODELS:
        _typed_dict(model, done)
    return _MODULE + "".join(f"\n\n{text}" for text in done.values())


def _typed_dict(model: type[BaseModel], done: dict[str, str]) -> None:
    if model.__name__ in done:
        return
    lines = [f"class {model.__name__}(TypedDict):", *_docstring(model.__doc__ or "")]
    for name, info in model.model_fields.items():
        if keyword.iskeyword(name):  # pragma: no cover - a model with such a field is a mistake
            raise ValueError(f"{model.__name__}.{name}: a Python keyword cannot be an input")
        kind = f"pulumi.Input[{_python_type(info.annotation, done)}]"
        if not info.is_required():
            kind = f"NotRequired[{kind}]"
        lines += ["", f"    {name}: {kind}", *_docstring(_describe(info))]
    done[model.__name__] = "\n".join(lines) + "\n"


def _docstring(text: str) -> list[str]:
    words = " ".join(text.split())
    if len(words) + len('    """"""') <= _WIDTH:
        return [f'    """{words}"""']
    head, *rest = textwrap.wrap(words, _WIDTH - len('    """'))
    return [f'    """{head}', *(f"    {one}" for one in rest), '    """']


def _describe(info: FieldInfo) -> str:
    text = info.description or ""
    words = _words(info.annotation)
    if words:
        text = f"{text} One of: {', '.join(words)}."
    extra = info.json_schema_extra
    if isinstance(extra, dict) and "change" in extra:
        text = f"{text} Change: {extra['change']}."
    return text


def _bare(annotation: object) -> object:
    """Strip Annotated and the None of an optional."""
    while True:
        origin = typing.get_origin(annotation)
        if origin is typing.Annotated:
            annotation = typing.get_args(annotation)[0]
        elif origin in {typing.Union, types.UnionType}:
            (annotation,) = (
                one for one in typing.get_args(annotation) if one is not types.NoneType
            )
        else:
            return annotation


def _words(annotation: object) -> list[str]:
    bare = _bare(annotation)
    if typing.get_origin(bare) is list:
        return _words(typing.get_args(bare)[0])
    if isinstance(bare, type) and issubclass(bare, StrEnum):
        return [str(one.value) for one in bare]
    return []


def _python_type(annotation: object, done: dict[str, str]) -> str:
    bare = _bare(annotation)
    origin, inner = typing.get_origin(bare), typing.get_args(bare)
    if origin is list:
        return f"list[pulumi.Input[{_python_type(inner[0], done)}]]"
    if origin is dict:
        return f"dict[str, pulumi.Input[{_python_type(inner[1], done)}]]"
    if isinstance(bare, type):
        if issubclass(bare, BaseModel):
            _typed_dict(bare, done)
            return bare.__name__
        if issubclass(bare, StrEnum):
            return "str"
        if bare in {str, int, bool}:
            return bare.__name__
    raise TypeError(f"{annotation!r} has no form as a component input")


def targets(root: Path) -> dict[Path, str]:
    """Return every generated file of a checkout with the text that it should have."""
    files = {root / "runtime/dsec/api/crds" / name: text for name, text in manifests().items()}
    files[root / "components/dsec_components/_generated.py"] = typed_dicts()
    files[root / "docs/reference/records.md"] = records_page()
    return files


def main() -> int:
    """Write or check the generated files; returns the exit status."""
    parser = argparse.ArgumentParser(prog="dsec.api.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing, fail on a difference")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[3], help="the checkout")
    options = parser.parse_args()
    stale = []
    for path, text in targets(options.root).items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path)
        if not options.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    verb = "is stale, run make generate" if options.check else "written"
    for path in stale:
        sys.stdout.write(f"{path.relative_to(options.root)}: {verb}\n")
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
