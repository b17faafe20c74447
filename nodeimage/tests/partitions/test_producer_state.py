"""Idempotent producers: repeats, gaps, and what is forgotten."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import Code, KafkaError
from headrace.partitions.producer_state import BATCHES_KEPT, EXPIRE_EVERY, KnownBatch, Producer, Producers


def add(
    producers: Producers,
    sequence: int,
    *,
    records: int = 1,
    offset: int = 0,
    pid: int = 7,
    epoch: int = 0,
    timestamp: int = 5,
) -> None:
    producers.add(
        producer_id=pid,
        epoch=epoch,
        base_sequence=sequence,
        records=records,
        base_offset=offset,
        timestamp=timestamp,
        now=1000,
    )


def check(
    producers: Producers,
    sequence: int,
    *,
    records: int = 1,
    pid: int = 7,
    epoch: int = 0,
    timestamp: int | None = 5,
) -> int | None:
    known = producers.check(producer_id=pid, epoch=epoch, base_sequence=sequence, records=records, timestamp=timestamp)
    return None if known is None else known.base_offset


def refused(producers: Producers, sequence: int, **more: int) -> Code:
    with pytest.raises(KafkaError) as caught:
        check(producers, sequence, **more)
    return caught.value.code


def test_a_sequence_starts_at_zero_and_goes_on_without_gaps() -> None:
    producers = Producers()
    assert check(producers, 0) is None
    add(producers, 0, records=3)
    assert check(producers, 3) is None
    assert refused(producers, 4) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_repeat_is_known_by_its_first_offset() -> None:
    producers = Producers()
    for index in range(BATCHES_KEPT + 2):
        add(producers, index * 2, records=2, offset=100 + index)
    newest = (BATCHES_KEPT + 1) * 2
    assert check(producers, newest, records=2) == 100 + BATCHES_KEPT + 1
    assert check(producers, newest - 2, records=2) == 100 + BATCHES_KEPT


def test_a_sequence_older_than_what_is_kept_is_not_taken_for_a_repeat() -> None:
    """A client has five requests in flight at most, so it never repeats an older one (KIP-98)."""
    producers = Producers()
    for index in range(BATCHES_KEPT + 2):
        add(producers, index)
    assert refused(producers, 0) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_sequence_used_for_another_batch_is_refused_and_not_lost() -> None:
    producers = Producers()
    add(producers, 0, records=3, timestamp=100)
    assert check(producers, 0, records=3, timestamp=100) == 0
    assert refused(producers, 0, records=3, timestamp=101) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(producers, 0, records=2, timestamp=None) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_repeat_by_its_producer_is_known_by_its_sequence_whatever_its_time() -> None:
    """kafkajs encodes a batch again, with the time of the repeat."""
    producers = Producers()
    add(producers, 0, records=3, timestamp=100)
    assert check(producers, 0, records=3, timestamp=None) == 0


def test_a_producer_that_calls_a_topic_by_two_names_counts_for_each_and_the_second_is_refused() -> None:
    def named(name: str, sequence: int) -> KnownBatch | None:
        return producers.check(producer_id=7, epoch=0, base_sequence=sequence, records=1, name=name)

    def stored(name: str, sequence: int) -> None:
        producers.add(
            producer_id=7, epoch=0, base_sequence=sequence, records=1, base_offset=0, timestamp=5, now=5, name=name
        )

    producers = Producers()
    stored("/s:t", 0)
    assert named("/s:t", 0) is not None
    for sequence in (0, 1):
        with pytest.raises(KafkaError, match="calls one topic by two names, '/s:t' and 't', and counts") as caught:
            named("t", sequence)
        assert caught.value.code is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    read_back = producers.cut(at=1)
    assert read_back.check(producer_id=7, epoch=0, base_sequence=0, records=1, name="t") is not None, "nobody knows"
    read_back.heard(7, source=1, name="t")
    with pytest.raises(KafkaError):
        read_back.check(producer_id=7, epoch=0, base_sequence=1, records=1, name="/s:t")
    assert producers.check(producer_id=7, epoch=1, base_sequence=0, records=1, name="t") is None, "a new epoch"


def test_a_name_by_which_another_batch_came_than_the_stored_one_is_refused_until_the_right_one_is_known() -> None:
    def named(name: str) -> KnownBatch | None:
        return producers.check(producer_id=7, epoch=0, base_sequence=0, records=1, name=name)

    producers = Producers()
    add(producers, 0)
    assert not producers.is_named(7)
    producers.is_not_called(7, "t")
    assert not producers.is_named(7)
    with pytest.raises(KafkaError, match="calls one topic by two names, 't' and another one, and counts"):
        named("t")
    assert named("/s:t") is not None
    producers.heard(7, source=1, name="/s:t")
    assert producers.is_named(7)
    with pytest.raises(KafkaError, match="calls one topic by two names, '/s:t' and 't', and counts"):
        named("t")
    producers.is_not_called(7, "/s:t")  # the comparison began before the name was known
    assert named("/s:t") is not None


def test_a_producer_that_nothing_is_known_of_begins_where_it_likes_and_goes_on_from_there() -> None:
    """Its topic was deleted and recreated, or it was idle for a day: the client keeps counting."""
    producers = Producers()
    assert check(producers, 5) is None
    add(producers, 5)
    assert refused(producers, 7) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert check(producers, 6) is None


def test_an_older_epoch_is_fenced_and_a_newer_one_starts_anew() -> None:
    producers = Producers()
    add(producers, 0, epoch=3)
    assert refused(producers, 1, epoch=2) is Code.INVALID_PRODUCER_EPOCH
    assert refused(producers, 1, epoch=4) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert check(producers, 0, epoch=4) is None


def test_sequences_wrap_to_zero() -> None:
    producers = Producers()
    last = (1 << 31) - 1
    add(producers, 0, records=1)
    producers.add(producer_id=7, epoch=1, base_sequence=last - 1, records=2, base_offset=5, timestamp=0, now=0)
    assert check(producers, 0, epoch=1) is None
    assert refused(producers, 1, epoch=1) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_token_only_has_to_rise_and_never_expires() -> None:
    producers = Producers()
    token = -12345
    assert check(producers, 17, pid=token) is None
    add(producers, 17, records=500, offset=40, pid=token)
    assert check(producers, 17, records=500, pid=token) == 40
    assert check(producers, 3, pid=token) == 40
    assert check(producers, 90, pid=token) is None
    producers.expire(10**15)
    assert check(producers, 17, pid=token) == 40


def test_idle_producers_expire() -> None:
    producers = Producers()
    add(producers, 0)
    producers.expire(1000)
    assert len(producers) == 1
    producers.expire(1001)
    assert len(producers) == 0


def test_of_too_many_producers_those_that_wrote_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.partitions.producer_state.MAX_KNOWN", 400)
    producers = Producers()
    add(producers, 7, pid=-12345)
    for number in range(1000):
        add(producers, number, offset=2 * number, pid=0)
        add(producers, 0, offset=2 * number + 1, pid=1 + number)
    known = {pid for pid, _ in producers.items()}
    assert len(known) <= 400 + EXPIRE_EVERY
    assert known >= {-12345, 0, *range(701, 1001)}
    assert check(producers, 999, pid=0) == 1998
    found = {pid: Producer(0, [KnownBatch(0, 0, 10_000 - pid, 0)], seen=0) for pid in range(1000)}
    assert {pid for pid, _ in Producers(found).items()} == set(range(360)), "as it is loaded, too"


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.data())
def test_any_recent_batch_sent_again_is_answered_with_its_own_offset(sizes: list[int], data: st.DataObject) -> None:
    producers = Producers()
    sequence = offset = 0
    sent = []
    for records in sizes:
        assert check(producers, sequence, records=records) is None
        add(producers, sequence, records=records, offset=offset)
        sent.append((sequence, records, offset))
        sequence, offset = sequence + records, offset + records
    again = data.draw(st.sampled_from(sent[-BATCHES_KEPT:]))
    assert check(producers, again[0], records=again[1]) == again[2]
    assert refused(producers, sequence + data.draw(st.integers(1, 1000))) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_cut_takes_back_what_is_known_of_batches_that_are_gone() -> None:
    known = Producers()
    for producer, sequence, offset in ((7, 0, 0), (7, 1, 10), (8, 0, 11), (-9, 3, 5), (-9, 4, 12), (6, 0, 9)):
        known.add(
            producer_id=producer,
            epoch=0,
            base_sequence=sequence,
            records=1,
            base_offset=offset,
            timestamp=1,
            now=1,
        )
    left = dict(known.cut(10).items())
    assert {each: [batch.base_offset for batch in producer.batches] for each, producer in left.items()} == {
        7: [0],
        -9: [5],
        6: [9],
    }
    assert {each: producer.torn for each, producer in left.items()} == {7: True, -9: True, 6: False}
    cut = known.cut(10)
    assert cut.check(producer_id=7, epoch=0, base_sequence=2, records=1, timestamp=1) is None, "it lost what it sent"
    assert cut.check(producer_id=-9, epoch=0, base_sequence=4, records=1, timestamp=1) is None, "a token comes again"
    assert len(known) == 4, "the other is as it was"
