"""A node's settings as Kafka's tools expect a broker's configs.

Kafka's names for what has a counterpart here, so that web consoles find what they look for (Kafbat reads
`inter.broker.protocol.version` and `delete.topic.enable` when it opens), then the node's own settings as
`headrace.<name>`. What Kafka calls a broker's defaults for topics is the policy of the default stream. All of it is
read only. Pure: no I/O.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headrace import __version__
from headrace.broker.topic_config_table import ConfigType, retention_of_limit, retention_of_ttl
from headrace.broker.topic_configs import ConfigSource
from headrace.catalog.commands import StreamPolicy

PROTOCOL_LEVEL: Final = "3.9-IV0"
"""The Kafka release whose APIs are spoken; docs/protocol.md has the exceptions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What a node's configs are made from."""

    node_id: int
    rack: str | None
    host: str
    port: int
    """As advertised to the client that asks."""
    replicas: int
    """Of a new topic's partitions."""
    defaults: StreamPolicy
    """The policy of the default stream."""
    settings: Mapping[str, object]
    """The node's own settings by name."""


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    value: str
    type: ConfigType
    source: ConfigSource
    documentation: str


def node_configs(
    facts: NodeFacts, *, names: Sequence[str] | None = None, synonyms: bool = False, documentation: bool = False
) -> list[dict[str, object]]:
    """The configs as DescribeConfigs lists them, in order of name. `names`: only these; None: all."""
    wanted = None if names is None else set(names)
    return [
        {
            "name": row.name,
            "value": row.value,
            "read_only": True,
            "config_source": int(row.source),
            "is_sensitive": False,
            "synonyms": [{"name": row.name, "value": row.value, "source": int(row.source)}] if synonyms else (),
            "config_type": int(row.type),
            "documentation": row.documentation if documentation else None,
        }
        for row in sorted(_rows(facts), key=lambda row: row.name)
        if wanted is None or row.name in wanted
    ]


def _rows(facts: NodeFacts) -> list[_Row]:
    return [*_of_the_node(facts), *_of_the_default_stream(facts.defaults), *_fixed(facts), *_settings(facts.settings)]


def _of_the_node(facts: NodeFacts) -> list[_Row]:
    given = ConfigSource.STATIC_BROKER
    listener = f"PLAINTEXT://{facts.host}:{facts.port}"
    rows = [
        _Row("broker.id", str(facts.node_id), ConfigType.INT, given, "The node's id, handed out once."),
        _Row("node.id", str(facts.node_id), ConfigType.INT, given, "The node's id, handed out once."),
        _Row("advertised.listeners", listener, ConfigType.STRING, given, "Where clients reach this node."),
        _Row("listeners", listener, ConfigType.STRING, given, "Where clients reach this node."),
        _Row("headrace.version", __version__, ConfigType.STRING, given, "The version of Headrace that this node runs."),
    ]
    if facts.rack is not None:
        rows.append(_Row("broker.rack", facts.rack, ConfigType.STRING, given, "The zone of this node."))
    return rows


def _of_the_default_stream(policy: StreamPolicy) -> list[_Row]:
    given, why = ConfigSource.STATIC_BROKER, " From the policy of the default stream."
    auto = str(policy.auto_create).lower()
    ttl, limit = retention_of_ttl(policy.ttl_ms), retention_of_limit(policy.retention_bytes)
    return [
        _Row("auto.create.topics.enable", auto, ConfigType.BOOLEAN, given, f"Topics are made on first use.{why}"),
        _Row("num.partitions", str(policy.default_partitions), ConfigType.INT, given, f"Of a new topic.{why}"),
        _Row("log.retention.ms", ttl, ConfigType.LONG, given, f"Time to live of a record; -1: for ever.{why}"),
        _Row("log.retention.bytes", limit, ConfigType.LONG, given, f"Limit per partition; -1: none.{why}"),
        _Row("message.max.bytes", str(policy.max_message_bytes), ConfigType.INT, given, f"Largest record batch.{why}"),
        _Row("log.message.timestamp.type", policy.timestamp_type, ConfigType.STRING, given, f"Times of records.{why}"),
        _Row("compression.type", policy.compression, ConfigType.STRING, given, f"Batches stay as they come.{why}"),
    ]


def _fixed(facts: NodeFacts) -> list[_Row]:
    fixed = ConfigSource.DEFAULT
    level = "The Kafka release whose APIs this node speaks."
    return [
        _Row("inter.broker.protocol.version", PROTOCOL_LEVEL, ConfigType.STRING, fixed, level),
        _Row("delete.topic.enable", "true", ConfigType.BOOLEAN, fixed, "Topics can be deleted."),
        _Row("log.cleanup.policy", "delete", ConfigType.LIST, fixed, "Records expire by retention."),
        _Row(
            "default.replication.factor",
            str(facts.replicas),
            ConfigType.INT,
            fixed,
            "Replicas of a new topic, as its stream's volume says.",
        ),
        _Row(
            "unclean.leader.election.enable",
            "false",
            ConfigType.BOOLEAN,
            fixed,
            "A replica that may lack acknowledged records leads only by an explicit command.",
        ),
    ]


def _settings(settings: Mapping[str, object]) -> list[_Row]:
    return [
        _Row(f"headrace.{name}", _shown(value), _type(value), ConfigSource.STATIC_BROKER, "A setting of this node.")
        for name, value in settings.items()
    ]


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _type(value: object) -> ConfigType:
    match value:
        case bool():
            return ConfigType.BOOLEAN
        case int():
            return ConfigType.LONG
        case float():
            return ConfigType.DOUBLE
        case _:
            return ConfigType.STRING
