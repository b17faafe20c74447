"""A node's settings in the form of a broker's configs, as Kafka's tools expect them."""

from pathlib import Path
from typing import Any

from headrace import __version__
from headrace.catalog.policy import StreamPolicy
from headrace.coordination.limits import GroupLimits
from headrace.kafka.broker_config_table import BROKER_CONFIGS
from headrace.kafka.node_configs import NodeFacts, node_configs
from headrace.partitions.topic_config_table import ConfigType
from headrace.partitions.topic_configs import ConfigSource
from headrace.store.records import VolumeRecord


def facts(**fields: Any) -> NodeFacts:
    given: dict[str, Any] = {
        "node_id": 7,
        "rack": None,
        "protocol": "PLAINTEXT",
        "host": "node-7",
        "port": 9092,
        "folder": Path("/data"),
        "replicas": 3,
        "defaults": StreamPolicy(),
        "volume": VolumeRecord("default", 3, 2),
        "groups": GroupLimits(),
        "settings": {"fsync": True, "chunk_bytes": 5, "share": 0.5, "zone": "a", "connections_max_idle_ms": 45_000},
    }
    return NodeFacts(**{**given, **fields})


def by_name(made: NodeFacts, **asked: Any) -> dict[str, dict[str, Any]]:
    return {str(each["name"]): each for each in node_configs(made, **asked)}


def test_all_of_kafkas_names_are_there_in_order_and_read_only() -> None:
    found = by_name(facts())
    assert BROKER_CONFIGS.keys() <= found.keys()
    assert list(found) == sorted(found)
    assert all(each["read_only"] for each in found.values())


def test_what_holds_here_stands_in_place_of_kafkas_default() -> None:
    found = by_name(facts(defaults=StreamPolicy(ttl_ms=5000, default_partitions=4)))
    shown = {
        name: found[name]["value"]
        for name in ("broker.id", "log.retention.ms", "num.partitions", "min.insync.replicas", "advertised.listeners")
    }
    assert shown == {
        "broker.id": "7",
        "log.retention.ms": "5000",
        "num.partitions": "4",
        "min.insync.replicas": "2",
        "advertised.listeners": "PLAINTEXT://node-7:9092",
    }
    assert by_name(facts(protocol="SSL"))["advertised.listeners"]["value"] == "SSL://node-7:9092"
    assert found["default.replication.factor"]["value"] == "3"
    assert found["headrace.version"]["value"] == __version__


def test_a_value_that_is_kafkas_default_is_told_as_one() -> None:
    name = "num.partitions"
    default = BROKER_CONFIGS[name].default
    assert default is not None
    same = by_name(facts(defaults=StreamPolicy(default_partitions=int(default))))[name]
    other = by_name(facts(defaults=StreamPolicy(default_partitions=int(default) + 1)), synonyms=True)[name]
    assert same["config_source"] == ConfigSource.DEFAULT
    assert other["config_source"] == ConfigSource.STATIC_BROKER
    assert [(each["value"], each["source"]) for each in other["synonyms"]] == [
        (str(int(default) + 1), ConfigSource.STATIC_BROKER),
        (default, ConfigSource.DEFAULT),
    ], "in order of precedence"


def test_a_rack_is_told_only_where_there_is_one() -> None:
    assert by_name(facts())["broker.rack"]["value"] is None
    assert by_name(facts(rack="zone-a"))["broker.rack"]["value"] == "zone-a"


def test_settings_of_the_node_have_their_names_and_types() -> None:
    found = by_name(facts())
    assert [
        (found[f"headrace.{name}"]["value"], found[f"headrace.{name}"]["config_type"]) for name in facts().settings
    ] == [
        ("true", ConfigType.BOOLEAN),
        ("5", ConfigType.LONG),
        ("0.5", ConfigType.DOUBLE),
        ("a", ConfigType.STRING),
        ("45000", ConfigType.LONG),
    ]
    assert found["connections.max.idle.ms"]["value"] == "45000"


def test_what_has_no_effect_says_so_and_why() -> None:
    found = by_name(facts(), documentation=True)
    assert "no effect" in found["ssl.protocol"]["documentation"]
    assert "the file of listeners names each one's certificate" in found["ssl.protocol"]["documentation"]
    assert "no effect" not in found["num.partitions"]["documentation"]
    assert by_name(facts())["num.partitions"]["documentation"] is None


def test_secrets_are_marked_and_names_that_are_asked_for_are_all_that_comes() -> None:
    assert list(by_name(facts(), names=["node.id", "no.such.name", "ssl.key.password"])) == [
        "node.id",
        "ssl.key.password",
    ]
    assert by_name(facts())["ssl.key.password"]["is_sensitive"]
    assert not by_name(facts())["node.id"]["is_sensitive"]
    assert by_name(facts(), names=[]) == {}
