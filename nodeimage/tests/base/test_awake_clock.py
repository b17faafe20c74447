"""A clock that stops with the process, on a loop that is advanced by hand, and on real loops that are blocked."""

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from headrace.base.awake_clock import EVERY_S, LATE_S, AwakeClock, limited

LOOPS = (asyncio.new_event_loop, uvloop.new_event_loop)
STOOD_S = 13.9


class Loop:
    """The clock and timers of a loop. `stand_still`: time passes without callbacks."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: dict[Handle, None] = {}
        self.soon: list[Handle] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[..., object], *arguments: Any) -> "Handle":
        handle = Handle(self, when, lambda: callback(*arguments))
        self.timers[handle] = None
        return handle

    def call_later(self, delay: float, callback: Callable[..., object], *arguments: Any) -> "Handle":
        return self.call_at(self.now + delay, callback, *arguments)

    def call_soon(self, callback: Callable[..., object]) -> "Handle":
        self.soon.append(Handle(self, self.now, callback))
        return self.soon[-1]

    def turn(self) -> None:
        """Runs one turn: timers that are due, and callbacks of `call_soon`."""
        due = sorted((each for each in self.timers if each.when <= self.now), key=lambda each: each.when)
        soon, self.soon = self.soon, []
        for each in (*due, *soon):
            self.timers.pop(each, None)
            if not each.cancelled:
                each.callback()

    def run(self, seconds: float) -> None:
        """Advances the time in small steps."""
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.now = min(self.now + 0.05, end)
            self.turn()

    def stand_still(self, seconds: float) -> None:
        self.now += seconds
        self.turn()


class Handle:
    def __init__(self, loop: Loop, when: float, callback: Callable[[], object]) -> None:
        self.loop = loop
        self.when = when
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


def hold_up(seconds: float) -> None:
    """Blocks the process, as if it were stopped."""
    time.sleep(seconds)


@pytest.fixture
def loop() -> Any:
    return Loop()


@pytest.fixture
def clock(loop: Any) -> AwakeClock:
    made = AwakeClock(loop)
    made.start()
    return made


def test_seconds_in_which_nothing_ran_are_not_counted(loop: Loop, clock: AwakeClock) -> None:
    began = clock.time()
    loop.run(3.0)
    loop.stand_still(STOOD_S)
    loop.run(2.0)
    assert 5.0 <= clock.time() - began <= 5.0 + EVERY_S


def test_who_asks_before_the_late_tick_hears_the_same(loop: Loop, clock: AwakeClock) -> None:
    began = clock.time()
    loop.now += STOOD_S
    assert clock.time() - began <= EVERY_S
    assert clock.time() == clock.time()
    loop.turn()
    assert clock.time() - began <= EVERY_S


def test_a_loop_that_is_a_bit_late_has_run(loop: Loop, clock: AwakeClock) -> None:
    began = clock.time()
    for _ in range(10):
        loop.stand_still(EVERY_S + LATE_S / 2)
    assert clock.time() - began == pytest.approx(10 * (EVERY_S + LATE_S / 2))


def test_time_does_not_go_back(loop: Loop, clock: AwakeClock) -> None:
    seen = [clock.time()]
    for step in (0.05, STOOD_S, 0.3, 0.6, 1.1, 0.01, 7.0):
        loop.now += step
        seen.append(clock.time())
        loop.turn()
        seen.append(clock.time())
    assert seen == sorted(seen)


def test_before_it_ticks_and_afterwards_it_is_the_loops(loop: Any) -> None:
    clock = AwakeClock(loop)
    loop.now += STOOD_S
    assert clock.time() == loop.now
    clock.start()
    clock.close()
    loop.now += STOOD_S
    assert clock.time() == loop.now


def test_a_timer_rings_after_so_many_seconds_in_which_it_ran(loop: Loop, clock: AwakeClock) -> None:
    rang: list[float] = []
    clock.call_later(10.0, lambda: rang.append(loop.now))
    loop.run(4.0)
    loop.stand_still(STOOD_S)
    assert rang == []
    loop.run(5.0)
    assert rang == []
    loop.stand_still(STOOD_S)
    assert rang == []
    loop.run(2 * EVERY_S)
    assert len(rang) == 1, "of each time that it stands still, what passes before the next tick is due may be counted"


def test_a_timer_that_is_due_lets_the_loop_read_first(loop: Loop, clock: AwakeClock) -> None:
    rang: list[str] = []
    clock.call_later(0.3, rang.append, "late")
    loop.now += 0.3
    loop.turn()
    loop.turn()
    assert rang == []
    loop.turn()
    assert rang == ["late"]


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_a_timer_that_is_cancelled_does_not_ring(loop: Loop, clock: AwakeClock, turns: int) -> None:
    rang: list[str] = []
    timer = clock.call_later(0.3, rang.append, "late")
    loop.now += 0.3
    for _ in range(turns):
        loop.turn()
    timer.cancel()
    loop.run(10.0)
    timer.cancel()
    assert rang == []


@pytest.mark.parametrize("new_loop", LOOPS)
def test_what_came_while_a_loop_was_held_up_is_read_before_a_timer_rings(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def check() -> list[str]:
        loop = asyncio.get_running_loop()
        clock = AwakeClock(loop)
        clock.start()
        order: list[str] = []
        mine, others = socket.socketpair()
        mine.setblocking(False)
        done = loop.create_future()
        with mine, others:
            loop.add_reader(mine, lambda: order.append("read") if mine.recv(9) else None)
            await asyncio.sleep(0)

            def rang() -> None:
                order.append("rang")
                done.set_result(None)

            clock.call_later(0.05, rang)
            others.send(b"in time")
            hold_up(0.2)  # less than the lateness that counts
            await asyncio.wait_for(done, 30)
            loop.remove_reader(mine)
        clock.close()
        return order

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(check()) == ["read", "rang"]


@pytest.mark.parametrize("new_loop", LOOPS)
@pytest.mark.parametrize("by_clock", [False, True])
def test_a_limit_ends_what_takes_longer_and_nothing_else(
    new_loop: Callable[[], asyncio.AbstractEventLoop], by_clock: bool
) -> None:
    async def check() -> None:
        clock = AwakeClock(asyncio.get_running_loop()) if by_clock else None
        async with limited(30.0, clock):
            await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            async with limited(0.01, clock):
                await asyncio.get_running_loop().create_future()
        with pytest.raises(ValueError, match="of its own"):
            async with limited(30.0, clock):
                raise ValueError("of its own")

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(check())
