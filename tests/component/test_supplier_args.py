"""What a stack says of suppliers has the fields of the runtime's own model, by name and by type."""

import typing

import pytest
from dsec.api import suppliers as models
from dsec_components import supplier_args as inputs
from pydantic import BaseModel

PAIRS = (
    (inputs.Suppliers, models.SuppliersConfig),
    (inputs.OnPremSupplier, models.OnPremSupplier),
    (inputs.SimulatedSupplier, models.SimulatedSupplier),
    (inputs.AwsSupplier, models.AwsSupplier),
    (inputs.AwsPool, models.AwsPoolConfig),
)
OURS = {model: given for given, model in PAIRS}


def plain(kind: object) -> object:
    """Return a type without what says that it is an input, optional, constrained or a word."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.NotRequired or origin is typing.Annotated:
        return plain(inner[0])
    if origin in (list, dict):
        return origin, *(plain(one) for one in inner)
    if kind in OURS:
        return OURS[kind]
    for one in inner:
        # an input is the value, a future or an output of it; an optional is it or nothing
        if one is not type(None):
            return plain(one)
    return kind


@pytest.mark.parametrize(("given", "model"), PAIRS, ids=lambda one: one.__name__)
def test_inputs_are_the_models(given: type, model: type[BaseModel]) -> None:
    """Fields, which of them are needed, and their types are the same."""
    hints = given.__annotations__
    assert set(hints) == set(model.model_fields)
    needed = {name for name, field in model.model_fields.items() if field.is_required()}
    assert given.__required_keys__ == needed  # type: ignore[attr-defined]
    for name, field in model.model_fields.items():
        assert plain(hints[name]) == plain(field.annotation), name


def test_each_model_is_among_them() -> None:
    """A new supplier or part of one has its inputs, too."""
    own = {
        one
        for one in vars(models).values()
        if isinstance(one, type)
        and issubclass(one, BaseModel)
        and one.__module__ == models.__name__
    }
    assert own == set(OURS)
