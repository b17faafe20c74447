"""A driver's requests to the cluster: partitions of topics that are created and deleted, and the size of records."""

import logging
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql.pandas.types import to_arrow_schema

from headrace_spark.errors import DataLoss
from headrace_spark.options import ReadOptions, read_options
from headrace_spark.plan import OffsetRange, pending
from headrace_spark.reading import read_ranges
from headrace_spark.source import COLUMNS
from headrace_spark.subscription import Subscription

if TYPE_CHECKING:
    from conftest import Node


def delete(node: "Node", topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    for done in admin.delete_topics([topic]).values():
        done.result()


def options_of(node: "Node", *topics: str, **more: str) -> ReadOptions:
    return read_options({"bootstrap": node.bootstrap, "topics": ",".join(topics), "timeout": "1", **more})


@pytest.mark.parametrize(
    "options", [{"stream": "/default", "topicPattern": "bare-.*"}, {"topicPattern": "/default:bare-.*"}]
)
def test_topics_of_the_default_stream_are_found_by_pattern(node: "Node", options: dict[str, str]) -> None:
    name = "bare-by-stream" if "stream" in options else "bare-by-name"
    node.produce(node.topic(name=name, partitions=2), [{"value": b"v", "partition": 1}])
    subscription = Subscription(read_options({"bootstrap": node.bootstrap, "timeout": "10", **options}))
    try:
        found = [partition for partition in subscription.partitions() if partition[0].endswith(name)]
        assert found == [(f"/default:{name}", 0), (f"/default:{name}", 1)]
        assert subscription.latest(found) == {found[0]: 0, found[1]: 1}
    finally:
        subscription.close()


def test_a_planned_batch_goes_on_without_a_topic_that_was_deleted_if_it_may(
    node: "Node", caplog: pytest.LogCaptureFixture
) -> None:
    kept, gone = node.topic(), node.topic()
    for topic in (kept, gone):
        node.produce(topic, [{"value": b"v"}] * 5)
    ranges = [OffsetRange(gone, 0, 0, 5), OffsetRange(kept, 0, 0, 5)]
    schema = to_arrow_schema(COLUMNS, timezone="UTC")
    delete(node, gone)
    with pytest.raises(DataLoss, match=rf"{gone}/0 is gone from the cluster, with offsets 0 to 5"):
        list(read_ranges(ranges, options=options_of(node, kept, gone), schema=schema))
    lenient = options_of(node, kept, gone, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        assert sum(batch.num_rows for batch in read_ranges(ranges, options=lenient, schema=schema)) == 5
    assert f"{gone}/0 is gone from the cluster" in caplog.text


def test_a_query_goes_on_without_a_topic_that_it_names_and_that_was_deleted_if_it_may(
    node: "Node", caplog: pytest.LogCaptureFixture
) -> None:
    kept, gone = node.topic(), node.topic()
    node.produce(kept, [{"value": b"v"}] * 5)
    delete(node, gone)
    strict = Subscription(options_of(node, kept, gone))
    with pytest.raises(DataLoss, match=f"{gone}/0 is gone from the cluster"):
        strict.advance({(kept, 0): 2, (gone, 0): 0})
    strict.close()
    lenient = Subscription(options_of(node, kept, gone, failOnDataLoss="false"))
    for positions in ({(kept, 0): 2, (gone, 0): 0}, {(kept, 0): 2, (gone, 0): 0}, {(kept, 0): 2}):
        assert lenient.advance(positions) == ({(kept, 0): 2}, {(kept, 0): 5})
    assert lenient.targets() == {(kept, 0): 5}
    lenient.close()
    assert caplog.text.count(f"{gone}/0 is gone") == 1


def test_a_limit_in_bytes_follows_the_size_that_records_have_there(node: "Node") -> None:
    topic, limit = node.topic(), 1 << 20
    sizes = [10] + [1000] * 3000 + [10] * 3000 + [1000] * 3000
    node.produce(topic, [{"value": bytes(size)} for size in sizes])
    subscription = Subscription(options_of(node, topic, timeout="10"))
    key, batches, at = (topic, 0), [], 0
    end = subscription.latest([key])
    while at < end[key]:
        ranges = pending({key: at}, end)
        (one,), _ = subscription.within(limit, ranges, subscription.record_bytes(ranges))
        batches.append(sum(sizes[one.start : one.end]))
        at = one.end
    subscription.close()
    assert max(batches) < 2 * limit
    assert len(batches) < 15
