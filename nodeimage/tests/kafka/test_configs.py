"""Configs of topics and nodes, through the bytes of the APIs, on a node with a real catalog."""

import asyncio

import pytest
from msgspec import structs

from headrace.base.errors import Code
from headrace.catalog.policy import PolicyChanges
from headrace.catalog.streams import AlterStream
from headrace.kafka.broker_config_table import BROKER_CONFIGS
from headrace.kafka.configs import ResourceType
from headrace.partitions.topic_config_table import DEFINITIONS, ConfigType
from headrace.partitions.topic_configs import AlterOp
from headrace.store.records import change_volume
from headrace.wire.api_keys import ApiKey

OTHERS = {
    "log.retention.ms": "-1",
    "num.network.threads": "1",
    "group.initial.rebalance.delay.ms": "50",
    "group.max.size": "10000",
    "fetch.max.bytes": str(64 << 20),
    "log.cleaner.enable": "false",
    "sasl.enabled.mechanisms": "",
}


def two_in_sync(volume):
    return structs.replace(volume, replicas=2, min_in_sync=2)


@pytest.fixture
async def topic(ask):
    topics = [{"name": "t", "num_partitions": 1, "replication_factor": -1}]
    await ask(ApiKey.CREATE_TOPICS, 7, {"topics": topics, "timeout": 5_000})
    return "t"


async def describe(ask, kind, name, *, keys=None, version=4, synonyms=True, documentation=True):
    fields = {
        "resources": [{"resource_type": int(kind), "resource_name": name, "configuration_keys": keys}],
        "include_synonyms": synonyms,
        "include_documentation": documentation,
    }
    [result] = (await ask(ApiKey.DESCRIBE_CONFIGS, version, fields)).results
    return result


async def alter(ask, *operations, kind=ResourceType.TOPIC, name="t", version=1, validate_only=False):
    configs = [{"name": each, "config_operation": int(op), "value": value} for each, op, value in operations]
    resource = {"resource_type": int(kind), "resource_name": name, "configs": configs}
    fields = {"resources": [resource], "validate_only": validate_only}
    [result] = (await ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, version, fields)).responses
    return result


async def replace(ask, configs, *, name="t", version=2, validate_only=False):
    pairs = [{"name": key, "value": value} for key, value in configs.items()]
    resource = {"resource_type": int(ResourceType.TOPIC), "resource_name": name, "configs": pairs}
    fields = {"resources": [resource], "validate_only": validate_only}
    [result] = (await ask(ApiKey.ALTER_CONFIGS, version, fields)).responses
    return result


async def overrides(broker, name="t"):
    return dict((await broker.catalog.query(lambda reader: reader.topics.at("/default", name))).configs)


class TestDescribe:
    @pytest.mark.parametrize("version", range(1, 5))
    async def test_a_topics_configs_in_every_version(self, ask, topic, version):
        result = await describe(ask, ResourceType.TOPIC, topic, version=version)
        assert (result.error_code, result.resource_name) == (0, "t")
        assert [config.name for config in result.configs] == list(DEFINITIONS)
        retention = next(config for config in result.configs if config.name == "retention.ms")
        assert (retention.value, retention.config_source, retention.read_only) == ("-1", 4, False)
        if version >= 3:
            assert retention.config_type == 5
            assert "expires" in retention.documentation

    async def test_the_streams_policy_stands_behind_the_topics_own(self, ask, broker, topic):
        await broker.catalog.submit(AlterStream(path="/default", changes=PolicyChanges(ttl_ms=60_000)))
        [config] = (await describe(ask, ResourceType.TOPIC, topic, keys=["retention.ms"])).configs
        assert (config.value, config.config_source) == ("60000", 4)
        await alter(ask, ("retention.ms", AlterOp.SET, "5"))
        [config] = (await describe(ask, ResourceType.TOPIC, topic, keys=["retention.ms"])).configs
        assert (config.value, config.config_source) == ("5", 1)
        assert [(each.name, each.value, each.source) for each in config.synonyms] == [
            ("retention.ms", "5", 1),
            ("log.retention.ms", "60000", 4),
            ("log.retention.hours", "168", 5),
        ]

    async def test_compaction_is_accepted_and_said_not_to_be_performed(self, ask, topic):
        assert (await alter(ask, ("cleanup.policy", AlterOp.SET, "compact"))).error_code == 0
        [config] = (await describe(ask, ResourceType.TOPIC, topic, keys=["cleanup.policy"])).configs
        assert config.value == "compact"
        assert "not performed yet" in config.documentation

    async def test_what_a_console_looks_for_in_a_broker_when_it_opens(self, ask, broker):
        result = await describe(ask, ResourceType.BROKER, str(broker.node.node_id))
        configs = {config.name: config for config in result.configs}
        assert configs["inter.broker.protocol.version"].value == "3.9-IV0"
        assert configs["delete.topic.enable"].value == "true"
        assert configs["broker.id"].value == str(broker.node.node_id)
        assert configs["auto.create.topics.enable"].value == "true"
        assert configs["headrace.chunk_bytes"].value == str(broker.node.settings.chunk_bytes)
        assert configs["advertised.listeners"].value == f"PLAINTEXT://127.0.0.1:{broker.node.port}"
        assert all(config.read_only for config in result.configs)

    @pytest.mark.parametrize("kind", [ResourceType.TOPIC, ResourceType.BROKER])
    async def test_no_names_are_all_be_they_null_or_empty(self, ask, topic, kind):
        name = topic if kind is ResourceType.TOPIC else "1"
        found = [(await describe(ask, kind, name, keys=keys)).configs for keys in (None, [])]
        assert found[0] == found[1] != ()

    async def test_the_minimum_in_sync_is_that_of_the_streams_volume(self, ask, broker, topic):
        seen = asyncio.Event()
        broker.cluster.view.on_change(lambda changed: seen.set() if "default" in changed.volumes else None)
        await broker.store(lambda store: change_volume(store, "default", two_in_sync))
        broker.cluster.view.refresh()
        async with asyncio.timeout(20):
            await seen.wait()
        await alter(ask, ("min.insync.replicas", AlterOp.SET, "3"))
        for kind, name in ((ResourceType.TOPIC, topic), (ResourceType.BROKER, "1")):
            [config] = (await describe(ask, kind, name, keys=["min.insync.replicas"])).configs
            assert (config.value, config.config_source) == ("2", 4)

    async def test_every_name_of_kafkas_broker_configs_is_there_and_says_whether_it_has_an_effect(self, ask, broker):
        configs = {config.name: config for config in (await describe(ask, ResourceType.BROKER, "1")).configs}
        assert BROKER_CONFIGS.keys() < configs.keys()
        for name, config in configs.items():
            assert config.documentation.endswith(".")
            assert config.is_sensitive == (config.config_type == ConfigType.PASSWORD)
            if config.config_source == 5:
                assert config.value == BROKER_CONFIGS[name].default
        unused, used = configs["log.segment.bytes"], configs["offsets.retention.minutes"]
        assert (unused.value, used.value) == ("1073741824", "10080")
        assert "no effect" in unused.documentation
        assert "no effect" not in used.documentation
        assert "transactions are not supported" in configs["transaction.max.timeout.ms"].documentation

    async def test_what_the_node_does_by_another_number_than_kafka_is_told(self, ask, broker):
        configs = {config.name: config for config in (await describe(ask, ResourceType.BROKER, "1")).configs}
        told = {name: (configs[name].value, configs[name].config_source) for name in OTHERS}
        assert told == {name: (value, 4) for name, value in OTHERS.items()}

    @pytest.mark.parametrize(
        ("kind", "name", "code"),
        [
            (ResourceType.TOPIC, "none", Code.UNKNOWN_TOPIC_OR_PARTITION),
            (ResourceType.TOPIC, "a/b", Code.INVALID_TOPIC_EXCEPTION),
            (ResourceType.BROKER, "99", Code.INVALID_REQUEST),
            (ResourceType.BROKER, "x", Code.INVALID_REQUEST),
            (ResourceType.BROKER_LOGGER, "", Code.INVALID_REQUEST),
            (ResourceType.BROKER_LOGGER, "1", 0),
            (ResourceType.CLIENT_METRICS, "m", 0),
            (99, "x", Code.INVALID_REQUEST),
            (ResourceType.BROKER, "", 0),
            (ResourceType.GROUP, "g", 0),
        ],
    )
    async def test_what_has_no_configs(self, ask, kind, name, code):
        result = await describe(ask, kind, name)
        assert result.error_code == code
        assert result.configs == ()
        assert bool(result.error_message) == bool(code)

    async def test_a_bad_resource_does_not_spoil_the_others(self, ask, broker, topic):
        resources = [
            {"resource_type": 2, "resource_name": "none", "configuration_keys": None},
            {"resource_type": 4, "resource_name": str(broker.node.node_id), "configuration_keys": ["broker.id"]},
            {"resource_type": 2, "resource_name": "t", "configuration_keys": ["retention.ms"]},
        ]
        results = (await ask(ApiKey.DESCRIBE_CONFIGS, 4, {"resources": resources})).results
        assert [(each.error_code, [config.name for config in each.configs]) for each in results] == [
            (Code.UNKNOWN_TOPIC_OR_PARTITION, []),
            (0, ["broker.id"]),
            (0, ["retention.ms"]),
        ]

    async def test_a_broker_is_told_of_once(self, ask):
        resources = [{"resource_type": kind, "resource_name": "1", "configuration_keys": None} for kind in (4, 8, 4)]
        results = (await ask(ApiKey.DESCRIBE_CONFIGS, 4, {"resources": resources})).results
        assert [each.error_code for each in results] == [0, 0, Code.INVALID_REQUEST]


class TestIncrementalAlter:
    @pytest.mark.parametrize("version", [0, 1])
    async def test_set_and_delete(self, ask, broker, topic, version):
        await alter(ask, ("retention.ms", AlterOp.SET, "5"), ("segment.ms", AlterOp.SET, "9"), version=version)
        assert await overrides(broker) == {"retention.ms": "5", "segment.ms": "9"}
        await alter(ask, ("retention.ms", AlterOp.DELETE, None), version=version)
        assert await overrides(broker) == {"segment.ms": "9"}

    async def test_append_and_subtract(self, ask, broker, topic):
        await alter(ask, ("cleanup.policy", AlterOp.APPEND, "compact"))
        assert await overrides(broker) == {"cleanup.policy": "delete,compact"}
        await alter(ask, ("cleanup.policy", AlterOp.SUBTRACT, "delete"))
        assert await overrides(broker) == {"cleanup.policy": "compact"}

    async def test_appends_at_once_are_all_kept(self, ask, broker, topic):
        name = "leader.replication.throttled.replicas"
        await asyncio.gather(*(alter(ask, (name, AlterOp.APPEND, f"{number}:1")) for number in range(20)))
        assert sorted((await overrides(broker))[name].split(",")) == sorted(f"{number}:1" for number in range(20))

    async def test_validating_changes_nothing_and_refuses_what_is_wrong(self, ask, broker, topic):
        assert (await alter(ask, ("retention.ms", AlterOp.SET, "5"), validate_only=True)).error_code == 0
        refused = await alter(ask, ("retention.ms", AlterOp.SET, "soon"), validate_only=True)
        assert refused.error_code == Code.INVALID_CONFIG
        assert await overrides(broker) == {}

    async def test_one_bad_config_leaves_all_as_they_were(self, ask, broker, topic):
        refused = await alter(ask, ("retention.ms", AlterOp.SET, "5"), ("no.such", AlterOp.SET, "1"))
        assert refused.error_code == Code.INVALID_CONFIG
        assert "no.such" in refused.error_message
        assert await overrides(broker) == {}

    async def test_it_holds_for_the_topic_in_use_at_once(self, ask, broker, topic, append):
        await append("t", b"a")
        await alter(ask, ("max.message.bytes", AlterOp.SET, "99"), ("retention.ms", AlterOp.SET, "7"))
        (used,) = await broker.topics.resolve(["t"])
        assert (used.policy.max_message_bytes, used.policy.retention_ms) == (99, 7)

    @pytest.mark.parametrize(
        ("kind", "name", "code"),
        [
            (ResourceType.TOPIC, "none", Code.UNKNOWN_TOPIC_OR_PARTITION),
            (ResourceType.BROKER, "1", Code.INVALID_REQUEST),
            (ResourceType.GROUP, "g", Code.INVALID_REQUEST),
        ],
    )
    async def test_what_cannot_be_altered(self, ask, kind, name, code):
        refused = await alter(ask, ("retention.ms", AlterOp.SET, "5"), kind=kind, name=name)
        assert refused.error_code == code
        assert refused.error_message

    @pytest.mark.parametrize(
        ("kind", "name"),
        [
            (ResourceType.TOPIC, "t"),
            (ResourceType.BROKER, "1"),
            (ResourceType.BROKER, ""),
            (ResourceType.BROKER_LOGGER, "1"),
            (ResourceType.GROUP, "g"),
            (ResourceType.CLIENT_METRICS, "m"),
        ],
    )
    @pytest.mark.parametrize("validate_only", [False, True])
    async def test_to_delete_what_is_not_set_is_no_change(self, ask, broker, topic, kind, name, validate_only):
        throttles = ("leader.replication.throttled.rate", "retention.ms", "no.such.config")
        operations = [(each, AlterOp.DELETE, None) for each in throttles]
        answer = await alter(ask, *operations, kind=kind, name=name, validate_only=validate_only)
        assert (answer.error_code, answer.error_message) == (0, None)
        assert await overrides(broker) == {}

    @pytest.mark.parametrize("name", ["9", "x", "-1", "١"])
    async def test_nothing_is_deleted_of_a_node_that_is_not_there(self, ask, name):
        answer = await alter(ask, ("a.b", AlterOp.DELETE, None), kind=ResourceType.BROKER, name=name)
        assert answer.error_code == Code.INVALID_REQUEST
        assert name in answer.error_message

    @pytest.mark.parametrize("name", ["none", "default..none", "/default:none"])
    async def test_errors_name_a_topic_as_it_was_asked_for(self, ask, name):
        assert (await alter(ask, name=name)).error_message == f"there is no topic {name}"
        assert (await describe(ask, ResourceType.TOPIC, name)).error_message == f"there is no topic {name}"

    async def test_a_topic_named_twice_in_any_form_is_left_alone(self, ask, broker, topic):
        configs = [{"name": "retention.ms", "config_operation": 0, "value": "5"}]
        resources = [{"resource_type": 2, "resource_name": name, "configs": configs} for name in ("t", "/default:t")]
        answers = (await ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": resources})).responses
        assert [answer.error_code for answer in answers] == [Code.INVALID_REQUEST] * 2
        assert [answer.error_message.split()[0] for answer in answers] == ["t", "/default:t"]
        assert await overrides(broker) == {}


class TestAlter:
    @pytest.mark.parametrize("version", range(3))
    async def test_it_replaces_all(self, ask, broker, topic, version):
        await replace(ask, {"retention.ms": "5", "segment.ms": "9"}, version=version)
        assert await overrides(broker) == {"retention.ms": "5", "segment.ms": "9"}
        await replace(ask, {"retention.ms": "6"}, version=version)
        assert await overrides(broker) == {"retention.ms": "6"}
        await replace(ask, {}, version=version)
        assert await overrides(broker) == {}

    async def test_validating_changes_nothing(self, ask, broker, topic):
        assert (await replace(ask, {"retention.ms": "5"}, validate_only=True)).error_code == 0
        assert await overrides(broker) == {}

    async def test_a_bad_value_changes_nothing(self, ask, broker, topic):
        await replace(ask, {"segment.ms": "9"})
        refused = await replace(ask, {"retention.ms": "-7"})
        assert refused.error_code == Code.INVALID_CONFIG
        assert await overrides(broker) == {"segment.ms": "9"}
