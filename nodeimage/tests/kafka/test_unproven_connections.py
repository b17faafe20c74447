"""Connections without authentication: limits on their number, time and memory."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from headrace.kafka.unproven_connections import (
    LIMIT_S,
    LOG_EVERY_S,
    MADE_WAY,
    MAX_CONNECTIONS,
    MAX_HANDSHAKES,
    MAX_HELD,
    MAX_OF_ADDRESS,
    MIN_S,
    TOO_LATE,
    TOO_MANY,
    TOO_MANY_OF_ADDRESS,
    UnprovenConnections,
)


class Clock:
    """A loop's clock and timers, moved by the test."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: dict[Timer, None] = {}

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[..., None], *args: Any) -> "Timer":
        timer = Timer(self, when, lambda: callback(*args))
        self.timers[timer] = None
        return timer

    def forward(self, seconds: float) -> None:
        self.now += seconds
        for timer in [each for each in self.timers if each.when <= self.now]:
            timer.cancel()
            timer.due()


class Timer:
    def __init__(self, clock: Clock, when: float, due: Callable[[], None]) -> None:
        self.clock = clock
        self.when = when
        self.due = due

    def cancel(self) -> None:
        self.clock.timers.pop(self, None)


class Member:
    def __init__(self, unproven: UnprovenConnections, address: str = "10.0.0.1") -> None:
        self.address = address
        self.unproven = unproven
        self.ended = False

    def join(self, clock: Clock) -> bool:
        return self.unproven.join(self, since=clock.now)

    def drop(self) -> None:
        self.ended = True
        self.unproven.leave(self)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def unproven(clock: Clock) -> UnprovenConnections:
    return UnprovenConnections(cast(asyncio.AbstractEventLoop, clock))


def fill(unproven: UnprovenConnections, clock: Clock, count: int, *addresses: str) -> list[Member]:
    made = [Member(unproven, addresses[number % len(addresses)]) for number in range(count)]
    assert all(each.join(clock) for each in made)
    return made


def test_one_address_has_so_many_and_others_have_theirs(unproven: UnprovenConnections, clock: Clock) -> None:
    first, *rest = fill(unproven, clock, MAX_OF_ADDRESS, "10.0.0.1")
    assert not Member(unproven).join(clock), "all of its address have come just now"
    assert Member(unproven, "10.0.0.2").join(clock)
    clock.forward(MIN_S)
    assert Member(unproven).join(clock)
    assert first.ended
    assert not any(each.ended for each in rest)
    assert len(unproven) == MAX_OF_ADDRESS + 1


def test_addresses_of_one_ipv6_network_count_as_one(unproven: UnprovenConnections, clock: Clock) -> None:
    hosts = [f"2001:db8:1:2::{number:x}" for number in range(MAX_OF_ADDRESS + 2)]
    first, *_ = fill(unproven, clock, MAX_OF_ADDRESS, *hosts)
    assert not Member(unproven, hosts[-2]).join(clock)
    assert Member(unproven, "2001:db8:1:3::1").join(clock)
    clock.forward(MIN_S)
    assert Member(unproven, hosts[-1]).join(clock)
    assert first.ended
    assert len(unproven) == MAX_OF_ADDRESS + 1


def test_at_the_limit_the_one_that_waited_longest_makes_way(unproven: UnprovenConnections, clock: Clock) -> None:
    made = fill(unproven, clock, MAX_CONNECTIONS, "10.0.0.1", "10.0.0.2")
    clock.forward(MIN_S)
    unproven.waits(made[0])  # its client has sent a message
    unproven.works(made[1])
    assert Member(unproven, "10.0.0.3").join(clock)
    assert [number for number, each in enumerate(made) if each.ended] == [2]
    assert len(unproven) == MAX_CONNECTIONS


def test_those_at_work_make_no_way(unproven: UnprovenConnections, clock: Clock) -> None:
    made = fill(unproven, clock, MAX_CONNECTIONS, "10.0.0.1", "10.0.0.2")
    for each in made:
        unproven.works(each)
    clock.forward(LIMIT_S / 2)
    assert not Member(unproven, "10.0.0.3").join(clock)
    unproven.leave(made[0])
    assert Member(unproven, "10.0.0.3").join(clock)


def test_handshakes_begin_while_there_is_room_for_what_comes_of_them(
    unproven: UnprovenConnections, clock: Clock
) -> None:
    assert unproven.make_room(MAX_HANDSHAKES - 1)
    assert not unproven.make_room(MAX_HANDSHAKES)
    first, *_ = fill(unproven, clock, 10, "10.0.0.1")
    assert unproven.make_room(MAX_HANDSHAKES - 11)
    assert not unproven.make_room(MAX_HANDSHAKES - 10)
    clock.forward(MIN_S)
    assert unproven.make_room(MAX_HANDSHAKES - 10), "one made way"
    assert first.ended


def test_who_does_not_authenticate_in_time_ends(unproven: UnprovenConnections, clock: Clock) -> None:
    slow, quick = fill(unproven, clock, 2, "10.0.0.1")
    clock.forward(LIMIT_S / 2)
    unproven.waits(slow)
    unproven.leave(quick)
    clock.forward(LIMIT_S / 2)
    assert slow.ended
    assert not quick.ended
    assert len(unproven) == 0
    assert not clock.timers


def test_beyond_the_memory_for_all_the_largest_ends(unproven: UnprovenConnections, clock: Clock) -> None:
    small, large, other = fill(unproven, clock, 3, "10.0.0.1")
    unproven.hold(small, 1000)
    unproven.hold(large, MAX_HELD - 1000)
    unproven.hold(other, 1)
    assert [each.ended for each in (small, large, other)] == [False, True, False]
    unproven.hold(other, 0)
    unproven.hold(large, MAX_HELD * 2)  # it has left already
    assert not small.ended


def test_what_ends_is_logged_once_a_minute_with_the_count(unproven: UnprovenConnections, clock: Clock) -> None:
    fill(unproven, clock, MAX_OF_ADDRESS, "10.0.0.1")
    with capture_logs() as logs:
        for _ in range(5):
            Member(unproven).join(clock)
        clock.forward(LOG_EVERY_S)
        fill(unproven, clock, MAX_OF_ADDRESS, "10.0.0.1")
        Member(unproven).join(clock)
    assert [(each["reason"], each["count"]) for each in logs] == [
        (TOO_MANY_OF_ADDRESS, 1),
        (TOO_LATE, 1),
        (TOO_MANY_OF_ADDRESS, 5),
    ]
    assert unproven.ended == 6 + MAX_OF_ADDRESS
    assert len({TOO_MANY, TOO_MANY_OF_ADDRESS, MADE_WAY, TOO_LATE}) == 4
