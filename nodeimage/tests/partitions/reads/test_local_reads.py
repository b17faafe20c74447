"""Reads from a replica whose log changes between the look-up of the replica and the read."""

from types import SimpleNamespace
from typing import Any

from headrace.base.ids import ContainerId, Offset, PartitionletId, Position
from headrace.log.regroup import rewrite
from headrace.partitions.reads.local_reads import Replica, committed_end, has_all, read_range, stored_end
from kit.written_log import Writing

FOREVER = 1 << 60


def test_a_chunk_that_was_regrouped_meanwhile_is_committed_whole(writing: Writing) -> None:
    """Places in a regrouped chunk are no positions: compared with the committed position, all of them seemed to lie
    above."""
    for row in range(4):
        writing.append(row % 2 + 1, size=700)
    writing.sync()
    led, followed = (
        Replica(ContainerId(2), writing.log, Position(writing.log.end), led) for led in (True, False)
    )  # as a read looks the replica up before it waits for a thread
    writing.fill_chunks(1, partitionlets=2, size=700)
    writing.close_chunks()
    (chunk,) = writing.log.closed_chunks()
    rewrite(chunk.path)
    writing.log.reopen_chunk(chunk)
    assert led.committed < chunk.end
    for replica in (led, followed):
        for partitionlet in (1, 2):
            read = read_range(replica, partitionlet, offset=0, limit=2, max_bytes=FOREVER)
            assert b"".join(read or []) == b"".join(writing.batches[partitionlet][:2])
            assert has_all(replica, partitionlet, 2)
            assert committed_end(replica, partitionlet) >= 2


def test_an_open_chunk_ends_where_it_is_committed(writing: Writing) -> None:
    writing.append(1)
    writing.sync()
    replica = Replica(ContainerId(2), writing.log, Position(writing.log.end), led=False)
    writing.append(1)
    writing.append(2)
    writing.sync()
    assert committed_end(replica, 1) == 1
    assert committed_end(replica, 2) == -1
    assert read_range(replica, 2, offset=0, limit=1, max_bytes=FOREVER) is None


def replicas(writing: Writing) -> tuple[Replica, Replica]:
    """The replicas of the leader and a follower, with everything committed."""
    led, followed = (Replica(ContainerId(2), writing.log, Position(writing.log.end), led) for led in (True, False))
    return led, followed


def test_behind_its_end_a_leader_says_that_there_is_nothing_and_a_follower_that_it_cannot_tell(
    writing: Writing,
) -> None:
    writing.append(1, records=3)
    writing.sync()
    led, followed = replicas(writing)
    assert read_range(led, PartitionletId(1), offset=3, limit=FOREVER, max_bytes=1) == []
    assert read_range(followed, PartitionletId(1), offset=3, limit=FOREVER, max_bytes=1) is None
    assert has_all(led, PartitionletId(1), 4)
    assert has_all(followed, PartitionletId(1), 3)
    assert not has_all(followed, PartitionletId(1), 4)


def test_what_a_follower_has_given_back_another_node_may_have(writing: Writing) -> None:
    writing.next[1] = 5
    writing.append(1, records=3)
    writing.sync()
    led, followed = replicas(writing)
    assert read_range(followed, PartitionletId(1), offset=2, limit=FOREVER, max_bytes=FOREVER) is None
    for replica in (led, followed):
        assert (
            b"".join(read_range(replica, PartitionletId(1), offset=6, limit=FOREVER, max_bytes=1) or [])
            == (writing.batches[1][0])
        )


def sealed(first: int, end: int) -> Any:
    return SimpleNamespace(id=PartitionletId(1), first=Offset(first), end=Offset(end))


def test_a_sealed_partitionlet_ends_behind_the_last_record_that_is_left(writing: Writing) -> None:
    assert stored_end(writing.log, sealed(0, 9)) == 0, "there is none"
    for records in (3, 2):
        writing.append(1, records=records)
    writing.sync()
    assert stored_end(writing.log, sealed(0, 9)) == 5, "a gap lies before its end"
    assert stored_end(writing.log, sealed(0, 5)) == 5
    assert stored_end(writing.log, sealed(0, 3)) == 3, "what lies behind its seal was never acknowledged"
    assert stored_end(writing.log, sealed(7, 9)) == 7
