"""A partitionlet is opened once, whichever nodes request it, and never behind its seal."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import Code, KafkaError, StorageFull
from headrace.base.ids import Epoch, Position
from headrace.base.runtime import Runtime
from headrace.catalog.rows import INTENDED, OPEN, SEALED
from headrace.log.frames import FrameType
from headrace.partitions.rolls import opening as module
from headrace.partitions.rolls.frames import Open, read_open
from headrace.partitions.rolls.opening import AlreadySealed, Opening

ASKED = Open(9, "/s", "t", b"t" * 16, 0, 100, 2, 1)


class Container:
    """A container led here in epoch 4: its frames of the partitionlet, and those that are written to it."""

    id = 7
    epoch = Epoch(4)

    def __init__(self, *frames: tuple[FrameType, int, int]) -> None:
        self.state = SimpleNamespace(epoch_start=Position(0))
        controls = [SimpleNamespace(type=kind, epoch=epoch, first=first) for kind, epoch, first in frames]
        self.log = SimpleNamespace(controls_of=lambda partitionlet: controls)
        self.written: list[Open] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.full = False
        self.waited = 0

    async def append_control(self, type: FrameType, payload: bytes, **fields: Any) -> None:
        assert type is FrameType.OPEN
        await self.gate.wait()
        if self.full:
            raise StorageFull("the disk is full")
        assert fields == {"partitionlet": 9, "first": 100, "last": 99, "from_reserve": True}
        self.written += read_open(payload)

    async def all_committed(self) -> None:
        self.waited += 1


class Catalog:
    """A catalog with the given state of the partitionlet; None: without the partitionlet."""

    def __init__(self, state: int | None = INTENDED, epoch: int = -1) -> None:
        row = SimpleNamespace(id=9, state=state, container_epoch=Epoch(epoch))
        self.reader = SimpleNamespace(
            topics=SimpleNamespace(by_id=lambda topic_id: None if state is None else SimpleNamespace(number=5)),
            chains=SimpleNamespace(chain=lambda topic, partition: [SimpleNamespace(id=8, state=SEALED), row]),
        )

    async def query(self, function: Any) -> Any:
        return function(self.reader)


@pytest.fixture
async def runtime(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Runtime]:
    async def serves(container: Any, position: Position, *, timeout_s: float) -> None:
        assert position == container.state.epoch_start

    monkeypatch.setattr(module, "committed_to", serves)
    clock: Any = None
    with ThreadPoolExecutor(1) as executor:
        made = Runtime(executor=executor, clock=clock)
        yield made
        await made.end_tasks()
        made.close()


async def opened(runtime: Runtime, container: Container, catalog: Catalog | None = None) -> Epoch:
    given: Any = container
    known: Any = catalog or Catalog()
    return await Opening(runtime=runtime, catalog=known).open(given, ASKED)


async def test_a_frame_says_the_epoch_in_which_it_was_opened(runtime: Runtime) -> None:
    container = Container()
    assert await opened(runtime, container) == 4
    (frame,) = container.written
    assert (frame.partitionlet, frame.container_epoch, frame.first) == (9, 4, 100)


async def test_two_that_ask_at_once_write_one_frame(runtime: Runtime) -> None:
    container: Any = Container()
    container.gate.clear()
    catalog: Any = Catalog()
    opening = Opening(runtime=runtime, catalog=catalog)
    both = [asyncio.create_task(opening.open(container, ASKED)) for _ in range(2)]
    await asyncio.sleep(0)
    both[0].cancel()
    container.gate.set()
    assert await both[1] == 4
    assert len(container.written) == 1


async def test_what_is_open_already_is_not_opened_again(runtime: Runtime) -> None:
    container = Container()
    assert await opened(runtime, container, Catalog(OPEN, epoch=3)) == 3
    known_to_the_log = Container((FrameType.OPEN, 2, 100))
    assert await opened(runtime, known_to_the_log) == 2
    assert known_to_the_log.waited == 1, "its frame may not be committed yet"
    assert container.written == known_to_the_log.written == []


async def test_one_that_was_opened_elsewhere_in_it_is_opened_anew(runtime: Runtime) -> None:
    """The seal before it was lost and written again; nothing was written to the partitionlet."""
    container = Container((FrameType.OPEN, 2, 80))
    assert await opened(runtime, container) == 4
    assert len(container.written) == 1


async def test_nothing_is_opened_behind_its_seal(runtime: Runtime) -> None:
    container = Container((FrameType.OPEN, 2, 100), (FrameType.SEAL, 3, 100))
    with pytest.raises(AlreadySealed) as sealed:
        await opened(runtime, container)
    assert sealed.value.epoch == 2
    with pytest.raises(AlreadySealed):
        await opened(runtime, Container(), Catalog(SEALED))
    with pytest.raises(AlreadySealed) as unknown:
        await opened(runtime, Container((FrameType.SEAL, 3, 100)))
    assert unknown.value.epoch is None
    assert container.written == []


async def test_a_full_disk_is_told_as_such_and_the_next_one_that_asks_tries_again(runtime: Runtime) -> None:
    container: Any = Container()
    catalog: Any = Catalog(None)
    opening = Opening(runtime=runtime, catalog=catalog)
    container.full = True
    with pytest.raises(KafkaError) as full:
        await opening.open(container, ASKED)
    assert full.value.code is Code.KAFKA_STORAGE_ERROR
    container.full = False
    assert await opening.open(container, ASKED) == 4
