"""DescribeConfigs, IncrementalAlterConfigs and AlterConfigs: a topic's configs, and a node's settings.

A topic's overrides are changed by one catalog command per topic; all of a request's are written at once, so they share
a sync. A node's settings come from its command line or its pod, so they are shown and cannot be altered here. What a
value may be, and what a topic inherits, is `topic_configs`' to say.
"""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

from headrace.broker.admin_steps import Handler, refusal, replicas, topic_rows
from headrace.broker.listener import Connection
from headrace.broker.node_configs import NodeFacts, node_configs
from headrace.broker.topic_configs import ConfigChange, changed_by, described, replaced_by
from headrace.catalog.commands import AlterTopic, StreamPolicy
from headrace.catalog.rows import TopicRow
from headrace.errors import Code, HeadraceError, KafkaError
from headrace.wire.api_keys import ApiKey
from headrace.wire.cold import field

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

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
    rows = iter(await topic_rows(broker, names))
    policies: dict[str, StreamPolicy] = {}
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
        try:
            if resource.resource_type == ResourceType.TOPIC:
                row = next(rows)
                if isinstance(row, KafkaError):
                    raise row
                result["configs"] = described(
                    await _policy_of(broker, row, policies),
                    row.configs,
                    names=resource.configuration_keys,
                    synonyms=synonyms,
                    documentation=documentation,
                )
            else:
                result["configs"] = await _node_configs(
                    broker, resource, session, synonyms=synonyms, documentation=documentation
                )
        except KafkaError as error:
            result.update(refusal(error))
        if index % 16 == 15:  # a topic is some thirty configs
            await asyncio.sleep(0)
    return {"results": results}


async def _policy_of(broker: "Broker", row: TopicRow, known: dict[str, StreamPolicy]) -> StreamPolicy:
    """The policy of the topic's stream. Raises KafkaError if both are gone by now."""
    policy = known.get(row.stream)
    if policy is None:
        stream = await broker.catalog.query(lambda reader: reader.stream(row.stream))
        if stream is None:
            raise KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {row.full_name}")
        policy = known[row.stream] = stream.policy
    return policy


async def _node_configs(
    broker: "Broker", resource: Any, session: Connection, *, synonyms: bool, documentation: bool
) -> Sequence[Mapping[str, object]]:
    """Raises KafkaError for another node's name, and for types without configs."""
    match resource.resource_type:
        case ResourceType.BROKER if resource.resource_name == "":
            return ()  # Kafka's cluster-wide dynamic defaults: there are none here
        case ResourceType.BROKER | ResourceType.BROKER_LOGGER if resource.resource_name != str(broker.node.node_id):
            raise KafkaError(
                Code.INVALID_REQUEST,
                f"this is node {broker.node.node_id}; ask {resource.resource_name[:20]!r} for its own configs",
            )
        case ResourceType.BROKER:
            return node_configs(
                await node_facts(broker, session),
                names=resource.configuration_keys,
                synonyms=synonyms,
                documentation=documentation,
            )
        case ResourceType.BROKER_LOGGER | ResourceType.CLIENT_METRICS | ResourceType.GROUP:
            return ()
        case other:
            raise KafkaError(Code.INVALID_REQUEST, f"resources of type {other} have no configs")


async def node_facts(broker: "Broker", session: Connection) -> NodeFacts:
    """This node as its configs show it to the client of `session`."""
    stream = await broker.catalog.query(lambda reader: reader.stream(broker.default_stream))
    own = broker.address(broker.node.node_id, session)
    assert own is not None, "this node is always known to itself"
    return NodeFacts(
        node_id=broker.node.node_id,
        rack=broker.node.rack,
        host=own.host,
        port=own.port,
        replicas=replicas(broker),
        defaults=stream.policy if stream is not None else StreamPolicy(),
        settings=dataclasses.asdict(broker.node.settings),
    )


# --- AlterConfigs, IncrementalAlterConfigs


async def incremental_alter_configs(broker: "Broker", request: Any, session: Connection) -> Mapping[str, object]:
    """IncrementalAlterConfigs 0-1: SET, DELETE, APPEND, SUBTRACT."""

    def change(resource: Any, row: TopicRow, policy: StreamPolicy) -> ConfigChange:
        operations = [(each.name, each.config_operation, each.value) for each in resource.configs]
        return changed_by(operations, policy=policy, overrides=row.configs)

    return await _alter(broker, request, change)


async def alter_configs(broker: "Broker", request: Any, session: Connection) -> Mapping[str, object]:
    """AlterConfigs 0-2: the given configs replace all that the topic had."""

    def change(resource: Any, row: TopicRow, policy: StreamPolicy) -> ConfigChange:
        return replaced_by([(each.name, each.value) for each in resource.configs], overrides=row.configs)

    return await _alter(broker, request, change)


async def _alter(broker: "Broker", request: Any, change: _ChangeOf) -> Mapping[str, object]:
    """Alter each resource by itself: one that is refused leaves the others as they are."""
    resources = request.resources
    rows = iter(
        await topic_rows(broker, [each.resource_name for each in resources if each.resource_type == ResourceType.TOPIC])
    )
    found = [next(rows) if each.resource_type == ResourceType.TOPIC else None for each in resources]
    times = Counter(row.full_name for row in found if isinstance(row, TopicRow))
    policies: dict[str, StreamPolicy] = {}

    async def result(resource: Any, row: TopicRow | KafkaError | None) -> dict[str, object]:
        answer = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
        try:
            if row is None:
                raise _not_alterable(resource)
            if isinstance(row, KafkaError):
                raise row
            if times[row.full_name] > 1:
                raise KafkaError(Code.INVALID_REQUEST, f"{row.full_name} is named more than once in this request")
            policy = await _policy_of(broker, row, policies)
            if request.validate_only:
                change(resource, row, policy)
            else:
                await _alter_one(broker, row, lambda present: change(resource, present, policy))
        except HeadraceError as error:
            return {**answer, **refusal(error)}
        return {**answer, "error_code": 0, "error_message": None}

    return {"responses": await asyncio.gather(*map(result, resources, found))}


async def _alter_one(broker: "Broker", row: TopicRow, change: Callable[[TopicRow], ConfigChange]) -> None:
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
        (found,) = await topic_rows(broker, [row.full_name])
        if isinstance(found, KafkaError):
            raise found
        row = found


def _not_alterable(resource: Any) -> KafkaError:
    if resource.resource_type in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
        return KafkaError(
            Code.INVALID_REQUEST,
            "a node's settings are given when it starts and cannot be altered; a stream's policy can:"
            " headrace stream alter",
        )
    return KafkaError(Code.INVALID_REQUEST, f"resources of type {resource.resource_type} cannot be altered")


HANDLERS: Final[Mapping[ApiKey, Handler]] = {
    ApiKey.DESCRIBE_CONFIGS: describe_configs,
    ApiKey.ALTER_CONFIGS: alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs,
}
