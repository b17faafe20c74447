"""Whether more bytes are pending for the disk than memory should hold, and until when."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import ContainerId, Position
from headrace.kafka import back_pressure
from headrace.kafka.back_pressure import MAX_PENDING_BYTES, PENDING_LOOK_BYTES, BackPressure
from headrace.kafka.counters import Counters

HALF = MAX_PENDING_BYTES // 2


def container(pending: int) -> Any:
    return SimpleNamespace(log=SimpleNamespace(pending_bytes=pending, end=Position(pending)))


def made(*pending: int) -> tuple[BackPressure, dict[ContainerId, Any], Counters]:
    led = {ContainerId(number): container(size) for number, size in enumerate(pending)}
    counters = Counters()
    return BackPressure(led=led, counters=counters), led, counters


def test_all_containers_count_together() -> None:
    pressure, led, _ = made(HALF, HALF)
    assert not pressure.saturated
    led[ContainerId(1)].log.pending_bytes += 1
    assert pressure.saturated


def test_it_is_looked_at_once_for_each_mib_of_requests_and_all_the_time_while_it_is_so() -> None:
    pressure, led, counters = made(0)
    led[ContainerId(0)].log.pending_bytes = 3 * HALF
    assert not pressure.was_saturated, "nothing has come since the last look"
    counters.bytes_in = PENDING_LOOK_BYTES
    assert pressure.was_saturated
    led[ContainerId(0)].log.pending_bytes = 0
    assert not pressure.was_saturated


async def test_who_waits_goes_on_when_the_busiest_has_written(monkeypatch: pytest.MonkeyPatch) -> None:
    pressure, led, _ = made(HALF, 2 * HALF)
    waited: list[Any] = []

    async def committed_to(busiest: Any, position: Position, *, timeout_s: float) -> None:
        waited.append((busiest, position))
        busiest.log.pending_bytes = 0

    monkeypatch.setattr(back_pressure, "committed_to", committed_to)
    await pressure.not_saturated()
    assert waited == [(led[ContainerId(1)], 2 * HALF)]


async def test_a_container_that_cannot_commit_is_asked_again_until_its_disk_has_caught_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pressure, _, _ = made(3 * HALF)
    asked = 0

    async def committed_to(busiest: Any, position: Position, *, timeout_s: float) -> None:
        nonlocal asked
        asked += 1
        if asked == 3:
            busiest.log.pending_bytes = 0
        raise KafkaError(Code.LEADER_NOT_AVAILABLE, "its followers lag")

    monkeypatch.setattr(back_pressure, "committed_to", committed_to)
    async with asyncio.timeout(60):
        await pressure.not_saturated()
    assert asked == 3
