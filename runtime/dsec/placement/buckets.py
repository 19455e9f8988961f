"""Counted sets by key that are cheap to copy: a fork shares each set until one side changes it."""

from collections.abc import Mapping
from types import MappingProxyType

_NOBODY: Mapping[str, int] = MappingProxyType({})


class Buckets:
    """For each key its members with counts, in the order in which they came."""

    __slots__ = ("_own", "_sets")

    def __init__(self) -> None:
        self._sets: dict[str, dict[str, int]] = {}
        self._own: set[str] = set()
        """Keys whose set no fork shares."""

    def _writable(self, key: str) -> dict[str, int]:
        found = self._sets.get(key)
        if found is None:
            found = self._sets[key] = {}
            self._own.add(key)
        elif key not in self._own:
            found = self._sets[key] = dict(found)
            self._own.add(key)
        return found

    def add(self, key: str, member: str) -> None:
        """Count a member once more."""
        found = self._sets.get(key)
        if found is None or key not in self._own:
            found = self._writable(key)
        found[member] = found.get(member, 0) + 1

    def drop(self, key: str, member: str) -> None:
        """Count a member once less; unknown ones are ignored."""
        if member not in self._sets.get(key, _NOBODY):
            return
        found = self._writable(key)
        found[member] -= 1
        if not found[member]:
            del found[member]
        if not found:
            del self._sets[key]
            self._own.discard(key)

    def get(self, key: str) -> Mapping[str, int]:
        """Return the members of a key with their counts."""
        return self._sets.get(key, _NOBODY)

    def keys_of(self, key: str) -> list[str]:
        """Return the members of a key, in a list of its own."""
        return list(self._sets.get(key, ()))

    def fork(self) -> "Buckets":
        """Return a copy that can be changed apart."""
        other = Buckets()
        other._sets = dict(self._sets)
        # from here on the sets belong to both
        self._own = set()
        return other
