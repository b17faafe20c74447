"""When a chunk is looked at again; that regrouping does what it should is tested with whole nodes (tests/storage)."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from headrace.broker.regrouping import Regrouping
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
