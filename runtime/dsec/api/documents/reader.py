"""Take values out of a document by key and type, and remember where each came from.

A reader never stops at a mistake: it notes it and returns nothing, so that all come out at once.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from dsec.api import units
from dsec.api.documents.text import Source
from dsec.api.mistakes import DocumentError, Mistake, path_of, shown, unknown_key

MAX_MISTAKES = 500
"""Most mistakes that are looked for in one document; each costs as much as all before it."""


@dataclass(frozen=True, slots=True)
class Found:
    """A value with the path in the document that it has, or would have had; None is absent."""

    value: Any
    path: str


@dataclass(slots=True)
class Context:
    """The document being read, with what has been found wrong or doubtful in it."""

    source: Source
    mistakes: list[Mistake] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def refuse(self, path: str, value: Any, allowed: str, message: str = "") -> None:
        """Note a mistake; the message defaults to what is allowed and what was there."""
        text = message or f"must be {allowed}, not {shown(value)}"
        self.mistakes.append(Mistake(path, value, allowed, text, self.source.line(path)))

    def bound(self) -> None:
        """Give up on a document with too many mistakes. Raises DocumentError with those so far."""
        if len(self.mistakes) >= MAX_MISTAKES:
            rule = f"fewer than {MAX_MISTAKES} mistakes"
            more = Mistake("", None, rule, f"must have {rule}; what follows was not looked at")
            raise DocumentError([*self.mistakes, more])


class Reader:
    """One mapping of a document. Call `close` at the end: unread keys are mistakes."""

    def __init__(self, context: Context, data: Mapping[str, Any], path: str = "") -> None:
        self.context = context
        self.path = path
        self._data = data
        self._known: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return self._data.get(key) is not None

    def at(self, key: str) -> str:
        """Return the path of a key."""
        return f"{self.path}.{key}" if self.path else key

    def raw(self, key: str) -> Any:
        """Return a value without a check."""
        self._known.add(key)
        return self._data.get(key)

    def _take(self, key: str, allowed: str, read: Callable[[Any], Any]) -> Found:
        value, path = self.raw(key), self.at(key)
        if value is None:
            return Found(None, path)
        try:
            return Found(read(value), path)
        except units.UnitError as error:
            self.context.refuse(path, value, allowed, f"{error}, not {shown(value)}")
        except (TypeError, ValueError):
            self.context.refuse(path, value, allowed)
        return Found(None, path)

    def text(self, key: str) -> Found:
        """Take text; a whole or decimal number is taken as it was written."""
        return self._take(key, "text", _text)

    def integer(self, key: str, low: int = 0, high: int = 1 << 31) -> Found:
        """Take a whole number within bounds."""

        def read(value: Any) -> int:
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise ValueError
            return value

        return self._take(key, f"a whole number from {low} to {high}", read)

    def boolean(self, key: str) -> Found:
        """Take true or false, nothing else."""

        def read(value: Any) -> bool:
            if not isinstance(value, bool):
                raise TypeError
            return value

        return self._take(key, "true or false", read)

    def word(self, key: str, words: Mapping[str, Any]) -> Found:
        """Take one of the words and return what it stands for."""

        def read(value: Any) -> Any:
            if not isinstance(value, str) or value not in words:
                raise ValueError
            return words[value]

        return self._take(key, f"one of {', '.join(words)}", read)

    def size(self, key: str, *, bare: int | None = None) -> Found:
        """Take a size, in bytes."""
        return self._take(key, units.SIZE_FORM, lambda value: units.size(value, bare=bare))

    def cpu(self, key: str) -> Found:
        """Take cores, in thousandths."""
        return self._take(key, units.CPU_FORM, units.cpu_milli)

    def duration(self, key: str, *, bare: int = 1) -> Found:
        """Take a time, in seconds."""
        return self._take(key, units.DURATION_FORM, lambda value: units.seconds(value, bare=bare))

    def money(self, key: str) -> Found:
        """Take an exact amount."""
        return self._take(key, units.MONEY_FORM, units.money)

    def texts(self, key: str) -> Found:
        """Take a list of texts; one text stands for a list of one."""

        def read(value: Any) -> list[str]:
            return [_text(one) for one in (value if isinstance(value, list) else [value])]

        return self._take(key, "a list of text", read)

    def integers(self, key: str, low: int, high: int) -> Found:
        """Take a list of whole numbers; one number stands for a list of one."""

        def read(value: Any) -> list[int]:
            numbers = value if isinstance(value, list) else [value]
            for one in numbers:
                if isinstance(one, bool) or not isinstance(one, int) or not low <= one <= high:
                    raise ValueError
            return numbers

        return self._take(key, f"a list of whole numbers from {low} to {high}", read)

    def mapping(self, key: str) -> Found:
        """Take a free map from text to text (labels, environment)."""

        def read(value: Any) -> dict[str, str]:
            if not isinstance(value, dict):
                raise TypeError
            return {name: _text(one) for name, one in value.items()}

        return self._take(key, "a map from text to text", read)

    def child(self, key: str) -> "Reader | None":
        """Take a mapping, to be read by a reader of its own; None where it is absent or wrong."""
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.context.refuse(self.at(key), value, "a mapping")
            return None
        return Reader(self.context, value, self.at(key))

    def children(self, key: str, *, required: bool = False) -> Iterator["Reader"]:
        """Take a list of mappings; entries that are none are mistakes."""
        value = self.raw(key)
        if value is None and not required:
            return
        if not isinstance(value, list) or not (value or not required):
            allowed = "a list of mappings" + (" with at least one entry" if required else "")
            self.context.refuse(self.at(key), value, allowed)
            return
        for index, one in enumerate(value):
            path = f"{self.at(key)}[{index}]"
            self.context.bound()
            if isinstance(one, dict):
                yield Reader(self.context, one, path)
            else:
                self.context.refuse(path, one, "a mapping")

    def require(self, found: Found, allowed: str) -> Found:
        """Note a mistake where a value is absent and nothing was noted about it."""
        noted = any(one.path == found.path for one in self.context.mistakes)
        if found.value is None and not noted:
            self.context.refuse(found.path, None, allowed, "is required")
        return found

    def close(self) -> None:
        """Note every key that nobody asked for."""
        for key in self._data:
            if key not in self._known:
                self.context.bound()
                at = self.context.source.line(self.at(key))
                self.context.mistakes.append(unknown_key(self.path, key, self._known, at))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | Decimal):
        return f"{value:f}" if isinstance(value, Decimal) else str(value)
    if not isinstance(value, str):
        raise TypeError
    return value


def unwrap(value: Any, origin: dict[str, str], location: tuple[int | str, ...] = ()) -> Any:
    """Return plain data; `origin` gets the document path of each model path. None is left out."""
    if isinstance(value, Found):
        origin[path_of(location)] = value.path
        return value.value
    if isinstance(value, dict):
        plain = {key: unwrap(one, origin, (*location, key)) for key, one in value.items()}
        return {key: one for key, one in plain.items() if one is not None}
    if isinstance(value, list):
        return [unwrap(one, origin, (*location, at)) for at, one in enumerate(value)]
    return value
