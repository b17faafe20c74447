"""Signals, handled in another way for a while."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def handled(handler: Callable[[int, FrameType | None], object] | signal.Handlers, *numbers: int) -> Iterator[None]:
    """Within, `handler` gets these signals; then those who had them before. On the main thread only."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
