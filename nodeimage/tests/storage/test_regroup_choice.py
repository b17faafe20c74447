"""When a chunk is checked again; the results of regrouping are tested with whole nodes (tests/storage)."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import CorruptLog
from headrace.storage.regroup import HURRY_CHUNKS, PAUSES_S, Regrouping

RESERVE = 1 << 20


def made(executor: ThreadPoolExecutor) -> Regrouping:
    runtime: Any = SimpleNamespace(loop=asyncio.get_running_loop(), executor=executor)
    return Regrouping(runtime=runtime, disk_reserve=RESERVE, done=lambda _key: None)


class OneChunk:
    """A log of one closed chunk. The first check of whether it needs regrouping fails; it does not need it."""

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
        regrouping = made(executor)
        with pytest.raises(CorruptLog):
            await regrouping.step([held])  # type: ignore[list-item]
        await regrouping.step([held])  # type: ignore[list-item]
        assert log.looks == 1, "not at once"
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: 1e12)
        for _ in range(2):
            await regrouping.step([held])  # type: ignore[list-item]
    assert log.looks == 2, "and then it is known"


class ManyChunks:
    """A log of closed chunks that all need regrouping, except the given ones; its helper process does nothing."""

    def __init__(self, waiting: int, *, sound: int = 0) -> None:
        self.waiting = waiting
        self.sound = sound
        self.free = RESERVE
        self.pauses: list[float] = []

    def closed_chunks(self) -> list[SimpleNamespace]:
        at = len(self.pauses)
        return [
            SimpleNamespace(start=each, end=each + 1, body=SimpleNamespace(regrouped=False))
            for each in [*range(-self.sound, 0), *range(at, at + self.waiting)]
        ]

    def needs_regroup(self, chunk: SimpleNamespace) -> bool:
        return bool(chunk.start >= 0)

    def has_room_to_regroup(self, _chunk: object, *, leave: int) -> bool:
        return self.free >= leave

    def regroup_command(self, _chunk: object, *, pauses_s: float) -> list[str]:
        self.pauses.append(pauses_s)
        return ["true"]

    def reopen_chunk(self, _chunk: object) -> None:
        pass


async def rounds(*logs: ManyChunks, count: int = 1) -> None:
    held = [SimpleNamespace(id=number, log=log, committed=10_000) for number, log in enumerate(logs, 1)]
    with ThreadPoolExecutor(1) as executor:
        regrouping = made(executor)
        for _ in range(count):
            await regrouping.step(held)  # type: ignore[arg-type]


async def test_the_helpers_of_a_round_share_its_pauses() -> None:
    logs = [ManyChunks(1), ManyChunks(0), ManyChunks(2)]
    await rounds(*logs, count=2)
    assert [log.pauses for log in logs] == [[PAUSES_S / 2] * 2, [], [PAUSES_S / 2] * 2]


async def test_a_helper_makes_no_pauses_while_many_chunks_wait() -> None:
    few, many = ManyChunks(HURRY_CHUNKS - 1), ManyChunks(HURRY_CHUNKS)
    await rounds(few, many)
    assert (few.pauses, many.pauses) == ([PAUSES_S / 2], [0])


async def test_chunks_that_need_no_regrouping_are_not_waited_for() -> None:
    log = ManyChunks(1, sound=HURRY_CHUNKS)
    await rounds(log, count=2)
    assert log.pauses == [PAUSES_S] * 2


async def test_half_of_the_reserve_is_not_for_regrouping() -> None:
    full, roomy = ManyChunks(1), ManyChunks(1)
    full.free = RESERVE // 2 - 1
    roomy.free = RESERVE // 2
    await rounds(full, roomy, full)
    assert (len(full.pauses), len(roomy.pauses)) == (0, 1)
