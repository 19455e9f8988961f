"""The base of every model: camelCase on the wire, snake_case in code, unknown keys refused."""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Model(BaseModel):
    """A value that crosses a boundary: a record, a document or a wire message.

    Unknown keys are errors, so that a misspelt limit is never silently ignored.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        use_enum_values=False,
        ser_json_inf_nan="null",
        # an endless number is no limit, and JSON has none
        allow_inf_nan=False,
    )

    def wire(self) -> dict[str, object]:
        """Return plain JSON data with the names used on the wire, unset fields left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    def varied(self, **changes: Any) -> Self:
        """Return a copy with other values of some fields, as `model_copy` does in twice the time.

        The values are not checked, and what is not changed is shared.
        """
        made, put = object.__new__(type(self)), object.__setattr__
        known = self.__pydantic_fields_set__
        put(made, "__dict__", self.__dict__ | changes)
        # shared as well: it only grows, and a field too many in it says nothing wrong
        known = known if known.issuperset(changes) else {*known, *changes}
        put(made, "__pydantic_fields_set__", known)
        put(made, "__pydantic_extra__", None)
        put(made, "__pydantic_private__", None)
        return made


class WireModel(Model):
    """A message between dsec processes.

    Unknown keys are ignored, because server N talks to agents of N-1 and N+1.
    """

    model_config = ConfigDict(extra="ignore")
