"""A node's settings in the form of a broker's configs, as Kafka's tools expect them.

All of Kafka's names are present, since some tools look up a name and fail without it (Kafbat reads
`delete.topic.enable` and `inter.broker.protocol.version` when it opens). Configs with a counterpart have the value that
holds here; others have Kafka's default, and documentation that says so. The node's own settings follow as
`headrace.<name>`. What Kafka calls a broker's defaults for topics is the policy of the default stream, and its volume.
All configs are read-only. Pure: no I/O.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace import __version__
from headrace.catalog.policy import StreamPolicy
from headrace.coordination.limits import GroupLimits
from headrace.kafka.broker_config_table import BROKER_CONFIGS
from headrace.kafka.connection import MAX_REQUEST_BYTES
from headrace.kafka.fetch_sessions import MAX_SESSIONS
from headrace.kafka.limits import MAX_METADATA_BYTES, MAX_RESPONSE_BYTES
from headrace.partitions.producer_state import IDLE_MS
from headrace.partitions.topic_config_table import ConfigType, retention_of_limit, retention_of_ttl
from headrace.partitions.topic_configs import ConfigSource
from headrace.storage.expiry import OFFSETS_EVERY_S, OFFSETS_KEPT_S
from headrace.store.records import VolumeRecord

PROTOCOL_LEVEL: Final = "3.9-IV0"
"""The Kafka release whose APIs this node implements; docs/protocol.md has the exceptions."""
_NO_EFFECT: Final = "Kafka's default, for tools that look it up; it has no effect in Headrace"
_WHY: Final = {
    "transaction": "transactions are not supported yet.",
    "remote.": "there is no remote storage yet.",
    "sasl.": "the file of listeners says how clients of each authenticate.",
    "ssl.": "the file of listeners names each one's certificate and key.",
    "delegation.token.": "there are no delegation tokens.",
    "group.consumer.": "only classic groups are supported.",
    "group.share.": "only classic groups are supported.",
    "group.streams.": "only classic groups are supported.",
    "log.cleaner.": "compaction is not performed yet.",
    "offsets.topic.": "committed offsets are rows of the catalog, not records of a topic.",
    "log.segment.": "all partitions of a container share its chunks, so a partition has no segments of its own.",
}
"""By name prefix, why a config has no effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """The facts from which a node's configs are derived."""

    node_id: int
    rack: str | None
    protocol: str
    """The security protocol of the requesting client's connection, in Kafka's terms."""
    host: str
    port: int
    """The port advertised to the requesting client."""
    folder: Path
    replicas: int
    """Replicas of a new topic's partitions."""
    defaults: StreamPolicy
    """The policy of the default stream."""
    volume: VolumeRecord
    """The volume of the default stream."""
    groups: GroupLimits
    settings: Mapping[str, object]
    """The node's own settings, by name."""


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    value: str | None
    type: ConfigType
    source: ConfigSource
    documentation: str


def node_configs(
    facts: NodeFacts, *, names: Sequence[str] | None = None, synonyms: bool = False, documentation: bool = False
) -> list[dict[str, object]]:
    """The configs as DescribeConfigs lists them, sorted by name. `names`: only these; None: all."""
    wanted = None if names is None else set(names)
    return [
        {
            "name": row.name,
            "value": row.value,
            "read_only": True,
            "config_source": int(row.source),
            "is_sensitive": row.type is ConfigType.PASSWORD,
            "synonyms": _synonyms(row) if synonyms else (),
            "config_type": int(row.type),
            "documentation": row.documentation if documentation else None,
        }
        for row in sorted(_rows(facts), key=lambda row: row.name)
        if wanted is None or row.name in wanted
    ]


def _synonyms(row: _Row) -> list[dict[str, object]]:
    """The values in order of precedence: the node's, Kafka's default."""
    rows = [] if row.value is None else [(row.value, row.source)]
    known = BROKER_CONFIGS.get(row.name)
    if row.source is not ConfigSource.DEFAULT and known is not None and known.default is not None:
        rows.append((known.default, ConfigSource.DEFAULT))
    return [{"name": row.name, "value": value, "source": int(source)} for value, source in rows]


def _rows(facts: NodeFacts) -> list[_Row]:
    rows = {
        name: _Row(name, each.default, each.type, ConfigSource.DEFAULT, _without_effect(name))
        for name, each in BROKER_CONFIGS.items()
    }
    rows.update((row.name, row) for row in _identity(facts))
    for name, value, documentation in (*_new_topics(facts), *_limits(facts), *_fixed()):
        known = BROKER_CONFIGS[name]
        source = ConfigSource.DEFAULT if value == known.default else ConfigSource.STATIC_BROKER
        rows[name] = _Row(name, value, known.type, source, documentation)
    return [*rows.values(), *_settings(facts.settings)]


def _without_effect(name: str) -> str:
    why = next((why for beginning, why in _WHY.items() if name.startswith(beginning)), None)
    return f"{_NO_EFFECT}." if why is None else f"{_NO_EFFECT}: {why}"


def _identity(facts: NodeFacts) -> Iterator[_Row]:
    def given(name: str, value: str, documentation: str, kind: ConfigType = ConfigType.STRING) -> _Row:
        return _Row(name, value, kind, ConfigSource.STATIC_BROKER, documentation)

    listener = f"{facts.protocol}://{facts.host}:{facts.port}"
    yield given("broker.id", str(facts.node_id), "The node's id, handed out once.", ConfigType.INT)
    yield given("node.id", str(facts.node_id), "The node's id, handed out once.", ConfigType.INT)
    yield given("advertised.listeners", listener, "Where clients reach this node.")
    yield given("listeners", listener, "Where clients reach this node.")
    yield given("log.dir", str(facts.folder), "The folder of this node's replicas.")
    yield given("log.dirs", str(facts.folder), "The folder of this node's replicas.")
    yield given("headrace.version", __version__, "The version of Headrace that this node runs.")
    if facts.rack is not None:
        yield given("broker.rack", facts.rack, "The zone of this node.")


def _new_topics(facts: NodeFacts) -> Iterator[tuple[str, str, str]]:
    """The configs that apply to a topic of the default stream: name, value, documentation."""
    policy, why = facts.defaults, " From the policy of the default stream."
    ttl, limit = retention_of_ttl(policy.ttl_ms), retention_of_limit(policy.retention_bytes)
    yield "auto.create.topics.enable", str(policy.auto_create).lower(), f"Topics are created on first use.{why}"
    yield "num.partitions", str(policy.default_partitions), f"Partitions of a new topic.{why}"
    yield "log.retention.ms", ttl, f"Time to live of a record; -1: for ever.{why}"
    yield "log.retention.bytes", limit, f"Limit per partition; -1: none.{why}"
    yield "message.max.bytes", str(policy.max_message_bytes), f"Largest record batch.{why}"
    yield "log.message.timestamp.type", policy.timestamp_type, f"Times of records.{why}"
    yield "compression.type", policy.compression, f"Batches are stored as they are sent.{why}"
    yield (
        "min.insync.replicas",
        str(facts.volume.min_in_sync),
        "How many replicas have a record on disk before it is acknowledged. From the volume of the default stream.",
    )
    yield "default.replication.factor", str(facts.replicas), "Replicas of a new topic, as its stream's volume says."


def _limits(facts: NodeFacts) -> Iterator[tuple[str, str, str]]:
    """Limits that work as in Kafka, with this node's numbers: name, value, documentation."""
    groups, idle_ms = facts.groups, facts.settings["connections_max_idle_ms"]
    yield "connections.max.idle.ms", str(idle_ms), "Idle time after which a connection is closed."
    yield "socket.request.max.bytes", str(MAX_REQUEST_BYTES), "The largest request."
    yield "fetch.max.bytes", str(MAX_RESPONSE_BYTES), "Records of one answer to Fetch."
    yield "max.incremental.fetch.session.cache.slots", str(MAX_SESSIONS), "The number of fetch sessions."
    yield "producer.id.expiration.ms", str(IDLE_MS), "Time after which an idle idempotent producer is forgotten."
    yield (
        "group.initial.rebalance.delay.ms",
        str(groups.initial_rebalance_delay_ms),
        "How long the first rebalance of an empty group waits for more members.",
    )
    yield "group.min.session.timeout.ms", str(groups.min_session_timeout_ms), "The shortest session timeout."
    yield "group.max.session.timeout.ms", str(groups.max_session_timeout_ms), "The longest session timeout."
    yield "group.max.size", str(groups.max_size), "Members of a group."
    yield "offset.metadata.max.bytes", str(MAX_METADATA_BYTES), "Metadata of a committed offset."
    yield "offsets.retention.minutes", str(OFFSETS_KEPT_S // 60), "Committed offsets of a group that has been empty."
    yield (
        "offsets.retention.check.interval.ms",
        str(int(OFFSETS_EVERY_S * 1000)),
        "How often expired committed offsets are deleted.",
    )


def _fixed() -> Iterator[tuple[str, str, str]]:
    yield "inter.broker.protocol.version", PROTOCOL_LEVEL, "The Kafka release whose APIs this node speaks."
    yield "delete.topic.enable", "true", "Topics can be deleted."
    yield "log.cleanup.policy", "delete", "Records expire by retention."
    yield "log.cleaner.enable", "false", "Compaction is not performed yet."
    yield "num.network.threads", "1", "One event loop does all network I/O of a node."
    yield "authorizer.class.name", "", "Permissions need no class: ACLs and access expressions, once security is on."
    yield "sasl.enabled.mechanisms", "", "The file of listeners names the mechanisms of each."
    yield "remote.log.storage.system.enable", "false", "There is no remote storage yet."
    yield (
        "unclean.leader.election.enable",
        "false",
        "A replica that may lack acknowledged records leads only by an explicit command.",
    )


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
