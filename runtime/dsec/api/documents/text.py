"""Read YAML or JSON as people wrote it: no surprises, bounded, with the line of every value.

Plain scalars become null, true/false, whole numbers without leading zero, decimal fractions (as
Decimal), or text. `on`, `yes`, `1e3`, `017`, `0x1f` and dates stay text, so that the field that
reads them refuses them by name instead of silently getting another value.
"""

import re
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import yaml

from dsec.api.mistakes import DocumentError, Mistake, path_of, shown

MAX_CHARACTERS = 1 << 18
"""Longest document: 64 roles with a hundred variables each fit, and it is read in a second."""
MAX_VALUES = 50_000
"""Most values after aliases are expanded; a few lines of aliases could stand for billions."""
MAX_DEPTH = 32

_PLAIN = "plain"
_INT = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]{0,17})\.[0-9]{1,9}")
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}
_TEXT, _SEQUENCE, _MAPPING = (f"tag:yaml.org,2002:{one}" for one in ("str", "seq", "map"))

Step = int | str
# libyaml reads ten times faster and bounds the nesting; PyYAML may have been built without it
_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_BASE):  # type: ignore[misc]
    """Composes nodes; marks plain scalars instead of guessing their type."""

    def resolve(self, kind: Any, _value: Any, implicit: Any) -> str:
        """Return the tag of a node that carries none."""
        if kind is yaml.ScalarNode and implicit[0]:
            return _PLAIN
        return {yaml.ScalarNode: _TEXT, yaml.SequenceNode: _SEQUENCE}.get(kind, _MAPPING)


@dataclass(slots=True)
class Source:
    """A document as plain data, and the line of each path (counted from 1)."""

    data: Any
    lines: dict[str, int] = field(default_factory=dict)

    def line(self, path: str) -> int | None:
        """Return the line of a path, or of the nearest thing around it that exists."""
        while path and path not in self.lines:
            cut = max(path.rfind("."), path.rfind("["))
            path = path[:cut] if cut > 0 else ""
        return self.lines.get(path)


def read(text: str) -> Source:
    """Return the one document in a text. Raises DocumentError with every mistake of form."""
    if len(text) > MAX_CHARACTERS:
        rule = f"at most {MAX_CHARACTERS} characters"
        raise DocumentError([Mistake("", None, rule, f"must have {rule}, not {len(text)}")])
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise DocumentError([_form(error)]) from None
    except yaml.YAMLError as error:
        raise DocumentError([Mistake("", None, "YAML", f"is not YAML: {error}")]) from None
    except RecursionError:
        raise DocumentError([_too_deep("")]) from None
    if node is None:
        message = "is empty"
        raise DocumentError([Mistake("", None, "a task document", message)])
    builder = _Builder()
    data = builder.build(node, ())
    if builder.mistakes:
        raise DocumentError(builder.mistakes)
    return Source(data, builder.lines)


def _form(error: yaml.MarkedYAMLError) -> Mistake:
    problem = error.problem or error.context or "cannot be read"
    if "expected a single document" in str(error.context):
        problem = "a second document starts here; one document per file"
    line = error.problem_mark.line + 1 if error.problem_mark else None
    return Mistake("", None, "one YAML or JSON document", f"is not YAML: {problem}", line)


def _too_deep(path: str) -> Mistake:
    rule = f"at most {MAX_DEPTH} levels"
    return Mistake(path, None, rule, f"must be nested {rule} deep")


@dataclass(slots=True)
class _Builder:
    lines: dict[str, int] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)
    values: int = 0

    def build(self, node: Any, location: tuple[Step, ...]) -> Any:
        path, line = path_of(location), node.start_mark.line + 1
        self.values += 1
        self.lines.setdefault(path, line)
        if len(location) > MAX_DEPTH:
            return self._refuse(_too_deep(path))
        if self.values > MAX_VALUES:
            rule = f"at most {MAX_VALUES} values after aliases are expanded"
            raise DocumentError([Mistake("", None, rule, f"must have {rule}", line)])
        if node.tag == _SEQUENCE:
            return [self.build(one, (*location, at)) for at, one in enumerate(node.value)]
        if node.tag == _MAPPING:
            return self._mapping(node, location)
        if node.tag == _PLAIN:
            return _scalar(node.value)
        if node.tag == _TEXT:
            return str(node.value)
        rule = "plain values without tags"
        return self._refuse(Mistake(path, node.tag, rule, f"tag {node.tag} is not allowed", line))

    def _mapping(self, node: Any, location: tuple[Step, ...]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag not in {_PLAIN, _TEXT}:
                rule = "keys that are text"
                self._refuse(Mistake(path_of(location), None, rule, "a key must be text", line))
                continue
            key = str(key_node.value)
            path = path_of((*location, key))
            if key in out:
                message = f"key {shown(key)} is given twice, first in line {self.lines[path]}"
                self._refuse(Mistake(path, key, "each key once", message, line))
                continue
            self.lines[path] = line
            out[key] = self.build(value_node, (*location, key))
        return out

    def _refuse(self, mistake: Mistake) -> None:
        self.mistakes.append(mistake)


def _scalar(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        return Decimal(text)
    return text
