"""Handles signals differently for a while."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def handled(handler: Callable[[int, FrameType | None], object] | signal.Handlers, *numbers: int) -> Iterator[None]:
    """Within the context `handler` receives these signals; afterwards the former handlers do. Main thread only.

    A SIGHUP that is ignored stays ignored, as `nohup` intends.
    """
    left = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()
    before = {number: signal.signal(number, handler) for number in numbers if number not in left}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


class Interrupts:
    """SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt, so that a command can end its work properly.

    Within `with interrupts:` the first signal waits until the block is done. The second does not, since the block may
    be waiting for a pipe's reader, or for a cluster that does not answer.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._came = False

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Handle the signals within the context."""
        with handled(self._come, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            yield

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._depth -= 1
        if self._came and not self._depth and kind is None:
            self._came = False
            raise KeyboardInterrupt

    def _come(self, *_: object) -> None:
        if self._depth and not self._came:
            self._came = True
            return
        self._came = False
        raise KeyboardInterrupt


class Uninterrupted:
    """A confluent-kafka client whose calls end before an interrupt is raised.

    The extension module (2.16.1) loses an exception that a signal raises during a call, or turns it into a SystemError.
    """

    def __init__(self, client: Any, interrupts: Interrupts) -> None:
        self._client = client
        self._interrupts = interrupts

    def __getattr__(self, name: str) -> Any:
        method, interrupts = getattr(self._client, name), self._interrupts

        def call(*given: Any, **named: Any) -> Any:
            with interrupts:
                return method(*given, **named)

        setattr(self, name, call)  # cached for the next call
        return call
