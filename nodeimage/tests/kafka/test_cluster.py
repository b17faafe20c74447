"""What Kafka's tools see of the cluster and its disks, through the bytes of the APIs."""

import pytest

from headrace.base.errors import Code
from headrace.kafka.authorized_operations import CLUSTER_OPERATIONS, NOT_ASKED, bits
from headrace.security.access_rules import Kind, Permission
from headrace.security.kafka_acls import AclOperation
from headrace.wire.api_keys import ApiKey
from kit.access import User, put, secure


async def create(ask, name, partitions=1):
    topics = [{"name": name, "num_partitions": partitions, "replication_factor": -1}]
    await ask(ApiKey.CREATE_TOPICS, 7, {"topics": topics, "timeout": 5_000})


@pytest.mark.parametrize("version", [0, 1])
async def test_the_cluster_in_every_version(ask, broker, version):
    answer = await ask(ApiKey.DESCRIBE_CLUSTER, version, {"include_cluster_authorized_operations": False})
    assert (answer.error_code, answer.cluster_id) == (0, broker.node.cluster_id)
    assert answer.controller_id == broker.node.node_id
    assert [(each.broker_id, each.host, each.port) for each in answer.brokers] == [
        (broker.node.node_id, "127.0.0.1", broker.node.port)
    ]
    assert answer.cluster_authorized_operations == NOT_ASKED


async def test_authorized_operations_where_asked_for(ask):
    answer = await ask(ApiKey.DESCRIBE_CLUSTER, 1, {"include_cluster_authorized_operations": True})
    assert answer.cluster_authorized_operations == CLUSTER_OPERATIONS == sum(1 << each for each in (5, *range(7, 13)))


async def test_who_asks_for_controllers_is_told_that_this_is_a_broker(ask):
    answer = await ask(ApiKey.DESCRIBE_CLUSTER, 1, {"endpoint_type": 2})
    assert answer.error_code == Code.MISMATCHED_ENDPOINT_TYPE
    assert answer.error_message


class TestLogDirs:
    @pytest.mark.parametrize("version", range(1, 5))
    async def test_sizes_in_every_version(self, ask, append, tmp_path, version):
        await create(ask, "t", 2)
        await append("t", b"x" * 10_000, partition=1)
        [folder] = (await ask(ApiKey.DESCRIBE_LOG_DIRS, version, {"topics": None})).results
        [topic] = folder.topics
        sizes = {each.partition_index: each.partition_size for each in topic.partitions}
        assert folder.log_dir == str(tmp_path / "node-1" / "containers")
        assert topic.name == "t"
        assert sizes[0] == 0
        assert 10_000 < sizes[1] < 11_000
        assert {(each.offset_lag, each.is_future_key) for each in topic.partitions} == {(0, False)}
        if version >= 4:
            assert folder.total_bytes > folder.usable_bytes > 0

    async def test_only_the_partitions_asked_for(self, ask, append):
        await create(ask, "t", 3)
        await create(ask, "u")
        wanted = [{"topic": "t", "partitions": [2, 9]}, {"topic": "none", "partitions": [0]}]
        [folder] = (await ask(ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": wanted})).results
        found = [(topic.name, [each.partition_index for each in topic.partitions]) for topic in folder.topics]
        assert found == [("t", [2])]

    async def test_rolled_partitions_count_with_all_of_their_partitionlets(self, ask, append, broker):
        await create(ask, "t")
        await append("t", b"x" * 5_000)
        (topic,) = await broker.topics.resolve(["t"])
        await broker.rolls.roll(topic.partitions[0])
        await append("t", b"y" * 5_000)
        [folder] = (await ask(ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": None})).results
        [[size]] = [[each.partition_size for each in topic.partitions] for topic in folder.topics]
        assert 10_000 < size < 11_000


async def test_whoever_may_connect_sees_the_nodes_and_what_he_may_do_with_the_cluster(broker):
    await put(
        broker,
        {
            (Kind.CLUSTER, "", Permission.ADMIN): "u:root",
            (Kind.CLUSTER, "", Permission.TOPIC): "u:maker",
            (Kind.PREFIX, "/plant", Permission.PRODUCE): "u:maker",
        },
    )
    await secure(broker)
    told = {}
    for name in ("root", "maker", "mallory"):
        answer = await User(broker, name).ask(ApiKey.DESCRIBE_CLUSTER, include_cluster_authorized_operations=True)
        assert [each.broker_id for each in answer.brokers] == [broker.node.node_id]
        told[name] = answer.cluster_authorized_operations
    assert told == {
        "root": CLUSTER_OPERATIONS - bits([AclOperation.CLUSTER_ACTION]),
        "maker": bits([AclOperation.CREATE, AclOperation.IDEMPOTENT_WRITE]),
        "mallory": 0,
    }


async def test_disks_are_shown_to_administrators_of_the_cluster(broker, ask):
    await create(ask, "t")
    await put(
        broker, {(Kind.CLUSTER, "", Permission.ADMIN): "u:root", (Kind.STREAM, "/default", Permission.ADMIN): "p"}
    )
    await secure(broker)
    for version in range(1, 5):
        refused = await User(broker, "alice").ask(ApiKey.DESCRIBE_LOG_DIRS, version, topics=None)
        assert list(refused.results) == []
        if version >= 3:
            assert refused.error_code == Code.CLUSTER_AUTHORIZATION_FAILED
        assert len((await User(broker, "root").ask(ApiKey.DESCRIBE_LOG_DIRS, version, topics=None)).results) == 1
