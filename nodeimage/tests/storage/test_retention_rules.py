"""Which records expire: by time, by size, only from the oldest on."""

from headrace.base.ids import Offset, PartitionletId, StreamNumber, partitionlet_id
from headrace.catalog.chains import LogStart
from headrace.catalog.rows import Owner, Retention, StreamRetention
from headrace.storage.retention_rules import Share, expired, gone

STREAM = StreamNumber(3)
OTHER = StreamNumber(4)
ONE = partitionlet_id(stream=STREAM, serial=1)
TWO = partitionlet_id(stream=STREAM, serial=2)
ELSE = partitionlet_id(stream=OTHER, serial=1)
TOPIC = b"t" * 16
NOW = 1_000_000


def owner(*, log_start: int = 0, topic: int = 5, first: int = 0, topic_id: bytes = TOPIC) -> Owner:
    return Owner(topic, topic_id, 0, Offset(first), Offset(-1), Offset(log_start))


def share(first: int, last: int, *, at: int, size: int = 100, partitionlet: PartitionletId = ONE) -> Share:
    return Share(partitionlet, first, last, at, size)


def rules(ttl_ms: int = 0, size: int = -1) -> dict[StreamNumber, StreamRetention]:
    return {STREAM: StreamRetention(Retention(ttl_ms, size), {}), OTHER: StreamRetention(Retention(0, -1), {})}


def starts(shares: list[Share], **rule: int) -> list[LogStart]:
    return expired(
        shares, owners={ONE: owner(), ELSE: owner(topic=9, topic_id=b"e" * 16)}, rules=rules(**rule), now=NOW
    )


def test_nothing_expires_where_the_time_to_live_is_zero() -> None:
    assert starts([share(0, 9, at=0)]) == []


def test_records_older_than_the_time_to_live_expire() -> None:
    shares = [share(0, 9, at=NOW - 500), share(10, 19, at=NOW - 100), share(20, 29, at=NOW - 99)]
    assert starts(shares, ttl_ms=100) == [LogStart(TOPIC, 0, Offset(20))]


def test_an_old_chunk_behind_a_young_one_stays() -> None:
    shares = [share(0, 9, at=NOW), share(10, 19, at=0)]
    assert starts(shares, ttl_ms=100) == []


def test_another_streams_records_in_the_same_chunk_stay() -> None:
    shares = [share(0, 9, at=0), share(0, 9, at=0, partitionlet=ELSE)]
    assert [start.topic_id for start in starts(shares, ttl_ms=100)] == [TOPIC]


def test_the_oldest_go_while_a_partition_is_over_its_size() -> None:
    shares = [share(index * 10, index * 10 + 9, at=NOW) for index in range(5)]
    assert starts(shares, size=250) == [LogStart(TOPIC, 0, Offset(20))]


def test_a_topics_own_rule_goes_before_its_streams() -> None:
    overridden = {STREAM: StreamRetention(Retention(100, -1), {5: Retention(0, -1)})}
    assert expired([share(0, 9, at=0)], owners={ONE: owner()}, rules=overridden, now=NOW) == []


def test_a_chain_expires_from_its_first_partitionlet_on() -> None:
    owners = {ONE: owner(), TWO: owner(first=10)}
    shares = [share(0, 9, at=0), share(10, 19, at=0, partitionlet=TWO)]
    assert expired(shares, owners=owners, rules=rules(ttl_ms=1), now=NOW) == [LogStart(TOPIC, 0, Offset(20))]


def test_a_log_start_does_not_pass_the_end_of_what_is_sealed() -> None:
    """After an unclean recovery a log may hold batches beyond that end, which were never acknowledged."""
    owners = {ONE: owner()._replace(end=Offset(8)), TWO: owner(first=8)}
    shares = [share(0, 9, at=0), share(8, 19, at=NOW, partitionlet=TWO)]
    assert expired(shares, owners=owners, rules=rules(ttl_ms=1), now=NOW) == [LogStart(TOPIC, 0, Offset(8))]


def test_bytes_below_the_log_start_and_of_nobody_are_gone() -> None:
    shares = [share(0, 9, at=0), share(0, 9, at=0, partitionlet=TWO)]
    dead, whole = gone(shares, owners={ONE: owner(log_start=10)})
    assert dead == {ONE: 10, TWO: 1 << 62}
    assert whole
    dead, whole = gone(shares, owners={ONE: owner(log_start=5)})
    assert dead == {ONE: 5, TWO: 1 << 62}
    assert not whole
    dead, whole = gone(shares, owners={ONE: owner(), TWO: owner()})
    assert (dead, whole) == ({}, False)
