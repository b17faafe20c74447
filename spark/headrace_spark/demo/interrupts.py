"""Ctrl-C and similar signals: one way to end the story, and none to interrupt its cleaning up."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from headrace.cli.signals import handled


@contextmanager
def as_interrupt(*signals: signal.Signals) -> Iterator[None]:
    """While the context is active, these signals end the story as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with handled(interrupt, *signals):
        yield


@contextmanager
def unbroken() -> Iterator[None]:
    """While the context is active, signals do not interrupt the stopping of processes."""
    with handled(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        yield
