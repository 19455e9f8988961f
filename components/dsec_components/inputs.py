"""Checking component inputs: every mistake at once, at construction where values are plain."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pulumi
from dsec.api.fields import to_wire
from dsec.api.mistakes import Mistake, mistakes_of
from pydantic import BaseModel, ValidationError

M = TypeVar("M", bound=BaseModel)
Check = Callable[[M], list[Mistake]]


def has_outputs(value: Any) -> bool:
    """Say whether a value holds anything that is known only when the engine runs."""
    if isinstance(value, pulumi.Output) or hasattr(value, "__await__"):
        return True
    if isinstance(value, Mapping):
        return any(has_outputs(one) for one in value.values())
    if isinstance(value, list | tuple):
        return any(has_outputs(one) for one in value)
    return False


def checked(
    what: str, model: type[M], value: Any, *, path: str = "", check: Check[M] | None = None
) -> pulumi.Input[dict[str, Any]]:
    """Return validated data with the names of the wire, as it was set: no defaults filled in.

    Plain values are checked now; where an Output is inside, the whole waits for it, so that
    nothing unchecked is ever sent. Raises pulumi.InputPropertiesError with every mistake.
    """
    found: list[Mistake] = []
    wire = to_wire(model, value, path=path, mistakes=found)

    def judge(data: Any) -> dict[str, Any]:
        return _judged(what, model, data, before=found, path=path, check=check)

    if has_outputs(wire):
        if found:
            raise problem(what, found)
        return pulumi.Output.from_input(wire).apply(judge)
    return judge(wire)


def _judged(
    what: str,
    model: type[M],
    data: Any,
    *,
    before: Sequence[Mistake],
    path: str,
    check: Check[M] | None,
) -> dict[str, Any]:
    found = list(before)
    # the engine hands numbers over as floats: resolved values are made whole here
    wire: dict[str, Any] = to_wire(model, data, path=path, mistakes=[])
    try:
        result = model.model_validate(wire)
    except ValidationError as error:
        found += mistakes_of(error, path)
    else:
        found += check(result) if check else []
    if found:
        raise problem(what, found)
    return wire


def problem(what: str, mistakes: Sequence[Mistake]) -> pulumi.InputPropertiesError:
    """Return the error that names the thing and lists its mistakes, one a line."""
    count = "1 mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
    lines = "".join(f"\n  {one}" for one in mistakes)
    return pulumi.InputPropertiesError(
        f"{what} has {count}:{lines}",
        errors=[{"property_path": one.path, "reason": one.message} for one in mistakes],
    )
