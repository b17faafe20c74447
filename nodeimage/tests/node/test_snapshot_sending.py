"""Snapshots that a node sends to others: paced, checked, and released."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headrace.base.errors import HeadraceError
from headrace.base.ids import Position
from headrace.node import snapshot_sending
from headrace.node.snapshot_sending import GivenSnapshot, LentSnapshots, Pacer

CONTENT = bytes(range(200))


class Shared:
    """A snapshot's file."""

    def __init__(self, position: int = 100) -> None:
        self.position = Position(position)
        self.size = len(CONTENT)
        self.crc = 7
        self.found = (self.size, self.crc)
        self.fails: OSError | None = None
        self.done: list[str] = []

    def reader(self) -> Any:
        def read(at: int, length: int) -> bytes:
            if self.fails is not None:
                raise self.fails
            return CONTENT[at : at + length]

        return read

    def summed(self) -> Any:
        return lambda: self.found

    def damaged(self) -> None:
        self.done.append("damaged")

    def sent(self) -> None:
        self.done.append("sent")

    def close(self) -> None:
        self.done.append("closed")


def given(shared: Shared, executor: ThreadPoolExecutor, *, rate: int = 0) -> GivenSnapshot:
    file: Any = shared
    return GivenSnapshot(file, Pacer(rate), executor)


@pytest.fixture
def executor() -> Any:
    with ThreadPoolExecutor(1) as made:
        yield made


async def test_pieces_are_let_through_at_their_rate_in_the_order_of_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(round(seconds, 2))

    monkeypatch.setattr(snapshot_sending.asyncio, "sleep", sleep)
    pacer = Pacer(100)
    loop: Any = type("Clock", (), {"time": lambda self: 1000.0})()
    pacer._loop = loop
    for length in (50, 100, 1):
        await pacer.take(length)
    assert slept == [0.5, 1.5]
    free = Pacer(0)
    await free.take(10**12)
    assert len(slept) == 2


async def test_a_part_is_read_from_where_it_is_asked_for(executor: ThreadPoolExecutor) -> None:
    lent = LentSnapshots()
    position = await lent.lend(given(Shared(), executor))
    part, (piece,) = await lent.part(position, 150)
    assert (part.position, part.size, part.crc, piece) == (100, len(CONTENT), 7, CONTENT[150:])
    lent.close()
    with pytest.raises(HeadraceError, match="no longer held here"):
        await lent.part(position, 0)


async def test_one_that_has_changed_on_the_disk_is_not_lent(executor: ThreadPoolExecutor) -> None:
    shared = Shared()
    shared.found = (shared.size, 8)
    lent = LentSnapshots()
    with pytest.raises(HeadraceError, match="has changed on the disk"):
        await lent.lend(given(shared, executor))
    assert shared.done == ["damaged", "closed"]


async def test_a_second_one_of_a_position_is_let_go_of_and_the_first_kept(executor: ThreadPoolExecutor) -> None:
    lent = LentSnapshots()
    first, second = Shared(), Shared()
    await lent.lend(given(first, executor))
    await lent.lend(given(second, executor))
    assert (first.done, second.done) == ([], ["closed"])
    lent.close()
    assert first.done == ["closed"]


async def test_one_for_which_no_call_comes_is_let_go_of(
    executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_sending, "LENT_S", 0.0)
    shared = Shared()
    lent = LentSnapshots()
    await lent.lend(given(shared, executor))
    async with asyncio.timeout(60):
        while not shared.done:  # noqa: ASYNC110  # of a timer
            await asyncio.sleep(0)
    assert shared.done == ["closed"]


async def test_a_sector_that_the_disk_has_lost_is_damage_and_another_fault_is_none(
    executor: ThreadPoolExecutor,
) -> None:
    shared = Shared()
    lent = LentSnapshots()
    position = await lent.lend(given(shared, executor))
    shared.fails = OSError(13, "Permission denied")
    with pytest.raises(HeadraceError, match="cannot be read"):
        await lent.part(position, 0)
    assert shared.done == []
    shared.fails = OSError(5, "Input/output error")
    with pytest.raises(HeadraceError, match="cannot be read"):
        await lent.part(position, 0)
    assert shared.done == ["damaged"]
    lent.close()
