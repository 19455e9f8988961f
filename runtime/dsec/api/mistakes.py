"""Mistakes in what people wrote: where, what, what is allowed; all of them at once."""

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

_LONGEST_VALUE = 120
"""Characters of a refused value that a message repeats."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing to correct.

    `path` is the field (roles[1].resource.mem), `allowed` says what would be right, `line` counts
    from 1 in the source text and is None where there is no text.
    """

    path: str
    value: Any
    allowed: str
    message: str
    line: int | None = None

    def __str__(self) -> str:
        where = f"line {self.line}, " if self.line else ""
        return f"{where}{self.path or 'document'}: {self.message}"

    def wire(self) -> dict[str, object]:
        """Return the entry for the details of an ErrorBody."""
        entry: dict[str, object] = {
            "path": self.path,
            "value": _plain(self.value),
            "allowed": self.allowed,
            "message": self.message,
        }
        if self.line is not None:
            entry["line"] = self.line
        return entry


class DocumentError(Exception):
    """A document that cannot be accepted; `mistakes` is never empty."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = list(mistakes)
        super().__init__("\n".join(str(one) for one in self.mistakes))


def shown(value: Any) -> str:
    """Return a value as people would recognise it, cut to a line."""
    text = _plain(value)
    text = text if isinstance(text, str) else json.dumps(text, default=str)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


def _plain(value: Any) -> Any:
    text = json.dumps(value, default=str)
    return json.loads(text) if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


def unknown_key(path: str, key: str, known: Iterable[str], line: int | None = None) -> Mistake:
    """Return the mistake of a key that nobody reads, with the nearest one that exists."""
    names = sorted(known)
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(names)}"
    return Mistake(
        path=f"{path}.{key}" if path else key,
        value=key,
        allowed=", ".join(names),
        message=f"unknown key {shown(key)}; {hint}",
        line=line,
    )


def path_of(location: Iterable[int | str]) -> str:
    """Join keys and indices: ("roles", 0, "name") becomes roles[0].name."""
    out = ""
    for step in location:
        if isinstance(step, int):
            out += f"[{step}]"
        else:
            out += f".{step}" if out else step
    return out


_WORDS: Mapping[str, str] = {
    "missing": "is required",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be text",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
}


def _rule(kind: str, context: Mapping[str, Any]) -> str:
    limits = {
        "greater_than": "must be above {gt}",
        "greater_than_equal": "must be at least {ge}",
        "less_than": "must be below {lt}",
        "less_than_equal": "must be at most {le}",
        "enum": "must be one of {expected}",
        "literal_error": "must be one of {expected}",
        "string_pattern_mismatch": "must match {pattern}",
        "string_too_long": "must have at most {max_length} characters",
        "string_too_short": "must have at least {min_length} characters",
        "too_long": "must have at most {max_length} entries",
        "too_short": "must have at least {min_length} entries",
    }
    template = _WORDS.get(kind) or limits.get(kind)
    return template.format(**context) if template else ""


def mistakes_of(error: ValidationError, prefix: str = "") -> list[Mistake]:
    """Return the mistakes that a model found, with paths below a prefix."""
    found = []
    for one in error.errors(include_url=False):
        path = path_of(one["loc"])
        path = f"{prefix}.{path}" if prefix and path else prefix or path
        rule = _rule(one["type"], one.get("ctx", {})) or one["msg"]
        absent = one["type"] == "missing"
        value = None if absent else one["input"]
        message = rule if absent else f"{rule}, not {shown(value)}"
        found.append(Mistake(path=path, value=value, allowed=rule, message=message))
    return found
