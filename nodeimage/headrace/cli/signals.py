"""Signals, handled in another way for a while."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def handled(handler: Callable[[int, FrameType | None], object] | signal.Handlers, *numbers: int) -> Iterator[None]:
    """Within, `handler` gets these signals; then those who had them before. On the main thread only.

    A SIGHUP that is ignored stays so: `nohup` is there for it.
    """
    left = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()
    before = {number: signal.signal(number, handler) for number in numbers if number not in left}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


class Interrupts:
    """SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt, so that a command ends what it is at.

    Within `with interrupts:` the first one waits until that is done. The next does not: what is done may wait for a
    reader of a pipe, or for a cluster that does not answer.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._came = False

    @contextmanager
    def caught(self) -> Iterator[None]:
        """While this lasts."""
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
    """A client of confluent-kafka, whose calls end before an interrupt is raised.

    Its extension module (2.16.1) loses an exception that a signal raises within a call, or makes a SystemError of it.
    """

    def __init__(self, client: Any, interrupts: Interrupts) -> None:
        self._client = client
        self._interrupts = interrupts

    def __getattr__(self, name: str) -> Any:
        method, interrupts = getattr(self._client, name), self._interrupts

        def call(*given: Any, **named: Any) -> Any:
            with interrupts:
                return method(*given, **named)

        setattr(self, name, call)  # found at once the next time
        return call
