"""When a chunk is looked at again; that regrouping does what it should is tested with whole nodes (tests/storage)."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from headrace.broker.regrouping import HURRY_CHUNKS, REST_S, Regrouping
from headrace.errors import CorruptLog


class OneChunk:
    """A log of one closed chunk, of which it cannot be read at first whether it needs regrouping; it does not."""

    def __init__(self) -> None:
        self.looks = 0

    def closed_chunks(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(start=0, end=100, body=SimpleNamespace(regrouped=False))]

    def needs_regroup(self, _chunk: object) -> bool:
        self.looks += 1
        if self.looks == 1:
            raise CorruptLog("an index cannot be read")
        return False


async def test_a_chunk_that_could_not_be_looked_at_is_looked_at_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    log = OneChunk()
    held = SimpleNamespace(id=1, log=log, committed=100)
    with ThreadPoolExecutor(1) as executor:
        broker = SimpleNamespace(loop=asyncio.get_running_loop(), executor=executor)
        regrouping = Regrouping(broker, done=lambda _key: None)  # type: ignore[arg-type]
        with pytest.raises(CorruptLog):
            await regrouping.step([held])  # type: ignore[list-item]
        await regrouping.step([held])  # type: ignore[list-item]
        assert log.looks == 1, "not at once"
        monkeypatch.setattr(broker.loop, "time", lambda: 1e12)
        for _ in range(2):
            await regrouping.step([held])  # type: ignore[list-item]
    assert log.looks == 2, "and then it is known"


class ManyChunks:
    """A log of closed chunks that all need regrouping; its helper sleeps."""

    def __init__(self, helper: list[str], *, waiting: int = 1) -> None:
        self.helper = helper
        self.waiting = waiting
        self.rests: list[float] = []

    def closed_chunks(self) -> list[SimpleNamespace]:
        at = len(self.rests)
        return [
            SimpleNamespace(start=100 * each, end=100 * each + 100, body=SimpleNamespace(regrouped=False))
            for each in range(at, at + self.waiting)
        ]

    def needs_regroup(self, _chunk: object) -> bool:
        return True

    def regroup_command(self, _chunk: object, *, rest_s: float) -> list[str]:
        self.rests.append(rest_s)
        return self.helper

    def reopen_chunk(self, _chunk: object) -> None:
        pass


async def test_helpers_rest_for_so_long_in_a_round_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.regrouping.REST_S", 0.3)
    log = ManyChunks(["sleep", "0.2"])
    held = SimpleNamespace(id=1, log=log, committed=10_000)
    with ThreadPoolExecutor(1) as executor:
        broker = SimpleNamespace(loop=asyncio.get_running_loop(), executor=executor)
        regrouping = Regrouping(broker, done=lambda _key: None)  # type: ignore[arg-type]
        await regrouping.step([held] * 3)  # type: ignore[list-item]
        await regrouping.step([held])  # type: ignore[list-item]
    first, second, third, next_round = log.rests
    assert first == pytest.approx(0.3, abs=0.05)
    assert 0 <= second <= 0.1
    assert third == 0
    assert next_round == pytest.approx(0.3, abs=0.05)
    assert regrouping.regrouped == 4


async def test_a_helper_does_not_rest_while_many_chunks_wait() -> None:
    log = ManyChunks(["true"], waiting=HURRY_CHUNKS)
    held = SimpleNamespace(id=1, log=log, committed=10_000)
    with ThreadPoolExecutor(1) as executor:
        broker = SimpleNamespace(loop=asyncio.get_running_loop(), executor=executor)
        regrouping = Regrouping(broker, done=lambda _key: None)  # type: ignore[arg-type]
        await regrouping.step([held])  # type: ignore[list-item]
        log.waiting -= 1
        await regrouping.step([held])  # type: ignore[list-item]
    assert log.rests == [0, pytest.approx(REST_S, abs=0.1)]
