"""Java producers and consumers: what goes in comes out, at the offsets and times that were promised."""

from typing import Any

import pytest

NOON = 1_700_000_000_000


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_come_back_whole_with_each_codec(java: Any, unique: str, codec: str) -> None:
    records = [
        {"key": f"k{i}", "value": f"value {i} " * 50, "timestamp": NOON + i, "headers": {"n": str(i), "é": "ü"}}
        for i in range(200)
    ]
    java.call("create_topic", topic=unique, partitions=1)
    sent = java.call("produce", topic=unique, records=records, config={"compression.type": codec, "linger.ms": "50"})
    assert [each["offset"] for each in sent] == list(range(200))
    assert [each["timestamp"] for each in sent] == [each["timestamp"] for each in records]
    read = java.call("read", topic=unique, expect=200)
    assert [{name: each[name] for name in ("key", "value", "timestamp", "headers")} for each in read] == records
    assert [each["offset"] for each in read] == list(range(200))
    assert {each["timestamp_type"] for each in read} == {"CREATE_TIME"}


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_records_are_stored_with_each_acks(java: Any, unique: str, acks: str) -> None:
    java.call("create_topic", topic=unique, partitions=1)
    config = {"acks": acks, "enable.idempotence": "false"}
    java.call("produce", topic=unique, records=[{"value": str(i)} for i in range(10)], config=config)
    assert [each["value"] for each in java.call("read", topic=unique, expect=10)] == [str(i) for i in range(10)]


@pytest.mark.parametrize("idempotent", ["true", "false"])
def test_many_records_keep_their_order(java: Any, unique: str, idempotent: str) -> None:
    java.call("create_topic", topic=unique, partitions=1)
    config = {"enable.idempotence": idempotent, "batch.size": "1000", "linger.ms": "0"}
    if idempotent == "false":
        config["max.in.flight.requests.per.connection"] = "1"
    done = java.call("produce_many", topic=unique, count=5000, config=config)
    assert done == {"last": 4999, "ordered": True}
    read = java.call("read", topic=unique, expect=5000, config={"max.partition.fetch.bytes": "20000"})
    assert [int(each["value"].partition(":")[0]) for each in read] == list(range(5000))


def test_a_topic_is_made_on_first_use(java: Any, unique: str) -> None:
    assert java.call("produce", topic=unique, records=[{"value": "first"}])[0]["offset"] == 0
    assert [each["value"] for each in java.call("read", topic=unique, expect=1)] == ["first"]


def test_null_keys_and_values_come_back_as_null(java: Any, unique: str) -> None:
    java.call("produce", topic=unique, records=[{"key": "gone"}, {"value": ""}, {}])
    read = java.call("read", topic=unique, expect=3)
    assert [(each["key"], each["value"]) for each in read] == [("gone", None), (None, ""), (None, None)]


def test_a_key_always_goes_to_the_same_partition(java: Any, unique: str) -> None:
    java.call("create_topic", topic=unique, partitions=4)
    records = [{"key": f"k{i % 20}", "value": str(i)} for i in range(200)]
    sent = java.call("produce", topic=unique, records=records)
    by_key: dict[str, set[int]] = {}
    for record, result in zip(records, sent, strict=True):
        by_key.setdefault(record["key"], set()).add(result["partition"])
    assert {len(partitions) for partitions in by_key.values()} == {1}
    assert {partition for partitions in by_key.values() for partition in partitions} == {0, 1, 2, 3}
    read = java.call("read", topic=unique, partitions=[0, 1, 2, 3], expect=200)
    assert {(each["partition"], each["value"]) for each in read} == {
        (result["partition"], record["value"]) for record, result in zip(records, sent, strict=True)
    }


def test_a_record_over_the_topics_limit_is_refused(java: Any, unique: str) -> None:
    java.call("create_topic", topic=unique, partitions=1, configs={"max.message.bytes": "2000"})
    with pytest.raises(Exception, match="RecordTooLarge"):
        java.call("produce", topic=unique, records=[{"value": "x" * 5000}])
    assert java.call("produce", topic=unique, records=[{"value": "x" * 500}])[0]["offset"] == 0


def test_log_append_time_is_the_brokers(java: Any, unique: str) -> None:
    java.call("create_topic", topic=unique, partitions=1, configs={"message.timestamp.type": "LogAppendTime"})
    (sent,) = java.call("produce", topic=unique, records=[{"value": "x", "timestamp": NOON}])
    (read,) = java.call("read", topic=unique, expect=1)
    assert read["timestamp_type"] == "LOG_APPEND_TIME"
    assert read["timestamp"] > NOON
    assert sent["timestamp"] == read["timestamp"]


def test_offsets_are_found_by_time_and_at_both_ends(java: Any, unique: str) -> None:
    java.call("create_topic", topic=unique, partitions=1)
    for i in range(5):
        java.call("produce", topic=unique, records=[{"value": str(i), "timestamp": NOON + 1000 * i}])
    times = [NOON - 1, NOON, NOON + 1, NOON + 2000, NOON + 4000, NOON + 4001]
    found = java.call("offsets", topic=unique, timestamps=times)
    assert (found["beginning"], found["end"]) == ({"0": 0}, {"0": 5})
    assert found["times"] == [[0, NOON], [0, NOON], [1, NOON + 1000], [2, NOON + 2000], [4, NOON + 4000], None]


def test_a_consumer_seeks(java: Any, unique: str) -> None:
    java.call("produce", topic=unique, records=[{"value": str(i)} for i in range(50)])
    read = java.call("read", topic=unique, **{"from": 37}, expect=13)
    assert [each["offset"] for each in read] == list(range(37, 50))


def test_an_offset_out_of_range_is_reset_or_reported(java: Any, unique: str) -> None:
    java.call("produce", topic=unique, records=[{"value": str(i)} for i in range(3)])
    read = java.call("read", topic=unique, **{"from": 1000}, expect=3, config={"auto.offset.reset": "earliest"})
    assert [each["offset"] for each in read] == [0, 1, 2]
    with pytest.raises(Exception, match="OffsetOutOfRange"):
        java.call("read", topic=unique, **{"from": 1000}, expect=3, config={"auto.offset.reset": "none"})


def test_read_committed_reads_what_no_transaction_wrote(java: Any, unique: str) -> None:
    java.call("produce", topic=unique, records=[{"value": str(i)} for i in range(3)])
    assert len(java.call("read", topic=unique, expect=3, config={"isolation.level": "read_committed"})) == 3


def test_a_topic_unknown_to_a_consumer_is_seen_in_its_listing_once_made(java: Any, unique: str, until: Any) -> None:
    assert not any(name.endswith(unique) for name in java.call("topics_seen"))
    java.call("create_topic", topic=unique, partitions=1)
    until(lambda: any(name.endswith(unique) for name in java.call("topics_seen")), "the topic in the listing")


@pytest.mark.headrace_only
@pytest.mark.parametrize("naming", ["full", "alias"])
def test_topics_of_any_stream_are_reached_by_full_name_and_alias(
    java: Any, cluster: Any, unique: str, naming: str
) -> None:
    stream = cluster.stream()
    full = f"{stream}:{unique}"
    alias = f"{stream.strip('/').replace('/', '.')}..{unique}"
    written, other = (full, alias) if naming == "full" else (alias, full)
    (sent,) = java.call("produce", topic=written, records=[{"key": "k", "value": "v"}])
    assert sent["offset"] == 0
    for name in (written, other):
        (read,) = java.call("read", topic=name, expect=1)
        assert (read["topic"], read["key"], read["value"]) == (name, "k", "v")
        assert {each["topic"] for each in java.call("partitions_for", topic=name)} == {name}
