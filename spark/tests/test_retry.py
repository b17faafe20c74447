"""Retries: pauses grow, progress restarts them, and they end with an error of one line."""

import pytest

from headrace.base.errors import Code
from headrace_spark import retry as module
from headrace_spark.errors import BadOption, BrokerError, Unreachable
from headrace_spark.retry import FIRST_PAUSE_S, LONGEST_PAUSE_S, Retry


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.slept: list[float] = []
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(module.time, "sleep", self.sleep)
        monkeypatch.setattr(module.random, "uniform", lambda low, high: high)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_pauses_grow_up_to_a_limit(clock: Clock) -> None:
    retry = Retry(60, what="write records")
    for _ in range(10):
        retry.pause(Code.NOT_LEADER_OR_FOLLOWER)
    assert clock.slept[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert clock.slept[-1] == LONGEST_PAUSE_S


def test_work_that_gets_on_has_its_whole_time_again(clock: Clock) -> None:
    retry = Retry(1, what="write records")
    for _ in range(20):
        clock.now += 0.9
        retry.progressed()
    retry.pause(Code.NOT_LEADER_OR_FOLLOWER)
    assert clock.slept == [FIRST_PAUSE_S]


def test_no_pause_is_begun_that_ends_too_late(clock: Clock) -> None:
    retry = Retry(0.05, what="write records")
    retry.pause(Code.NOT_LEADER_OR_FOLLOWER)
    with pytest.raises(BrokerError, match=r"cannot write records, tried for 0.05 s: .*NOT_LEADER_OR_FOLLOWER") as end:
        retry.pause(Code.NOT_LEADER_OR_FOLLOWER)
    assert end.value.code == Code.NOT_LEADER_OR_FOLLOWER
    assert clock.slept == [FIRST_PAUSE_S]


def test_the_last_reason_is_told(clock: Clock) -> None:
    refused = ConnectionRefusedError("nobody listens")
    with pytest.raises(Unreachable, match=r"nobody listens; check the option bootstrap") as end:
        Retry(0, what="read").pause(refused)
    assert end.value.__cause__ is refused
    said = BadOption("no such topic")
    with pytest.raises(BadOption) as own:
        Retry(0, what="read").pause(said)
    assert own.value is said, "an error of ours says it all"
