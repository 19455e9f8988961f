"""The base of every model: camelCase on the wire, snake_case in code, unknown keys refused."""

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


class WireModel(Model):
    """A message between dsec processes.

    Unknown keys are ignored, because server N talks to agents of N-1 and N+1.
    """

    model_config = ConfigDict(extra="ignore")
