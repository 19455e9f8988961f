"""Metrics of a Prometheus server, through prometheus-api-client.

The client blocks, so it runs on a few threads of its own, without retries: the next round asks
again. A server that answers slowly for ever takes those threads and nothing else; reads then time
out, which holds every count.
"""

import asyncio
import math
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dsec.world.metrics import Measured, MetricsAwayError, QueryRefusedError

TIMEOUT = 5.0
"""Seconds for one question: far below the shortest period of a scaler."""
THREADS = 4
MOST_TOLD = 300
_SELECTOR = re.compile(r"\s*[a-zA-Z_:][a-zA-Z0-9_:]*\s*(\{[^{}()\[\]]*\})?\s*")
"""A plain series: its samples have times of their own. Anything else is computed at the ask."""


class PrometheusMetrics:
    """One server. `close` ends its threads."""

    def __init__(
        self,
        url: str,
        *,
        headers: dict[str, str] | None = None,
        timeout: float = TIMEOUT,
        verify: bool = True,
    ) -> None:
        # pandas comes with it: only a process that reads metrics pays for that
        from prometheus_api_client import PrometheusConnect
        from urllib3.util.retry import Retry

        self._url = url.rstrip("/")
        self._timeout = timeout
        self._client: Any = PrometheusConnect(
            url=self._url,
            headers=headers,
            disable_ssl=not verify,
            retry=Retry(total=0),
            timeout=max(1, math.ceil(timeout)),
            method="POST",
        )
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="prometheus")

    async def read(self, query: str) -> Measured | None:
        """Return the value of a query that gives one number; see MetricSource.

        A vector of several series is refused: which of them is meant is for its author to say, with
        sum, avg or max. Of a plain series the age of its newest sample is read, too: Prometheus
        itself goes on showing it for five minutes.
        """
        value = self._number(query, await self._ask(query))
        if value is None:
            return None
        if not _SELECTOR.fullmatch(query):
            return Measured(value)
        told = await self._ask(f"time() - timestamp({query})")
        age = self._number(query, told)
        return Measured(value, max(0.0, age or 0.0))

    async def close(self) -> None:
        """Let the threads go; what they wait for is abandoned."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._client.close)

    async def _ask(self, query: str) -> Any:
        from prometheus_api_client.exceptions import PrometheusApiClientException

        params = {"timeout": f"{self._timeout:g}s", "limit": "2"}
        loop = asyncio.get_running_loop()
        asked = loop.run_in_executor(
            self._threads, lambda: self._client.custom_query(query, params=params)
        )
        try:
            return await asyncio.wait_for(asked, self._timeout + 1.0)
        except TimeoutError:
            raise MetricsAwayError(f"{self._url} gave no answer in {self._timeout:g} s") from None
        except PrometheusApiClientException as problem:
            raise self._refused(query, str(problem)) from None
        except (ValueError, KeyError, TypeError):
            raise MetricsAwayError(f"{self._url} gave no answer of Prometheus") from None
        except OSError as problem:
            # every failure of the connection is one, also those of the HTTP library
            why = type(problem).__name__
            raise MetricsAwayError(f"{self._url} does not answer ({why})") from None

    def _refused(self, query: str, told: str) -> MetricsAwayError | QueryRefusedError:
        """Tell a question that is wrong (400, 422) from a server that cannot answer now."""
        if re.search(r"Status Code 4(00|22)\b", told):
            return QueryRefusedError(f"{self._url} refuses {query!r}: {told[:MOST_TOLD]}")
        return MetricsAwayError(f"{self._url} cannot answer: {told[:MOST_TOLD]}")

    def _number(self, query: str, result: Any) -> float | None:
        """Return the one number of a result: a scalar, or a vector of at most one series."""
        if not isinstance(result, list) or not result:
            return None
        if isinstance(result[0], dict):
            if len(result) > 1:
                raise QueryRefusedError(
                    f"{query!r} gives {len(result)} or more series: use sum, avg or max for one"
                )
            result = result[0].get("value", [])
        try:
            value = float(result[1])
        except (ValueError, TypeError, IndexError):
            raise QueryRefusedError(f"{query!r} gives no single number") from None
        return value if math.isfinite(value) else None
