"""A write-ahead log stays small while there are readers all the time."""

import contextlib
import itertools
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.base import wal
from headrace.base.ids import Millis, Position
from headrace.base.wal import WalBound
from headrace.catalog import tables
from headrace.catalog.feature_level import RaiseLevel
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.reader import Reader
from headrace.catalog.streams import CreateStream
from headrace.catalog.tables import SCHEMA, open_tables
from headrace.store import sqlite as store_module
from headrace.store.sqlite import SqliteStore
from headrace.tables.transactions import apply_all

MOST = 256 << 10
ROUNDS = 600


@contextlib.contextmanager
def never_idle(readers: list[Callable[[], Callable[[], None]]]) -> Iterator[None]:
    """Runs readers, each of which begins before the other ends. A reader begins to read, and returns a function that
    ends its read."""
    ends = threading.Event()
    began = threading.Barrier(2)

    def run() -> None:
        held: Callable[[], None] | None = None
        for begin in itertools.cycle(readers):
            if ends.is_set():
                break
            following = begin()
            if held is not None:
                held()
            else:
                began.wait()
            held = following
        if held is not None:
            held()

    thread = threading.Thread(target=run)
    thread.start()
    began.wait()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def size(path: Path) -> int:
    return Path(f"{path}-wal").stat().st_size


@pytest.mark.parametrize("bound", [MOST, 1 << 40])
def test_the_catalogs_wal_stays_small_under_readers_that_are_never_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: int
) -> None:
    monkeypatch.setattr(tables, "WAL_BYTES", bound)
    path = tmp_path / "catalog.sqlite"
    connection = open_tables(path)
    apply_all(connection, [(Position(1), CreateStream("/s", StreamPolicy(), Millis(1)))], SCHEMA)
    readers = [Reader(path), Reader(path)]

    def begin_of(reader: Reader) -> Callable[[], Callable[[], None]]:
        def begin() -> Callable[[], None]:
            reader.begin()
            assert reader.streams.at("/s") is not None
            return reader.end

        return begin

    most = 0
    with never_idle([begin_of(each) for each in readers]):
        for position in range(2, ROUNDS):
            apply_all(connection, [(Position(position), RaiseLevel(0))], SCHEMA)
            most = max(most, size(path))
    for each in readers:
        each.close()
    connection.close()
    if bound == MOST:
        assert most < 2 * MOST
    else:
        assert most > 4 * MOST  # without a bound: proves that the readers above keep the WAL from being reset


def test_the_cluster_stores_wal_stays_small_while_others_look_at_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_WAL_BYTES", MOST)
    path = tmp_path / "cluster.sqlite"
    store = SqliteStore(path)
    version = store.put("container/1", b"x", None)
    others = [sqlite3.connect(path, isolation_level=None, check_same_thread=False) for _ in range(2)]

    def begin_of(connection: sqlite3.Connection) -> Callable[[], Callable[[], None]]:
        def begin() -> Callable[[], None]:
            connection.execute("BEGIN")
            connection.execute("SELECT count(*) FROM records").fetchone()
            return lambda: connection.execute("ROLLBACK") and None

        return begin

    most = 0
    with never_idle([begin_of(each) for each in others]):
        for number in range(ROUNDS // 4):
            version = store.put("container/1", b"x" * number * 8, version)
            most = max(most, size(path))
    for each in others:
        each.close()
    store.close()
    assert most < 2 * MOST


def test_a_reader_that_reads_on_holds_up_writing_for_a_bounded_time_and_less_and_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal, "FIRST_WAIT_MS", 1)
    monkeypatch.setattr(wal, "MAX_WAIT_MS", 4)
    path = tmp_path / "f.sqlite"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript("PRAGMA journal_mode=WAL; CREATE TABLE t(x)")
    bound = WalBound(connection, path, most_bytes=64 << 10, busy_ms=30_000)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM t").fetchone()
    statements: list[str] = []
    for _ in range(200):
        connection.execute("INSERT INTO t VALUES (zeroblob(8000))")
        connection.set_trace_callback(statements.append)
        bound.written()
        connection.set_trace_callback(None)
    waits = [each for each in statements if "busy_timeout" in each]
    assert size(path) / (64 << 10) > 1
    assert waits[:6:2] == [f"PRAGMA busy_timeout={wait}" for wait in (1, 2, 4)]
    assert len(waits) < 2 * 12
    assert connection.execute("PRAGMA busy_timeout").fetchone() == (30_000,)
    reader.execute("ROLLBACK")
    connection.execute("INSERT INTO t VALUES (zeroblob(4000000))")
    bound.written()
    assert size(path) == 0
    reader.close()
    connection.close()


def test_a_wal_that_cannot_be_cut_is_left_to_the_next_write(tmp_path: Path) -> None:
    path = tmp_path / "f.sqlite"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript("PRAGMA journal_mode=WAL; CREATE TABLE t(x); INSERT INTO t VALUES (zeroblob(9000))")
    bound = WalBound(connection, path, most_bytes=1, busy_ms=30_000)
    connection.execute("BEGIN IMMEDIATE")
    bound.written()  # SQLite fails, as there is a transaction
    connection.execute("COMMIT")
    WalBound(connection, path, most_bytes=1, busy_ms=30_000).written()
    assert size(path) == 0
    connection.close()
