"""Dead partitionlets are searched for everywhere once, for a while in younger chunks, and after a restart if they were
not before."""

from array import array

import pytest

from headrace.base.errors import CorruptLog
from headrace.base.ids import ContainerId, PartitionletId, Position
from headrace.storage import dead_records
from headrace.storage.dead_records import NOTHING, RECENT_CHUNKS, RECENT_S, DeadRecords, joined

C, D = ContainerId(5), ContainerId(6)
LOG, OTHER_LOG = object(), object()


def ids(*numbers: int) -> frozenset[PartitionletId]:
    return frozenset(map(PartitionletId, numbers))


@pytest.fixture
def records() -> DeadRecords:
    return DeadRecords()


def test_what_died_is_looked_for_in_its_container_alone(records: DeadRecords) -> None:
    known, other = records.of(C, LOG), records.of(D, OTHER_LOG)
    records.died(array("q", [C, 1, D, 9, C, 2, C, 1]))
    assert (known.take_sought(0.0), other.take_sought(0.0)) == (ids(1, 2), ids(9))
    assert known.take_sought(0.0) == NOTHING, "once"


def test_what_died_before_anybody_asked_waits_and_what_has_no_replica_here_is_forgotten(records: DeadRecords) -> None:
    records.died(array("q", [C, 1, D, 2]))
    assert records.of(C, LOG).sought == ids(1)
    records.keep([C])
    assert records.of(D, LOG).sought == NOTHING


def test_of_very_many_all_chunks_are_looked_at(records: DeadRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_records, "MAX_SOUGHT", 3)
    known = records.of(C, LOG)
    known.seek(ids(1, 2, 3))
    assert known.sought == ids(1, 2, 3)
    known.seek(ids(4))
    assert known.take_sought(0.0) is None
    assert not known.is_known(0), "nor is it known of what closes soon after"


def test_nothing_is_joined_to_nothing_without_a_copy() -> None:
    some = ids(1)
    assert joined(some, NOTHING) is some
    assert joined(NOTHING, some) is some
    assert joined(None, some) is None


def test_a_chunk_is_known_where_all_of_it_came_when_it_was_written(records: DeadRecords) -> None:
    known = records.of(C, LOG)
    assert not known.is_known(100), "nobody knows yet whether it is behind"
    known.note_current(end=Position(100), current=True)
    known.note_current(end=Position(300), current=True)
    assert [known.is_known(start) for start in (99, 100, 200)] == [False, True, True]
    known.note_current(end=Position(400), current=False)
    assert not known.is_known(500)
    known.note_current(end=Position(600), current=True)
    assert [known.is_known(start) for start in (500, 600)] == [False, True]


def test_another_log_of_the_same_container_was_looked_at_nowhere(records: DeadRecords) -> None:
    records.of(C, LOG).closed(500, 0.0)
    assert records.of(C, LOG).looked_until == 500
    assert records.of(C, OTHER_LOG).looked_until == 0


def test_what_died_is_recent_for_some_time_and_some_chunks(records: DeadRecords) -> None:
    known = records.of(C, LOG)
    known.seek(ids(1))
    known.take_sought(10.0)
    for chunk in range(RECENT_CHUNKS):
        known.closed(chunk, 10.0 + RECENT_S)
        assert known.recent == ids(1), "too few chunks have closed"
    known.closed(9, 9.0 + RECENT_S)
    assert known.recent == ids(1), "too early"
    known.closed(10, 10.0 + RECENT_S)
    assert known.recent == NOTHING


def test_dead_bytes_of_an_open_chunk_are_counted_from_its_beginning_or_not_at_all(records: DeadRecords) -> None:
    known = records.of(C, LOG)
    known.opened(0)
    assert known.open_dead is None, "it began before anybody counted"
    known.note_current(end=Position(50), current=True)
    known.opened(100)
    assert known.open_dead == 0
    known.open_dead = 7
    known.opened(100)
    assert known.open_dead == 7
    records.all_died()
    assert known.open_dead is None
    assert known.sought is None


def test_a_later_start_goes_on_where_the_former_was(records: DeadRecords) -> None:
    known = records.of(C, LOG)
    known.closed(1000, 0.0)
    known.require_scan(300)
    known.require_scan(500)
    known.begin_scan(500)
    known.seek(ids(1, 2))
    records.of(D, LOG).seek_all()
    later = DeadRecords()
    assert later.decode(records.encode(17, {C: [700]})) == 17
    found = later.of(C, OTHER_LOG)
    assert (found.looked_until, found.unseen, found.sought) == (1000, {300, 700}, ids(1, 2))
    assert later.of(D, OTHER_LOG).sought is None


def test_only_what_a_later_start_needs_is_a_change(records: DeadRecords) -> None:
    known = records.of(C, LOG)
    records.changed = False
    known.take_sought(0.0)
    known.note_current(end=Position(1), current=True)
    known.opened(1)
    known.begin_scan(5)
    assert not records.changed
    for change in (lambda: known.seek(ids(1)), lambda: known.take_sought(0.0), lambda: known.require_scan(5)):
        records.changed = False
        change()
        assert records.changed


@pytest.mark.parametrize("raw", [b"", b"\x93\x02\x00\x90", b"\x91\x01"])
def test_what_was_not_written_so_is_refused(records: DeadRecords, raw: bytes) -> None:
    with pytest.raises(CorruptLog):
        records.decode(raw)
