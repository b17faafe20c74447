from types import SimpleNamespace
from typing import Any

import pytest

from headrace.admin import kafka_exporter
from headrace.admin.group_metrics import GroupLag, Looked, PartitionLag
from headrace.admin.kafka_exporter import DECLARED, of_groups, of_topics
from headrace.metrics.exposition import NodeMetrics
from headrace.metrics.readings import Reading


def partition(high_watermark: int, log_start: int = 0, *, left: bool = False) -> Any:
    return SimpleNamespace(high_watermark=high_watermark, log_start=log_start, left=left, deleted=False)


def topics(*found: Any) -> Any:
    return SimpleNamespace(all=lambda: list(found))


def topic(name: str, *partitions: Any, stream: str = "/default") -> Any:
    return SimpleNamespace(
        stream=stream, name=name, partition_count=len(partitions), partitions=dict(enumerate(partitions))
    )


async def told(*readings: Reading | None) -> list[str]:
    text = (await NodeMetrics(DECLARED, node=None).text(readings)).decode()
    return [line for line in text.splitlines() if not line.startswith("#")]


LAGS = (PartitionLag("t", 0, 5, 3), PartitionLag("t", 1, 9, 0), PartitionLag("/a:u", 0, 1, 4))
GROUP = GroupLag("g", members=2, records=7, most=4, seconds=1.5, partitions=list(LAGS), topics={"t": 3, "/a:u": 4})


async def test_names_and_labels_are_those_of_kafka_exporter() -> None:
    assert await told(*of_topics(topics(topic("t", partition(8, 2), partition(9, left=True)), topic("none")))) == [
        'kafka_topic_partitions{topic="t"} 2.0',
        'kafka_topic_partition_current_offset{partition="0",topic="t"} 8.0',
        'kafka_topic_partition_oldest_offset{partition="0",topic="t"} 2.0',
    ]
    assert await told(*of_groups(lambda: Looked(1, (GROUP,)))) == [
        'kafka_consumergroup_members{consumergroup="g"} 2.0',
        'kafka_consumergroup_current_offset{consumergroup="g",partition="0",topic="t"} 5.0',
        'kafka_consumergroup_current_offset{consumergroup="g",partition="1",topic="t"} 9.0',
        'kafka_consumergroup_current_offset{consumergroup="g",partition="0",topic="/a:u"} 1.0',
        'kafka_consumergroup_lag{consumergroup="g",partition="0",topic="t"} 3.0',
        'kafka_consumergroup_lag{consumergroup="g",partition="1",topic="t"} 0.0',
        'kafka_consumergroup_lag{consumergroup="g",partition="0",topic="/a:u"} 4.0',
        'kafka_consumergroup_lag_sum{consumergroup="g",topic="t"} 3.0',
        'kafka_consumergroup_lag_sum{consumergroup="g",topic="/a:u"} 4.0',
    ]


async def test_a_node_that_does_not_coordinate_tells_of_no_group() -> None:
    assert list(of_groups(lambda: None)) == []


async def test_series_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_exporter, "MAX_SERIES", 2)
    many = topics(*(topic(f"t{number}", partition(1), partition(1)) for number in range(9)))
    assert len([each for each in of_topics(many) if each and each.metric is kafka_exporter.CURRENT]) == 2
    readings = list(of_groups(lambda: Looked(2, (GROUP, GROUP))))
    for metric in (kafka_exporter.GROUP_LAG, kafka_exporter.GROUP_LAG_SUM):
        assert len([each for each in readings if each.metric is metric]) == 2


def test_of_each_topic_that_is_passed_over_the_asker_hears() -> None:
    """There may be 100,000 topics."""
    assert list(of_topics(topics(*(topic("none") for _ in range(9))))) == [None] * 9
