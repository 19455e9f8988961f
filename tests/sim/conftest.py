"""Virtual time: an event loop whose clock jumps to the next timer when nothing is ready."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

LONGEST = 1e6
"""Virtual seconds after which a scenario hangs for sure; far above, a timer could be finer than
the clock's number and the loop would turn without end."""


class VirtualSelector(selectors.BaseSelector):
    """Polls real files without waiting, and moves the clock instead of sleeping."""

    def __init__(self) -> None:
        self._inner = selectors.DefaultSelector()
        self.now = 0.0

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Watch a file."""
        return self._inner.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """Watch a file no more."""
        return self._inner.unregister(fileobj)

    def get_map(self) -> Any:
        """Return what is watched."""
        return self._inner.get_map()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready; jump over the timeout where nothing is."""
        ready = self._inner.select(0)
        if not ready and timeout is None:
            # nothing will ever happen by itself: wait for real, so that a deadlock times out
            return self._inner.select(1.0)
        if not ready and timeout:
            self.now += timeout
            if self.now > LONGEST:
                raise RuntimeError(f"the scenario does not end: {self.now:.0f} virtual seconds")
        return ready

    def close(self) -> None:
        """Close the inner selector."""
        self._inner.close()


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time."""

    def __init__(self) -> None:
        self._virtual = VirtualSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        """Return virtual seconds."""
        return self._virtual.now


Scenario = Callable[[], Coroutine[Any, Any, None]]


@pytest.fixture
def simulate() -> Callable[[Scenario], None]:
    """Return a function that runs a scenario in virtual time."""

    def run(scenario: Scenario) -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(scenario())

    return run
