"""Where metrics come from: one number for one question, or the reason why there is none.

No answer is not zero: `read` returns None where the source knows of no value, and raises where it
could not be asked. Callers hold what they have in both cases.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Measured:
    """A value, and how old it was when it was read, in seconds."""

    value: float
    age_seconds: float = 0.0


class MetricsError(Exception):
    """No value could be had; the message says why, in words for an operator."""


class MetricsAwayError(MetricsError):
    """The source does not answer, or not in time; it may later."""


class QueryRefusedError(MetricsError):
    """The source cannot answer this question: it is malformed, or gives more than one number."""


class MetricSource(Protocol):
    """Answers questions about metrics."""

    async def read(self, query: str) -> Measured | None:
        """Return the value of a query (PromQL) as one number; None: there is none now.

        Raises MetricsAwayError, QueryRefusedError. Asking again is harmless.
        """
        ...


@dataclass(slots=True)
class MemoryMetrics:
    """Metrics of tests and simulations: what `values` holds, by query.

    A value may be a number, None (unknown to the source), an error, or a function of nothing.
    """

    values: dict[str, "float | MetricsError | Callable[[], float | None] | None"] = field(
        default_factory=dict
    )
    ages: dict[str, float] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    async def read(self, query: str) -> Measured | None:
        """Return what was set for the query. Raises what was set to be raised."""
        self.asked.append(query)
        found = self.values.get(query)
        if isinstance(found, MetricsError):
            raise found
        value = found() if callable(found) else found
        return None if value is None else Measured(value, self.ages.get(query, 0.0))
