"""Walk plain data along a model: names as on the wire, unknown keys found, numbers made whole."""

import types
import typing
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from dsec.api.mistakes import Mistake, unknown_key


def to_wire(
    model: type[BaseModel], value: Any, *, path: str = "", mistakes: list[Mistake] | None = None
) -> Any:
    """Return data with the camelCase names of a model; snake_case names are accepted.

    Keys of free maps (labels, env, presets) stay as they are, None is left out, and a float
    without a fraction becomes an int where the model wants one (Pulumi hands 3 over as 3.0).
    Anything else passes unchanged, so that values which are not known yet can be inside. Unknown
    keys are appended to `mistakes` where a list is given, else raise ValueError.
    """
    found: list[Mistake] = []
    out = _model(model, value, path, found)
    if mistakes is not None:
        mistakes.extend(found)
    elif found:
        raise ValueError("; ".join(str(one) for one in found))
    return out


def _model(model: type[BaseModel], value: Any, path: str, found: list[Mistake]) -> Any:
    if not isinstance(value, Mapping):
        return value
    names = {}
    for name, info in model.model_fields.items():
        names[name] = names[info.alias or name] = (info.alias or name, info.annotation)
    out = {}
    for key, one in value.items():
        if key not in names:
            wire = (info.alias or name for name, info in model.model_fields.items())
            found.append(unknown_key(path, str(key), wire))
        elif one is not None:
            alias, annotation = names[key]
            out[alias] = _value(annotation, one, f"{path}.{alias}" if path else alias, found)
    return out


def _value(annotation: Any, value: Any, path: str, found: list[Mistake]) -> Any:
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _value(inner[0], value, path, found)
    if origin in {typing.Union, types.UnionType}:
        choices = [one for one in inner if one is not types.NoneType]
        return _value(choices[0], value, path, found) if len(choices) == 1 else value
    if origin is list and isinstance(value, list | tuple):
        return [_value(inner[0], one, f"{path}[{index}]", found) for index, one in enumerate(value)]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _model(annotation, value, path, found)
    if annotation is int and isinstance(value, float) and value.is_integer():
        return int(value)
    return value
