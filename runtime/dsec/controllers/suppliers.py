"""The providers of nodes as the buyer calls them: one failure of one of them stops nothing else.

A provider that has seen a later leader ends the term, as a bind log would.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import structlog

from dsec.journal.bindlog import FencedError
from dsec.providers.provider import (
    BuyAnswer,
    Holdings,
    NodeProvider,
    ProviderEvent,
    StaleEpochError,
)
from dsec.scaling.nodes.plans import Purchase
from dsec.world.clock import Clock

LIST_SECONDS = 30.0
"""How often it is asked what exists, when nothing calls for it."""
EVENT_SECONDS = 10.0
"""How often it is asked what has happened: of a notice of two minutes this is lost at most."""

log = structlog.get_logger()


@dataclass(slots=True)
class Suppliers:
    """Of one term: providers by the names that pools call them. Times are monotonic seconds."""

    providers: Mapping[str, NodeProvider]
    epoch: int
    clock: Clock
    _listed: dict[str, float] = field(default_factory=dict)
    _asked: dict[str, float] = field(default_factory=dict)

    def hurry(self, supplier: str) -> None:
        """Let the next look ask a provider what exists: something is not known of it."""
        self._listed.pop(supplier, None)

    async def buy(self, supplier: str, purchase: Purchase, run_until: float) -> BuyAnswer:
        """Buy; idempotent by token. Raises FencedError."""
        provider = self.providers[supplier]
        try:
            return await provider.buy(purchase, epoch=self.epoch, run_until=run_until)
        except StaleEpochError as problem:
            raise FencedError(str(problem)) from problem

    async def holdings(self, supplier: str) -> Holdings | None:
        """Return what exists; None: it was asked a moment ago."""
        now = self.clock.monotonic()
        last = self._listed.get(supplier)
        if last is not None and now - last < LIST_SECONDS:
            return None
        found = await self.providers[supplier].list()
        if found.complete:
            self._listed[supplier] = now
        elif found.failure is not None:
            log.warning("provider does not say all", supplier=supplier, why=found.failure.words)
        return found

    async def events(self, supplier: str) -> tuple[ProviderEvent, ...]:
        """Return what has happened lately; nothing where it was asked a moment ago."""
        now = self.clock.monotonic()
        last = self._asked.get(supplier)
        if last is not None and now - last < EVENT_SECONDS:
            return ()
        self._asked[supplier] = now
        return await self.providers[supplier].events()

    async def end(self, supplier: str, ids: Iterable[str]) -> frozenset[str]:
        """End nodes by the provider's identifiers; return those that end. Raises FencedError."""
        names = list(ids)
        if not names or supplier not in self.providers:
            return frozenset()
        try:
            answer = await self.providers[supplier].end(names, epoch=self.epoch)
        except StaleEpochError as problem:
            raise FencedError(str(problem)) from problem
        for name, failure in answer.failed.items():
            log.warning("node is not ended, will repeat", node=name, why=failure.words)
        self.hurry(supplier)
        return answer.ended

    async def extend(self, supplier: str, node: str, run_until: float) -> bool:
        """Write a later end into a node's tags; whether it is there. Raises FencedError."""
        if supplier not in self.providers:
            return False
        provider = self.providers[supplier]
        try:
            answer = await provider.extend([node], run_until, epoch=self.epoch)
        except StaleEpochError as problem:
            raise FencedError(str(problem)) from problem
        for name, failure in answer.failed.items():
            log.warning("node is not extended, will repeat", node=name, why=failure.words)
        return node in answer.ended

    async def remove_volumes(self, supplier: str, volumes: Iterable[str]) -> None:
        """Delete volumes that hang on nothing. Raises FencedError."""
        try:
            await self.providers[supplier].remove_volumes(volumes, epoch=self.epoch)
        except StaleEpochError as problem:
            raise FencedError(str(problem)) from problem
