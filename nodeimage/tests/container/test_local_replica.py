"""A replica's files match the state in memory, whichever caller is cancelled and whatever happens at the same time."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn
from uuid import UUID

import pytest
from msgspec import structs

from headrace.base.errors import CorruptLog, KafkaError, StorageFull, SyncFailed
from headrace.base.ids import ContainerId, Epoch, NodeId, Position
from headrace.container import replica_folder
from headrace.container.history import History
from headrace.container.leader import Leader
from headrace.container.leader_state import Member
from headrace.container.local_replica import LocalReplica
from headrace.container.replica_folder import decode_record
from headrace.log import files as files_module
from headrace.log.container_log import ContainerLog, LogOptions
from headrace.log.files import FILE_HEAD_BYTES
from headrace.log.synced_mark import read_mark
from headrace.store.container_records import stamped
from headrace.store.records import ContainerRecord
from kit.log_writes import LogWrites, Threads
from kit.several_replicas import Unheard


class PlentyOfRoom:
    def check(self, length: int, *, from_reserve: bool = False) -> None:
        pass

    def lacked(self) -> None:
        pass


def fatal(reason: str) -> NoReturn:
    raise AssertionError(reason)


def fails_to_sync(folder: Path) -> None:
    raise OSError(errno.EIO, "the disk failed")


async def open_replica(
    folder: Path, executor: Threads, *, replaceable: bool = False, fsync: bool = True
) -> LocalReplica:
    return await LocalReplica.open(
        container_id=ContainerId(7),
        kind="data",
        node=NodeId(1),
        folder=folder,
        options=LogOptions(chunk_bytes=1 << 20, fsync=fsync),
        executor=executor,
        pool=executor.pool,
        room=PlentyOfRoom(),
        fatal=fatal,
        events=Unheard(),
        replaceable=replaceable,
    )


@pytest.fixture
async def replica(tmp_path: Path) -> AsyncIterator[LocalReplica]:
    """The only replica of its container, with the frames of two commands; it neither leads nor follows any longer."""
    with Threads() as executor:
        opened = await open_replica(tmp_path / "7", executor)
        container = await opened.lead(
            epoch=Epoch(1), in_sync=frozenset({opened.member}), replicas=(NodeId(1),), min_in_sync=1
        )
        await container.append_command(b"one")
        await container.append_command(b"two")
        await opened.stop()
        yield opened
        await opened.close()


def record_of(replica: LocalReplica) -> ContainerRecord:
    pair = (NodeId(1), UUID(replica.incarnation))
    return ContainerRecord(replica.id, replica.kind, NodeId(1), Epoch(1), (pair,), (NodeId(1),))


def behind_the_first(replica: LocalReplica) -> Position:
    """The position at which the second command begins: both have the same length."""
    return Position(replica.log.end // 2)


async def test_a_cut_goes_to_its_end_though_its_caller_is_cancelled(
    replica: LocalReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower that was made leader during a cut led with the log that was being cut."""
    position = behind_the_first(replica)
    cutting, may_go_on = threading.Event(), threading.Event()
    cut = ContainerLog.cut

    def slowly(folder: Path, at: Position, options: LogOptions) -> None:
        cutting.set()
        assert may_go_on.wait(10)
        cut(folder, at, options)

    monkeypatch.setattr(ContainerLog, "cut", slowly)
    caller = asyncio.create_task(replica.cut(position))
    assert await asyncio.to_thread(cutting.wait, 10)
    caller.cancel()
    await asyncio.wait([caller])
    stopping = asyncio.create_task(replica.stop())
    may_go_on.set()
    await stopping
    assert replica.log.end == position
    container = await replica.lead(
        epoch=Epoch(2), in_sync=frozenset({replica.member}), replicas=(NodeId(1),), min_in_sync=1
    )
    assert container.opened_at == position
    await asyncio.wait_for(container.append_command(b"next"), 10)


async def test_after_a_cut_that_failed_the_log_is_opened_again(
    replica: LocalReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = replica.log.end

    def fails(*_: object) -> None:
        raise StorageFull("no room")

    with monkeypatch.context() as patched:
        patched.setattr(ContainerLog, "cut", fails)
        with pytest.raises(StorageFull):
            await replica.cut(behind_the_first(replica))
    container = await replica.lead(
        epoch=Epoch(2), in_sync=frozenset({replica.member}), replicas=(NodeId(1),), min_in_sync=1
    )
    assert container.opened_at == end
    await asyncio.wait_for(container.append_command(b"next"), 10)


async def test_what_is_synced_is_marked_while_nothing_is_written_and_at_the_end(replica: LocalReplica) -> None:
    async with asyncio.timeout(10):
        while read_mark(replica.folder) < replica.log.end:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    container = await replica.lead(
        epoch=Epoch(2), in_sync=frozenset({replica.member}), replicas=(NodeId(1),), min_in_sync=1
    )
    await asyncio.wait_for(container.append_command(b"three"), 10)
    end = replica.log.end
    await replica.close()
    assert read_mark(replica.folder) == end


@pytest.mark.parametrize("replaceable", [False, True])
async def test_one_that_lost_its_synced_end_keeps_the_rest_as_another_incarnation(
    replica: LocalReplica, replaceable: bool
) -> None:
    """The end was acknowledged: if it were cut like a torn tail, the replica would still be in sync by its incarnation,
    and could lead without it."""
    position, incarnation = behind_the_first(replica), replica.incarnation
    path = replica.log.chunks()[-1].path
    await replica.saw(Epoch(4))
    await replica.close()
    raw = bytearray(path.read_bytes())
    raw[64 + position + 57] ^= 1
    path.write_bytes(raw)
    formats = [incarnation]
    for _ in range(2):  # from the second time on there is nothing to be noticed
        with Threads() as executor:
            found = await open_replica(replica.folder, executor, replaceable=replaceable)
            assert (found.log.end, found.seen, found.last_epoch) == (position, 4, 1)
            await found.close()
        formats.append(found.incarnation)
    assert formats[0] != formats[1] == formats[2]


async def test_a_damaged_replica_is_kept_beside_the_one_in_its_place_until_another_leads(
    replica: LocalReplica,
) -> None:
    """By the record others have what it had; but all of them may be damaged, and each would have thrown away what it
    had."""
    aside = replica.folder.with_name("7.damaged")
    (path,) = replica.folder.glob("*.chunk")
    await replica.close()
    raw = b"\0" * 8 + path.read_bytes()[8:]
    path.write_bytes(raw)

    with Threads() as executor:
        opened = partial(open_replica, replica.folder, executor)
        with pytest.raises(CorruptLog):
            await opened(replaceable=False)
        assert not aside.exists()
        for _ in range(2):  # the second time there is one in its place
            found = await opened(replaceable=True)
            assert (found.log.end, found.incarnation != replica.incarnation) == (0, True)
            assert (aside / path.name).read_bytes() == raw
            await found.close()
        found = await opened(replaceable=True)
        await found.saw(Epoch(4))
        assert aside.exists()
        await found.set_history(((Epoch(4), Position(0)),))
        assert not aside.exists()
        await found.close()


def fails(monkeypatch: pytest.MonkeyPatch, call: str, code: int, *, at: Path) -> None:
    """From now on the operating system's calls for this file fail, whatever its name is by then."""
    asked: Callable[..., Any] = getattr(os, call)
    stat, inode = os.stat, at.stat().st_ino

    def is_it(path: Any) -> bool:
        with suppress(FileNotFoundError):
            return stat(path).st_ino == inode
        return False

    def ask(path: Any, *args: Any, **kwargs: Any) -> Any:
        if is_it(path):
            raise OSError(code, os.strerror(code), str(path))
        return asked(path, *args, **kwargs)

    monkeypatch.setattr(os, call, ask)


@pytest.mark.parametrize("code", [errno.EIO, errno.EUCLEAN, errno.EBADMSG])
@pytest.mark.parametrize(
    ("call", "name"),
    [("open", "*.chunk"), ("open", "*.index"), ("stat", "*.index"), ("open", "synced"), ("listdir", ".")],
)
async def test_one_of_which_the_disk_cannot_read_what_it_keeps_of_a_file_is_damaged(
    replica: LocalReplica, monkeypatch: pytest.MonkeyPatch, call: str, name: str, code: int
) -> None:
    """File systems check that when a file is opened, looked up or removed, not when it is read."""
    aside = replica.folder.with_name("7.damaged")
    await replica.close()
    (chunk,) = replica.folder.glob("*.chunk")
    chunk.with_suffix(".index").touch()
    kept = {path.name for path in replica.folder.iterdir()}
    harmed = replica.folder if name == "." else next(replica.folder.glob(name))
    with Threads() as executor, monkeypatch.context() as patched:
        fails(patched, call, code, at=harmed)
        with pytest.raises(CorruptLog, match="the disk cannot read it"):
            await open_replica(replica.folder, executor)
        assert not aside.exists()
        found = await open_replica(replica.folder, executor, replaceable=True)
        assert (found.log.end, found.incarnation != replica.incarnation) == (0, True)
        await found.close()
    assert {path.name for path in aside.iterdir()} == kept


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOSPC, errno.EACCES, errno.ENOENT, errno.ESTALE])
async def test_one_that_cannot_be_opened_for_another_reason_is_not_damaged(
    replica: LocalReplica, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    await replica.close()
    (chunk,) = replica.folder.glob("*.chunk")
    with Threads() as executor:
        with monkeypatch.context() as patched:
            fails(patched, "open", code, at=chunk)
            with pytest.raises(OSError, match=os.strerror(code)):
                await open_replica(replica.folder, executor, replaceable=True)
        found = await open_replica(replica.folder, executor, replaceable=True)
        assert (found.log.end, found.incarnation) == (replica.log.end, replica.incarnation)
        await found.close()


async def test_one_on_a_disk_that_cannot_be_reached_at_all_is_not_damaged(
    replica: LocalReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replica cannot continue: it is opened again and again until the disk is back, or something else ends the
    node."""
    await replica.close()
    (chunk,) = replica.folder.glob("*.chunk")
    with Threads() as executor:
        with monkeypatch.context() as patched:
            fails(patched, "open", errno.EIO, at=chunk)
            fails(patched, "rename", errno.EIO, at=replica.folder)
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                await open_replica(replica.folder, executor, replaceable=True)
        found = await open_replica(replica.folder, executor, replaceable=True)
        assert (found.log.end, found.incarnation) == (replica.log.end, replica.incarnation)
        await found.close()


async def test_of_two_changes_at_a_time_none_is_lost(replica: LocalReplica) -> None:
    """A record that arrived while a follower adopted its leader's history put the old history back."""
    history: History = ((Epoch(1), Position(0)), (Epoch(5), behind_the_first(replica)))
    await asyncio.gather(replica.set_history(history), replica.remember(record_of(replica)), replica.saw(Epoch(5)))
    state = replica_folder.read(replica.folder)
    assert state is not None
    assert (state.history, state.seen) == (history, 5)
    assert decode_record(state.record) == record_of(replica)
    assert (replica.history, replica.seen) == (history, 5)


async def test_a_change_whose_caller_is_cancelled_comes_before_those_after_it(
    replica: LocalReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 4: an old write that was stored late reverted the highest epoch."""
    writing, may_go_on = threading.Event(), threading.Event()
    write = replica_folder.write

    def slowly_at_first(folder: Path, state: replica_folder.ReplicaFile) -> None:
        if not writing.is_set():
            writing.set()
            assert may_go_on.wait(10)
        write(folder, state)

    monkeypatch.setattr(replica_folder, "write", slowly_at_first)
    caller = asyncio.create_task(replica.remember(record_of(replica)))
    assert await asyncio.to_thread(writing.wait, 10)
    caller.cancel()
    later = asyncio.create_task(replica.saw(Epoch(9)))
    await asyncio.wait([caller])
    may_go_on.set()
    await later
    state = replica_folder.read(replica.folder)
    assert state is not None
    assert state.seen == 9
    assert decode_record(state.record) == record_of(replica)


@pytest.mark.parametrize("traced", [True, False], ids=["by the ids of changes", "by its epoch, at level 0"])
async def test_a_record_whose_turn_comes_late_does_not_take_a_later_one_back(
    replica: LocalReplica, traced: bool
) -> None:
    """A record that was read before the in-sync set was put was saved after it: a store restored to an earlier state
    would then have lacked nothing that was known, although records had been acknowledged by the new set."""
    older = stamped(record_of(replica), traced=traced)
    newer = stamped(structs.replace(older, wanted=3, epoch=Epoch(older.epoch + (not traced))), traced=traced)
    await asyncio.gather(replica.remember(newer), replica.remember(older))
    assert replica.known_record == newer
    state = replica_folder.read(replica.folder)
    assert state is not None
    assert decode_record(state.record) == newer


async def test_what_was_said_to_be_committed_behind_its_end_counts_no_more_once_it_leads(replica: LocalReplica) -> None:
    """Invariant 2: an unclean recovery made it leader without those frames, and what it then appends there
    only it has."""
    end = replica.log.end
    replica.learn_committed(Position(10 * end))
    container = await replica.lead(
        epoch=Epoch(2),
        in_sync=frozenset({replica.member, Member(NodeId(2), "another")}),
        replicas=(NodeId(1), NodeId(2)),
        min_in_sync=2,
    )
    alone = container.append_command(b"alone")
    await replica.stop()
    with pytest.raises(KafkaError):
        await alone
    assert replica.log.synced > end
    assert replica.committed == end


async def test_a_damaged_replica_goes_on_empty_as_another_incarnation(replica: LocalReplica) -> None:
    before = replica.incarnation
    await replica.renew()
    assert replica.incarnation != before
    assert replica_folder.read(replica.folder) == replica_folder.ReplicaFile(format=replica.incarnation)
    assert (replica.log.end, replica.committed, replica.history, replica.led) == (0, 0, (), 0)


def boot_of(replica: LocalReplica) -> str:
    """The `boot` in the file."""
    state = replica_folder.read(replica.folder)
    assert state is not None
    return state.boot


async def lead_unsynced(replica: LocalReplica) -> Leader:
    await replica.set_durability(fsync=False)
    container = await replica.lead(
        epoch=Epoch(2), in_sync=frozenset({replica.member}), replicas=(NodeId(1),), min_in_sync=1
    )
    await container.append_command(b"in the page cache")
    return container


async def test_a_replica_is_synced_from_now_on_and_says_so_once_all_of_it_is(
    replica: LocalReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariants 5, 13: durability: memory became fsync while the container was led."""
    container = await lead_unsynced(replica)
    assert boot_of(replica)
    (chunk,) = replica.folder.glob("*.chunk")
    synced: set[int] = set()
    sync, write = os.fsync, replica_folder.write

    def noted(fd: int) -> None:
        sync(fd)
        synced.add(os.fstat(fd).st_ino)

    def written(folder: Path, state: replica_folder.ReplicaFile) -> None:
        assert state.boot or chunk.stat().st_ino in synced, "it says so before it is"
        write(folder, state)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(replica_folder, "write", written)
    await replica.set_durability(fsync=True)
    assert boot_of(replica) == ""
    assert replica.log.options.fsync
    assert replica.leader is container, "it is led all the while"
    await replica.set_durability(fsync=False)
    assert boot_of(replica)
    assert not replica.log.options.fsync


async def test_what_was_being_written_without_a_sync_is_synced_too(
    log_writes: LogWrites, replica: LocalReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = await lead_unsynced(replica)
    sync_files = replica_folder.sync_files
    writing, syncing = threading.Event(), threading.Event()
    too_early = []

    def slowly(_path: Path) -> None:
        writing.set()
        too_early.append(syncing.wait(0.3))

    def noted(folder: Path) -> None:
        syncing.set()
        sync_files(folder)

    log_writes.after(slowly)
    monkeypatch.setattr(replica_folder, "sync_files", noted)
    appended = container.append_command(b"under way")
    assert await asyncio.to_thread(writing.wait, 10)
    await replica.set_durability(fsync=True)
    await appended
    assert too_early == [False]
    assert syncing.is_set()


async def test_what_another_run_had_not_synced_is_before_it_counts_as_synced(tmp_path: Path) -> None:
    """A node ran with --no-fsync, was killed, and starts without that option."""
    with Threads() as executor:
        for fsync in (False, True):
            replica = await open_replica(tmp_path / "7", executor, fsync=fsync)
            assert boot_of(replica)
            await replica.set_durability(fsync=fsync)
            assert bool(boot_of(replica)) is not fsync
            await replica.cycle.close()  # as a kill leaves it


async def test_what_cannot_be_synced_ends_the_process(replica: LocalReplica, monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 13: a second sync would succeed, although the data are not on the disk."""
    await lead_unsynced(replica)

    with monkeypatch.context() as patched:
        patched.setattr(replica_folder, "sync_files", fails_to_sync)
        with pytest.raises(AssertionError, match="could not be"):
            await replica.set_durability(fsync=True)
    assert boot_of(replica)
    found = replica_folder.read(replica.folder)
    assert found is not None
    assert found.unsynced, "the next run is not to ask again before it has written all anew"


@pytest.mark.parametrize("durable", [True, False])
async def test_that_a_sync_failed_is_noted_where_no_mark_tells_what_was_synced(
    replica: LocalReplica, durable: bool
) -> None:
    if not durable:
        await lead_unsynced(replica)
    with pytest.raises(AssertionError, match="a chunk could not be closed"):
        replica._fatal("a chunk could not be closed")
    found = replica_folder.read(replica.folder)
    assert found is not None
    assert found.unsynced is not durable


async def test_what_a_sync_failed_on_is_written_again_before_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel marks as clean what it could not write, so a second sync has no effect."""
    with Threads() as executor:
        replica = await open_replica(tmp_path / "7", executor, fsync=False)
        container = await lead_unsynced(replica)
        for _ in range(3):
            await container.append_command(bytes(700_000))
        await replica.cycle.close()
        with monkeypatch.context() as patched:
            patched.setattr(replica_folder, "sync_files", fails_to_sync)
            with pytest.raises(OSError, match="the disk failed"):
                replica_folder.left_clean(replica.folder, replica._state, held=replica.log.synced)
        files = [path for path in replica.folder.iterdir() if path.suffix == ".chunk"]
        before = {path: (path.read_bytes(), path.stat().st_blocks) for path in files}
        written: dict[str, int] = {}
        write_all, sync_file = files_module.write_all, files_module.sync_file

        def write(fd: int, offset: int, buffers: Sequence[bytes]) -> int:
            where = os.readlink(f"/proc/self/fd/{fd}")
            written[where] = written.get(where, 0) + sum(map(len, buffers))
            return write_all(fd, offset, buffers)

        def sync(fd: int) -> None:
            synced.append(os.readlink(f"/proc/self/fd/{fd}"))
            sync_file(fd)

        synced: list[str] = []
        with monkeypatch.context() as patched:
            patched.setattr(files_module, "write_all", write)
            patched.setattr(files_module, "sync_file", sync)
            for _ in range(2):
                found = replica_folder.read(replica.folder)
                assert found is not None
                again = await open_replica(tmp_path / "7", executor, fsync=True)
                await again.cycle.close()
        for path, (content, blocks) in before.items():
            assert path.read_bytes() == content
            assert path.stat().st_blocks <= blocks, "holes stay holes"
            assert synced.count(str(path)) == 1, "once: the second start has nothing to do"
        assert sum(written.values()) > 2_100_000
        found = replica_folder.read(replica.folder)
        assert found is not None
        assert not found.unsynced


@pytest.mark.parametrize("lost", [True, False])
@pytest.mark.parametrize("at", ["the end", "another durability", "a chunk", "a start to be synced"])
async def test_what_the_page_cache_let_go_after_a_sync_had_failed_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str, *, lost: bool
) -> None:
    """Invariants 5, 14: the machine keeps running, and no mark shows what an unsynced log held. Usually all of it is
    still there: then the replica remains in sync."""
    with Threads() as executor:
        replica = await open_replica(tmp_path / "7", executor, fsync=False)
        container = await lead_unsynced(replica)
        for number in range(3):
            await container.append_command(bytes([number]) * 10_000)
        if at == "a start to be synced":
            await replica.cycle.close()
            replica = await open_replica(tmp_path / "7", executor, fsync=True)
        steps = {
            "the end": replica.close,
            "another durability": partial(replica.set_durability, fsync=True),
            "a chunk": partial(asyncio.to_thread, replica._fatal, "a chunk could not be closed"),
            "a start to be synced": partial(replica.set_durability, fsync=True),
        }
        with monkeypatch.context() as patched:
            patched.setattr(replica_folder, "sync_files", fails_to_sync)
            with pytest.raises((OSError, AssertionError)):
                await steps[at]()
        await replica.cycle.close()
        (chunk,) = replica.folder.glob("*.chunk")
        if lost:
            with chunk.open("r+b") as file:
                file.seek(FILE_HEAD_BYTES + replica.log.end - 9_000)
                file.write(bytes(9_000))
        again = await open_replica(tmp_path / "7", executor, fsync=False)
        assert (again.incarnation != replica.incarnation) is lost
        assert (again.log.end < replica.log.end) is lost
        await again.cycle.close()
        third = await open_replica(tmp_path / "7", executor, fsync=False)
        assert third.incarnation == again.incarnation
        await third.cycle.close()


async def test_a_sync_that_failed_while_a_replica_was_cut_does_not_make_it_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`held` must not exceed that position."""
    with Threads() as executor:
        replica = await open_replica(tmp_path / "7", executor, fsync=False)
        container = await lead_unsynced(replica)
        first = await container.append_command(b"stays")
        await container.append_command(b"is cut")
        await replica.stop()
        cut = ContainerLog.cut

        def fails(folder: Path, position: Position, options: LogOptions) -> None:
            cut(folder, position, options)
            raise SyncFailed("the disk failed")

        with monkeypatch.context() as patched:
            patched.setattr(ContainerLog, "cut", fails)
            with pytest.raises(AssertionError, match="the disk failed"):
                await replica.cut(first)
        again = await open_replica(tmp_path / "7", executor, fsync=False)
        assert (again.incarnation, again.log.end) == (replica.incarnation, first)
        await again.cycle.close()


@pytest.mark.parametrize("step", ["start", "cut", "close a chunk"])
async def test_a_sync_that_fails_in_files_of_the_log_ends_the_process(
    replica: LocalReplica, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Invariant 13: a second sync would succeed, whatever is on the disk."""
    sync = os.fsync

    def fails(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(".chunk"):
            raise OSError(errno.EIO, "Input/output error")
        sync(fd)

    async def opened_again() -> None:
        await replica.close()
        with Threads() as executor:
            await open_replica(replica.folder, executor, replaceable=True)

    steps = {
        "start": opened_again,
        "cut": partial(replica.cut, behind_the_first(replica)),
        "close a chunk": partial(asyncio.to_thread, replica.log.close_chunk, replica.log.chunks()[0]),
    }
    replica.log.close_open_chunk()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fails)
        with pytest.raises(AssertionError, match=r"container 7: .*\.chunk could not be synced: Input/output error"):
            await steps[step]()
