"""A topic's configs: checks of values that clients set, changes of a topic's configs, and the effective policy.

A topic inherits its stream's policy; a config set on the topic overrides it. Kafka clients see the policy under the
names of the broker defaults that it corresponds to (`log.retention.ms`, …), so that the model of Kafka's tools,
"topic's own value, then the static one, then the default", remains valid.

Pure: no I/O, no clock; knows nothing of the catalog or of the wire format. The table of configs is
`topic_config_table`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from headrace.base.errors import Code, KafkaError
from headrace.partitions.topic_config_table import (
    DEFINITIONS,
    ConfigDefinition,
    ConfigType,
    PolicyOfStream,
    VolumeOfStream,
    list_entries,
    retention_of_limit,
    retention_of_ttl,
)

MAX_PARTITIONS: Final = 10_000
"""Limit of one topic's partitions."""


class ConfigSource(IntEnum):
    """The source of a config's value, as DescribeConfigs numbers it (KIP-226)."""

    TOPIC = 1
    """Set on the topic itself."""
    STATIC_BROKER = 4
    """For topics: the stream's policy, or its volume. For nodes: the node's settings."""
    DEFAULT = 5


class AlterOp(IntEnum):
    """An operation of IncrementalAlterConfigs on a config (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class EffectivePolicy:
    """The policy in force for one topic: its stream's policy with the topic's overrides."""

    retention_ms: int
    """Milliseconds after which records expire; -1: never."""
    retention_bytes: int
    """Bytes that a partition may hold; -1: no limit."""
    max_message_bytes: int
    append_time: bool
    """Whether records get the time of their append (`LogAppendTime`) rather than keep the producer's."""
    compacted: bool
    """Whether `cleanup.policy` contains `compact`. Compaction is not implemented yet."""


def definition_of(name: str) -> ConfigDefinition:
    """The definition of the config of that name. Raises KafkaError (INVALID_CONFIG) that lists the known configs."""
    definition = DEFINITIONS.get(name)
    if definition is None:
        raise KafkaError(
            Code.INVALID_CONFIG, f"unknown topic config {name[:100]!r}; known are: {', '.join(DEFINITIONS)}"
        )
    return definition


def checked(name: str, value: str | None) -> str:
    """The value in canonical spelling. Raises KafkaError (INVALID_CONFIG) that states the allowed values."""
    definition = definition_of(name)
    if value is None:
        raise KafkaError(Code.INVALID_CONFIG, f"config {name} has no value; leave it out to take the stream's")
    try:
        return definition.check(value.strip())
    except ValueError as reason:
        raise KafkaError(Code.INVALID_CONFIG, f"config {name} cannot be {value[:100]!r}: {reason}") from None


def checked_all(configs: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """A topic's overrides, by name, in canonical spelling. Raises KafkaError: INVALID_CONFIG, or INVALID_REQUEST for a
    name given twice."""
    result: dict[str, str] = {}
    for name, value in configs:
        if name in result:
            raise KafkaError(Code.INVALID_REQUEST, f"config {name[:100]!r} is given twice")
        result[name] = checked(name, value)
    return result


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """A change of a topic's overrides: values to set, and names to remove."""

    set: Mapping[str, str]
    remove: Sequence[str]


def changed_by(
    operations: Iterable[tuple[str, int, str | None]], *, policy: PolicyOfStream, overrides: Mapping[str, str]
) -> ConfigChange:
    """The change that an IncrementalAlterConfigs request, a list of (name, operation, value), makes to a topic's
    present overrides.

    APPEND and SUBTRACT edit the effective value, be it the topic's own or inherited, as in Kafka. A DELETE of a config
    that is not set changes nothing, whatever its name: kafka-reassign-partitions clears its throttles without checking
    whether there are any.
    Raises KafkaError: INVALID_CONFIG, or INVALID_REQUEST for a config given twice or an unknown operation.
    """
    to_set: dict[str, str] = {}
    remove: list[str] = []
    seen: set[str] = set()
    for name, operation, value in operations:
        if name in seen:
            raise KafkaError(Code.INVALID_REQUEST, f"config {name[:100]!r} is given twice")
        seen.add(name)
        match operation:
            case AlterOp.DELETE:
                if name in overrides:
                    remove.append(name)
            case AlterOp.SET:
                to_set[name] = checked(name, value)
            case AlterOp.APPEND | AlterOp.SUBTRACT:
                to_set[name] = _edited_list(name, operation, value, policy=policy, overrides=overrides)
            case _:
                raise KafkaError(Code.INVALID_REQUEST, f"config {name[:100]!r}: unknown operation {operation}")
    return ConfigChange(to_set, remove)


def _edited_list(
    name: str, operation: int, value: str | None, *, policy: PolicyOfStream, overrides: Mapping[str, str]
) -> str:
    definition = definition_of(name)
    if definition.type is not ConfigType.LIST:
        raise KafkaError(Code.INVALID_CONFIG, f"config {name} is not a list: it can be set or deleted only")
    if value is None:
        raise KafkaError(Code.INVALID_CONFIG, f"config {name} has no value")
    entries = list_entries(overrides.get(name, inherited(definition, policy)))
    named = list_entries(value)
    if operation == AlterOp.APPEND:
        entries += [entry for entry in named if entry not in entries]
    else:
        entries = [entry for entry in entries if entry not in named]
    return checked(name, ",".join(entries))


def replaced_by(configs: Iterable[tuple[str, str | None]], *, overrides: Mapping[str, str]) -> ConfigChange:
    """The change that an AlterConfigs request makes: set the given configs, and remove all others.

    Raises KafkaError as `checked_all`.
    """
    new = checked_all(configs)
    return ConfigChange(new, [name for name in overrides if name not in new])


def inherited(definition: ConfigDefinition, policy: PolicyOfStream) -> str:
    """The value of a config for a topic that does not override it."""
    return definition.default if definition.policy is None else definition.policy(policy)


def effective(policy: PolicyOfStream, overrides: Mapping[str, str]) -> EffectivePolicy:
    """The effective policy of a topic with these overrides in a stream with this policy."""
    policies = list_entries(overrides.get("cleanup.policy", "delete"))
    retention_ms = int(overrides.get("retention.ms") or retention_of_ttl(policy.ttl_ms))
    retention_bytes = int(overrides.get("retention.bytes") or retention_of_limit(policy.retention_bytes))
    expires = "delete" in policies
    return EffectivePolicy(
        retention_ms=(retention_ms or 1) if expires else -1,  # Kafka's 0 (at once) becomes the shortest retention
        retention_bytes=retention_bytes if expires else -1,
        max_message_bytes=int(overrides.get("max.message.bytes") or policy.max_message_bytes),
        append_time=(overrides.get("message.timestamp.type") or policy.timestamp_type) == "LogAppendTime",
        compacted="compact" in policies,
    )


def described(
    policy: PolicyOfStream,
    volume: VolumeOfStream,
    overrides: Mapping[str, str],
    *,
    names: Sequence[str] | None = None,
    synonyms: bool = False,
    documentation: bool = False,
) -> list[dict[str, object]]:
    """A topic's configs for a DescribeConfigs answer, each as a dict of kio's fields, in order of name.

    `names`: the configs to list (unknown ones are left out, as in Kafka); None: all.
    """
    wanted = DEFINITIONS if names is None else sorted(set(names) & DEFINITIONS.keys())
    shown: list[dict[str, object]] = []
    for definition in map(DEFINITIONS.__getitem__, wanted):
        given = _given(definition, policy, volume, overrides)
        holds = given[0]
        if definition.volume is not None and holds.value != definition.volume(volume):
            holds = given[1]  # what is set on the topic has no effect
        shown.append(
            {
                "name": definition.name,
                "value": holds.value,
                "read_only": False,
                "config_source": int(holds.source),
                "is_sensitive": False,
                "synonyms": [{**each._asdict(), "source": int(each.source)} for each in given] if synonyms else (),
                "config_type": int(definition.type),
                "documentation": definition.documentation if documentation else None,
            }
        )
    return shown


class _Given(NamedTuple):
    """A value of a config, its source, and the config's name in that source."""

    name: str
    value: str
    source: ConfigSource


def _given(
    definition: ConfigDefinition, policy: PolicyOfStream, volume: VolumeOfStream, overrides: Mapping[str, str]
) -> list[_Given]:
    """The values of a config in order of precedence: the topic's, its stream's or volume's, Kafka's default.

    A stream's or volume's value that equals Kafka's default is left out, so that tools that list deviations from the
    default (`kafka-topics --describe`) list only what matters. Retention by time is always taken from the stream:
    Kafka's default never applies.
    """
    rows: list[_Given] = []
    override = overrides.get(definition.name)
    if override is not None:
        rows.append(_Given(definition.name, override, ConfigSource.TOPIC))
    of_stream = inherited(definition, policy) if definition.volume is None else definition.volume(volume)
    broker_name = definition.broker_name or definition.name
    if of_stream != definition.default or definition.broker_default is not None:
        rows.append(_Given(broker_name, of_stream, ConfigSource.STATIC_BROKER))
    rows.append(_Given(*(definition.broker_default or (broker_name, definition.default)), ConfigSource.DEFAULT))
    return rows
