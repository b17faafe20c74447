"""Commands on signals: a line that is printed is behind its group's cursor, and no call of a client is broken off."""

import os
import signal
from concurrent.futures import Future

import pytest
from confluent_kafka.cimpl import NewTopic

from headrace.cli.bench import own_topics
from headrace.cli.signals import Interrupts, Uninterrupted


def come(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


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
    """As confluent-kafka does: what a signal raises within a call is lost."""

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


class Admin:
    """As confluent-kafka's; an interrupt comes while it makes topics."""

    def __init__(self) -> None:
        self.topics: set[str] = set()

    def create_topics(self, topics: list[NewTopic], **_: object) -> dict[str, Future[None]]:
        answers = {topic.topic: Future[None]() for topic in topics}
        come(signal.SIGINT)
        for name, answer in answers.items():
            self.topics.add(name)
            answer.set_result(None)
        return answers

    def delete_topics(self, names: list[str], **_: object) -> dict[str, Future[None]]:
        answers = {name: Future[None]() for name in names}
        for name, answer in answers.items():
            self.topics.remove(name)
            answer.set_result(None)
        return answers


def test_what_bench_makes_is_deleted_though_an_interrupt_comes_meanwhile() -> None:
    admin, interrupts = Admin(), Interrupts()
    with interrupts.caught(), pytest.raises(KeyboardInterrupt), own_topics(admin, ["a", "b"], 1, interrupts):
        pytest.fail("it was interrupted before")
    assert admin.topics == set()
