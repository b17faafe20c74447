"""One timer for all deadlines."""

import asyncio
import time

import uvloop

from headrace.base.deadlines import Deadlines


async def test_deadlines_run_in_the_order_of_their_times() -> None:
    deadlines = Deadlines(asyncio.get_running_loop())
    ran: list[str] = []
    done = asyncio.Event()
    deadlines.after(0.02, lambda: (ran.append("later"), done.set()))
    deadlines.after(0.01, lambda: ran.append("sooner"))
    await asyncio.wait_for(done.wait(), 5)
    assert ran == ["sooner", "later"]


def test_a_deadline_is_never_early_on_a_clock_of_whole_milliseconds() -> None:
    """The loop is kept busy, since a loop that sleeps wakes late, which hides the fault."""

    async def waited() -> list[float]:
        deadlines, times = Deadlines(asyncio.get_running_loop()), []
        for _ in range(50):
            ended: list[float] = []
            began = time.monotonic()
            deadlines.after(0.003, lambda ended=ended: ended.append(time.monotonic()))
            for _ in range(1_000_000):
                await asyncio.sleep(0)
                if ended:
                    break
            times.append(ended[0] - began)
        return times

    assert min(uvloop.run(waited())) >= 0.003


async def test_a_cancelled_deadline_does_not_run() -> None:
    deadlines = Deadlines(asyncio.get_running_loop())
    ran: list[int] = []
    done = asyncio.Event()
    cancelled = [deadlines.after(0.001, lambda: ran.append(1)) for _ in range(500)]
    deadlines.after(0.01, done.set)
    for deadline in cancelled:
        deadline.cancel()
    await asyncio.wait_for(done.wait(), 5)
    assert ran == []


async def test_a_deadline_that_sets_another_one() -> None:
    deadlines = Deadlines(asyncio.get_running_loop())
    done = asyncio.Event()
    deadlines.after(0.001, lambda: deadlines.after(0.001, done.set))
    await asyncio.wait_for(done.wait(), 5)


async def test_a_deadline_that_fails_stops_no_other() -> None:
    loop = asyncio.get_running_loop()
    failures: list[object] = []
    loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
    deadlines = Deadlines(loop)
    done = asyncio.Event()
    failing = RuntimeError("a fault in a callback")

    def fail() -> None:
        raise failing

    deadlines.after(0.001, fail)
    deadlines.after(0.002, done.set)
    await asyncio.wait_for(done.wait(), 5)
    assert failures == [failing]


async def test_a_cancelled_deadline_whose_time_has_come_is_counted_no_longer() -> None:
    deadlines = Deadlines(asyncio.get_running_loop())
    for _ in range(3):
        done = asyncio.Event()
        deadlines.after(0.001, lambda: None).cancel()
        assert deadlines._cancelled == 1
        deadlines.after(0.002, done.set)
        await asyncio.wait_for(done.wait(), 5)
        assert deadlines._cancelled == 0
