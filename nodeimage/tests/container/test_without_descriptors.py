"""A replica whose process has run out of file descriptors: everything waits, nothing is fatal, nothing is lost."""

import asyncio
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from headrace.base.errors import OutOfDescriptors
from headrace.base.ids import ContainerId, Epoch, NodeId
from headrace.container import local_replica, replica_folder
from headrace.container.leader import Leader
from headrace.container.local_replica import LocalReplica
from headrace.log.container_log import LogOptions
from kit.log_writes import Threads
from kit.several_replicas import Unheard

PAYLOAD = bytes(20 << 10)


class PlentyOfRoom:
    def __init__(self) -> None:
        self.lacking = 0

    def check(self, length: int, *, from_reserve: bool = False) -> None:
        pass

    def lacked(self) -> None:
        self.lacking += 1


def fatal(reason: str) -> NoReturn:
    raise AssertionError(reason)


@contextmanager
def no_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


Open = Callable[..., Awaitable[LocalReplica]]


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Open]:
    found: list[LocalReplica] = []
    with Threads() as executor:

        async def one(*, fsync: bool = True, replaceable: bool = False) -> LocalReplica:
            replica = await LocalReplica.open(
                container_id=ContainerId(7),
                kind="data",
                node=NodeId(1),
                folder=tmp_path / "7",
                options=LogOptions(chunk_bytes=64 << 10, open_file_bytes=64 << 10, fsync=fsync),
                executor=executor,
                pool=executor.pool,
                room=PlentyOfRoom(),
                fatal=fatal,
                events=Unheard(),
                replaceable=replaceable,
            )
            found.append(replica)
            return replica

        yield one
        for replica in found:
            await replica.close()


async def leading(replica: LocalReplica) -> Leader:
    return await replica.lead(
        epoch=Epoch(replica.seen + 1),
        in_sync=frozenset({replica.member}),
        replicas=(NodeId(1),),
        min_in_sync=1,
    )


async def test_what_is_appended_waits_and_is_answered_when_there_are_descriptors_again(opened: Open) -> None:
    replica = await opened()
    container = await leading(replica)
    await asyncio.wait_for(container.append_command(PAYLOAD), 10)
    replica.log.make_spare()
    with no_descriptors():
        appended = [container.append_command(PAYLOAD) for _ in range(4)]  # the spare becomes a chunk
        assert len(replica.log.chunks()) == 2
        done, waiting = await asyncio.wait(appended, timeout=0.6)
        assert (len(done), len(waiting)) == (0, 4)
        committed = container.committed
    await asyncio.wait_for(asyncio.gather(*waiting), 10)
    assert container.committed == replica.log.end > committed
    end = replica.log.end
    await replica.close()
    assert (await opened()).log.end == end


async def test_a_start_waits_and_keeps_what_is_there(opened: Open) -> None:
    replica = await opened()
    container = await leading(replica)
    await asyncio.wait_for(container.append_command(PAYLOAD), 10)
    end, incarnation = replica.log.end, replica.incarnation
    await replica.close()
    with no_descriptors():
        for replaceable in (False, True):
            with pytest.raises(OutOfDescriptors):
                await opened(replaceable=replaceable)
    found = await opened(replaceable=True)
    assert (found.log.end, found.incarnation) == (end, incarnation)
    assert not replica_folder.has_aside(replica.folder)


async def test_the_files_that_are_to_be_synced_are_synced_later(opened: Open) -> None:
    replica = await opened(fsync=False)
    container = await leading(replica)
    await asyncio.wait_for(container.append_command(PAYLOAD), 10)
    with no_descriptors(), pytest.raises(OutOfDescriptors):
        await replica.set_durability(fsync=True)
    await replica.set_durability(fsync=True)
    state = replica_folder.read(replica.folder)
    assert state is not None
    assert (state.boot, state.unsynced) == ("", False)


async def test_an_epoch_is_not_heard_of_before_it_is_kept(opened: Open) -> None:
    replica = await opened()
    with no_descriptors(), pytest.raises(OutOfDescriptors):
        await replica.saw(Epoch(9))
    assert replica.seen < 9
    await replica.saw(Epoch(9))
    state = replica_folder.read(replica.folder)
    assert state is not None
    assert state.seen == 9


async def test_a_damaged_replica_is_made_anew_later(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_replica, "RETRY_S", 0.02)
    replica = await opened()
    container = await leading(replica)
    await asyncio.wait_for(container.append_command(PAYLOAD), 10)
    incarnation = replica.incarnation
    with no_descriptors():
        renewing = asyncio.create_task(replica.renew())
        await asyncio.wait([renewing], timeout=0.2)
        assert not renewing.done()
    await asyncio.wait_for(renewing, 10)
    assert (replica.log.end, replica.incarnation != incarnation) == (0, True)


async def test_a_cut_is_made_later(opened: Open) -> None:
    replica = await opened()
    container = await leading(replica)
    await asyncio.wait_for(container.append_command(PAYLOAD), 10)
    position = replica.log.end
    await asyncio.wait_for(container.append_command(PAYLOAD), 10)
    end = replica.log.end
    await replica.stop()
    with no_descriptors():
        with pytest.raises(OutOfDescriptors):
            await replica.cut(position)
        with pytest.raises(OutOfDescriptors):
            await replica.ready()
    await replica.ready()
    assert replica.log.end == end
    await replica.cut(position)
    assert replica.log.end == position
