"""The simulator finds the faults that it should find: faults planted in the code soon fail some seed."""

import asyncio
import copy
import uuid
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import count, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from msgspec import structs

from headrace.base.errors import OutOfDescriptors
from headrace.base.ids import Position
from headrace.catalog import chains
from headrace.catalog.chains import RollDone, Rolled, _finish
from headrace.catalog.committed_offsets import CommitOffsets
from headrace.catalog.queries.chains import ChainQueries
from headrace.container import follower_feed, replica_folder
from headrace.container.follower import Follower
from headrace.container.follower_feed import FollowerFeed
from headrace.container.history import History
from headrace.container.in_sync_writer import InSyncWriter
from headrace.container.leader_state import LeaderState, Member, Vouch
from headrace.container.local_replica import LocalReplica
from headrace.container.replica_folder import ReplicaFile
from headrace.container.replicas import Replicas
from headrace.container.writer import Writer
from headrace.control import level_raise
from headrace.control.cluster_clock import Clocks
from headrace.log import frames
from headrace.log.appending import Appender
from headrace.node.catalog import NodeCatalog
from headrace.node.catalog_log import CatalogLog
from headrace.partitions import partition_tail
from headrace.partitions.partition_tail import read_tail
from headrace.partitions.rolls import steps
from headrace.partitions.rolls.steps import RollSteps
from headrace.peer.messages import Acked, Resting
from headrace.storage import container_closing
from headrace.store import container_records, features
from headrace.store.records import NodeRecord
from headrace.tables import row_checksums, snapshots
from headrace.tables.row_checksums import Tables
from simulation.cluster import has_damaged_tables, has_odd_calls, has_topics, has_versions, is_set_back, run
from simulation.disk import has_odd_writes
from simulation.node import Node
from simulation.odd_calls import OddError

Planted = Callable[[], Any]


def commits_without_one_follower() -> Any:
    commit = LeaderState._commit

    def planted(state: LeaderState) -> bool:
        kept = state._waited_for
        state._waited_for = kept[:-1]
        try:
            return commit(state)
        finally:
            state._waited_for = kept

    return mock.patch.object(LeaderState, "_commit", planted)


def acknowledges_before_it_wrote() -> Any:
    def planted(follower: Follower) -> None:
        if follower._following and follower._session is not None:
            follower._session.send(Acked(position=follower.log.end, epoch=follower.epoch))

    return mock.patch.object(Follower, "_acknowledge", planted)


def takes_a_nodes_heartbeat_for_an_acknowledgement() -> Any:
    """A node's heartbeat only covers followers at rest that have everything; here, it also covers one that has yet to
    write.
    """

    def planted(feed: FollowerFeed, vouch: Vouch, resting: Resting, stirred: Callable[[int], None]) -> bool:
        peer = feed._leader.state._peers.get(feed.member)
        if feed._closed or not feed._live or feed._observer or peer is None or not peer.connected:
            return False
        peer.vouch, peer.position = vouch, feed._leader.state.end
        feed._rests, feed._stirred = True, lambda: stirred(resting.number)
        return True

    return mock.patch.object(FollowerFeed, "spoken_for", planted)


def finds_the_match_point_by_position_alone() -> Any:
    """KIP-101: the end of a follower's log does not determine what it has in common with the leader."""

    def planted(_mine: History, my_end: int, _theirs: History, their_end: int) -> Position:
        return Position(min(my_end, their_end))

    return mock.patch.object(follower_feed, "match_point", planted)


def acknowledges_before_it_cut() -> Any:
    """Invariant 7: a follower's frames beyond the match point, wherever they come from, are not copies of the leader's.

    A leader would refuse most such acknowledgements, which are beyond its own end; this one believes them.
    """
    take_up = Follower._take_up

    async def planted(follower: Follower, following: Any) -> None:
        follower._following = True
        follower._acknowledge()
        await take_up(follower, following)

    both = ExitStack()
    both.enter_context(mock.patch.object(Follower, "_take_up", planted))
    both.enter_context(mock.patch.object(LeaderState, "may_have", return_value=True))
    return both


def goes_on_in_the_epoch_of_its_last_run() -> Any:
    return mock.patch.object(LocalReplica, "led", property(lambda replica: 0))


def commits_by_the_proposed_set_alone() -> Any:
    """Invariant 3: a put that timed out may never take effect, and then the old set is valid."""

    def planted(state: LeaderState) -> frozenset[Member]:
        return state._confirmed if state._proposed is None else state._proposed

    return mock.patch.object(LeaderState, "waits_for", property(planted))


def makes_every_folder_with_the_same_format() -> Any:
    """Invariant 5: a folder that was lost and recreated is another replica."""
    prepare = replica_folder.prepare

    def planted(folder: Path, *, unmarked: str = "") -> ReplicaFile:
        number = int(folder.parent.name.removeprefix("node-"))
        return structs.replace(prepare(folder, unmarked=unmarked), format=str(uuid.UUID(int=number)))

    return mock.patch.object(replica_folder, "prepare", planted)


def takes_frames_as_they_are() -> Any:
    """Readers of a damaged replica, and a scrub, get the damaged frames."""
    return mock.patch.object(frames, "frame_fault", return_value=None)


def leaves_damage_where_it_is() -> Any:
    """Invariant 14: unreadable frames are fetched again from replicas that have them."""
    return mock.patch.object(Replicas, "damaged", return_value=None)


def opens_one_offset_too_far() -> Any:
    """A chain is contiguous: here the record differs from the containers' contents."""
    finish = RollDone.apply

    def planted(command: RollDone, connection: Any) -> Any:
        items = [structs.replace(item, end=item.end + 1) for item in command.items]
        return finish(structs.replace(command, items=items), connection)

    return mock.patch.object(RollDone, "apply", planted)


def records_a_roll_without_its_end() -> Any:
    """The next partitionlet begins where the previous one began."""

    def planted(connection: Any, topic: Any, item: Rolled) -> Any:
        outcome = _finish(connection, topic, item)
        connection.update("partitionlets", {"first": "first - 1"}, "id = ?1 AND first > 0", item.opened)
        return outcome

    return mock.patch.object(chains, "_finish", planted)


def rolls_without_its_producers() -> Any:
    """Invariant 11 over a roll: a batch that is repeated to the next partitionlet is already stored."""
    return mock.patch.object(steps, "carried", return_value=[])


def writes_behind_a_seal() -> Any:
    """A seal written by an earlier leader counts, whatever the catalog says."""

    def planted(*args: Any, **others: Any) -> Any:
        return read_tail(*args, **others)._replace(seal=None)

    return mock.patch.object(partition_tail, "read_tail", planted)


def applies_what_is_not_committed() -> Any:
    """Invariant 2: here a catalog applies commands that no other catalog will apply."""
    return mock.patch.object(CatalogLog, "committed", property(lambda log: log._replica.log.synced))


def applies_in_its_own_way() -> Any:
    """Applying is deterministic: here the result of a command differs between nodes."""
    commit = CommitOffsets.apply

    def planted(command: CommitOffsets, connection: Any) -> Any:
        return commit(structs.replace(command, now=command.now + id(connection) % 7), connection)

    return mock.patch.object(CommitOffsets, "apply", planted)


def takes_a_snapshot_for_newer_than_it_is() -> Any:
    """The commands between the snapshot and the continuation of the log are left out."""
    take = NodeCatalog.snapshot

    async def planted(catalog: NodeCatalog, least: Position) -> Any:
        given = await take(catalog, least)
        given.position = catalog.tables.applied
        return given

    return mock.patch.object(NodeCatalog, "snapshot", planted)


def takes_what_it_does_not_know_for_dead() -> Any:
    """Invariant 12: a catalog that lags does not know yet to whom the data in the containers belong."""
    return mock.patch.object(ChainQueries, "not_yet_made", return_value=[])


def deletes_what_is_needed() -> Any:
    """A closed container is deleted although a partitionlet lives in it."""
    return mock.patch.object(container_closing, "_is_needed", return_value=False)


def waits_for_a_target_that_is_deleted() -> Any:
    """A roll whose target can never open has to choose another one."""

    async def planted(_steps: RollSteps, target: Any) -> Any:
        return target

    return mock.patch.object(RollSteps, "_target_now", planted)


def expires_by_its_own_clock() -> Any:
    """A node whose wall clock is ahead deletes records that others would keep."""
    return mock.patch.object(Clocks, "agreed", Clocks.own)


def raises_a_level_that_not_all_have_taken() -> Any:
    return mock.patch.object(level_raise, "_are_fenced", return_value=True)


def believes_the_range_of_a_former_run() -> Any:
    """An older version that used a folder leaves the newer version's range in its record, since it cannot read it."""

    def planted(node: NodeRecord) -> tuple[int, int]:
        return (0, 0) if node.supports is None else (node.supports.oldest, node.supports.newest)

    return mock.patch.object(features, "range_of", planted)


def sets_no_folder_apart() -> Any:
    return mock.patch.object(Node, "_fence")


def counts_what_was_put_off_as_written() -> Any:
    """Without a descriptor the next chunk's file does not appear, and its frames are not stored."""
    ended = Writer.job_ended

    def planted(writer: Writer, under_way: Any, error: Exception | None) -> None:
        ended(writer, under_way, None if isinstance(error, OutOfDescriptors) else error)

    return mock.patch.object(Writer, "job_ended", planted)


def counts_what_fell_short_as_written() -> Any:
    """The kernel accepted only some bytes of a write, and reported it."""
    ended = Writer.write_ended

    def planted(writer: Writer, under_way: Any, result: int) -> None:
        ended(writer, under_way, under_way.job.nbytes if result >= 0 else result)

    return mock.patch.object(Writer, "write_ended", planted)


def tells_what_is_written_before_what_lies_below_it() -> Any:
    """Invariant 1: a crash may leave a hole there, and a start cuts everything after it."""
    ended = Writer.write_ended

    def planted(writer: Writer, under_way: Any, result: int) -> None:
        if result != under_way.job.nbytes or writer._jobs[0] is under_way:
            ended(writer, under_way, result)
            return
        writer._jobs.remove(under_way)
        writer._log.written_directly(under_way.job, under_way.seconds)
        writer._done(under_way.job, None)

    return mock.patch.object(Writer, "write_ended", planted)


def marks_what_is_behind_a_hole() -> Any:
    """Invariant 14: the next start would mistake a torn tail for damage."""
    ended = Writer.write_ended

    def planted(writer: Writer, under_way: Any, result: int) -> None:
        if result == under_way.job.nbytes:
            writer._log.written_directly(under_way.job, under_way.seconds)
        ended(writer, under_way, result)

    return mock.patch.object(Writer, "write_ended", planted)


def writes_by_one_open_file() -> Any:
    """A failed write-back is reported once to each open file: with two writes on one, to either of them."""

    def planted(appender: Appender) -> Any:
        chunk = appender.chunks[-1]
        return chunk, chunk.body.opened()

    return mock.patch.object(Appender, "open_second_file", planted)


def takes_an_old_copy_of_the_store_for_the_newest() -> Any:
    """A node that knows of a change missing from a record must not act on that record."""
    return mock.patch.object(container_records, "descends", return_value=True)


def lets_who_knows_better_leave_unasked() -> Any:
    """A leader that continued with an old copy continues without the nodes that stand still."""
    both = ExitStack()
    both.enter_context(mock.patch.object(Replicas, "unasked", return_value=()))
    both.enter_context(mock.patch.object(Replicas, "told"))
    both.enter_context(mock.patch.object(Replicas, "_compare"))
    return both


def gives_a_proposal_up_at_an_unexpected_error() -> Any:
    """Nobody else repeats the put, and commits wait for both sets for ever."""
    put = InSyncWriter._put

    async def planted(in_sync: InSyncWriter, container: Any, wanted: Any) -> None:
        env = in_sync._env

        async def store(change: Any) -> Any:
            try:
                return await env.store(change)
            except OddError:
                raise asyncio.CancelledError from None

        once = copy.copy(in_sync)
        once._env = SimpleNamespace(store=store, view=env.view)
        await put(once, container, wanted)

    return mock.patch.object(InSyncWriter, "_put", planted)


def takes_rows_as_they_are() -> Any:
    """A flipped bit changes a row of the catalog's tables, and is accepted as written."""

    def rows(connection: Tables, table: str, where: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return connection.execute(f"SELECT * FROM main.{table} WHERE {where}", parameters).fetchall()

    both = ExitStack()
    both.enter_context(mock.patch.object(row_checksums, "_checking", return_value=lambda *_row: 1))
    both.enter_context(mock.patch.object(Tables, "rows", rows))
    both.enter_context(mock.patch.object(snapshots, "damage", return_value=[]))
    both.enter_context(mock.patch.object(snapshots, "damage_in", return_value=[]))
    return both


# Each search begins at the first seed that noticed the fault when this was written.


@pytest.mark.parametrize(
    ("planted", "first"),
    [
        (commits_without_one_follower, 0),
        (acknowledges_before_it_wrote, 0),
        (takes_a_nodes_heartbeat_for_an_acknowledgement, 5),
        (finds_the_match_point_by_position_alone, 23),
        (acknowledges_before_it_cut, 75),
        (goes_on_in_the_epoch_of_its_last_run, 0),
        (commits_by_the_proposed_set_alone, 1),
        (makes_every_folder_with_the_same_format, 1),
        (takes_frames_as_they_are, 1),
        (leaves_damage_where_it_is, 1),
        (counts_what_was_put_off_as_written, 24),
        (tells_what_is_written_before_what_lies_below_it, 0),
        (marks_what_is_behind_a_hole, 0),
        (writes_by_one_open_file, 0),
    ],
)
def test_a_planted_fault_is_found(planted: Planted, first: int) -> None:
    assert _is_found(planted, islice(count(first), 40)), "40 seeds did not notice it"


@pytest.mark.parametrize(
    ("planted", "first"),
    [
        (opens_one_offset_too_far, 0),
        (records_a_roll_without_its_end, 0),
        (rolls_without_its_producers, 0),
        (writes_behind_a_seal, 17),
        (applies_what_is_not_committed, 0),
        (applies_in_its_own_way, 0),
        (takes_a_snapshot_for_newer_than_it_is, 21),
        (takes_what_it_does_not_know_for_dead, 651),
        (deletes_what_is_needed, 558),
        (waits_for_a_target_that_is_deleted, 2480),
        (expires_by_its_own_clock, 58),
    ],
)
def test_a_fault_planted_in_topics_is_found(planted: Planted, first: int) -> None:
    assert _is_found(planted, islice(filter(has_topics, count(first)), 120)), "120 seeds did not notice it"


@pytest.mark.parametrize(
    ("planted", "first"),
    [
        (raises_a_level_that_not_all_have_taken, 125),
        (believes_the_range_of_a_former_run, 518),
        (sets_no_folder_apart, 0),
    ],
)
def test_a_fault_planted_in_upgrades_is_found(planted: Planted, first: int) -> None:
    assert _is_found(planted, islice(filter(has_versions, count(first)), 40)), "40 seeds did not notice it"


@pytest.mark.parametrize(
    ("planted", "first"),
    [
        (takes_an_old_copy_of_the_store_for_the_newest, 2),
        (lets_who_knows_better_leave_unasked, 584),
    ],
)
def test_a_fault_planted_in_what_tells_an_old_store_is_found(planted: Planted, first: int) -> None:
    assert _is_found(planted, islice(filter(is_set_back, count(first)), 40)), "40 seeds did not notice it"


@pytest.mark.parametrize(("planted", "first"), [(gives_a_proposal_up_at_an_unexpected_error, 105)])
def test_a_step_that_is_not_made_again_is_found(planted: Planted, first: int) -> None:
    assert _is_found(planted, islice(filter(has_odd_calls, count(first)), 40)), "40 seeds did not notice it"


@pytest.mark.parametrize(("planted", "first"), [(counts_what_fell_short_as_written, 0)])
def test_a_fault_planted_in_what_writes_is_found(planted: Planted, first: int) -> None:
    assert _is_found(planted, islice(filter(has_odd_writes, count(first)), 40)), "40 seeds did not notice it"


@pytest.mark.parametrize(("planted", "first"), [(takes_rows_as_they_are, 15)])
def test_a_fault_planted_in_the_checks_of_tables_is_found(planted: Planted, first: int) -> None:
    assert _is_found(planted, islice(filter(has_damaged_tables, count(first)), 40)), "40 seeds did not notice it"


def _is_found(planted: Planted, seeds: Iterable[int]) -> bool:
    for seed in seeds:
        with planted():
            if run(seed, kept_lines=1).problem:
                return True
    return False


def test_an_error_where_nobody_waits_is_told() -> None:
    """The caller of a task that ends this way gets no answer, and asks another node, until the time is over."""

    async def planted(*_arguments: Any) -> str:
        raise TypeError("planted")

    seed = next(seed for seed in count() if not has_topics(seed))
    with mock.patch.object(Replicas, "prepare", planted):
        assert "planted" in run(seed).problem
