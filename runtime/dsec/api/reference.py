"""The reference page of the records, made from the models: each field, and what a change does."""

import inspect
import typing
from collections.abc import Iterator
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from dsec.api.budget import BudgetCondition, BudgetReason
from dsec.api.nodes import RecordReason
from dsec.api.presets import CONFLICTS
from dsec.api.records import RECORDS
from dsec.api.replication import ReplicationCondition, ReplicationReason
from dsec.api.status import ExperimentCondition, ExperimentReason

_HEAD = """<!-- Generated from the models by `make generate`; edits are lost. -->
# Records

Kubernetes objects of group `dsec.dev/v1alpha1`, category `dsec`. The spec belongs to whoever wrote
it; the control plane writes the status alone. A change of a field is *live* (what runs follows),
for *new replicas only*, or impossible (*replace*: delete the record and create another). `[]` is a
list.
"""


def records_page() -> str:
    """Return the page as Markdown."""
    parts = [_HEAD]
    for record in RECORDS:
        scope = "namespaced" if record.NAMESPACED else "cluster-scoped"
        parts.append(f"\n## {record.__name__}\n\n`{record.SHORT}`, {scope}. {record.__doc__}\n")
        for part in ("spec", "status"):
            model = record.model_fields[part].annotation
            if isinstance(model, type) and issubclass(model, BaseModel):
                parts.append(f"\n| {part} | kind | change | |\n|---|---|---|---|\n")
                parts += [f"| {' | '.join(row)} |\n" for row in _rows(model, "", "")]
    parts.append(
        "\n## Conditions and reasons of an Experiment\n\n| word | holds when |\n|---|---|\n"
    )
    for words in (ExperimentCondition, ExperimentReason):
        parts += [f"| {one.value} | {_doc(words, one.name)} |\n" for one in words]
    parts.append("\n## Conditions and reasons of a Budget\n\n| word | holds when |\n|---|---|\n")
    for spoken in (BudgetCondition, BudgetReason):
        parts += [f"| {one.value} | {_doc(spoken, one.name)} |\n" for one in spoken]
    parts.append(
        "\n## Conditions and reasons of a ReplicationPolicy\n\n| word | holds when |\n|---|---|\n"
    )
    for said in (ReplicationCondition, ReplicationReason):
        parts += [f"| {one.value} | {_doc(said, one.name)} |\n" for one in said]
    parts.append("\n## Reasons in Ready of the other records\n\n| word | holds when |\n|---|---|\n")
    parts += [f"| {one.value} | {_doc(RecordReason, one.name)} |\n" for one in RecordReason]
    parts.append("\n## Presets\n\n| conflict | about | names | default |\n|---|---|---|---|\n")
    for name, about in CONFLICTS.items():
        names = ", ".join(about.names)
        parts.append(f"| {name} | {about.subject} | {names} | {about.default} |\n")
    return "".join(parts)


def _rows(model: type[BaseModel], prefix: str, change: str) -> Iterator[tuple[str, ...]]:
    for name, info in model.model_fields.items():
        kind, inner, many = _kind(info.annotation)
        path = f"{prefix}{info.alias or name}{'[]' if many else ''}"
        own = _change(info) or change
        need = " **required**" if info.is_required() else ""
        yield f"`{path}`", kind, own, f"{info.description or ''}{need}".replace("|", "\\|")
        if inner is not None and not path.startswith("resolved.spec"):
            # the resolved spec has the fields of the spec, all of them filled in
            yield from _rows(inner, f"{path}.", own)


def _change(info: FieldInfo) -> str:
    extra = info.json_schema_extra
    return str(extra.get("change", "")) if isinstance(extra, dict) else ""


def _kind(annotation: Any) -> tuple[str, type[BaseModel] | None, bool]:
    """Return the kind in words, the model inside, and whether it is a list of them."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _kind(inner[0])
    if origin in {typing.Union, UnionType}:
        return _kind(next(one for one in inner if one is not NoneType))
    if origin is list:
        kind, model, _ = _kind(inner[0])
        return f"list of {kind}", model, True
    if origin is dict:
        return f"map to {_kind(inner[1])[0]}", None, False
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation.__name__, annotation, False
    return _scalar(annotation), None, False


def _scalar(annotation: type) -> str:
    if issubclass(annotation, StrEnum):
        return ", ".join(str(one.value) for one in annotation)
    names = {
        "str": "text",
        "int": "whole number",
        "float": "number",
        "bool": "true or false",
        "datetime": "time",
    }
    return names[annotation.__name__]


def _doc(words: type[StrEnum], member: str) -> str:
    """Return the text below a member in the source: enums have no other place for it."""
    lines = inspect.getsource(words).splitlines()
    at = next(i for i, line in enumerate(lines) if line.strip().startswith(f"{member} = "))
    return lines[at + 1].strip().strip('"') if at + 1 < len(lines) else ""
