"""What a replica answers while its log goes on: what it was looked up with may be old by the time it is read."""

from typing import Any

from headrace.base.ids import ContainerId, Position
from headrace.log.regroup import rewrite
from headrace.partitions.reads.local_reads import Replica, committed_end, has_all, read_range

Writing = Any  # the class stands in conftest.py
FOREVER = 1 << 60


def test_a_chunk_that_was_regrouped_meanwhile_is_committed_whole(writing: Writing) -> None:
    """The places in it are not positions any more: compared with what was committed, all of it seemed to come later."""
    for row in range(4):
        writing.append(row % 2 + 1, size=700)
    writing.sync()
    led, followed = (
        Replica(ContainerId(2), writing.log, Position(writing.log.end), led) for led in (True, False)
    )  # as a read looks it up, which then waits for a thread
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
