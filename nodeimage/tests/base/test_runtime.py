"""Background tasks: cancelled and awaited at the end; their exceptions are logged, except errors for clients."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from structlog.testing import capture_logs

from headrace.base.errors import Code, KafkaError, StorageFull
from headrace.base.runtime import Runtime


class Wall:
    """A clock that never advances."""

    def now(self) -> int:
        return 1_700_000_000_000


@pytest.fixture
async def runtime() -> AsyncIterator[Runtime]:
    with ThreadPoolExecutor(1) as executor:
        made = Runtime(executor=executor, clock=Wall())
        yield made
        await made.end_tasks()
        made.close()


async def test_the_time_is_the_clusters(runtime: Runtime) -> None:
    assert runtime.now() == 1_700_000_000_000
    assert abs(runtime.monotonic_ms() - runtime.loop.time() * 1000) < 1000


async def test_tasks_are_cancelled_and_waited_for(runtime: Runtime) -> None:
    cleaned: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append("cleaned up")

    task = runtime.spawn(waits())
    await asyncio.sleep(0)
    await runtime.end_tasks()
    assert cleaned == ["cleaned up"]
    assert task.cancelled()


async def fails(error: Exception) -> None:
    raise error


async def test_what_a_task_fails_with_is_logged(runtime: Runtime) -> None:
    with capture_logs() as lines:
        await asyncio.wait([runtime.spawn(fails(ValueError("a fault of ours")))])
        await asyncio.sleep(0)
    assert [(line["event"], line["log_level"]) for line in lines] == [("task failed", "error")]
    assert "a fault of ours" in lines[0]["error"]


@pytest.mark.parametrize("error", [KafkaError(Code.NOT_LEADER_OR_FOLLOWER), StorageFull("no room")])
async def test_errors_that_are_told_to_clients_are_not_logged(runtime: Runtime, error: Exception) -> None:
    with capture_logs() as lines:
        await asyncio.wait([runtime.spawn(fails(error))])
        await asyncio.sleep(0)
    assert lines == []


async def test_a_deadline_of_the_loops_clock_rings(runtime: Runtime) -> None:
    rang = asyncio.Event()
    runtime.call_at(runtime.monotonic_ms(), rang.set)
    async with asyncio.timeout(60):
        await rang.wait()
