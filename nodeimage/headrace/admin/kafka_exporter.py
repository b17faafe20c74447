"""Topics and groups under the metric names of kafka-exporter, for KEDA and for existing dashboards. Pure functions.

A node reports the partitions that it leads and has in memory, and the groups that it coordinates: together all nodes
report what kafka-exporter does for a cluster. At most MAX_SERIES series each, for partitions and for groups' sums.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, Protocol

from headrace.admin.group_metrics import Looked, shown_name
from headrace.metrics.metric import Kind, Metric
from headrace.metrics.readings import Reading
from headrace.partitions.topics import Topic

MAX_SERIES: Final = 500


def _gauge(name: str, help_text: str, *labels: str) -> Metric:
    return Metric(name, Kind.GAUGE, "", labels, help_text)


BROKERS = _gauge("kafka_brokers", "Number of Brokers in the Kafka Cluster")
PARTITIONS = _gauge("kafka_topic_partitions", "Number of partitions for this Topic", "topic")
CURRENT = _gauge(
    "kafka_topic_partition_current_offset", "Current Offset of a Broker at Topic/Partition", "topic", "partition"
)
OLDEST = _gauge(
    "kafka_topic_partition_oldest_offset", "Oldest Offset of a Broker at Topic/Partition", "topic", "partition"
)
MEMBERS = _gauge("kafka_consumergroup_members", "Amount of members in a consumer group", "consumergroup")
GROUP_OFFSET = _gauge(
    "kafka_consumergroup_current_offset",
    "Current Offset of a ConsumerGroup at Topic/Partition",
    *("consumergroup", "topic", "partition"),
)
GROUP_LAG = _gauge(
    "kafka_consumergroup_lag",
    "Current Approximate Lag of a ConsumerGroup at Topic/Partition",
    *("consumergroup", "topic", "partition"),
)
GROUP_LAG_SUM = _gauge(
    "kafka_consumergroup_lag_sum",
    "Current Approximate Lag of a ConsumerGroup at Topic for all partitions",
    *("consumergroup", "topic"),
)
DECLARED: Final = (BROKERS, PARTITIONS, CURRENT, OLDEST, MEMBERS, GROUP_OFFSET, GROUP_LAG, GROUP_LAG_SUM)


class TopicsInMemory(Protocol):
    """The topics that a node has in memory."""

    def all(self) -> list[Topic]: ...


def of_topics(topics: TopicsInMemory) -> Iterator[Reading | None]:
    """The first and last offsets of partitions that this node leads."""
    series = 0
    for topic in topics.all():
        if series >= MAX_SERIES:
            return
        if not topic.partitions:
            yield None
            continue
        name = shown_name(topic.stream, topic.name)
        yield Reading(PARTITIONS, float(topic.partition_count), (name,))
        for number, partition in list(islice(topic.partitions.items(), MAX_SERIES - series)):
            series += 1
            if not partition.left and not partition.deleted:
                yield Reading(CURRENT, float(partition.high_watermark), (name, str(number)))
                yield Reading(OLDEST, float(partition.log_start), (name, str(number)))


def of_groups(looked: Callable[[], Looked | None]) -> Iterator[Reading]:
    """The members, offsets and lag of groups, by partition and by topic."""
    found = looked()
    series = sums = 0
    for group in () if found is None else found.told:
        yield Reading(MEMBERS, float(group.members or 0), (group.group,))
        for topic, records in list(group.topics.items())[: MAX_SERIES - sums]:
            sums += 1
            yield Reading(GROUP_LAG_SUM, float(records), (group.group, topic))
        for each in group.partitions[: MAX_SERIES - series]:
            series += 1
            labels = (group.group, each.topic, str(each.partition))
            yield Reading(GROUP_OFFSET, float(each.offset), labels)
            yield Reading(GROUP_LAG, float(each.records), labels)
