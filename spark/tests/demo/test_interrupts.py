"""Ctrl-C ends the story, and never interrupts its cleaning up."""

import os
import signal

import pytest

from headrace_spark.demo.interrupts import as_interrupt, unbroken


def come(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def test_a_signal_ends_the_story_as_ctrl_c_does_and_only_within() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), as_interrupt(signal.SIGTERM):
        come(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_nothing_interrupts_the_stopping_of_processes(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with unbroken():
        come(number)
    assert signal.getsignal(number) is before
