"""The catalog over a command log whose commits the test controls."""

import asyncio
import errno
import os
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import Code, FolderRefused, KafkaError, StorageFull
from headrace.base.ids import Position
from headrace.base.levels import Level
from headrace.catalog.catalog import Catalog, CatalogFailed
from headrace.catalog.commands import encode
from headrace.catalog.reader import Reader
from headrace.catalog.streams import DeleteStream
from headrace.catalog.tables import SCHEMA
from headrace.catalog.users import PutUser
from headrace.tables import command_apply, snapshots
from headrace.tables.command_log import open_and_replay
from headrace.tables.transactions import applied
from kit.catalog import NOW, MemoryLog, SmallDisk, paths, stream, topics, until


async def test_a_command_is_visible_when_its_submitter_wakes(tmp_path: Path) -> None:
    catalog = await Catalog.open(tmp_path, MemoryLog())
    outcome = await catalog.submit(stream("/s"))
    assert outcome.changed
    assert await paths(catalog) == ["/s"]
    await catalog.close()


async def test_nothing_uncommitted_is_applied(tmp_path: Path) -> None:
    """Invariant 2."""
    log = MemoryLog()
    catalog = await Catalog.open(tmp_path, log)
    await catalog.submit(stream("/first"))
    log.held = True
    waiting = asyncio.create_task(catalog.submit(stream("/s")))
    await until(lambda: len(log.frames) == 2)
    assert await paths(catalog) == ["/first"]
    assert not waiting.done()
    log.commit()
    await waiting
    assert await paths(catalog) == ["/first", "/s"]
    await catalog.close()


async def test_a_refusal_is_raised_to_its_submitter_alone(tmp_path: Path) -> None:
    catalog = await Catalog.open(tmp_path, MemoryLog())
    good, bad, also_good = await asyncio.gather(
        catalog.submit(stream("/a")),
        catalog.submit(DeleteStream("/none", NOW)),
        catalog.submit(stream("/b")),
        return_exceptions=True,
    )
    assert not isinstance(good, BaseException)
    assert not isinstance(also_good, BaseException)
    assert isinstance(bad, KafkaError)
    assert bad.code is Code.UNKNOWN_TOPIC_OR_PARTITION
    await catalog.close()


async def test_listeners_hear_of_all_that_was_applied_in_order_before_submitters_wake(tmp_path: Path) -> None:
    catalog = await Catalog.open(tmp_path, MemoryLog())
    heard: list[str] = []

    def listen(batch: Any) -> None:
        for command, outcome in batch:
            assert outcome.stream.path == command.path
            heard.append(command.path)

    def broken(batch: Any) -> None:
        raise RuntimeError("a listener's fault")

    catalog.on_applied(broken)
    catalog.on_applied(listen)

    async def submit(path: str) -> None:
        await catalog.submit(stream(path))
        assert path in heard

    wanted = [f"/s{index}" for index in range(200)]
    with pytest.raises(KafkaError):
        await catalog.submit(DeleteStream("/none", NOW))
    await asyncio.gather(*map(submit, wanted))
    assert heard == wanted
    await catalog.close()


async def test_a_cancelled_submit_takes_place_all_the_same(tmp_path: Path) -> None:
    log = MemoryLog()
    log.held = True
    catalog = await Catalog.open(tmp_path, log)
    waiting = asyncio.create_task(catalog.submit(stream("/s")))
    refused = asyncio.create_task(catalog.submit(DeleteStream("/none", NOW)))
    await until(lambda: len(log.frames) == 2)
    for task in (waiting, refused):
        task.cancel()
    await asyncio.wait([waiting, refused])
    log.commit()
    await until(lambda: catalog.applied == log.end)
    assert await paths(catalog) == ["/s"]
    await catalog.close()


async def test_a_command_that_the_container_loses_fails_and_is_not_applied(tmp_path: Path) -> None:
    log = MemoryLog()
    log.held = True
    catalog = await Catalog.open(tmp_path, log)
    waiting = asyncio.create_task(catalog.submit(stream("/s")))
    await until(lambda: len(log.frames) == 1)
    log.lose(StorageFull("no room"))
    with pytest.raises(StorageFull):
        await waiting
    assert await paths(catalog) == []
    await catalog.close()


async def test_text_that_is_not_unicode_never_reaches_the_log(tmp_path: Path) -> None:
    log = MemoryLog()
    catalog = await Catalog.open(tmp_path, log)
    with pytest.raises(KafkaError) as caught:
        await catalog.submit(stream("/\ud800"))
    assert caught.value.code is Code.INVALID_REQUEST
    assert log.frames == []
    await catalog.close()


async def test_what_was_committed_and_not_applied_is_replayed_once(tmp_path: Path) -> None:
    log = MemoryLog()
    catalog = await Catalog.open(tmp_path, log)
    for command in (stream("/s"), topics(3)):
        await catalog.submit(command)
    await catalog.close()
    for command in (topics(4), topics(5)):  # committed before the process ends
        log.write(encode(command))
    log.commit()
    for _ in range(2):
        catalog = await Catalog.open(tmp_path, log)
        assert await catalog.query(lambda reader: reader.streams.totals()) == (1, 12, 12)
        assert catalog.applied == log.end
        await catalog.close()


async def test_a_file_copied_between_any_two_transactions_catches_up_to_the_same_rows(tmp_path: Path) -> None:
    log = MemoryLog()
    catalog = await Catalog.open(tmp_path / "live", log)
    copies = []
    for index in range(6):
        await catalog.submit(topics(2) if index else stream("/s"))
        copy = tmp_path / f"copy{index}"
        copy.mkdir()
        for name in ("catalog.sqlite", "catalog.sqlite-wal"):  # as a crash leaves them
            shutil.copyfile(tmp_path / "live" / name, copy / name)
        copies.append(copy)
    await catalog.close()
    wanted = dump(open_and_replay(tmp_path / "live", log, SCHEMA))
    for copy in copies:
        assert dump(open_and_replay(copy, log, SCHEMA)) == wanted
    assert dump(open_and_replay(tmp_path / "from-nothing", log, SCHEMA)) == wanted


def dump(opened: tuple[sqlite3.Connection, Position]) -> list[str]:
    connection, _ = opened
    try:
        return list(connection.iterdump())
    finally:
        connection.close()


async def test_a_full_disk_makes_submitters_wait_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_apply, "_FULL_DISK_RETRY_S", 0.01)
    catalog = await Catalog.open(tmp_path, MemoryLog())
    await catalog.submit(stream("/s"))
    disk = SmallDisk(catalog)
    await disk.limit(20)
    waiting = [asyncio.create_task(catalog.submit(topics(500))) for _ in range(3)]
    done, _ = await asyncio.wait(waiting, timeout=0.3)
    assert not done
    assert await catalog.query(lambda reader: reader.streams.totals()) == (1, 0, 0)  # reads continue
    await disk.limit(1_000_000)
    outcomes = await asyncio.gather(*waiting)
    assert [len(outcome) for outcome in outcomes] == [500] * 3
    assert await catalog.query(lambda reader: reader.streams.totals()) == (1, 1500, 1500)
    await catalog.close()


async def test_a_catalog_closed_on_a_full_disk_applies_the_rest_at_the_next_start(tmp_path: Path) -> None:
    log = MemoryLog()
    catalog = await Catalog.open(tmp_path, log)
    await catalog.submit(stream("/s"))
    await SmallDisk(catalog).limit(20)
    waiting = asyncio.create_task(catalog.submit(topics(500)))
    await until(lambda: len(log.frames) == 2)
    await catalog.close()
    with pytest.raises(CatalogFailed):
        await waiting
    catalog = await Catalog.open(tmp_path, log)
    assert await catalog.query(lambda reader: reader.streams.totals()) == (1, 500, 500)
    await catalog.close()


async def test_a_closed_catalog_refuses_and_fails_those_who_wait(tmp_path: Path) -> None:
    log = MemoryLog()
    log.held = True
    catalog = await Catalog.open(tmp_path, log)
    waiting = asyncio.create_task(catalog.submit(stream("/s")))
    await until(lambda: len(log.frames) == 1)
    await catalog.close()
    await catalog.close()
    log.commit()
    with pytest.raises(CatalogFailed, match="next start"):
        await waiting
    with pytest.raises(CatalogFailed):
        await catalog.submit(stream("/t"))
    with pytest.raises(CatalogFailed):
        await paths(catalog)
    catalog = await Catalog.open(tmp_path, log)
    assert await paths(catalog) == ["/s"]
    await catalog.close()


async def test_queries_see_one_moment(tmp_path: Path) -> None:
    catalog = await Catalog.open(tmp_path, MemoryLog())
    await catalog.submit(stream("/a"))
    first_read, changed = threading.Event(), threading.Event()

    def look_twice(reader: Reader) -> tuple[int, int]:
        before = reader.streams.totals()[0]
        first_read.set()
        assert changed.wait(20)
        return before, reader.streams.totals()[0]

    looking = asyncio.create_task(catalog.query(look_twice))
    await asyncio.to_thread(first_read.wait)
    await catalog.submit(stream("/b"))
    changed.set()
    assert await looking == (1, 1)
    assert len(await paths(catalog)) == 2
    await catalog.close()


async def test_a_query_that_fails_leaves_its_reader_usable(tmp_path: Path) -> None:
    catalog = await Catalog.open(tmp_path, MemoryLog())
    await catalog.submit(stream("/a"))
    for _ in range(5):
        with pytest.raises(ZeroDivisionError):
            await catalog.query(lambda reader: reader.streams.totals()[0] // 0)
    await catalog.submit(stream("/b"))
    assert len(await paths(catalog)) == 2
    await catalog.close()


async def test_the_loop_goes_on_while_ten_thousand_topics_are_made(tmp_path: Path) -> None:
    catalog = await Catalog.open(tmp_path, MemoryLog())
    await catalog.submit(stream("/s"))
    command = topics(10_000)
    working = asyncio.create_task(catalog.submit(command))
    turns = 0
    while not working.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 100
    assert all(outcome.code is Code.NONE for outcome in await working)
    await catalog.close()


def lose_live_file(folder: Path) -> None:
    for lost in folder.glob("catalog.sqlite*"):
        lost.unlink()


async def test_a_snapshot_lets_the_log_be_trimmed_and_a_lost_file_be_restored(tmp_path: Path) -> None:
    log = MemoryLog()
    catalog = await Catalog.open(tmp_path, log)
    positions = []
    for path in ("/a", "/b", "/c"):
        await catalog.submit(stream(path))
        positions.append(await catalog.snapshot())
    assert positions == [frame for frame in positions if frame <= log.end]
    assert snapshots.positions(tmp_path) == positions[-2:]
    assert log.trimmed == positions[-2]
    await catalog.submit(stream("/d"))
    await catalog.close()
    lose_live_file(tmp_path)
    catalog = await Catalog.open(tmp_path, log)
    assert await paths(catalog) == ["/a", "/b", "/c", "/d"]
    await catalog.close()


async def test_a_log_that_lost_its_end_with_the_power_is_gone_on_with(tmp_path: Path) -> None:
    command_log = MemoryLog()
    catalog = await Catalog.open(tmp_path, command_log)
    await catalog.submit(stream("/a"))
    held = await catalog.snapshot()
    await catalog.submit(stream("/b"))
    await catalog.submit(stream("/c"))
    lost = await catalog.snapshot()
    await catalog.close()
    command_log = MemoryLog()
    command_log.write(encode(stream("/a")))
    command_log.commit()
    catalog = await Catalog.open(tmp_path, command_log)
    assert (await catalog.submit(stream("/d"))).changed
    assert await paths(catalog) == ["/a", "/b", "/c", "/d"]
    assert held in snapshots.positions(tmp_path)
    assert lost not in snapshots.positions(tmp_path), "restored, it would leave out what came after the loss"
    await catalog.close()
    catalog = await Catalog.open(tmp_path, command_log)
    assert await paths(catalog) == ["/a", "/b", "/c", "/d"]
    await catalog.close()


async def test_a_snapshot_comes_by_itself_after_so_much_log(tmp_path: Path) -> None:
    log = MemoryLog()
    catalog = await Catalog.open(tmp_path, log, snapshot_bytes=10_000)
    await catalog.submit(stream("/s"))
    while log.trimmed == 0:
        await catalog.submit(topics(100))
    await catalog.close()  # the next snapshot may be under way
    assert len(snapshots.positions(tmp_path)) == 2


async def test_a_snapshot_that_fails_leaves_the_older_one_and_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MemoryLog()
    catalog = await Catalog.open(tmp_path, log)
    await catalog.submit(stream("/a"))
    await catalog.snapshot()
    await catalog.submit(stream("/b"))

    def no_room(path: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(snapshots, "sync", no_room)
        with pytest.raises(OSError, match="No space"):
            await catalog.snapshot()
    assert len(snapshots.positions(tmp_path)) == 1
    assert log.trimmed == 0
    assert sorted(os.listdir(tmp_path)) == [
        "catalog.sqlite",
        "catalog.sqlite-shm",
        "catalog.sqlite-wal",
        snapshots.snapshots(tmp_path)[0].name,
    ]
    assert (await catalog.submit(stream("/c"))).changed
    await catalog.close()


@pytest.mark.parametrize("damage", ["truncated", "overwritten", "header"])
async def test_a_damaged_file_is_set_aside_and_the_newest_whole_snapshot_restored(tmp_path: Path, damage: str) -> None:
    log = MemoryLog()
    catalog = await Catalog.open(tmp_path, log)
    await catalog.submit(stream("/s"))
    await catalog.submit(topics(300))
    await catalog.snapshot()
    await catalog.submit(topics(300))
    await catalog.snapshot()
    await catalog.submit(topics(300))
    await catalog.close()
    live = tmp_path / "catalog.sqlite"
    size = live.stat().st_size
    with live.open("r+b") as file:
        if damage == "truncated":
            file.truncate(size // 2)
        elif damage == "overwritten":
            file.seek(4096)
            file.write(b"\xee" * (size - 4096))
        else:
            file.write(b"\xee" * 100)
    newest = snapshots.snapshots(tmp_path)[-1]
    newest.write_bytes(newest.read_bytes()[:5000])
    catalog = await Catalog.open(tmp_path, log)
    await catalog.submit(topics(1))
    assert await catalog.query(lambda reader: reader.streams.totals()) == (1, 901, 901)
    assert (tmp_path / "catalog.damaged").exists()
    await catalog.close()


@pytest.mark.parametrize("name", ["SQLITE_IOERR_CORRUPTFS", "SQLITE_IOERR_READ"])
async def test_files_that_the_disk_cannot_read_are_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The first page of the live file or of its WAL, and the newest snapshot."""
    log = MemoryLog()
    catalog = await Catalog.open(tmp_path, log)
    for path in ("/a", "/b", "/c"):
        await catalog.submit(stream(path))
        await catalog.snapshot()
    await catalog.close()
    newest = snapshots.snapshots(tmp_path)[-1]
    newest.unlink()
    newest.symlink_to("/proc/self/mem")  # reading its beginning fails with EIO
    open_tables, tried = SCHEMA.open, 0

    def unreadable(path: Path, *, sums: bool) -> sqlite3.Connection:
        nonlocal tried
        tried += 1
        if tried == 1:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorname = name
            raise error
        return open_tables(path, sums=sums)

    monkeypatch.setattr(SCHEMA, "open", unreadable)
    catalog = await Catalog.open(tmp_path, log)
    assert await paths(catalog) == ["/a", "/b", "/c"]
    assert (tmp_path / "catalog.damaged").exists()
    await catalog.close()


async def test_a_disk_that_cannot_be_reached_at_all_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nothing to continue with: the node ends, and leaves its files as they are."""
    log = MemoryLog()
    catalog = await Catalog.open(tmp_path, log)
    await catalog.submit(stream("/a"))
    await catalog.close()

    def unreadable(path: Path, *, sums: bool) -> sqlite3.Connection:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorname = "SQLITE_IOERR_CORRUPTFS"
        raise error

    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, "read-only file system")

    with monkeypatch.context() as patched:
        patched.setattr(SCHEMA, "open", unreadable)
        patched.setattr(os, "replace", read_only)
        with pytest.raises(OSError, match="read-only"):
            await Catalog.open(tmp_path, log)
    catalog = await Catalog.open(tmp_path, log)
    assert await paths(catalog) == ["/a"]
    await catalog.close()


async def test_damage_met_while_running_fails_the_catalog_and_the_next_start_restores(tmp_path: Path) -> None:
    log = MemoryLog()
    catalog = await Catalog.open(tmp_path, log)
    await catalog.submit(stream("/s"))
    await catalog.submit(topics(2000))
    await catalog.close()
    live = tmp_path / "catalog.sqlite"
    catalog = await Catalog.open(tmp_path, log)
    with live.open("r+b") as file:
        file.seek(live.stat().st_size // 4)
        file.write(b"\xee" * (live.stat().st_size // 2))
    with pytest.raises(CatalogFailed, match="damaged"):
        await catalog.query(lambda reader: [len(reader.chains.chain(row.number)) for row in reader.topics.page("/s")])
    with pytest.raises(CatalogFailed):
        await asyncio.wait_for(asyncio.shield(catalog.failed), 10)
    with pytest.raises(CatalogFailed):
        await catalog.submit(stream("/t"))
    await catalog.close()
    catalog = await Catalog.open(tmp_path, log)
    assert await catalog.query(lambda reader: len(reader.topics.page("/s"))) == 2000
    await catalog.close()


async def test_a_newer_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    await (await Catalog.open(tmp_path, MemoryLog())).close()
    newer = sqlite3.connect(tmp_path / "catalog.sqlite")
    newer.execute("PRAGMA user_version=9")
    newer.close()
    with pytest.raises(FolderRefused, match="newer headrace"):
        await Catalog.open(tmp_path, MemoryLog())
    assert not (tmp_path / "catalog.damaged").exists()


APPLIER = """
import asyncio, collections, os, struct, sys, uuid
from pathlib import Path
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.streams import CreateStream
from headrace.catalog.topics import CreateTopics, NewTopic
from headrace.catalog.catalog import Catalog

class FileLog:
    def __init__(self, path):
        self.file = path.open("ab")
        self.leads = True
        self.committed = 0
        self.added = collections.deque(maxlen=100)
    @property
    def end(self):
        return self.file.tell()
    def append_command(self, payload):
        self.file.write(struct.pack(">I", len(payload)) + payload)
        self.file.flush()
        os.fsync(self.file.fileno())
        future = asyncio.get_running_loop().create_future()
        self.committed = self.file.tell()
        self.added.append((self.committed, payload))
        self.tell()
        future.set_result(self.committed)
        return future
    def recent(self, after):
        return [each for each in self.added if each[0] > after]
    def on_committed(self, callback):
        self.tell = callback
    def trim(self, until):
        pass

async def client(catalog, number):
    while True:
        items = [
            NewTopic("/s", uuid.uuid4().hex, uuid.uuid4().bytes, 2, {}, [1, 1], [1, 1]) for _ in range(1 + number * 20)
        ]
        outcomes = await catalog.submit(CreateTopics(items, 1))
        os.write(1, b"".join(outcome.topic.name.encode() + b"\\n" for outcome in outcomes))

async def main():
    folder = Path(sys.argv[1])
    folder.mkdir()
    catalog = await Catalog.open(folder / "catalog", FileLog(folder / "log"), snapshot_bytes=200_000)
    await catalog.submit(CreateStream("/s", StreamPolicy(), 1))
    await asyncio.gather(*(client(catalog, number) for number in range(5)))

asyncio.run(main())
"""


class FileLog:
    """The log that the killed process has left."""

    def __init__(self, path: Path) -> None:
        self._path = path

        self.leads = True

    @property
    def end(self) -> Position:
        return Position(self._path.stat().st_size)

    @property
    def committed(self) -> Position:
        return self.end

    def recent(self, after: Position) -> list[tuple[Position, bytes]] | None:
        raise AssertionError("only replayed")

    def on_committed(self, callback: Callable[[], None]) -> None:
        raise AssertionError("only replayed")

    def append_command(self, payload: bytes) -> asyncio.Future[Position]:
        raise AssertionError("only read")

    def commands(self, after: Position, until: Position) -> Iterator[tuple[Position, bytes]]:
        content = self._path.read_bytes()
        at = 0
        while at + 4 <= len(content):
            (length,) = struct.unpack_from(">I", content, at)
            if at + 4 + length > len(content):
                return
            payload = content[at + 4 : at + 4 + length]
            at += 4 + length
            if at > after:
                yield Position(at), payload

    def trim(self, until: Position) -> None:
        raise AssertionError("only read")


@pytest.mark.parametrize("topics_before_kill", [5, 200, 1500, 4000])
def test_a_killed_process_loses_nothing_that_was_answered_and_applies_nothing_twice(
    tmp_path: Path, topics_before_kill: int
) -> None:
    folder = tmp_path / "node"
    root = Path(sys.modules["headrace"].__file__ or "").parent.parent
    process = subprocess.Popen(
        [sys.executable, "-c", APPLIER, str(folder)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert process.stdout is not None
    told = [process.stdout.readline().strip().decode() for _ in range(topics_before_kill)]
    process.send_signal(signal.SIGKILL)
    rest = process.stdout.read()  # including what its buffer holds already, which `communicate` omits
    process.wait(30)
    told += [line.strip().decode() for line in rest.splitlines(keepends=True) if line.endswith(b"\n")]

    log = FileLog(folder / "log")
    recovered, _ = open_and_replay(folder / "catalog", log, SCHEMA)
    assert applied(recovered) == max(position for position, _ in log.commands(Position(0), log.end))
    names = {row[0] for row in recovered.execute("SELECT name FROM topics")}
    assert names >= set(told)
    assert dump((recovered, log.end)) == dump(open_and_replay(tmp_path / "from-nothing", log, SCHEMA))


async def test_a_command_of_a_level_that_the_cluster_is_not_at_is_refused_before_it_is_written(tmp_path: Path) -> None:
    log = MemoryLog()
    catalog = await Catalog.open(tmp_path / "catalog", log, may=lambda level: level < Level.SECURED)
    command = PutUser("alice", [], NOW, create=True)
    for submitting in (catalog.submit(command), catalog.append(encode(command))):
        with pytest.raises(KafkaError, match="feature level 2") as refused:
            await submitting
        assert refused.value.code is Code.UNSUPPORTED_VERSION
    assert log.frames == []
    await catalog.close()
