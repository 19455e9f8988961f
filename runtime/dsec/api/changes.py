"""What an edited experiment changes, field by field, and what each change does (API-21). Pure."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, Field
from pydantic.fields import FieldInfo

from dsec.api.base import WireModel
from dsec.api.experiment import ExperimentSpec

_KEYS = ("name", "uri")
"""Fields that tell the items of a list apart: an item that only moved has not changed."""
_SILENT = frozenset({"source_digest"})
"""The digest of the text changes with every comment; the fields say what that means."""


class Change(WireModel):
    """One field with its values before and after; an absent value was or is not set."""

    path: str = Field(description="Field of the spec, for example roles[sim].replicas.")
    old: Any = Field(default=None, description="As it is.")
    new: Any = Field(default=None, description="As it would be.")
    effect: str = Field(
        default="live", description="live, new replicas only, or replace (needs a new record)."
    )


def changes(old: ExperimentSpec, new: ExperimentSpec) -> list[Change]:
    """Return the fields in which two specs differ, in the order of the model.

    Left out and written as the default is the same. Items of lists are matched by name; paths show
    that name, or the index where items have none.
    """
    return list(_model(old, new, "", ""))


def _model(old: BaseModel, new: BaseModel, prefix: str, effect: str) -> Iterator[Change]:
    for name, info in type(new).model_fields.items():
        if name not in _SILENT:
            path = f"{prefix}.{info.alias or name}" if prefix else info.alias or name
            own = _effect(info) or effect
            yield from _value(getattr(old, name), getattr(new, name), path, own)


def _value(old: Any, new: Any, path: str, effect: str) -> Iterator[Change]:
    if old == new:
        return
    if isinstance(old, BaseModel) and isinstance(new, BaseModel):
        yield from _model(old, new, path, effect)
    elif isinstance(old, list) and isinstance(new, list) and _models([*old, *new]):
        before, after = _by_key(old), _by_key(new)
        for key in dict.fromkeys([*before, *after]):
            yield from _value(before.get(key), after.get(key), f"{path}[{key}]", effect)
    elif isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            yield from _value(old.get(key), new.get(key), f"{path}[{key}]", effect)
    else:
        yield Change(path=path, old=_plain(old), new=_plain(new), effect=effect or "live")


def _models(items: list[Any]) -> bool:
    return all(isinstance(item, BaseModel) for item in items)


def _by_key(items: list[BaseModel]) -> dict[str, BaseModel]:
    found = {}
    for at, item in enumerate(items):
        key = next((str(getattr(item, one)) for one in _KEYS if hasattr(item, one)), str(at))
        found[key] = item
    return found


def _effect(info: FieldInfo) -> str:
    extra = info.json_schema_extra
    return str(extra.get("change", "")) if isinstance(extra, dict) else ""


def _plain(value: Any) -> Any:
    """Return a value as it goes over the wire."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return getattr(value, "value", value)
