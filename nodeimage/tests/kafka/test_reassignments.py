"""Reassignments and elections by Kafka's tools, through the bytes of the APIs."""

import pytest

from headrace.base.errors import Code
from headrace.wire.api_keys import ApiKey


@pytest.fixture
async def topic(ask):
    topics = [{"name": "t", "num_partitions": 2, "replication_factor": -1}]
    await ask(ApiKey.CREATE_TOPICS, 7, {"topics": topics, "timeout": 5_000})
    return "t"


async def test_nothing_is_ever_being_reassigned(ask):
    answer = await ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, {"topics": None, "timeout": 1_000})
    assert (answer.error_code, answer.topics) == (0, ())


@pytest.mark.parametrize(
    ("name", "partition", "replicas", "code"),
    [
        ("t", 1, [1], 0),
        ("t", 1, [1, 2], Code.INVALID_REPLICA_ASSIGNMENT),
        ("t", 1, None, Code.NO_REASSIGNMENT_IN_PROGRESS),
        ("t", 7, [1], Code.UNKNOWN_TOPIC_OR_PARTITION),
        ("none", 0, [1], Code.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
async def test_replicas_lie_where_the_volume_says(ask, topic, name, partition, replicas, code):
    topics = [{"name": name, "partitions": [{"partition_index": partition, "replicas": replicas}]}]
    answer = await ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, {"topics": topics, "timeout": 1_000})
    [[found]] = [each.partitions for each in answer.responses]
    assert (answer.error_code, found.partition_index, found.error_code) == (0, partition, code)
    assert bool(found.error_message) == bool(code)


@pytest.mark.parametrize("version", range(3))
async def test_a_leader_that_is_there_need_not_be_elected(ask, topic, version):
    topics = [{"topic": "t", "partitions": [0, 7]}, {"topic": "none", "partitions": [0]}]
    answer = await ask(ApiKey.ELECT_LEADERS, version, {"election_type": 0, "topic_partitions": topics, "timeout": 1})
    codes = [[each.error_code for each in found.partition_result] for found in answer.replica_election_results]
    assert codes == [[Code.ELECTION_NOT_NEEDED, Code.UNKNOWN_TOPIC_OR_PARTITION], [Code.UNKNOWN_TOPIC_OR_PARTITION]]
    answer = await ask(ApiKey.ELECT_LEADERS, version, {"topic_partitions": None, "timeout": 1})
    assert answer.replica_election_results == ()


@pytest.mark.parametrize(("kind", "code"), [(0, Code.PREFERRED_LEADER_NOT_AVAILABLE), (1, 83)])
async def test_one_that_lacks_waits_for_a_replica_or_for_an_explicit_command(
    ask, broker, topic, monkeypatch, kind, code
):
    monkeypatch.setattr(broker.layout, "placed", lambda container: None)
    fields = {"election_type": kind, "topic_partitions": [{"topic": "t", "partitions": [0]}], "timeout": 1}
    [found] = (await ask(ApiKey.ELECT_LEADERS, 2, fields)).replica_election_results
    assert [each.error_code for each in found.partition_result] == [code]


@pytest.mark.parametrize("version", [1, 2])
async def test_a_node_has_one_folder(ask, topic, tmp_path, version):
    own = str(tmp_path / "node-1" / "containers")
    topics = [{"name": "t", "partitions": [0]}, {"name": "none", "partitions": [0]}]
    dirs = [{"path": path, "topics": topics} for path in (own, "/elsewhere")]
    found = (await ask(ApiKey.ALTER_REPLICA_LOG_DIRS, version, {"dirs": dirs})).results
    assert [(each.topic_name, each.partitions[0].error_code) for each in found] == [
        ("t", 0),
        ("none", Code.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", Code.LOG_DIR_NOT_FOUND),
        ("none", Code.UNKNOWN_TOPIC_OR_PARTITION),
    ]
