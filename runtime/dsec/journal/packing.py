"""Rows of one segment as they are stored: what many bindings have in common is written once.

A batch binds hundreds of sandboxes that differ in little but their names. `pack` writes the first
of such bindings in full, and of all of them columns of what is each one's own; `unpack` gives the
rows back as they were, in their order. Rows that share nothing are stored as they are. Pure.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import groupby, repeat
from operator import attrgetter
from typing import Any

from dsec.api.base import WireModel
from dsec.api.sandbox import Identity, SandboxSpec
from dsec.journal.bindings import Binding, Row, row_of

ALIKE = 8
"""Kinds of bindings that a new one is compared with, the newest ones."""


class Columns(WireModel):
    """What is each binding's own; a column of one value has that for all `count`.

    `like` is the number of the binding that one is like in everything else, `row_at` when its row
    was made.
    """

    count: int
    like: list[int]
    kind: list[str]
    row_at: list[datetime]
    key: list[str]
    id: list[str]
    node: list[str]
    order: list[int]
    at: list[datetime]
    bound_at: list[datetime | None]
    index: list[int]
    incarnation: list[int]
    correlation_id: list[str]
    devices: list[list[str]]
    cpus: list[list[int]]
    item: list[str | None]
    stdin: list[str | None]


class Part(WireModel):
    """Rows of a stretch: in full, or as columns."""

    rows: list[Row] = []
    columns: Columns | None = None


class Packed(WireModel):
    """Rows in their order; `likes` has the bindings that columns refer to."""

    likes: list[Binding] = []
    parts: list[Part]


_COLUMNS = tuple(one for one in Columns.model_fields if one != "count")
_OWN = frozenset(_COLUMNS)
_PLAIN = frozenset({"kind", "at", "binding"})
"""Fields of a row that columns have room for."""


def _rest(model: type[WireModel], *without: str) -> Any:
    return attrgetter(*(one for one in model.model_fields if one not in {*_OWN, *without}))


_OF_BINDING = _rest(Binding, "spec")
_OF_SPEC = _rest(SandboxSpec, "identity")
_OF_IDENTITY = _rest(Identity)


def pack(rows: Sequence[Row]) -> Packed:
    """Return rows as they are stored."""
    likes: list[Binding] = []
    numbers = list(_numbers(rows, likes))
    counts = Counter(numbers)
    # one of its kind has nothing to share
    shared = [one for one in range(len(likes)) if counts[one] > 1]
    places = {one: at for at, one in enumerate(shared)}
    parts = []
    numbered = zip(rows, (places.get(one) for one in numbers), strict=True)
    for alone, group in groupby(numbered, lambda one: one[1] is None):
        if alone:
            parts.append(Part(rows=[row for row, _ in group]))
        else:
            parts.append(Part(columns=_columns(list(group))))
    return Packed(likes=[likes[one] for one in shared], parts=parts)


def _numbers(rows: Sequence[Row], likes: list[Binding]) -> Iterator[int]:
    """Yield for each row the number of its kind of binding, -1: it has none; fills `likes`."""
    kinds: list[tuple[object, ...]] = []
    for row in rows:
        binding = row.binding
        if binding is None or row.model_fields_set - _PLAIN:
            yield -1
            continue
        spec = binding.spec
        if spec.identity.id != binding.id:
            yield -1
            continue
        # the parts of bindings that were made alike are the same objects, and quick to compare
        kind = (_OF_BINDING(binding), _OF_SPEC(spec), _OF_IDENTITY(spec.identity))
        newest = range(len(kinds) - 1, max(-1, len(kinds) - 1 - ALIKE), -1)
        number = next((one for one in newest if kinds[one] == kind), len(kinds))
        if number == len(kinds):
            kinds.append(kind)
            likes.append(binding)
        yield number


def _columns(numbered: Sequence[tuple[Row, int | None]]) -> Columns:
    """Return the columns of rows, each with the number of what it is like."""
    cells = []
    for row, like in numbered:
        binding = row.binding
        if binding is None:
            raise AssertionError("only rows with a binding have columns")
        spec = binding.spec
        cells.append(
            (
                like,
                row.kind,
                row.at,
                binding.key,
                binding.id,
                binding.node,
                binding.order,
                binding.at,
                binding.bound_at,
                spec.identity.index,
                spec.identity.incarnation,
                spec.identity.correlation_id,
                spec.devices,
                spec.cpus,
                spec.item,
                spec.stdin,
            )
        )
    whole = dict(zip(_COLUMNS, map(list, zip(*cells, strict=True)), strict=True))
    return Columns(count=len(cells), **{name: _short(column) for name, column in whole.items()})


def _short(column: list[Any]) -> list[Any]:
    """Return a column as it is stored."""
    return column[:1] if column.count(column[0]) == len(column) else column


def unpack(packed: Packed) -> list[Row]:
    """Return the rows. Raises ValueError where columns are not as long as they say."""
    rows: list[Row] = []
    for part in packed.parts:
        rows += part.rows
        if part.columns is not None:
            rows += _rows(packed.likes, part.columns)
    return rows


def _rows(likes: Sequence[Binding], columns: Columns) -> Iterator[Row]:
    if any(not 0 <= one < len(likes) for one in columns.like):
        raise ValueError(f"like: {columns.like[:ALIKE]}; there are {len(likes)} bindings")
    whole = [_whole(columns, name) for name in _COLUMNS]
    for (
        like,
        kind,
        row_at,
        key,
        id_,
        node,
        order,
        at,
        bound_at,
        index,
        incarnation,
        correlation,
        devices,
        cpus,
        item,
        stdin,
    ) in zip(*whole, strict=False):
        same = likes[like]
        identity = same.spec.identity.varied(
            id=id_, index=index, incarnation=incarnation, correlation_id=correlation
        )
        # lists are changed as wholes only, so that one may serve many
        spec = same.spec.varied(
            identity=identity, devices=devices, cpus=cpus, item=item, stdin=stdin
        )
        binding = same.varied(
            key=key, id=id_, spec=spec, node=node, order=order, at=at, bound_at=bound_at
        )
        yield row_of(binding, row_at, kind)


def _whole(columns: Columns, name: str) -> Iterator[Any]:
    column: list[Any] = getattr(columns, name)
    if len(column) == 1:
        return repeat(column[0], columns.count)
    if len(column) != columns.count:
        raise ValueError(f"{name}: {len(column)} values; there are {columns.count} rows")
    return iter(column)
