"""The table of Kafka's topic configs: names, types, defaults, allowed values, and what each does in Headrace.

The configs that have an effect in Headrace come first. The others (`segment.ms`, `flush.messages`, …) control parts of
Kafka that have no counterpart in Headrace: they are checked, stored and shown, and their documentation says that they
have no effect. Kafka Streams, Connect and many scripts set them, and would fail if they were refused.

Pure; knows only those parts of a stream's policy and volume that its topics inherit. Names, types and ranges are those
of Kafka 3.9 (org.apache.kafka.storage.internals.log.LogConfig).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Final, Protocol

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1


class ConfigType(IntEnum):
    """A config's type, as DescribeConfigs 3 and above numbers it (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class PolicyOfStream(Protocol):
    """The fields needed of a stream's policy (the catalog's StreamPolicy has them)."""

    @property
    def ttl_ms(self) -> int: ...
    @property
    def retention_bytes(self) -> int: ...
    @property
    def max_message_bytes(self) -> int: ...
    @property
    def timestamp_type(self) -> str: ...
    @property
    def compression(self) -> str: ...


class VolumeOfStream(Protocol):
    """The fields needed of a stream's volume (the cluster store's VolumeRecord has them)."""

    @property
    def min_in_sync(self) -> int: ...


Check = Callable[[str], str]
"""Takes a value and returns it in canonical spelling; raises ValueError with the values that are allowed."""


@dataclass(frozen=True, slots=True)
class ConfigDefinition:
    """One topic config.

    `default` is Kafka's default. `policy` reads the value from the stream's policy, for configs that a topic inherits
    and may override. `volume` reads the value from the stream's volume, for configs that a topic cannot override.
    `broker_name` is the name of the broker-wide config, shown as a synonym. `broker_default` has the name and value of
    Kafka's broker-wide default, where that is yet another config.
    """

    name: str
    type: ConfigType
    default: str
    documentation: str
    check: Check
    broker_name: str | None = None
    policy: Callable[[PolicyOfStream], str] | None = None
    volume: Callable[[VolumeOfStream], str] | None = None
    broker_default: tuple[str, str] | None = None


def _integer(low: int, high: int, *, but: Sequence[int] = ()) -> Check:
    """A check for whole numbers from low to high; `but`: further allowed values."""

    def check(value: str) -> str:
        try:
            number = int(value) if value.isascii() and "_" not in value else None
        except ValueError:
            number = None
        if number is None or not (low <= number <= high or number in but):
            others = "".join(f"{each}, or " for each in but)
            raise ValueError(f"allowed is {others}a whole number from {low} to {high}")
        return str(number)

    return check


def _fraction(value: str) -> str:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 <= number <= 1:
        raise ValueError("allowed is a number from 0 to 1")
    return value


def _boolean(value: str) -> str:
    if (lowered := value.lower()) not in ("true", "false"):
        raise ValueError("allowed is true or false")
    return lowered


def _never(value: str) -> str:
    if _boolean(value) == "true":
        raise ValueError("allowed is false: Headrace does not keep records in remote storage yet")
    return "false"


def _one_of(*allowed: str) -> Check:
    def check(value: str) -> str:
        if value not in allowed:
            raise ValueError(f"allowed is one of {', '.join(allowed)}")
        return value

    return check


def _list_of(*allowed: str) -> Check:
    def check(value: str) -> str:
        entries = list_entries(value)
        if not entries or any(entry not in allowed for entry in entries):
            raise ValueError(f"allowed is one or more of {', '.join(allowed)}, separated by commas")
        return ",".join(dict.fromkeys(entries))

    return check


def _throttled_replicas(value: str) -> str:
    for entry in (entries := list_entries(value)):
        partition, _, broker = entry.partition(":")
        if entry != "*" and not (partition.isdigit() and broker.isdigit()):
            raise ValueError("allowed is * or partition:broker pairs, separated by commas")
    return ",".join(entries)


def _text(value: str) -> str:
    return value


def list_entries(value: str) -> list[str]:
    """The non-empty entries of a LIST value, without surrounding blanks."""
    return [entry.strip() for entry in value.split(",") if entry.strip()]


def retention_of_ttl(ttl_ms: int) -> str:
    """A stream's time to live as Kafka's retention.ms: 0 (for ever) becomes -1."""
    return str(ttl_ms) if ttl_ms > 0 else "-1"


def retention_of_limit(retention_bytes: int) -> str:
    """A stream's limit per partition as Kafka's retention.bytes."""
    return str(max(-1, retention_bytes))


_NO_EFFECT: Final = " Kept for Kafka's tools; it has no effect in Headrace: "

_DECIDED: Final = (
    ConfigDefinition(
        "retention.ms",
        ConfigType.LONG,
        "604800000",
        "Milliseconds after which a record expires; -1: never; 0: at once (in a stream's policy 0 is for ever)."
        " Without it the stream's time to live holds.",
        _integer(-1, LONG_MAX),
        "log.retention.ms",
        lambda policy: retention_of_ttl(policy.ttl_ms),
        broker_default=("log.retention.hours", "168"),
    ),
    ConfigDefinition(
        "retention.bytes",
        ConfigType.LONG,
        "-1",
        "Bytes that a partition may hold before its oldest records expire; -1: no limit. Without it the stream's"
        " policy holds.",
        _integer(-1, LONG_MAX),
        "log.retention.bytes",
        lambda policy: retention_of_limit(policy.retention_bytes),
    ),
    ConfigDefinition(
        "max.message.bytes",
        ConfigType.INT,
        "1048588",
        "The largest record batch that is taken, in bytes, as the producer compressed it.",
        _integer(0, INT_MAX),
        "message.max.bytes",
        lambda policy: str(policy.max_message_bytes),
    ),
    ConfigDefinition(
        "message.timestamp.type",
        ConfigType.STRING,
        "CreateTime",
        "CreateTime: records keep the producer's time. LogAppendTime: they get the time at which they are appended.",
        _one_of("CreateTime", "LogAppendTime"),
        "log.message.timestamp.type",
        lambda policy: policy.timestamp_type,
    ),
    ConfigDefinition(
        "cleanup.policy",
        ConfigType.LIST,
        "delete",
        "delete: records expire by retention.ms and retention.bytes. compact: accepted, but compaction is not"
        " performed yet: the topic is kept whole and no record of it expires. compact,delete: not compacted yet"
        " either; records expire by retention.",
        _list_of("compact", "delete"),
        "log.cleanup.policy",
    ),
    ConfigDefinition(
        "compression.type",
        ConfigType.STRING,
        "producer",
        "Batches are stored and served as the producer compressed them, whatever is set here: another value is kept"
        " and shown, and has no effect.",
        _one_of("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        "compression.type",
        lambda policy: policy.compression,
    ),
    ConfigDefinition(
        "min.insync.replicas",
        ConfigType.INT,
        "1",
        "How many replicas have a record on disk, at least, before it is acknowledged, for acks=1 too; with fewer in "
        "sync no records are accepted. The stream's volume decides: what is set on a topic is kept, and has no "
        "effect.",
        _integer(1, INT_MAX),
        volume=lambda volume: str(volume.min_in_sync),
    ),
)


def _inert(name: str, kind: ConfigType, default: int | str, check: Check, why: str, what: str = "") -> ConfigDefinition:
    return ConfigDefinition(name, kind, str(default), f"{what}{_NO_EFFECT if what else _NO_EFFECT[1:]}{why}", check)


_CHUNKS: Final = "all partitions of a container share its chunks, so a partition has no segments of its own."
_SYNCED: Final = "every record is synced to disk before it is acknowledged, unless its volume says otherwise."
_LATER: Final = "compaction is not performed yet."
_TIERS: Final = "there is no remote storage yet."
_ANY_TIME: Final = "timestamps are taken as producers send them."
_NOTHING_MOVES: Final = "no replica is moved by reassignment."
_AS_IS: Final = "batches are stored as the producer compressed them."

_KEPT: Final = (
    _inert("segment.bytes", ConfigType.INT, 1 << 30, _integer(14, INT_MAX), _CHUNKS),
    _inert("segment.ms", ConfigType.LONG, 604_800_000, _integer(1, LONG_MAX), _CHUNKS),
    _inert("segment.jitter.ms", ConfigType.LONG, 0, _integer(0, LONG_MAX), _CHUNKS),
    _inert("segment.index.bytes", ConfigType.INT, 10 << 20, _integer(4, INT_MAX), _CHUNKS),
    _inert("index.interval.bytes", ConfigType.INT, 4096, _integer(0, INT_MAX), _CHUNKS),
    _inert("preallocate", ConfigType.BOOLEAN, "false", _boolean, _CHUNKS),
    _inert("file.delete.delay.ms", ConfigType.LONG, 60_000, _integer(0, LONG_MAX), _CHUNKS),
    _inert("flush.messages", ConfigType.LONG, LONG_MAX, _integer(0, LONG_MAX), _SYNCED),
    _inert("flush.ms", ConfigType.LONG, LONG_MAX, _integer(0, LONG_MAX), _SYNCED),
    _inert(
        "unclean.leader.election.enable",
        ConfigType.BOOLEAN,
        "false",
        _boolean,
        "a replica that may lack acknowledged records leads only by an explicit command.",
    ),
    _inert("delete.retention.ms", ConfigType.LONG, 86_400_000, _integer(0, LONG_MAX), _LATER),
    _inert("min.compaction.lag.ms", ConfigType.LONG, 0, _integer(0, LONG_MAX), _LATER),
    _inert("max.compaction.lag.ms", ConfigType.LONG, LONG_MAX, _integer(1, LONG_MAX), _LATER),
    _inert("min.cleanable.dirty.ratio", ConfigType.DOUBLE, "0.5", _fraction, _LATER),
    _inert("message.timestamp.before.max.ms", ConfigType.LONG, LONG_MAX, _integer(0, LONG_MAX), _ANY_TIME),
    _inert("message.timestamp.after.max.ms", ConfigType.LONG, LONG_MAX, _integer(0, LONG_MAX), _ANY_TIME),
    _inert("message.timestamp.difference.max.ms", ConfigType.LONG, LONG_MAX, _integer(0, LONG_MAX), _ANY_TIME),
    _inert(
        "message.downconversion.enable",
        ConfigType.BOOLEAN,
        "true",
        _boolean,
        "record batches of version 2 are served to every client.",
    ),
    _inert(
        "message.format.version", ConfigType.STRING, "3.0-IV1", _text, "records are stored as batches of version 2."
    ),
    _inert("compression.gzip.level", ConfigType.INT, -1, _integer(1, 9, but=(-1,)), _AS_IS),
    _inert("compression.lz4.level", ConfigType.INT, 9, _integer(1, 17), _AS_IS),
    _inert("compression.zstd.level", ConfigType.INT, 3, _integer(-131_072, 22), _AS_IS),
    _inert("remote.storage.enable", ConfigType.BOOLEAN, "false", _never, _TIERS),
    _inert("remote.log.copy.disable", ConfigType.BOOLEAN, "false", _boolean, _TIERS),
    _inert("remote.log.delete.on.disable", ConfigType.BOOLEAN, "false", _boolean, _TIERS),
    _inert("local.retention.ms", ConfigType.LONG, -2, _integer(-2, LONG_MAX), _TIERS),
    _inert("local.retention.bytes", ConfigType.LONG, -2, _integer(-2, LONG_MAX), _TIERS),
    _inert("leader.replication.throttled.replicas", ConfigType.LIST, "", _throttled_replicas, _NOTHING_MOVES),
    _inert("follower.replication.throttled.replicas", ConfigType.LIST, "", _throttled_replicas, _NOTHING_MOVES),
)

DEFINITIONS: Final[Mapping[str, ConfigDefinition]] = MappingProxyType(
    {definition.name: definition for definition in sorted((*_DECIDED, *_KEPT), key=lambda each: each.name)}
)
"""Every topic config by name, in the order in which configs are shown."""
