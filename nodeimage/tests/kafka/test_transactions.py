"""The APIs of transactions, which are not supported, and of producers, through their bytes."""

import pytest

from headrace.base.errors import Code, MalformedRequest
from headrace.wire.api_keys import ApiKey
from headrace.wire.batch import build_batch, read_batch
from headrace.wire.primitives import MAX_PARTITIONS

OURS = {"transactional_id": "x", "producer_id": 1, "producer_epoch": 0, "group_id": "g"}
REFUSED = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


@pytest.fixture
async def topic(ask):
    topics = [{"name": "t", "num_partitions": 1, "replication_factor": -1}]
    await ask(ApiKey.CREATE_TOPICS, 7, {"topics": topics, "timeout": 5_000})
    return "t"


@pytest.mark.parametrize("version", range(4))
async def test_whatever_belongs_to_one_is_refused(ask, version):
    topics = [{"name": "t", "partitions": [0, 1]}]
    fields = {"v3_and_below_transactional_id": "x", "v3_and_below_topics": topics}
    answer = await ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, fields)
    [added] = answer.results_by_topic_v3_and_below
    assert [each.partition_error_code for each in added.results_by_partition] == [REFUSED] * 2
    assert (await ask(ApiKey.ADD_OFFSETS_TO_TXN, version, OURS)).error_code == REFUSED
    assert (await ask(ApiKey.END_TXN, version, {**OURS, "committed": True})).error_code == REFUSED
    offsets = [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
    [committed] = (await ask(ApiKey.TXN_OFFSET_COMMIT, version, {**OURS, "topics": offsets})).topics
    assert [each.error_code for each in committed.partitions] == [REFUSED]


async def test_there_are_none(ask):
    for version in (0, 1):
        answer = await ask(ApiKey.LIST_TRANSACTIONS, version, {})
        assert (answer.error_code, answer.transaction_states) == (0, ())
    [state] = (await ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["x"]})).transaction_states
    assert (state.error_code, state.transactional_id) == (Code.TRANSACTIONAL_ID_NOT_FOUND, "x")


async def test_a_partitions_producers_are_told_and_tokens_are_not(ask, broker, topic):
    (used,) = await broker.topics.resolve([topic])
    leader = await broker.partitions.leader(used, 0)
    for producer, sequence in ((7, 0), (7, 3), (-9, 5)):
        records = [(1_700_000_000_000 + sequence, None, b"x", [])] * 3
        batch = build_batch(records, producer_id=producer, producer_epoch=2, base_sequence=sequence)
        leader.append(memoryview(batch), read_batch(batch), append_time=None, now=0, request=None)
    topics = [{"name": "t", "partition_indexes": [0, 9]}, {"name": "none", "partition_indexes": [0]}]
    answer = await ask(ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": topics})
    [known, unknown], [missing] = (each.partitions for each in answer.topics)
    assert (unknown.error_code, missing.error_code) == (Code.UNKNOWN_TOPIC_OR_PARTITION,) * 2
    [producer] = known.active_producers
    assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (7, 2, 5)
    assert (producer.last_timestamp, producer.current_txn_start_offset) == (1_700_000_000_003, -1)


async def test_a_partition_is_told_of_once_in_whatever_form_it_is_named(ask, topic):
    topics = [{"name": name, "partition_indexes": [0, 0]} for name in ("t", "/default:t")]
    answer = await ask(ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": topics})
    codes = [each.error_code for found in answer.topics for each in found.partitions]
    assert codes == [0, *(Code.INVALID_REQUEST,) * 3]


async def test_more_partitions_than_any_client_names_end_the_connection(ask):
    many = list(range(MAX_PARTITIONS + 1))
    with pytest.raises(MalformedRequest):
        await ask(ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": [{"name": "t", "partition_indexes": many}]})
    fields = {"v3_and_below_topics": [{"name": "t", "partitions": many}]}
    with pytest.raises(MalformedRequest):
        await ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, fields)
    with pytest.raises(MalformedRequest):
        await ask(ApiKey.ELECT_LEADERS, 2, {"topic_partitions": [{"topic": "t", "partitions": many}], "timeout": 1})
