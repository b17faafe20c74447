"""How far a partition is behind its source: in records, and since when."""

from headrace.base.ids import LeaderEpoch, Offset
from headrace.links.pull.partition_pull import Pull, Status
from headrace.links.source.source import NO_OFFSET, TopicPartition


def pull(*, next: int = 0, limit: int | None = None) -> Pull:
    """Everything below `next` is committed here."""
    made = Pull(TopicPartition(b"t" * 16, 0))
    made.next = made.appended = made.committed = Offset(next)
    if limit is not None:
        made.limit = Offset(limit)
    return made


def test_it_is_behind_until_it_has_all_that_the_source_has() -> None:
    one = pull(next=10)
    assert not one.is_behind
    one.record_high_watermark(Offset(30), 5)
    assert one.is_behind
    one.record_append(Offset(30), Offset(30), 6)
    assert not one.is_behind
    assert one.lag_records() == 20, "it is not committed yet"
    assert one.record_commit(Offset(29), 7) is None, "there is more"
    assert one.record_commit(Offset(30), 7) == 2
    assert (one.lag_records(), one.lag_s(100)) == (0, 0)


def test_the_lag_counts_from_the_first_record_that_is_not_here() -> None:
    one = pull()
    one.record_high_watermark(Offset(10), 5)
    one.record_high_watermark(Offset(20), 8)
    assert one.lag_s(9) == 4
    one.record_append(Offset(10), Offset(10), 9)
    one.record_commit(Offset(10), 9)
    assert one.lag_s(10) == 2, "what came at 8 is not here"
    one.record_append(Offset(20), Offset(20), 11)
    one.record_commit(Offset(20), 11)
    assert one.lag_s(20) == 0
    one.record_high_watermark(Offset(20), 30)
    assert one.lag_s(40) == 0, "that is no news"


def test_a_move_stops_where_our_own_home_begins() -> None:
    one = pull(limit=15)
    one.record_high_watermark(Offset(100), 1)
    assert (one.goal, one.lag_records()) == (15, 15)
    one.record_append(Offset(15), Offset(15), 2)
    one.record_commit(Offset(15), 2)
    assert not one.is_behind
    assert one.lag_s(10) == 0


def test_what_the_source_has_nothing_of_counts_as_here_once_what_lies_before_it_is_committed() -> None:
    one = pull()
    one.record_high_watermark(Offset(50), 1)
    one.record_append(Offset(20), Offset(50), 2)
    assert (one.next, one.committed, one.lag_records()) == (50, 0, 50)
    one.record_commit(Offset(19), 3)
    assert one.committed == 19
    one.record_commit(Offset(20), 4)
    assert (one.committed, one.lag_records()) == (50, 0)
    one.record_high_watermark(Offset(60), 5)
    one.skip_to(Offset(60), 6)
    assert one.lag_records() == 0, "nothing was to be appended for it"


def test_what_is_heard_while_a_fetch_is_under_way_is_noted_for_it() -> None:
    one = pull()
    one.record_high_watermark(Offset(10), 1)
    assert one.heard == NO_OFFSET
    one.status = Status.FETCHING
    one.record_high_watermark(Offset(12), 2)
    one.record_high_watermark(Offset(11), 3)
    assert (one.heard, one.known) == (12, 12)


def test_a_meeting_holds_until_it_is_forgotten() -> None:
    one = pull()
    one.must_meet = True
    one.record_meeting(LeaderEpoch(4))
    assert (one.met, one.epoch, one.must_meet) == (True, 4, False)
    one.forget_meeting()
    assert (one.met, one.epoch) == (False, -1)
