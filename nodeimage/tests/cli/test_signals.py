"""Commands that receive signals: a group's committed offset covers a printed line, and no client call is
interrupted."""

import signal

import pytest

from headrace.cli.signals import Interrupts, Uninterrupted
from kit.signals import come


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_interrupts(number: signal.Signals) -> None:
    with Interrupts().caught(), pytest.raises(KeyboardInterrupt):
        come(number)


def print_and_note(interrupts: Interrupts, done: list[str], *, signals: int) -> None:
    with interrupts:
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
    with interrupts.caught(), interrupts:
        pass
    assert signal.getsignal(signal.SIGTERM) == before


class Client:
    """Like confluent-kafka's: an exception raised by a signal during a call is lost."""

    def __init__(self) -> None:
        self.calls = 0

    def poll(self, timeout_s: float) -> float:
        try:
            come(signal.SIGINT)
        except KeyboardInterrupt:
            return -1.0
        self.calls += 1
        return timeout_s

    def flush(self) -> int:
        return self.calls


def test_a_signal_in_a_clients_call_is_raised_when_that_has_ended() -> None:
    interrupts, client = Interrupts(), Client()
    held = Uninterrupted(client, interrupts)
    with interrupts.caught():
        with pytest.raises(KeyboardInterrupt):
            held.poll(0.1)
        assert held.flush() == 1
        with interrupts.caught(), pytest.raises(KeyboardInterrupt):
            held.poll(0.1)
    assert client.calls == 2
