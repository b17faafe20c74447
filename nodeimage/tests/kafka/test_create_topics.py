"""CreateTopics and CreatePartitions, through the bytes of the APIs, on a node with a real catalog."""

import asyncio

import pytest

from headrace.base.errors import Code
from headrace.catalog.feature_level import RaiseLevel
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.streams import CreateStream
from headrace.catalog.topics import CreateTopics
from headrace.partitions.topic_configs import MAX_PARTITIONS
from headrace.wire.api_keys import ApiKey


def wanted(name: str, partitions: int = 1, replicas: int = -1, **more):
    return {"name": name, "num_partitions": partitions, "replication_factor": replicas, **more}


async def create(ask, *topics, version=7, validate_only=False, timeout_ms=5_000):
    fields = {"topics": list(topics), "timeout": timeout_ms, "validate_only": validate_only}
    return (await ask(ApiKey.CREATE_TOPICS, version, fields)).topics


async def row_of(broker, name, stream="/default"):
    return await broker.catalog.query(lambda reader: reader.topics.at(stream, name))


def assigned(*brokers_of_partitions):
    return [
        {"partition_index": partition, "broker_ids": brokers} for partition, brokers in enumerate(brokers_of_partitions)
    ]


@pytest.mark.parametrize("version", range(2, 8))
async def test_a_topic_is_made_in_every_version(ask, broker, version):
    [made] = await create(ask, wanted("readings", 3), version=version)
    row = await row_of(broker, "readings")
    assert made.error_code == 0
    assert row.partitions == 3
    if version >= 5:
        assert (made.num_partitions, made.replication_factor) == (3, 1)
        assert {config.name for config in made.configs} >= {"retention.ms", "cleanup.policy", "segment.ms"}
    if version >= 7:
        assert made.topic_id.bytes == row.topic_id


async def test_each_form_of_a_name_means_its_stream(ask, broker):
    await broker.catalog.submit(CreateStream(path="/plant/one", policy=StreamPolicy(default_partitions=4), now=1))
    answers = await create(ask, wanted("/plant/one:a", -1), wanted("plant.one..b", -1), wanted("c", -1))
    assert [(answer.name, answer.error_code) for answer in answers] == [
        ("/plant/one:a", 0),
        ("plant.one..b", 0),
        ("c", 0),
    ]
    assert (await row_of(broker, "a", "/plant/one")).partitions == 4
    assert (await row_of(broker, "b", "/plant/one")).partitions == 4
    assert (await row_of(broker, "c")).partitions == 1


async def test_configs_are_kept_and_answered_with_their_source(ask, broker):
    [made] = await create(ask, wanted("t", configs=[{"name": "retention.ms", "value": " 60000 "}]))
    assert (await row_of(broker, "t")).configs == {"retention.ms": "60000"}
    own = {config.name: config.value for config in made.configs if config.config_source == 1}
    assert own == {"retention.ms": "60000"}


@pytest.mark.parametrize(
    ("topic", "code", "says"),
    [
        (wanted("a/b"), Code.INVALID_TOPIC_EXCEPTION, "a/b"),
        (wanted(""), Code.INVALID_TOPIC_EXCEPTION, "missing"),
        (wanted("x" * 250), Code.INVALID_TOPIC_EXCEPTION, "249"),
        (wanted("/nowhere:t"), Code.INVALID_TOPIC_EXCEPTION, "headrace stream create /nowhere"),
        (wanted("t", 0), Code.INVALID_PARTITIONS, "0 partitions"),
        (wanted("t", -2), Code.INVALID_PARTITIONS, "-2 partitions"),
        (wanted("t", MAX_PARTITIONS + 1), Code.INVALID_PARTITIONS, str(MAX_PARTITIONS)),
        (wanted("t", 2**31 - 1), Code.INVALID_PARTITIONS, str(MAX_PARTITIONS)),
        (wanted("t", 1, 2), Code.INVALID_REPLICATION_FACTOR, "1 node,"),
        (wanted("t", 1, 0), Code.INVALID_REPLICATION_FACTOR, "factor of 0"),
        (wanted("t", configs=[{"name": "retention.hours", "value": "1"}]), Code.INVALID_CONFIG, "retention.hours"),
        (wanted("t", configs=[{"name": "retention.ms", "value": "soon"}]), Code.INVALID_CONFIG, "retention.ms"),
        (wanted("t", configs=[{"name": "retention.ms", "value": None}]), Code.INVALID_CONFIG, "retention.ms"),
        (wanted("t", 1, -1, assignments=assigned([1])), Code.INVALID_REQUEST, "-1"),
        (wanted("t", -1, -1, assignments=assigned([1], [])), Code.INVALID_REPLICA_ASSIGNMENT, "brokers"),
        (wanted("t", -1, -1, assignments=assigned([1, 1])), Code.INVALID_REPLICA_ASSIGNMENT, "twice"),
        (wanted("t", -1, -1, assignments=assigned([1, 2])), Code.INVALID_REPLICATION_FACTOR, "1 node,"),
        (
            wanted("t", -1, -1, assignments=[{"partition_index": 1, "broker_ids": [1]}]),
            Code.INVALID_REPLICA_ASSIGNMENT,
            "without gaps",
        ),
    ],
)
async def test_a_topic_that_cannot_be_is_refused_with_its_reason(ask, broker, topic, code, says):
    refused, other = await create(ask, topic, wanted("other"))
    assert refused.error_code == code
    assert says in refused.error_message
    assert other.error_code == 0
    assert (await row_of(broker, "other")) is not None


async def test_a_manual_assignment_counts_for_its_partitions(ask, broker):
    [made] = await create(ask, wanted("t", -1, -1, assignments=assigned([1], [1], [1])))
    assert made.num_partitions == 3
    assert (await row_of(broker, "t")).partitions == 3


async def test_a_topic_that_exists_is_not_made_again(ask, broker):
    await create(ask, wanted("t", 2))
    before = await row_of(broker, "t")
    [again] = await create(ask, wanted("t", 3))
    assert again.error_code == Code.TOPIC_ALREADY_EXISTS
    assert await row_of(broker, "t") == before


async def test_two_requests_at_once_make_a_topic_once(ask):
    answers = await asyncio.gather(*(create(ask, wanted("t")) for _ in range(10)))
    codes = sorted(answer.error_code for [answer] in answers)
    assert codes == [0] + [Code.TOPIC_ALREADY_EXISTS] * 9


async def test_a_topic_named_twice_in_any_form_is_not_made(ask, broker):
    answers = await create(ask, wanted("t"), wanted("/default:t"), wanted("u"))
    assert [answer.error_code for answer in answers] == [Code.INVALID_REQUEST, Code.INVALID_REQUEST, 0]
    assert await row_of(broker, "t") is None


async def test_validating_makes_nothing_and_finds_what_exists(ask, broker):
    await create(ask, wanted("old"))
    position = broker.catalog.applied
    answers = await create(ask, wanted("new", 3), wanted("old"), wanted("bad", 0), validate_only=True)
    assert [answer.error_code for answer in answers] == [0, Code.TOPIC_ALREADY_EXISTS, Code.INVALID_PARTITIONS]
    assert broker.catalog.applied == position


async def test_ten_thousand_topics_are_one_command(ask, broker):
    commands: list[object] = []
    broker.catalog.on_applied(lambda applied: commands.extend(applied))
    answers = await create(ask, *(wanted(f"device-{number}") for number in range(10_000)), timeout_ms=60_000)
    assert {answer.error_code for answer in answers} == {0}
    assert [type(command) for command, _ in commands if not isinstance(command, RaiseLevel)] == [CreateTopics]
    assert (await broker.catalog.query(lambda reader: reader.streams.totals()))[1] == 10_000


async def test_a_request_of_too_many_partitions_is_made_in_part(ask):
    answers = await create(ask, *(wanted(f"t{number}", MAX_PARTITIONS) for number in range(11)), validate_only=True)
    assert [answer.error_code for answer in answers] == [0] * 10 + [Code.POLICY_VIOLATION]


class TestCreatePartitions:
    @staticmethod
    async def grow(ask, name, count, *, version=3, validate_only=False, assignments=None):
        fields = {
            "topics": [{"name": name, "count": count, "assignments": assignments}],
            "timeout": 5_000,
            "validate_only": validate_only,
        }
        [result] = (await ask(ApiKey.CREATE_PARTITIONS, version, fields)).results
        return result

    @pytest.mark.parametrize("version", range(4))
    async def test_partitions_rise_in_every_version(self, ask, broker, version):
        await create(ask, wanted("t", 2))
        result = await self.grow(ask, "t", 5, version=version)
        assert (result.name, result.error_code) == ("t", 0)
        row = await row_of(broker, "t")
        chain = await broker.catalog.query(lambda reader: reader.chains.chain(row.number))
        assert [each.partition for each in chain] == [0, 1, 2, 3, 4]

    @pytest.mark.parametrize("count", [2, 1, 0, -1, MAX_PARTITIONS + 1])
    async def test_they_never_fall_nor_rise_beyond_the_limit(self, ask, broker, count):
        await create(ask, wanted("t", 2))
        result = await self.grow(ask, "t", count)
        assert result.error_code == Code.INVALID_PARTITIONS
        assert (await row_of(broker, "t")).partitions == 2

    async def test_validating_changes_nothing(self, ask, broker):
        await create(ask, wanted("t", 2))
        assert (await self.grow(ask, "t", 5, validate_only=True)).error_code == 0
        assert (await row_of(broker, "t")).partitions == 2

    async def test_an_assignment_has_to_fit_the_new_partitions(self, ask):
        await create(ask, wanted("t", 2))
        too_few = await self.grow(ask, "t", 4, assignments=[{"broker_ids": [1]}])
        assert too_few.error_code == Code.INVALID_REPLICA_ASSIGNMENT
        fits = await self.grow(ask, "t", 4, assignments=[{"broker_ids": [1]}, {"broker_ids": [1]}])
        assert fits.error_code == 0

    async def test_an_unknown_topic_is_unknown(self, ask):
        assert (await self.grow(ask, "none", 4)).error_code == Code.UNKNOWN_TOPIC_OR_PARTITION

    @pytest.mark.parametrize("again", ["t", "/default:t"])
    async def test_a_topic_named_twice_is_left_alone(self, ask, broker, again):
        await create(ask, wanted("t"))
        twice = [{"name": "t", "count": 2, "assignments": None}, {"name": again, "count": 3, "assignments": None}]
        fields = {"topics": twice, "timeout": 5_000, "validate_only": False}
        results = (await ask(ApiKey.CREATE_PARTITIONS, 3, fields)).results
        assert [result.error_code for result in results] == [Code.INVALID_REQUEST] * 2
        assert (await row_of(broker, "t")).partitions == 1
