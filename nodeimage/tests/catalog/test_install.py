"""Tables that are replaced by a snapshot from the leader, with readers, listeners and submitters under way."""

import asyncio
import contextlib
import errno
import shutil
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import FolderRefused, HeadraceError, StorageFull
from headrace.base.ids import Position
from headrace.base.levels import NEWEST
from headrace.catalog.catalog import Catalog
from headrace.catalog.commands import encode
from headrace.catalog.reader import Reader
from headrace.catalog.rows import Replaced
from headrace.catalog.tables import SCHEMA
from headrace.tables import snapshots
from headrace.tables.outcomes import CatalogFailed
from headrace.tables.transactions import applied
from kit.catalog import MemoryLog, SmallDisk, paths, stream, topics, until


class Pair:
    """A leader whose log begins after two streams and many topics, and a follower that has only one other stream."""

    def __init__(self, folder: Path, *, level: int = NEWEST) -> None:
        self.folder = folder
        self._may: Callable[[int], bool] = lambda asked: asked <= level
        self.leader_log, self.log = MemoryLog(), MemoryLog(leads=False)

    async def open(self) -> None:
        self.leader = await Catalog.open(self.folder / "primary", self.leader_log, may=self._may)
        for command in (stream("/old"), stream("/s"), topics(500)):
            await self.leader.submit(command)
        await self.newest()
        await self.leader.submit(stream("/later"))
        self.log.write(encode(stream("/old")))
        self.log.commit()
        await self.reopen()

    async def newest(self, least: Position = Position(0)) -> None:  # noqa: B008
        """The snapshot that another replica would be given."""
        shared = await self.leader.newest_snapshot(least, keeps_log=True)
        self.snapshot, self.position = snapshots.path_of(self.folder / "primary", shared.position), shared.position
        shared.close()

    async def reopen(self) -> None:
        self.follower = await Catalog.open(self.folder / "follower", self.log, route=self.route, may=self._may)

    async def route(self, payload: bytes) -> Position:
        return await self.leader.append(payload)

    async def replace(self) -> None:
        await self.follower.install(self.snapshot, self.position)
        self.log.begin_anew(self.position)

    def follow(self) -> None:
        self.log.trimmed = self.position
        self.log.follow(self.leader_log)

    async def close(self) -> None:
        await self.leader.close()
        await self.follower.close()


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    pair = Pair(tmp_path)
    await pair.open()
    yield pair
    await pair.close()


async def test_a_replica_goes_on_from_an_installed_snapshot(pair: Pair) -> None:
    await pair.replace()
    assert pair.follower.applied == pair.position
    assert await paths(pair.follower) == ["/old", "/s"]
    assert await pair.follower.query(lambda reader: reader.streams.totals()) == (2, 500, 500)
    pair.follow()
    await pair.follower.wait_applied(pair.leader_log.end)
    assert await paths(pair.follower) == ["/later", "/old", "/s"]
    await pair.follower.close()
    await pair.reopen()
    assert await paths(pair.follower) == ["/later", "/old", "/s"]
    assert pair.snapshot.exists()


async def test_a_query_under_way_sees_the_old_rows_whole_and_the_next_one_the_new(pair: Pair) -> None:
    first_read, replaced = threading.Event(), threading.Event()

    def look_twice(reader: Reader) -> list[Any]:
        seen = [reader.streams.totals(), [row.path for row in reader.streams.page()]]
        first_read.set()
        assert replaced.wait(20)
        return [*seen, reader.streams.totals(), reader.topics.page("/s"), [row.path for row in reader.streams.page()]]

    looking = asyncio.create_task(pair.follower.query(look_twice))
    await asyncio.to_thread(first_read.wait)
    await pair.replace()
    assert len(await paths(pair.follower)) == 2
    replaced.set()
    assert await looking == [(1, 0, 0), ["/old"], (1, 0, 0), [], ["/old"]]
    for _ in range(4):  # on every reader thread, including the one that has read before
        assert (await asyncio.gather(*(paths(pair.follower) for _ in range(4)))) == [["/old", "/s"]] * 4


async def test_queries_all_the_while_see_one_state_or_the_other(pair: Pair) -> None:
    stop = asyncio.Event()
    seen: set[tuple[int, int]] = set()

    async def look() -> None:
        while not stop.is_set():
            seen.add(
                await pair.follower.query(lambda reader: (reader.streams.totals()[1], len(reader.topics.page("/s"))))
            )

    looking = [asyncio.create_task(look()) for _ in range(4)]
    await until(lambda: len(seen) == 1)
    await pair.replace()
    await until(lambda: len(seen) == 2)
    stop.set()
    await asyncio.gather(*looking)
    assert seen == {(0, 0), (500, 500)}


async def test_listeners_hear_replaced_alone_and_before_what_comes_after(pair: Pair) -> None:
    heard: list[Any] = []
    pair.follower.on_applied(heard.append)
    await pair.replace()
    pair.follow()
    await pair.follower.wait_applied(pair.leader_log.end)
    assert heard[0] == [(Replaced(pair.position), None)]
    assert [command.path for batch in heard[1:] for command, _ in batch] == ["/later"]


async def test_a_submitter_whose_command_came_with_the_snapshot_repeats_it(pair: Pair) -> None:
    made = topics(2)
    submitting = asyncio.create_task(pair.follower.submit(made))
    before = pair.leader_log.end
    await until(lambda: pair.leader_log.end > before)
    pair.position = await pair.leader.snapshot()
    pair.snapshot = snapshots.path_of(pair.folder / "primary", pair.position)
    await asyncio.sleep(0)
    await pair.replace()
    while not submitting.done():
        pair.follow()
        await asyncio.sleep(0.001)
    outcomes = await submitting
    assert [each.topic.topic_id for each in outcomes if each.topic] == [item.topic_id for item in made.items]
    assert await pair.follower.query(lambda reader: reader.streams.totals()) == (3, 502, 502)


async def test_who_waits_for_a_position_within_the_snapshot_goes_on(pair: Pair) -> None:
    waiting = asyncio.create_task(pair.follower.wait_applied(Position(pair.position - 1)))
    await asyncio.sleep(0)
    await pair.replace()
    await waiting


async def test_a_process_that_ends_before_its_log_begins_anew_keeps_the_installed_rows(pair: Pair) -> None:
    await pair.follower.install(pair.snapshot, pair.position)
    await pair.follower.close()
    await pair.reopen()  # the log still ends at the same position
    assert pair.log.end < pair.follower.applied == pair.position
    assert await paths(pair.follower) == ["/old", "/s"]
    pair.log.begin_anew(pair.position)
    pair.follow()
    await pair.follower.wait_applied(pair.leader_log.end)
    assert await paths(pair.follower) == ["/later", "/old", "/s"]


async def test_rows_that_were_not_synced_when_the_power_went_come_from_the_kept_snapshot(pair: Pair) -> None:
    folder = pair.folder / "follower"
    saved = pair.folder / "saved"
    saved.mkdir()
    for name in ("catalog.sqlite", "catalog.sqlite-wal"):
        shutil.copyfile(folder / name, saved / name)
    await pair.replace()
    await pair.follower.close()
    for part in folder.glob("catalog.sqlite*"):
        part.unlink()
    for part in saved.iterdir():
        shutil.copyfile(part, folder / part.name)
    assert Catalog.applied_in(folder) == pair.position
    await pair.reopen()
    assert await paths(pair.follower) == ["/old", "/s"]


async def test_an_install_whose_caller_goes_away_takes_place_whole(pair: Pair) -> None:
    installing = asyncio.create_task(pair.follower.install(pair.snapshot, pair.position))
    for _ in range(3):
        await asyncio.sleep(0)
    installing.cancel()
    await asyncio.wait([installing])
    assert installing.cancelled()
    await pair.follower.wait_applied(pair.position)
    pair.log.begin_anew(pair.position)
    pair.follow()
    await pair.follower.wait_applied(pair.leader_log.end)
    assert await paths(pair.follower) == ["/later", "/old", "/s"]


async def refused(pair: Pair, snapshot: Path, position: Position, error: type[Exception], match: str) -> None:
    before = pair.follower.applied
    with pytest.raises(error, match=match):
        await pair.follower.install(snapshot, position)
    assert await paths(pair.follower) == ["/old"]
    assert pair.follower.applied == before
    assert snapshots.snapshots(pair.folder / "follower") == []


async def test_tables_that_are_lost_take_a_snapshot_while_their_log_goes_on_as_it_is(pair: Pair) -> None:
    end, log = pair.leader_log.end, pair.log
    log.trimmed = log.in_memory_from = pair.position
    log.follow(pair.leader_log)
    await pair.follower.install(pair.snapshot, pair.position, log_stays=True)
    await pair.follower.wait_applied(end)
    assert await paths(pair.follower) == ["/later", "/old", "/s"]
    assert log.trimmed == pair.position
    for at, snapshot in ((pair.position, pair.snapshot), (Position(end + 1), pair.snapshot)):
        with pytest.raises(HeadraceError, match="does not lie between the tables"):
            await pair.follower.install(snapshot, at, log_stays=True)


async def test_a_snapshot_is_written_where_the_newest_is_older_than_what_is_asked_for(pair: Pair) -> None:
    end = pair.leader.applied
    before = pair.position
    await pair.newest(before)
    assert pair.position == before
    await pair.newest(Position(before + 1))
    assert (pair.position, pair.snapshot.exists()) == (end, True)


async def test_a_bad_snapshot_is_refused_and_changes_nothing(pair: Pair) -> None:
    torn = pair.folder / "torn.sqlite"
    torn.write_bytes(pair.snapshot.read_bytes()[:20_000])
    await refused(pair, torn, pair.position, HeadraceError, "damaged")
    await refused(pair, pair.snapshot, Position(pair.position + 1), HeadraceError, "should be at")
    newer = pair.folder / "newer.sqlite"
    shutil.copyfile(pair.snapshot, newer)
    connection = sqlite3.connect(newer)
    connection.execute("PRAGMA user_version=9")
    connection.close()
    await refused(pair, newer, pair.position, FolderRefused, "newer headrace")
    await pair.replace()
    assert len(await paths(pair.follower)) == 2


async def test_a_snapshot_older_than_what_the_log_has_committed_is_refused(pair: Pair) -> None:
    pair.log.follow(pair.leader_log)
    await pair.follower.wait_applied(pair.leader_log.end)
    with pytest.raises(HeadraceError, match="older than this log"):
        await pair.follower.install(pair.snapshot, pair.position)
    assert len(await paths(pair.follower)) == 3


@pytest.mark.parametrize("another_is_whole", [True, False])
@pytest.mark.parametrize("damaged_at", [0, 60, 4096])  # in the kind of the file; in its format; in a page
async def test_a_snapshot_that_was_damaged_on_the_disk_is_not_handed_out(
    pair: Pair, another_is_whole: bool, damaged_at: int
) -> None:
    newest = await pair.leader.snapshot()
    folder = pair.folder / "primary"
    if not another_is_whole:
        pair.snapshot.unlink()
    with snapshots.path_of(folder, newest).open("r+b") as file:
        file.seek(damaged_at)
        file.write(b"\x7f" * 40)
    before = pair.position
    await pair.newest()
    assert pair.position == (before if another_is_whole else newest)
    await pair.replace()
    pair.follow()
    await pair.follower.wait_applied(pair.leader_log.end)
    assert await paths(pair.follower) == ["/later", "/old", "/s"]


async def test_a_full_disk_refuses_a_snapshot_and_changes_nothing(pair: Pair) -> None:
    disk = SmallDisk(pair.follower)
    await disk.limit(20)
    await refused(pair, pair.snapshot, pair.position, StorageFull, "no room")
    await disk.limit(1_000_000)
    await pair.replace()
    assert len(await paths(pair.follower)) == 2


async def test_an_installed_replica_writes_snapshots_and_trims_as_any_other(pair: Pair) -> None:
    await pair.follower.snapshot()
    await pair.replace()
    assert snapshots.positions(pair.folder / "follower") == [pair.position]
    pair.follow()
    await pair.follower.wait_applied(pair.leader_log.end)
    own = await pair.follower.snapshot()
    assert snapshots.positions(pair.folder / "follower") == [pair.position, own]
    assert pair.log.trimmed == pair.position


async def test_rows_ahead_of_a_log_that_begins_anew_below_them_are_replaced(pair: Pair) -> None:
    """After an unclean recovery a replica may be ahead of the one that was chosen to lead."""
    pair.log.end = Position(2 * pair.position)
    pair.log.write(encode(stream("/void")))
    pair.log.commit()
    await pair.follower.wait_applied(pair.log.end)
    assert await pair.follower.snapshot() > pair.position
    pair.log.begin_anew(pair.position)
    disk = SmallDisk(pair.follower)
    await disk.limit(20)
    with pytest.raises(StorageFull):
        await pair.follower.install(pair.snapshot, pair.position)
    assert snapshots.positions(pair.folder / "follower") == [], "a start must not go back to rows that are void"
    await disk.limit(1_000_000)
    await pair.follower.install(pair.snapshot, pair.position)
    assert await paths(pair.follower) == ["/old", "/s"]
    assert pair.follower.applied == pair.position
    await pair.follower.close()
    await pair.reopen()
    assert await paths(pair.follower) == ["/old", "/s"]


async def test_tables_of_an_older_version_are_installed_whole_or_not_at_all(tmp_path: Path) -> None:
    """There was room for the rows, but not for the tables that they lacked: the rows were replaced, and applying
    continued from the old position."""
    pair = Pair(tmp_path, level=0)
    await pair.open()
    older = tmp_path / "older.sqlite"
    shutil.copyfile(pair.snapshot, older)
    added = ("going", "free_streams")
    with contextlib.closing(sqlite3.connect(older, isolation_level=None)) as connection:
        for table in added:
            connection.execute(f"DROP TABLE {table}")
        connection.execute("VACUUM")
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
    live = pair.follower._connection
    live.execute(f"PRAGMA max_page_count={pages}")
    before = await paths(pair.follower)
    try:
        await pair.follower.install(older, pair.position)
    except StorageFull:
        assert await paths(pair.follower) == before
    else:
        assert await paths(pair.follower) == ["/old", "/s"]
        assert not await pair.follower.query(lambda reader: reader.is_forgetting())
    assert applied(live) == pair.follower.applied
    await pair.close()


@pytest.mark.parametrize("fails", ["copyfile", "_set_aside", "rename", "open"])
async def test_an_install_in_place_of_damaged_tables_changes_nothing_or_leaves_the_next_start_its_rows(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """An error between the two files left neither a live file nor a snapshot, and the catalog went on without one."""
    pair.follower.on_damage(lambda: None)
    pair.follower.found_damage("a row differs")

    def fail(*_arguments: Any, **_more: Any) -> Any:
        raise OSError(errno.EIO, "it failed")

    with monkeypatch.context() as patched:
        match fails:
            case "copyfile":
                patched.setattr(shutil, fails, fail)
            case "_set_aside":
                patched.setattr(snapshots, fails, fail)
            case "rename":
                rename = Path.rename
                patched.setattr(Path, fails, lambda old, new: (fail if "rebuilt" in old.name else rename)(old, new))
            case "open":
                opened = SCHEMA.open
                patched.setattr(
                    SCHEMA, fails, lambda path, **more: (fail if path.suffix == ".sqlite" else opened)(path, **more)
                )
        with pytest.raises(OSError, match="it failed"):
            await pair.follower.install(pair.snapshot, pair.position)
    if fails == "copyfile":
        assert not pair.follower.failed.done()
        assert await paths(pair.follower) == ["/old"]
        assert snapshots.snapshots(pair.folder / "follower") == []
        await pair.replace()
    else:
        assert pair.follower.failed.done()
        with pytest.raises(CatalogFailed):
            await pair.follower.wait_applied(pair.position)
        await pair.follower.close()
        await pair.reopen()
    assert pair.follower.applied == pair.position
    assert await paths(pair.follower) == ["/old", "/s"]


async def test_tables_that_are_lost_are_opened_though_their_log_begins_behind_them_and_come_from_another(
    pair: Pair,
) -> None:
    """A node that led again as soon as it had started ended there."""
    pair.follow()
    pair.log.in_memory_from = pair.position
    await pair.follower.close()
    shutil.rmtree(pair.folder / "follower")
    assert pair.log.committed > pair.position == pair.log.trimmed
    await pair.reopen()
    assert pair.follower.applied == 0
    await pair.follower.install(pair.snapshot, pair.position, log_stays=True)
    await pair.follower.wait_applied(pair.log.committed)
    assert await paths(pair.follower) == await paths(pair.leader)
