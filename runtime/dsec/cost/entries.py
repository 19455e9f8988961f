"""Rows of the money ledger, and their form in the journal.

| kind | path | amounts |
|---|---|---|
| allocate | the account that receives; the one above it gives | what it may spend |
| consume | the account that pays | what `source` used from `since` until `until` |
| return | the account that gives back; the one above it receives | what it did not spend |
| commit | the first payer | what a revision of a commitment promises |
| release | the first payer | the same, when that revision holds no more |

An entry never crosses a quarter of an hour: every midnight of every zone is on one, so each entry
lies within one period of each budget.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any

from dsec.cost.amounts import MoneyError, exact, unit_of
from dsec.cost.budgets import ancestors
from dsec.cost.commitments import Commitment, Payer

QUARTER = 900
"""Seconds; zones are whole quarters of an hour away from UTC."""


class EntryKind(StrEnum):
    """What an entry books."""

    ALLOCATE = "allocate"
    CONSUME = "consume"
    RETURN = "return"
    COMMIT = "commit"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class Entry:
    """One row. The id makes it count once; everything else of one id must be equal."""

    id: str
    kind: EntryKind
    at: float
    """When it was booked, seconds since the epoch."""
    path: str
    amounts: Mapping[str, Decimal]
    source: str = ""
    """Node, sandbox or volume that was used, or the commitment."""
    since: float | None = None
    until: float | None = None
    region: str = ""
    pool: str = ""
    commitment: Commitment | None = None
    what: str = ""
    """Of use: use, idle, storage or egress (`metering.LineKind`)."""
    priced: str = ""
    """Of use: where its unit price is from: owned, list, override (COST-04)."""
    note: str = ""

    def __post_init__(self) -> None:
        """Refuse what could not be summed. Raises MoneyError."""
        if not self.id:
            raise MoneyError("entry.id: empty; each entry has an id of its own")
        ancestors(self.path)
        for unit, amount in self.amounts.items():
            unit_of(unit, f"{self.id}.amounts")
            if not isinstance(amount, Decimal) or not amount.is_finite() or amount < 0:
                raise MoneyError(f"{self.id}.amounts.{unit}: {amount!r}; an exact amount from 0")
        if self.kind is EntryKind.CONSUME:
            self._check_interval()
        if (self.commitment is None) is (self.kind in {EntryKind.COMMIT, EntryKind.RELEASE}):
            raise MoneyError(f"{self.id}.commitment: belongs to commit and release, and only there")

    def _check_interval(self) -> None:
        since, until = self.since, self.until
        if since is None or until is None or until < since or not self.source:
            raise MoneyError(f"{self.id}: use needs a source and a time, since <= until")
        if until > since and until > (since // QUARTER + 1) * QUARTER:
            raise MoneyError(
                f"{self.id}: {since:.0f} to {until:.0f} crosses a quarter of an hour; cut it there"
            )


def row_of(entry: Entry) -> dict[str, Any]:
    """Return the JSON form of an entry; amounts are text."""
    row: dict[str, Any] = {
        "id": entry.id,
        "kind": entry.kind.value,
        "at": entry.at,
        "path": entry.path,
        "amounts": _texts(entry.amounts),
    }
    for name in ("source", "since", "until", "region", "pool", "what", "priced", "note"):
        value = getattr(entry, name)
        if value not in {"", None}:
            row[name] = value
    if entry.commitment is not None:
        row["commitment"] = commitment_row(entry.commitment)
    return row


def entry_of(row: Mapping[str, Any]) -> Entry:
    """Return the entry of a row; unknown keys are ignored. Raises MoneyError."""
    try:
        commitment = row.get("commitment")
        return Entry(
            row["id"],
            EntryKind(row["kind"]),
            float(row["at"]),
            row["path"],
            _amounts(row["amounts"]),
            row.get("source", ""),
            row.get("since"),
            row.get("until"),
            row.get("region", ""),
            row.get("pool", ""),
            commitment_of(commitment) if commitment else None,
            row.get("what", ""),
            row.get("priced", ""),
            row.get("note", ""),
        )
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, MoneyError):
            raise
        raise MoneyError(f"row {row.get('id', row)!r}: {error} is missing or malformed") from error


def commitment_row(commitment: Commitment) -> dict[str, Any]:
    """Return the JSON form of a commitment."""
    row = asdict(commitment)
    for name in ("rates", "closing", "held"):
        row[name] = _texts(row[name])
    row["payers"] = [[one.path, one.weight] for one in commitment.payers]
    return row


def commitment_of(row: Mapping[str, Any]) -> Commitment:
    """Return the commitment of a row. Raises KeyError, TypeError, ValueError."""
    return Commitment(
        row["id"],
        _amounts(row["rates"]),
        tuple(Payer(path, int(weight)) for path, weight in row["payers"]),
        float(row["started"]),
        float(row["run_until"]),
        row.get("charged_until"),
        int(row["wind_down_seconds"]),
        _amounts(row["closing"]),
        _amounts(row["held"]),
        int(row["minimum_seconds"]),
        row.get("pool", ""),
        row.get("region", ""),
        int(row.get("revision", 0)),
        row.get("source", ""),
    )


def _texts(amounts: Mapping[str, Decimal]) -> dict[str, str]:
    return {unit: f"{amount:f}" for unit, amount in sorted(amounts.items())}


def _amounts(row: Mapping[str, Any]) -> dict[str, Decimal]:
    return {unit: exact(amount, unit) for unit, amount in row.items()}
