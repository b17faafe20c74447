"""Kafka's APIs for committed offsets: OffsetCommit, OffsetFetch, OffsetDelete.

Committed offsets are stored by topic id, so within a group every form of a topic's name refers to the same committed
offset, through whichever listener. OffsetCommit is frequent: when the group and its topics are in memory, a commit
waits only for its own sync.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.base.ids import LeaderEpoch, Offset
from headrace.catalog.catalog import Catalog
from headrace.catalog.committed_offsets import CommittedOffset, DeleteOffsets
from headrace.catalog.names import shown
from headrace.catalog.rows import CommittedOffsetRow
from headrace.coordination.messages import GroupState, GroupView
from headrace.coordination.takeover import Coordination
from headrace.kafka.api import Api
from headrace.kafka.authorization import Authorization
from headrace.kafka.common_refusals import check_group_id
from headrace.kafka.connection import Connection
from headrace.kafka.limits import MAX_METADATA_BYTES
from headrace.partitions.topic import Topic
from headrace.partitions.topics import Topics
from headrace.security.access_rules import Kind
from headrace.security.kafka_acls import AclOperation
from headrace.wire.api_keys import ApiKey, Versions
from headrace.wire.generic_codec import field

AT_ONCE: Final = 1000
"""Committed offsets that one command deletes; a larger command would delay the commands behind it."""

_NO_OFFSET = -1


class CommittedOffsetApis:
    """Answers OffsetCommit, OffsetFetch and OffsetDelete."""

    def __init__(
        self, *, topics: Topics, catalog: Catalog, coordination: Coordination, authorization: Authorization
    ) -> None:
        self._authorization = authorization
        self._topics = topics
        self._catalog = catalog
        self._coordination = coordination

    @property
    def apis(self) -> Sequence[Api]:
        """The APIs that this module answers."""
        return (
            Api(ApiKey.OFFSET_COMMIT, Versions(2, 9), self.offset_commit),
            Api(ApiKey.OFFSET_FETCH, Versions(1, 9), self.offset_fetch),
            Api(ApiKey.OFFSET_DELETE, Versions(0, 0), self.offset_delete),
        )

    async def offset_commit(self, request: Any, session: Connection) -> Mapping[str, object]:
        """OffsetCommit. An error of the group is reported for every partition; otherwise each partition has its own
        code."""
        group_id, member_id = request.group_id, request.member_id
        generation = request.generation_id_or_member_epoch
        instance_id = field(request, "group_instance_id", None)
        read, names = AclOperation.READ, [topic.name for topic in request.topics]
        try:
            self._authorization.check(session, read, Kind.GROUP, group_id, api="OffsetCommit")
            forbidden = await self._authorization.refused_topics(session, read, names, api="OffsetCommit")
            groups = await self._coordination.service()
            code = await groups.may_commit(group_id, member_id, instance_id, generation)
            topics = await self._resolved(names, forbidden, session)
        except HeadraceError as error:
            code = error.code
        if code is not Code.NONE:
            return _committed(request, lambda topic, part: code)
        refused: dict[tuple[int, int], Code] = {}
        places: list[tuple[int, int]] = []
        committed_offsets: list[CommittedOffset] = []
        for place, (asked, topic) in enumerate(zip(request.topics, topics, strict=True)):
            for index, part in enumerate(asked.partitions):
                metadata = part.committed_metadata or ""
                if isinstance(topic, KafkaError):
                    refused[place, index] = _code_of(topic)
                elif len(metadata) > MAX_METADATA_BYTES or len(metadata.encode()) > MAX_METADATA_BYTES:
                    refused[place, index] = Code.OFFSET_METADATA_TOO_LARGE
                else:
                    places.append((place, index))
                    committed_offsets.append(
                        CommittedOffset(
                            topic_id=topic.topic_id,
                            partition=part.partition_index,
                            offset=Offset(part.committed_offset),
                            leader_epoch=LeaderEpoch(field(part, "committed_leader_epoch", -1)),
                            metadata=metadata,
                        )
                    )
        if committed_offsets:
            codes = await groups.commit(group_id, member_id, generation, committed_offsets)
            refused.update(zip(places, codes, strict=True))
        return _committed(request, lambda topic, part: refused[topic, part])

    async def _resolved(
        self, names: Sequence[str], refused: Mapping[str, KafkaError], session: Connection
    ) -> list[Topic | KafkaError]:
        """The topic of each name, or its error; names in `refused` are not looked up."""
        if not refused:
            return await self._topics.resolve(names, session)
        found = iter(await self._topics.resolve([name for name in names if name not in refused], session))
        return [refused.get(name) or next(found) for name in names]

    async def offset_fetch(self, request: Any, session: Connection) -> Mapping[str, object]:
        """OffsetFetch, of several groups from version 8 on. There are no transactions, so all offsets are stable.

        Raises KafkaError NOT_COORDINATOR, which ends the connection: librdkafka treats that code in an answer as final,
        but looks for the coordinator again when its connection ends.
        """
        ready = await self._may_read()
        groups = field(request, "groups", None)
        if groups is None:
            return await self._group_committed_offsets(request.group_id, request.topics, session, ready=ready)
        return {
            "groups": [
                {
                    "group_id": each.group_id,
                    **await self._group_committed_offsets(each.group_id, each.topics, session, ready=ready),
                }
                for each in groups
            ]
        }

    async def _may_read(self) -> bool:
        """Whether this node's committed offsets are the latest. Raises KafkaError NOT_COORDINATOR."""
        try:
            await self._coordination.service()
        except KafkaError as error:
            if error.code is Code.NOT_COORDINATOR:
                raise
            return False
        return True

    async def _group_committed_offsets(
        self, group_id: str, topics: Sequence[Any] | None, session: Connection, *, ready: bool
    ) -> dict[str, Any]:
        """The group's committed offsets of `topics`; if `topics` is None, of all topics that the client may
        describe."""
        describe = AclOperation.DESCRIBE
        if not self._authorization.may(session, describe, Kind.GROUP, group_id, api="OffsetFetch"):
            return _no_committed_offsets(topics or (), Code.GROUP_AUTHORIZATION_FAILED)
        if not ready:
            return _no_committed_offsets(topics or (), Code.COORDINATOR_LOAD_IN_PROGRESS)
        names = [topic.name for topic in topics or ()]
        try:
            if topics is None:
                return {"error_code": int(Code.NONE), "topics": await self._all_committed_offsets(group_id, session)}
            forbidden = await self._authorization.refused_topics(session, describe, names, api="OffsetFetch")
            resolved = await self._resolved(names, forbidden, session)
            known = [topic for topic in resolved if not isinstance(topic, KafkaError)]
            rows = await self._committed_offsets(group_id, known)
        except HeadraceError:
            # The one retriable code that every client handles here.
            return _no_committed_offsets(topics or (), Code.COORDINATOR_LOAD_IN_PROGRESS)
        committed_offsets = {(row.topic_id, row.partition): row for row in rows}
        return {
            "error_code": int(Code.NONE),
            "topics": [
                {
                    "name": asked.name,
                    "partitions": [
                        _committed_offset(
                            index,
                            None if isinstance(topic, KafkaError) else committed_offsets.get((topic.topic_id, index)),
                            Code.TOPIC_AUTHORIZATION_FAILED if asked.name in forbidden else Code.NONE,
                        )
                        for index in asked.partition_indexes
                    ],
                }
                for asked, topic in zip(topics, resolved, strict=True)
            ],
        }

    async def _committed_offsets(self, group_id: str, topics: Sequence[Topic]) -> list[CommittedOffsetRow]:
        numbers = [topic.row.number for topic in topics]
        return (
            await self._catalog.query(lambda reader: reader.groups.committed_offsets(group_id, numbers))
            if numbers
            else []
        )

    async def _all_committed_offsets(self, group_id: str, session: Connection) -> list[dict[str, object]]:
        rows = await self._catalog.query(lambda reader: reader.groups.committed_offsets(group_id))
        by_topic: dict[bytes, list[CommittedOffsetRow]] = {}
        for row in rows:
            by_topic.setdefault(row.topic_id, []).append(row)
        view = self._authorization.topics_of(session)
        names = {
            topic.topic_id: shown(topic.stream, topic.name, session.default_stream)
            for topic in await self._topics.resolve_ids(list(by_topic))
            if isinstance(topic, Topic) and view.sees(topic.row)
        }
        return [
            {"name": names[topic_id], "partitions": [_committed_offset(row.partition, row) for row in of_topic]}
            for topic_id, of_topic in by_topic.items()
            if topic_id in names  # else deleted just now, or hidden from the client
        ]

    async def offset_delete(self, request: Any, session: Connection) -> Mapping[str, object]:
        """OffsetDelete: deletes committed offsets of topics to which no member is subscribed."""
        group_id = request.group_id
        try:
            check_group_id(group_id)
            self._authorization.check(session, AclOperation.DELETE, Kind.GROUP, group_id, api="OffsetDelete")
            names = [topic.name for topic in request.topics]
            forbidden = await self._authorization.refused_topics(session, AclOperation.READ, names, api="OffsetDelete")
            groups = await self._coordination.service()
            view = await groups.describe(group_id)
            subscribed = await groups.subscribed(group_id)
            _check_may_delete_committed_offsets(view)
            topics = await self._resolved(names, forbidden, session)
            in_use = await self._ids(subscribed)
            codes: dict[tuple[bytes, int], Code] = {}
            for asked, topic in zip(request.topics, topics, strict=True):
                if not isinstance(topic, KafkaError):
                    busy = in_use is None or topic.topic_id in in_use
                    code = Code.GROUP_SUBSCRIBED_TO_TOPIC if busy else Code.NONE
                    codes.update({(topic.topic_id, part.partition_index): code for part in asked.partitions})
            items = [item for item, code in codes.items() if code is Code.NONE]
            for index in range(0, len(items), AT_ONCE):
                some = items[index : index + AT_ONCE]
                outcome = await self._catalog.submit(DeleteOffsets(group=group_id, items=some), here=True)
                codes.update(zip(some, outcome, strict=True))
        except HeadraceError as error:
            return {"error_code": int(error.code), "topics": []}
        return {
            "error_code": int(Code.NONE),
            "topics": [
                {
                    "name": asked.name,
                    "partitions": [
                        {
                            "partition_index": part.partition_index,
                            "error_code": int(
                                _code_of(topic)
                                if isinstance(topic, KafkaError)
                                else codes[topic.topic_id, part.partition_index]
                            ),
                        }
                        for part in asked.partitions
                    ],
                }
                for asked, topic in zip(request.topics, topics, strict=True)
            ],
        }

    async def _ids(self, names: set[str] | None) -> set[bytes] | None:
        if names is None:
            return None
        topics = await self._topics.resolve(sorted(names))
        return {topic.topic_id for topic in topics if not isinstance(topic, KafkaError)}


def _committed(request: Any, code_of: Callable[[int, int], Code]) -> Mapping[str, object]:
    return {
        "topics": [
            {
                "name": asked.name,
                "partitions": [
                    {"partition_index": part.partition_index, "error_code": int(code_of(place, index))}
                    for index, part in enumerate(asked.partitions)
                ],
            }
            for place, asked in enumerate(request.topics)
        ]
    }


def _code_of(error: KafkaError) -> Code:
    """One of the two codes that clients handle here: TOPIC_AUTHORIZATION_FAILED or UNKNOWN_TOPIC_OR_PARTITION."""
    forbidden = Code.TOPIC_AUTHORIZATION_FAILED
    return forbidden if error.code is forbidden else Code.UNKNOWN_TOPIC_OR_PARTITION


def _committed_offset(partition: int, row: CommittedOffsetRow | None, code: Code = Code.NONE) -> dict[str, object]:
    return {
        "partition_index": partition,
        "committed_offset": _NO_OFFSET if row is None else row.offset,
        "committed_leader_epoch": -1 if row is None else row.leader_epoch,
        "metadata": "" if row is None else row.metadata,
        "error_code": int(code),
    }


def _no_committed_offsets(topics: Sequence[Any], code: Code) -> dict[str, Any]:
    """An answer that reports an error in all versions: version 1 has a field for the code only in partitions."""
    partitions = [
        (topic.name, [_committed_offset(index, None) for index in topic.partition_indexes]) for topic in topics
    ]
    for _, committed_offsets in partitions:
        for committed_offset in committed_offsets:
            committed_offset["error_code"] = int(code)
    return {
        "error_code": int(code),
        "topics": [{"name": name, "partitions": committed_offsets} for name, committed_offsets in partitions],
    }


def _check_may_delete_committed_offsets(view: GroupView) -> None:
    if view.state is GroupState.DEAD:
        raise KafkaError(Code.GROUP_ID_NOT_FOUND, f"there is no group {view.group_id!r}")
    if view.state is not GroupState.EMPTY and view.protocol_type != "consumer":
        raise KafkaError(Code.NON_EMPTY_GROUP, f"group {view.group_id!r} has members")
