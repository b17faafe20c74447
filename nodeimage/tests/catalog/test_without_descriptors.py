"""The catalog of a process without free file descriptors: SQLite cannot open files, and gives no reason."""

import asyncio
import errno
import os
import resource
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.base.errors import CorruptLog, OutOfDescriptors
from headrace.catalog.catalog import Catalog
from headrace.catalog.tables import SCHEMA
from headrace.tables import command_apply, snapshots
from kit.catalog import MemoryLog, paths, stream, until


@contextmanager
def no_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def cannot_open() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("unable to open database file")
    error.sqlite_errorname = "SQLITE_CANTOPEN"
    return error


async def test_a_snapshot_is_neither_damaged_nor_removed(tmp_path: Path) -> None:
    catalog = await Catalog.open(tmp_path, MemoryLog())
    await catalog.submit(stream("/s"))
    position = await catalog.snapshot()
    kept = snapshots.path_of(tmp_path, position)
    with no_descriptors():
        with pytest.raises((OutOfDescriptors, sqlite3.OperationalError)):
            snapshots.check(kept, position)
        with pytest.raises((OutOfDescriptors, sqlite3.OperationalError)):
            await catalog.snapshot()
    snapshots.check(kept, position)
    assert snapshots.snapshots(tmp_path) == [kept]
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]
    await catalog.submit(stream("/t"))
    await catalog.close()


async def test_a_start_does_not_begin_with_nothing(tmp_path: Path) -> None:
    log = MemoryLog()
    catalog = await Catalog.open(tmp_path, log)
    await catalog.submit(stream("/s"))
    await catalog.snapshot()
    await catalog.close()
    with no_descriptors(), pytest.raises((OutOfDescriptors, sqlite3.OperationalError)):
        snapshots.open_newest(tmp_path, SCHEMA)
    assert not (tmp_path / "catalog.damaged").exists()
    catalog = await Catalog.open(tmp_path, log)
    assert await paths(catalog) == ["/s"]
    await catalog.close()


async def test_a_restore_that_runs_out_of_descriptors_is_made_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MemoryLog()
    catalog = await Catalog.open(tmp_path, log)
    await catalog.submit(stream("/s"))
    await catalog.snapshot()
    await catalog.close()
    (tmp_path / "catalog.sqlite").write_bytes(b"no database")
    sync, calls = snapshots.sync, 0

    def limited(path: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == fails_at:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        sync(path)

    monkeypatch.setattr(snapshots, "sync", limited)
    for fails_at in (1, 2, 3):  # setting the damaged file aside, copying the snapshot, listing the folder  # noqa: B007
        calls = 0
        with pytest.raises(OutOfDescriptors):
            await Catalog.open(tmp_path, log)
        (tmp_path / "catalog.sqlite").write_bytes(b"no database")
    monkeypatch.undo()
    catalog = await Catalog.open(tmp_path, log)
    assert await paths(catalog) == ["/s"]
    await catalog.close()


async def test_what_cannot_be_applied_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_apply, "_FULL_DISK_RETRY_S", 0.01)
    catalog = await Catalog.open(tmp_path, MemoryLog())
    apply_all, lacking = command_apply.apply_all, [True]

    def limited(connection: sqlite3.Connection, work: list[object], schema: object) -> object:
        if lacking:
            raise cannot_open()
        return apply_all(connection, work, schema)

    monkeypatch.setattr(command_apply, "apply_all", limited)
    with no_descriptors():
        waiting = asyncio.create_task(catalog.submit(stream("/s")))
        await until(lambda: catalog.full)
        await asyncio.sleep(0.3)  # time for many attempts
        assert not waiting.done()
        assert not catalog.failed.done()
    lacking.clear()
    await asyncio.wait_for(waiting, 10)
    assert await paths(catalog) == ["/s"]
    await catalog.close()


async def test_a_file_that_can_never_be_opened_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_apply, "_FULL_DISK_RETRY_S", 0.01)
    catalog = await Catalog.open(tmp_path, MemoryLog())

    def never(_connection: sqlite3.Connection, _work: list[object], _schema: object) -> object:
        raise cannot_open()

    monkeypatch.setattr(command_apply, "apply_all", never)
    waiting = asyncio.create_task(catalog.submit(stream("/s")))
    await until(lambda: catalog.failed.done())
    await asyncio.wait([waiting], timeout=10)
    assert waiting.exception() is not None
    await catalog.close()


async def test_a_log_that_cannot_be_read_for_now_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten attempts, which are enough while a log is cut, are over within two seconds."""
    monkeypatch.setattr(command_apply, "_READ_RETRY_S", 0.001)
    log = MemoryLog()
    catalog = await Catalog.open(tmp_path, log)
    tries = 0
    commands = log.commands

    def limited(after: int, until: int) -> Iterator[object]:
        nonlocal tries
        tries += 1
        if tries <= 30:
            raise OutOfDescriptors("chunk cannot be opened")
        return commands(after, until)

    monkeypatch.setattr(log, "commands", limited)
    monkeypatch.setattr(log, "recent", lambda _after: None, raising=False)
    await asyncio.wait_for(catalog.submit(stream("/s")), 20)
    assert tries > 30
    assert not catalog.failed.done()
    await catalog.close()


async def test_queries_say_that_they_may_be_repeated(tmp_path: Path) -> None:
    catalog = await Catalog.open(tmp_path, MemoryLog())
    with no_descriptors(), pytest.raises(OutOfDescriptors) as error:
        await paths(catalog)
    assert not isinstance(error.value, CorruptLog)
    await catalog.submit(stream("/s"))
    assert await paths(catalog) == ["/s"]
    await catalog.close()
