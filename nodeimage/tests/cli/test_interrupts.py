"""`headrace consume` on signals: a line that is printed is behind its group's cursor."""

import os
import signal

import pytest

from headrace.cli.consume import Interrupts


def come(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_interrupts(number: signal.Signals) -> None:
    with Interrupts().caught(), pytest.raises(KeyboardInterrupt):
        come(number)


def print_and_note(interrupts: Interrupts, done: list[str], *, signals: int) -> None:
    with interrupts.held():
        done.append("printed")
        for _ in range(signals):
            come(signal.SIGINT)
        done.append("noted")


def test_what_is_printed_is_also_noted() -> None:
    interrupts, done = Interrupts(), []
    with interrupts.caught():
        with pytest.raises(KeyboardInterrupt):
            print_and_note(interrupts, done, signals=1)
        with pytest.raises(KeyboardInterrupt):
            come(signal.SIGINT)
    assert done == ["printed", "noted"]


def test_the_second_signal_does_not_wait_for_a_pipe_that_nobody_reads() -> None:
    interrupts, done = Interrupts(), []
    with interrupts.caught(), pytest.raises(KeyboardInterrupt):
        print_and_note(interrupts, done, signals=2)
    assert done == ["printed"]


def test_without_a_signal_nothing_is_raised_and_the_handlers_are_as_before() -> None:
    interrupts, before = Interrupts(), signal.getsignal(signal.SIGTERM)
    with interrupts.caught(), interrupts.held():
        pass
    assert signal.getsignal(signal.SIGTERM) == before
