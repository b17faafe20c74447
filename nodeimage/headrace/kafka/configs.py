"""DescribeConfigs, IncrementalAlterConfigs and AlterConfigs: the configs of topics and the settings of nodes.

A topic's overrides are changed by one catalog command per topic; all commands of a request are submitted at once, so
they share a sync. A node's settings come from its command line or its pod, so they are shown but cannot be altered
here; deleting one is a successful no-op, since none is set here. `topic_configs` defines which values are valid and
what a topic inherits.
"""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, Protocol

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.base.ids import NodeId
from headrace.catalog.catalog import Catalog
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.rows import TopicRow
from headrace.catalog.topics import AlterTopic
from headrace.coordination.limits import GroupLimits
from headrace.kafka.api import Api
from headrace.kafka.authorization import Authorization
from headrace.kafka.connection import Connection
from headrace.kafka.node_configs import NodeFacts, node_configs
from headrace.partitions.cluster_client import ClusterClient
from headrace.partitions.cluster_layout import Layout, NodeIdentity
from headrace.partitions.lookups import refusal, replicas, topic_rows, volume_of
from headrace.partitions.topic_configs import AlterOp, ConfigChange, changed_by, described, replaced_by
from headrace.security.access_rules import Kind
from headrace.security.kafka_acls import AclOperation
from headrace.wire.api_keys import ApiKey, Versions
from headrace.wire.generic_codec import field

ATTEMPTS: Final = 100


class ResourceType(IntEnum):
    """The types of resources that have configs, with Kafka's numbers
    (org.apache.kafka.common.config.ConfigResource.Type)."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class _ChangeOf(Protocol):
    def __call__(self, resource: Any, row: TopicRow, policy: StreamPolicy) -> ConfigChange:
        """The change that a resource of the request describes. Raises KafkaError."""
        ...


class ConfigApis:
    """Answers DescribeConfigs, IncrementalAlterConfigs, AlterConfigs and ListConfigResources."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        cluster: ClusterClient,
        layout: Layout,
        node: NodeIdentity,
        folder: Path,
        authorization: Authorization,
    ) -> None:
        self._catalog = catalog
        self._cluster = cluster
        self._layout = layout
        self._node = node
        self._folder = folder
        self._authorization = authorization

    @property
    def apis(self) -> Sequence[Api]:
        """The APIs that this module answers."""
        return (
            Api(ApiKey.DESCRIBE_CONFIGS, Versions(1, 4), self.describe_configs, has_long_answers=True),
            Api(ApiKey.ALTER_CONFIGS, Versions(0, 2), self.alter_configs),
            Api(ApiKey.INCREMENTAL_ALTER_CONFIGS, Versions(0, 1), self.incremental_alter_configs),
            Api(ApiKey.LIST_CONFIG_RESOURCES, Versions(0, 0), self.list_config_resources),
        )

    # --- DescribeConfigs

    async def describe_configs(self, request: Any, session: Connection) -> Mapping[str, object]:
        """DescribeConfigs."""
        synonyms = request.include_synonyms
        documentation = field(request, "include_documentation", False)
        names = [each.resource_name for each in request.resources if each.resource_type == ResourceType.TOPIC]
        describe = AclOperation.DESCRIBE_CONFIGS
        refused = await self._authorization.refused_topics(session, describe, names, api="DescribeConfigs")
        rows = iter(await topic_rows(self._catalog, names, default_stream=session.default_stream, refused=refused))
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
            keys = resource.configuration_keys or None  # as in Kafka, null and empty both mean all configs
            try:
                if resource.resource_type == ResourceType.TOPIC:
                    row = next(rows)
                    if isinstance(row, KafkaError):
                        raise row
                    policy = await self._policy_of(row, policies, name=resource.resource_name)
                    result["configs"] = described(
                        policy,
                        volume_of(self._cluster, policy),
                        row.configs,
                        names=keys,
                        synonyms=synonyms,
                        documentation=documentation,
                    )
                else:
                    self._check(session, describe, resource, api="DescribeConfigs")
                    brokers[resource.resource_name] += resource.resource_type == ResourceType.BROKER
                    if brokers[resource.resource_name] > 1:  # each answer has some 400 configs
                        raise KafkaError(Code.INVALID_REQUEST, "a broker is named more than once in this request")
                    result["configs"] = await self._node_configs(
                        resource, session, names=keys, synonyms=synonyms, documentation=documentation
                    )
            except KafkaError as error:
                result.update(refusal(error))
            if index % 16 == 15:  # a topic has some thirty configs
                await asyncio.sleep(0)
        return {"results": results}

    def _check(self, session: Connection, operation: AclOperation, resource: Any, *, api: str) -> None:
        """Raises KafkaError if the client may not perform the operation on a resource that is not a topic."""
        if resource.resource_type == ResourceType.GROUP:
            self._authorization.check(session, operation, Kind.GROUP, resource.resource_name, api=api)
        else:
            self._authorization.check(session, operation, api=api)

    async def _policy_of(self, row: TopicRow, known: dict[str, StreamPolicy], *, name: str) -> StreamPolicy:
        """The policy of the stream of `row`. Raises KafkaError if the stream is gone. `name`: the topic's name as the
        client wrote it."""
        policy = known.get(row.stream)
        if policy is None:
            stream = await self._catalog.query(lambda reader: reader.streams.at(row.stream))
            if stream is None:
                raise KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
            policy = known[row.stream] = stream.policy
        return policy

    async def _node_configs(
        self,
        resource: Any,
        session: Connection,
        *,
        names: Sequence[str] | None,
        synonyms: bool,
        documentation: bool,
    ) -> Sequence[Mapping[str, object]]:
        """The configs of a resource that is not a topic. Raises KafkaError for another node's name, and for types
        without configs."""
        name = resource.resource_name
        match resource.resource_type:
            case ResourceType.BROKER if name == "":
                return ()  # Kafka's cluster-wide dynamic defaults: there are none here
            case ResourceType.BROKER | ResourceType.BROKER_LOGGER:
                if _node_id(name) != self._node.node_id:
                    raise KafkaError(
                        Code.INVALID_REQUEST, f"this is node {self._node.node_id}; ask node {name} for its own configs"
                    )
                if resource.resource_type == ResourceType.BROKER_LOGGER:
                    return ()
                return node_configs(
                    await self.node_facts(session), names=names, synonyms=synonyms, documentation=documentation
                )
            case ResourceType.CLIENT_METRICS | ResourceType.GROUP:
                return ()
            case other:
                raise KafkaError(Code.INVALID_REQUEST, f"resources of type {other} have no configs")

    async def node_facts(self, session: Connection) -> NodeFacts:
        """The facts about this node from which its configs are shown to the client of `session`."""
        stream = await self._catalog.query(lambda reader: reader.streams.at(session.default_stream))
        defaults = stream.policy if stream is not None else StreamPolicy()
        own = self._layout.address(self._node.node_id, session.listener)
        assert own is not None, "this node is always known to itself"
        return NodeFacts(
            node_id=self._node.node_id,
            rack=self._node.rack,
            protocol=_security_protocol(session),
            host=own.host,
            port=own.port,
            folder=self._folder,
            replicas=replicas(self._cluster, defaults.volume),
            defaults=defaults,
            volume=volume_of(self._cluster, defaults),
            groups=GroupLimits(initial_rebalance_delay_ms=self._node.settings.rebalance_delay_ms),
            settings=dataclasses.asdict(self._node.settings),
        )

    # --- AlterConfigs, IncrementalAlterConfigs

    async def incremental_alter_configs(self, request: Any, session: Connection) -> Mapping[str, object]:
        """IncrementalAlterConfigs: SET, DELETE, APPEND, SUBTRACT."""

        def change(resource: Any, row: TopicRow, policy: StreamPolicy) -> ConfigChange:
            operations = [(each.name, each.config_operation, each.value) for each in resource.configs]
            return changed_by(operations, policy=policy, overrides=row.configs)

        return await self._alter(
            request,
            session,
            change,
            changes=lambda each: each.config_operation != AlterOp.DELETE,
            api="IncrementalAlterConfigs",
        )

    async def alter_configs(self, request: Any, session: Connection) -> Mapping[str, object]:
        """AlterConfigs: the given configs replace all of the topic's overrides."""

        def change(resource: Any, row: TopicRow, policy: StreamPolicy) -> ConfigChange:
            return replaced_by([(each.name, each.value) for each in resource.configs], overrides=row.configs)

        return await self._alter(request, session, change, changes=lambda _: True, api="AlterConfigs")

    async def _alter(
        self, request: Any, session: Connection, change: _ChangeOf, *, changes: Callable[[Any], bool], api: str
    ) -> Mapping[str, object]:
        """Alter each resource independently: a refused resource does not affect the others. `changes`: whether a
        config in the request is more than a deletion, which is all that a resource other than a topic accepts."""
        resources = request.resources
        names = [each.resource_name for each in resources if each.resource_type == ResourceType.TOPIC]
        alter = AclOperation.ALTER_CONFIGS
        refused = await self._authorization.refused_topics(session, alter, names, api=api)
        rows = iter(await topic_rows(self._catalog, names, default_stream=session.default_stream, refused=refused))
        found = [next(rows) if each.resource_type == ResourceType.TOPIC else None for each in resources]
        times = Counter(row.full_name for row in found if isinstance(row, TopicRow))
        policies: dict[str, StreamPolicy] = {}

        async def result(resource: Any, row: TopicRow | KafkaError | None) -> dict[str, object]:
            answer = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
            try:
                if row is None:
                    self._check(session, alter, resource, api=api)
                    self._check_unset(resource, changes)
                    return {**answer, "error_code": 0, "error_message": None}
                if isinstance(row, KafkaError):
                    raise row
                name = resource.resource_name
                if times[row.full_name] > 1:
                    raise KafkaError(Code.INVALID_REQUEST, f"{name} is named more than once in this request")
                policy = await self._policy_of(row, policies, name=name)
                if request.validate_only:
                    change(resource, row, policy)
                else:
                    await self._alter_one(row, lambda present: change(resource, present, policy), name=name)
            except HeadraceError as error:
                return {**answer, **refusal(error)}
            return {**answer, "error_code": 0, "error_message": None}

        return {"responses": await asyncio.gather(*map(result, resources, found))}

    async def _alter_one(self, row: TopicRow, change: Callable[[TopicRow], ConfigChange], *, name: str) -> None:
        """Apply a change that depends on the topic's present overrides; if they changed concurrently, the change is
        computed again, so that no APPEND is lost.

        Raises KafkaError as `change` does, or OPERATION_NOT_ATTEMPTED if concurrent changes persist.
        """
        for left in reversed(range(ATTEMPTS)):
            wanted = change(row)
            if not wanted.set and not wanted.remove:
                return
            try:
                await self._catalog.submit(
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
            (found,) = await topic_rows(self._catalog, [row.full_name], default_stream=row.stream)
            if isinstance(found, KafkaError):
                raise found
            row = found

    async def list_config_resources(self, request: Any, session: Connection) -> Mapping[str, object]:
        """ListConfigResources: lists only subscriptions to client metrics (KIP-714), of which there are none."""
        if not self._authorization.may(session, AclOperation.DESCRIBE_CONFIGS, api="ListConfigResources"):
            return {"error_code": int(Code.CLUSTER_AUTHORIZATION_FAILED), "config_resources": ()}
        return {"error_code": 0, "config_resources": ()}

    def _check_unset(self, resource: Any, changes: Callable[[Any], bool]) -> None:
        """Check a change of a resource other than a topic. Only topics have configs that can be set, so deleting is a
        no-op.

        kafka-reassign-partitions --verify deletes configs of every broker. Raises KafkaError if something would be set.
        """
        kind, name = resource.resource_type, resource.resource_name
        match kind:
            case ResourceType.BROKER if name == "":
                pass
            case ResourceType.BROKER | ResourceType.BROKER_LOGGER:
                node_id = NodeId(_node_id(name))
                if node_id != self._node.node_id and self._cluster.node(node_id) is None:
                    raise KafkaError(Code.INVALID_REQUEST, f"there is no node {name}")
            case ResourceType.CLIENT_METRICS | ResourceType.GROUP:
                pass
            case other:
                raise KafkaError(Code.INVALID_REQUEST, f"resources of type {other} cannot be altered")
        if any(map(changes, resource.configs)):
            what = {
                ResourceType.BROKER: "a node's settings are given when it starts and cannot be altered; a stream's"
                " policy can: headrace stream alter",
                ResourceType.BROKER_LOGGER: "the log levels of a node are given when it starts and cannot be altered",
                ResourceType.CLIENT_METRICS: "client metrics are not collected",
                ResourceType.GROUP: "groups have no configs of their own",
            }
            raise KafkaError(Code.INVALID_REQUEST, what[ResourceType(kind)])


def _node_id(name: str) -> int:
    """The id of the node that a resource's name means. Raises KafkaError (INVALID_REQUEST)."""
    if not (name.isascii() and name.isdigit() and len(name) < 11):
        raise KafkaError(Code.INVALID_REQUEST, f"a broker is named by its id, a number, not {name[:100]!r}")
    return int(name)


def _security_protocol(session: Connection) -> str:
    """The security.protocol that clients of the session's listener have to set."""
    if session.security_protocol == "PLAINTEXT" and session.is_tls:
        return "SSL"
    return session.security_protocol
