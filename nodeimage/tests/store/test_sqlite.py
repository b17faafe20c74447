import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, rule

from headrace.base.errors import FolderRefused
from headrace.store.protocol import StoreUnavailable, VersionConflict, Versioned
from headrace.store.sqlite import SqliteStore
from kit.store_files import checkpointed, overwrite


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "cluster.sqlite")
    yield store
    store.close()


def test_prefixes_are_taken_literally(store: SqliteStore) -> None:
    for key in ("a_b/1", "aXb/1", "a%/1", "a_b/2"):
        store.put(key, b"", None)
    assert [each.key for each in store.list("a_b/")] == ["a_b/1", "a_b/2"]
    assert [each.key for each in store.list("a%")] == ["a%/1"]
    assert len(store.list("")) == 4


def test_a_watch_goes_by_the_index_of_versions(store: SqliteStore) -> None:
    """The query must not scan all records, of which there may be tens of thousands, for the few that changed."""
    for number in range(3_000):
        store.put(f"container/{number}", b"x" * 300, None)
    revision = store.watch("", since=0, timeout_s=0).revision
    store.put("container/7", b"y", 8)
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    store._connection.set_progress_handler(count, 10)
    changes = store.watch("", since=revision, timeout_s=0)
    assert [each.key for each in changes.records] == ["container/7"]
    assert steps < 100


def test_who_watches_from_before_forgotten_removals_gets_everything(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.store.sqlite._REMOVED_KEPT", 3)
    since = store.put("kept", b"", None)
    for index in range(6):
        store.delete(f"k{index}", store.put(f"k{index}", b"", None))
    changes = store.watch("", since=since, timeout_s=0)
    assert changes.whole
    assert [each.key for each in changes.records] == ["kept"]


class AgainstADict(RuleBasedStateMachine):
    """The store and a dict get the same puts and deletes; a watcher maintains a third copy from changes alone."""

    keys = Bundle("keys")

    def __init__(self) -> None:
        super().__init__()
        self.store = SqliteStore(Path(":memory:"))
        self.model: dict[str, Versioned] = {}
        self.watched: dict[str, Versioned] = {}
        self.revision = 0

    @rule(target=keys, key=st.text(max_size=4))
    def name(self, key: str) -> str:
        return key

    @rule(key=keys, value=st.binary(max_size=4), stale=st.booleans())
    def put(self, key: str, value: bytes, stale: bool) -> None:
        present = self.model.get(key)
        expected = None if present is None else present.version
        if stale:
            with pytest.raises(VersionConflict):
                self.store.put(key, value, 10**9)
        else:
            self.model[key] = Versioned(key, value, self.store.put(key, value, expected))

    @rule(key=keys)
    def delete(self, key: str) -> None:
        if key in self.model:
            self.store.delete(key, self.model.pop(key).version)
        else:
            with pytest.raises(VersionConflict):
                self.store.delete(key, 1)

    @rule()
    def watch(self) -> None:
        changes = self.store.watch("", since=self.revision, timeout_s=0)
        if changes.whole:
            self.watched = {}
        self.watched |= {each.key: each for each in changes.records}
        for key in changes.removed:
            self.watched.pop(key, None)
        self.revision = changes.revision
        assert self.watched == self.model
        assert {each.key: each for each in self.store.list("")} == self.model

    def teardown(self) -> None:
        self.store.close()


TestAgainstADict = AgainstADict.TestCase
TestAgainstADict.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)

HAMMER = """
import sys
from pathlib import Path
from headrace.store.protocol import VersionConflict
from headrace.store.sqlite import SqliteStore
path, count = Path(sys.argv[1]), int(sys.argv[2])
store = SqliteStore(path)
while count:
    found = store.get("counter")
    try:
        if found is None:
            store.put("counter", b"1", None)
        else:
            store.put("counter", str(int(found.value) + 1).encode(), found.version)
    except VersionConflict:
        continue
    count -= 1
    print(count, flush=True)
"""


def hammer(path: Path, count: int) -> subprocess.Popen[bytes]:
    root = Path(sys.modules["headrace"].__file__ or "").parent.parent
    return subprocess.Popen(
        [sys.executable, "-c", HAMMER, str(path), str(count)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(root)},
    )


def test_processes_that_hammer_one_record_lose_no_update(tmp_path: Path) -> None:
    path = tmp_path / "cluster.sqlite"
    processes = [hammer(path, 150) for _ in range(3)]  # all three also race to make the file
    for process in processes:
        process.communicate(timeout=100)
        assert process.returncode == 0
    store = SqliteStore(path)
    found = store.get("counter")
    store.close()
    assert found is not None
    assert found.value == b"450"


def test_what_a_killed_process_was_told_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "cluster.sqlite"
    process = hammer(path, 10_000)
    assert process.stdout is not None
    told = 10_000 - [int(process.stdout.readline()) for _ in range(25)][-1]
    process.send_signal(signal.SIGKILL)
    rest = process.stdout.read()  # with what its buffer has already, which `communicate` leaves out
    process.wait(20)
    told += len([line for line in rest.splitlines(keepends=True) if line.endswith(b"\n")])
    store = SqliteStore(path)
    found = store.get("counter")
    store.close()
    assert found is not None
    assert told <= int(found.value) <= told + 1


@pytest.mark.parametrize("content", [b"this is no database, but a text that somebody put there" * 100])
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "cluster.sqlite"
    path.write_bytes(content)
    with pytest.raises(FolderRefused):
        SqliteStore(path)
    assert path.read_bytes() == content


def test_another_programs_database_and_a_newer_format_are_refused(tmp_path: Path) -> None:
    foreign = sqlite3.connect(tmp_path / "foreign.sqlite")
    foreign.execute("CREATE TABLE t(x)")
    foreign.close()
    with pytest.raises(FolderRefused, match="not a cluster store"):
        SqliteStore(tmp_path / "foreign.sqlite")
    SqliteStore(tmp_path / "newer.sqlite").close()
    newer = sqlite3.connect(tmp_path / "newer.sqlite")
    newer.execute("PRAGMA user_version=99")
    newer.close()
    with pytest.raises(FolderRefused, match="newer headrace"):
        SqliteStore(tmp_path / "newer.sqlite")


def test_a_file_that_was_overwritten_is_away_until_it_is_put_back(tmp_path: Path, store: SqliteStore) -> None:
    version = store.put("k", b"v", None)
    path = tmp_path / "cluster.sqlite"
    kept = checkpointed(path)
    overwrite(path, b"this is no database".ljust(len(kept)), store)
    calls: list[Callable[[], object]] = [
        lambda: store.watch("", since=0, timeout_s=0),
        lambda: store.get("k"),
        lambda: store.list(""),
        lambda: store.put("k", b"w", version),
        lambda: store.delete("k", version),
    ]
    for call in calls:
        with pytest.raises(StoreUnavailable):
            call()
    overwrite(path, kept, store)
    assert [each.key for each in store.watch("", since=0, timeout_s=0).records] == ["k"]
    store.put("k", b"w", version)


def test_a_folder_that_is_missing_is_reported_as_unavailable(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable):
        SqliteStore(tmp_path / "missing" / "cluster.sqlite")


@pytest.mark.parametrize(
    "damage",
    ["value = CAST(replace(value, '\"a\"', '\"b\"') AS BLOB)", "version = version + 64", "key = 'x/2'"],
    ids=["its value", "its version", "its key"],
)
def test_a_record_that_is_not_what_was_written_is_not_answered(tmp_path: Path, damage: str) -> None:
    store = SqliteStore(tmp_path / "store.sqlite")
    store.put("x/1", b'{"name": "a"}', None)
    assert [record.value for record in store.list("x/")] == [b'{"name": "a"}']
    foreign = sqlite3.connect(tmp_path / "store.sqlite", isolation_level=None)
    assert foreign.execute(f"UPDATE records SET {damage}").rowcount == 1
    foreign.close()
    with pytest.raises(StoreUnavailable, match="recover-store"):
        store.list("x/")
    store.close()


def test_a_record_of_a_version_that_writes_no_checksums_is_read(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.sqlite")
    foreign = sqlite3.connect(tmp_path / "store.sqlite", isolation_level=None)
    foreign.execute("INSERT INTO records VALUES ('x/1', CAST('{\"name\": \"a\"}' AS BLOB), 1)")
    foreign.execute("UPDATE revision SET value = 1")
    foreign.close()
    found = store.get("x/1")
    assert found is not None
    assert found.value == b'{"name": "a"}'
    store.close()
