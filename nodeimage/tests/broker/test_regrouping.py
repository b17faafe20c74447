"""When a chunk is looked at again; that regrouping does what it should is tested with whole nodes (tests/storage)."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from headrace.broker.regrouping import HURRY_CHUNKS, Regrouping
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
    """A log of closed chunks that all need regrouping; its helper is `true`."""

    def __init__(self, chunks: int) -> None:
        self.chunks = [
            SimpleNamespace(start=100 * at, end=100 * at + 100, body=SimpleNamespace(regrouped=False))
            for at in range(chunks)
        ]
        self.hurried: list[bool] = []

    def closed_chunks(self) -> list[SimpleNamespace]:
        return self.chunks

    def needs_regroup(self, _chunk: object) -> bool:
        return True

    def regroup_command(self, _chunk: object, *, hurry: bool) -> list[str]:
        self.hurried.append(hurry)
        return ["true"]

    def reopen_chunk(self, chunk: SimpleNamespace) -> None:
        chunk.body.regrouped = True


async def test_a_helper_rests_while_few_chunks_wait() -> None:
    log = ManyChunks(HURRY_CHUNKS + 1)
    held = SimpleNamespace(id=1, log=log, committed=10_000)
    with ThreadPoolExecutor(1) as executor:
        broker = SimpleNamespace(loop=asyncio.get_running_loop(), executor=executor)
        regrouping = Regrouping(broker, done=lambda _key: None)  # type: ignore[arg-type]
        for _ in log.chunks:
            await regrouping.step([held])  # type: ignore[list-item]
    assert log.hurried == [True, True, *[False] * (HURRY_CHUNKS - 1)]
    assert regrouping.regrouped == len(log.chunks)
