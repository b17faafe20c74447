"""DescribeConfigs, IncrementalAlterConfigs and AlterConfigs: a topic's configs, and a node's settings.

A topic's overrides are changed by one catalog command per topic; all of a request's are written at once, so they share
a sync. A node's settings come from its command line or its pod, so they are shown and cannot be altered here; to delete
one, which none has set, is no change. What a
value may be, and what a topic inherits, is `topic_configs`' to say.
"""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.base.ids import NodeId
from headrace.catalog.commands import AlterTopic, StreamPolicy
from headrace.catalog.rows import TopicRow
from headrace.coordination.limits import GroupLimits
from headrace.kafka.connection import Connection
from headrace.kafka.handler import Handler
from headrace.kafka.node_configs import NodeFacts, node_configs
from headrace.partitions.lookups import refusal, replicas, topic_rows, volume_of
from headrace.partitions.topic_configs import AlterOp, ConfigChange, changed_by, described, replaced_by
from headrace.wire.api_keys import ApiKey
from headrace.wire.generic_codec import field

if TYPE_CHECKING:
    from headrace.kafka.dispatch import Broker

ATTEMPTS: Final = 100


class ResourceType(IntEnum):
    """What has configs, as Kafka numbers it (org.apache.kafka.common.config.ConfigResource.Type)."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class _ChangeOf(Protocol):
    def __call__(self, resource: Any, row: TopicRow, policy: StreamPolicy) -> ConfigChange:
        """What a resource of the request asks for. Raises KafkaError."""
        ...


# --- DescribeConfigs


async def describe_configs(broker: "Broker", request: Any, session: Connection) -> Mapping[str, object]:
    """DescribeConfigs 1-4."""
    synonyms = request.include_synonyms
    documentation = field(request, "include_documentation", False)
    names = [each.resource_name for each in request.resources if each.resource_type == ResourceType.TOPIC]
    rows = iter(await topic_rows(broker.catalog, names))
    policies: dict[str, StreamPolicy] = {}
    brokers: Counter[str] = Counter()
    results: list[dict[str, object]] = []
    for index, resource in enumerate(request.resources):
        result: dict[str, object] = {
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
            "error_code": 0,
            "error_message": None,
            "configs": (),
        }
        results.append(result)
        keys = resource.configuration_keys or None  # as at Kafka no names are all of them, be they null or empty
        try:
            if resource.resource_type == ResourceType.TOPIC:
                row = next(rows)
                if isinstance(row, KafkaError):
                    raise row
                policy = await _policy_of(broker, row, policies, name=resource.resource_name)
                result["configs"] = described(
                    policy,
                    volume_of(broker.cluster, policy),
                    row.configs,
                    names=keys,
                    synonyms=synonyms,
                    documentation=documentation,
                )
            else:
                brokers[resource.resource_name] += resource.resource_type == ResourceType.BROKER
                if brokers[resource.resource_name] > 1:  # each time it would be some 400 configs
                    raise KafkaError(Code.INVALID_REQUEST, "a broker is named more than once in this request")
                result["configs"] = await _node_configs(
                    broker, resource, session, names=keys, synonyms=synonyms, documentation=documentation
                )
        except KafkaError as error:
            result.update(refusal(error))
        if index % 16 == 15:  # a topic is some thirty configs
            await asyncio.sleep(0)
    return {"results": results}


async def _policy_of(broker: "Broker", row: TopicRow, known: dict[str, StreamPolicy], *, name: str) -> StreamPolicy:
    """The policy of the stream of the topic that the client calls `name`. Raises KafkaError if both are gone by now."""
    policy = known.get(row.stream)
    if policy is None:
        stream = await broker.catalog.query(lambda reader: reader.stream(row.stream))
        if stream is None:
            raise KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        policy = known[row.stream] = stream.policy
    return policy


async def _node_configs(
    broker: "Broker",
    resource: Any,
    session: Connection,
    *,
    names: Sequence[str] | None,
    synonyms: bool,
    documentation: bool,
) -> Sequence[Mapping[str, object]]:
    """Raises KafkaError for another node's name, and for types without configs."""
    name = resource.resource_name
    match resource.resource_type:
        case ResourceType.BROKER if name == "":
            return ()  # Kafka's cluster-wide dynamic defaults: there are none here
        case ResourceType.BROKER | ResourceType.BROKER_LOGGER:
            if _node_id(name) != broker.node.node_id:
                raise KafkaError(
                    Code.INVALID_REQUEST, f"this is node {broker.node.node_id}; ask node {name} for its own configs"
                )
            if resource.resource_type == ResourceType.BROKER_LOGGER:
                return ()
            return node_configs(
                await node_facts(broker, session), names=names, synonyms=synonyms, documentation=documentation
            )
        case ResourceType.CLIENT_METRICS | ResourceType.GROUP:
            return ()
        case other:
            raise KafkaError(Code.INVALID_REQUEST, f"resources of type {other} have no configs")


def _node_id(name: str) -> int:
    """The node that a resource's name means. Raises KafkaError (INVALID_REQUEST)."""
    if not (name.isascii() and name.isdigit() and len(name) < 11):
        raise KafkaError(Code.INVALID_REQUEST, f"a broker is named by its id, a number, not {name[:100]!r}")
    return int(name)


async def node_facts(broker: "Broker", session: Connection) -> NodeFacts:
    """This node as its configs show it to the client of `session`."""
    stream = await broker.catalog.query(lambda reader: reader.stream(broker.default_stream))
    defaults = stream.policy if stream is not None else StreamPolicy()
    own = broker.address(broker.node.node_id, session)
    assert own is not None, "this node is always known to itself"
    return NodeFacts(
        node_id=broker.node.node_id,
        rack=broker.node.rack,
        host=own.host,
        port=own.port,
        folder=broker.folder,
        replicas=replicas(broker.cluster, defaults.volume),
        defaults=defaults,
        volume=volume_of(broker.cluster, defaults),
        groups=GroupLimits(initial_rebalance_delay_ms=broker.node.settings.rebalance_delay_ms),
        settings=dataclasses.asdict(broker.node.settings),
    )


# --- AlterConfigs, IncrementalAlterConfigs


async def incremental_alter_configs(broker: "Broker", request: Any, session: Connection) -> Mapping[str, object]:
    """IncrementalAlterConfigs 0-1: SET, DELETE, APPEND, SUBTRACT."""

    def change(resource: Any, row: TopicRow, policy: StreamPolicy) -> ConfigChange:
        operations = [(each.name, each.config_operation, each.value) for each in resource.configs]
        return changed_by(operations, policy=policy, overrides=row.configs)

    return await _alter(broker, request, change, changes=lambda each: each.config_operation != AlterOp.DELETE)


async def alter_configs(broker: "Broker", request: Any, session: Connection) -> Mapping[str, object]:
    """AlterConfigs 0-2: the given configs replace all that the topic had."""

    def change(resource: Any, row: TopicRow, policy: StreamPolicy) -> ConfigChange:
        return replaced_by([(each.name, each.value) for each in resource.configs], overrides=row.configs)

    return await _alter(broker, request, change, changes=lambda _: True)


async def _alter(
    broker: "Broker", request: Any, change: _ChangeOf, *, changes: Callable[[Any], bool]
) -> Mapping[str, object]:
    """Alter each resource by itself: one that is refused leaves the others as they are. `changes`: whether one of its
    configs would change something where none is set."""
    resources = request.resources
    rows = iter(
        await topic_rows(
            broker.catalog, [each.resource_name for each in resources if each.resource_type == ResourceType.TOPIC]
        )
    )
    found = [next(rows) if each.resource_type == ResourceType.TOPIC else None for each in resources]
    times = Counter(row.full_name for row in found if isinstance(row, TopicRow))
    policies: dict[str, StreamPolicy] = {}

    async def result(resource: Any, row: TopicRow | KafkaError | None) -> dict[str, object]:
        answer = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
        try:
            if row is None:
                _check_unset(broker, resource, changes)
                return {**answer, "error_code": 0, "error_message": None}
            if isinstance(row, KafkaError):
                raise row
            name = resource.resource_name
            if times[row.full_name] > 1:
                raise KafkaError(Code.INVALID_REQUEST, f"{name} is named more than once in this request")
            policy = await _policy_of(broker, row, policies, name=name)
            if request.validate_only:
                change(resource, row, policy)
            else:
                await _alter_one(broker, row, lambda present: change(resource, present, policy), name=name)
        except HeadraceError as error:
            return {**answer, **refusal(error)}
        return {**answer, "error_code": 0, "error_message": None}

    return {"responses": await asyncio.gather(*map(result, resources, found))}


async def _alter_one(broker: "Broker", row: TopicRow, change: Callable[[TopicRow], ConfigChange], *, name: str) -> None:
    """A change depends on what the topic has: made anew where somebody else was faster, no APPEND is lost.

    Raises KafkaError as `change`, or OPERATION_NOT_ATTEMPTED where others change it all the time.
    """
    for left in reversed(range(ATTEMPTS)):
        wanted = change(row)
        if not wanted.set and not wanted.remove:
            return
        try:
            await broker.catalog.submit(
                AlterTopic(
                    topic_id=row.topic_id,
                    set=dict(wanted.set),
                    remove=list(wanted.remove),
                    expected=dict(row.configs),
                )
            )
        except KafkaError as error:
            if error.code is not Code.OPERATION_NOT_ATTEMPTED or not left:
                raise
        else:
            return
        (found,) = await topic_rows(broker.catalog, [name])
        if isinstance(found, KafkaError):
            raise found
        row = found


def _check_unset(broker: "Broker", resource: Any, changes: Callable[[Any], bool]) -> None:
    """Nothing but topics has configs that can be set here, so there is nothing to do where configs are to be deleted.

    kafka-reassign-partitions --verify does that, to every broker. Raises KafkaError where something would be set.
    """
    kind, name = resource.resource_type, resource.resource_name
    match kind:
        case ResourceType.BROKER if name == "":
            pass
        case ResourceType.BROKER | ResourceType.BROKER_LOGGER:
            node_id = NodeId(_node_id(name))
            if node_id != broker.node.node_id and broker.cluster.node(node_id) is None:
                raise KafkaError(Code.INVALID_REQUEST, f"there is no node {name}")
        case ResourceType.CLIENT_METRICS | ResourceType.GROUP:
            pass
        case other:
            raise KafkaError(Code.INVALID_REQUEST, f"resources of type {other} cannot be altered")
    if any(map(changes, resource.configs)):
        what = {
            ResourceType.BROKER: "a node's settings are given when it starts and cannot be altered; a stream's policy"
            " can: headrace stream alter",
            ResourceType.BROKER_LOGGER: "the log levels of a node are given when it starts and cannot be altered",
            ResourceType.CLIENT_METRICS: "metrics of clients are not gathered",
            ResourceType.GROUP: "groups have no configs of their own",
        }
        raise KafkaError(Code.INVALID_REQUEST, what[ResourceType(kind)])


# --- ListConfigResources


async def list_config_resources(broker: "Broker", request: Any, session: Connection) -> Mapping[str, object]:
    """ListConfigResources 0: subscriptions to metrics of clients alone (KIP-714), and there are none."""
    return {"error_code": 0, "config_resources": ()}


HANDLERS: Final[Mapping[ApiKey, Handler]] = {
    ApiKey.DESCRIBE_CONFIGS: describe_configs,
    ApiKey.ALTER_CONFIGS: alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs,
    ApiKey.LIST_CONFIG_RESOURCES: list_config_resources,
}
