"""Kafka's APIs for placing replicas and electing leaders, both of which Headrace's volumes and controller decide.

A request succeeds if it asks for the present state, and is refused otherwise. No reassignment is ever in progress:
partitions move by rolls, which copy no data.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from headrace.base.errors import Code, KafkaError
from headrace.catalog.catalog import Catalog
from headrace.catalog.rows import TopicRow
from headrace.kafka.api import Api
from headrace.kafka.authorization import Authorization
from headrace.kafka.connection import Connection
from headrace.partitions.cluster_layout import Layout, Placed
from headrace.partitions.lookups import topic_rows, yield_to_loop
from headrace.security.kafka_acls import AclOperation
from headrace.wire.api_keys import ApiKey, Versions
from headrace.wire.generic_codec import field
from headrace.wire.primitives import bounded

PREFERRED: Final = 0
"""The election type for preferred leaders (KIP-460); 1 is unclean."""

_FORBIDDEN: Final = KafkaError(Code.CLUSTER_AUTHORIZATION_FAILED, "only administrators of the cluster may do this")
_Placement = Placed | KafkaError | None
"""The placement of a partition's newest records; None if no leader is known."""


class ReassignmentApis:
    """Answers the APIs by which tools move replicas and elect leaders."""

    def __init__(self, *, catalog: Catalog, layout: Layout, folder: Path, authorization: Authorization) -> None:
        self._catalog = catalog
        self._layout = layout
        self._folder = folder
        self._authorization = authorization

    @property
    def apis(self) -> Sequence[Api]:
        """The APIs that this module answers."""
        return (
            Api(ApiKey.LIST_PARTITION_REASSIGNMENTS, Versions(0, 0), self.list_partition_reassignments),
            Api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, Versions(0, 0), self.alter_partition_reassignments),
            Api(ApiKey.ELECT_LEADERS, Versions(0, 2), self.elect_leaders),
            Api(ApiKey.ALTER_REPLICA_LOG_DIRS, Versions(1, 2), self.alter_replica_log_dirs),
        )

    async def list_partition_reassignments(self, request: Any, session: Connection) -> Mapping[str, object]:
        """ListPartitionReassignments."""
        try:
            self._authorization.check(session, AclOperation.DESCRIBE, api="ListPartitionReassignments")
        except KafkaError as error:
            return {**_error_fields(error), "topics": ()}
        return {"error_code": 0, "error_message": None, "topics": ()}

    async def alter_partition_reassignments(self, request: Any, session: Connection) -> Mapping[str, object]:
        """AlterPartitionReassignments. Null replicas cancel a reassignment."""
        try:
            self._authorization.check(session, AclOperation.ALTER, api="AlterPartitionReassignments")
        except KafkaError as error:
            return {**_error_fields(error), "responses": ()}
        asked = [(topic.name, each) for topic in request.topics for each in topic.partitions]
        found = await self._placements([(name, each.partition_index) for name, each in asked], session)
        answers = iter(
            [
                {"partition_index": each.partition_index, **_error_fields(_reassigned(each.replicas, where))}
                for (_, each), where in zip(asked, found, strict=True)
            ]
        )
        return {
            "error_code": 0,
            "error_message": None,
            "responses": [
                {"name": topic.name, "partitions": [next(answers) for _ in topic.partitions]}
                for topic in request.topics
            ],
        }

    async def elect_leaders(self, request: Any, session: Connection) -> Mapping[str, object]:
        """ElectLeaders: the controller elects a leader whenever one is missing, and spreads leaders by itself.

        A request for all partitions lists only elections that took place, as in Kafka, so none.
        """
        if not self._authorization.may(session, AclOperation.ALTER, api="ElectLeaders"):
            return {"error_code": int(Code.CLUSTER_AUTHORIZATION_FAILED), "replica_election_results": ()}
        topics = request.topic_partitions or ()
        kind = field(request, "election_type", PREFERRED)
        asked = [(topic.topic, index) for topic in topics for index in topic.partitions]
        found = await self._placements(asked, session)
        answers = iter(
            [
                {"partition_id": index, **_error_fields(_elected(kind, where))}
                for (_, index), where in zip(asked, found, strict=True)
            ]
        )
        return {
            "error_code": 0,
            "replica_election_results": [
                {"topic": topic.topic, "partition_result": [next(answers) for _ in topic.partitions]}
                for topic in topics
            ],
        }

    async def alter_replica_log_dirs(self, request: Any, session: Connection) -> Mapping[str, object]:
        """AlterReplicaLogDirs: a node has a single folder."""
        own = str(self._folder)
        answers: list[dict[str, object]] = []
        may = self._authorization.may(session, AclOperation.ALTER, api="AlterReplicaLogDirs")
        for each in request.dirs:
            wanted = [(topic.name, index) for topic in each.topics for index in topic.partitions]
            elsewhere = Code.NONE if each.path == own else Code.LOG_DIR_NOT_FOUND
            found = await self._placements(wanted, session) if may else [_FORBIDDEN] * len(wanted)
            codes = iter([where.code if isinstance(where, KafkaError) else elsewhere for where in found])
            answers += [
                {
                    "topic_name": topic.name,
                    "partitions": [
                        {"partition_index": index, "error_code": int(next(codes))} for index in topic.partitions
                    ],
                }
                for topic in each.topics
            ]
        return {"results": answers}

    async def _placements(self, wanted: Sequence[tuple[str, int]], session: Connection) -> list[_Placement]:
        """For each (topic name, partition), the placement of its open partitionlet's container. Raises
        `MalformedRequest` for too many."""
        bounded(len(wanted), "partitions")
        names = list(dict.fromkeys(name for name, _ in wanted))
        rows = await topic_rows(self._catalog, names, default_stream=session.default_stream)
        topics = dict(zip(names, rows, strict=True))
        numbers = [row.number for row in topics.values() if isinstance(row, TopicRow)]
        opened = await self._catalog.query(lambda reader: reader.chains.open_of(numbers))
        containers = {(number, row.partition): row.container for number, rows in opened.items() for row in rows}
        found: list[_Placement] = []
        for place, (name, index) in enumerate(wanted):
            topic = topics[name]
            if isinstance(topic, KafkaError):
                found.append(topic)
            elif (container := containers.get((topic.number, index))) is None:
                found.append(KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"{name} has no partition {index}"))
            else:
                found.append(self._layout.placed(container))
            await yield_to_loop(place)
        return found


def _reassigned(replicas: Sequence[int] | None, where: _Placement) -> KafkaError | None:
    if isinstance(where, KafkaError):
        return where
    if replicas is None:
        return KafkaError(Code.NO_REASSIGNMENT_IN_PROGRESS, "no partition is being reassigned")
    if where is not None and set(replicas) == set(where.replicas):
        return None
    return KafkaError(
        Code.INVALID_REPLICA_ASSIGNMENT,
        "the stream's volume and the controller decide where replicas are: headrace volume alter, headrace node drain",
    )


def _elected(kind: int, where: _Placement) -> KafkaError:
    if isinstance(where, KafkaError):
        return where
    if where is not None:
        return KafkaError(Code.ELECTION_NOT_NEEDED, "it has a leader; the controller spreads leaders by itself")
    if kind == PREFERRED:
        return KafkaError(
            Code.PREFERRED_LEADER_NOT_AVAILABLE, "no in-sync replica answers; the partition waits for one"
        )
    return KafkaError(
        Code.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        "a replica that may lack acknowledged records leads only by an explicit command: headrace recover-unclean",
    )


def _error_fields(error: KafkaError | None) -> dict[str, object]:
    return {
        "error_code": int(Code.NONE if error is None else error.code),
        "error_message": None if error is None else str(error),
    }
