"""What a query asks of the cluster: topics, leaders, offsets, cursors; and connections to the nodes.

Responsible for finding the right node for each question and for asking again elsewhere while nodes come and go.
Knows nothing of Spark, of plans or of what records hold. One thread uses one Cluster. The versions asked for are those
that Kafka 2.8 and later and Headrace all speak, so none are negotiated.
"""

import io
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from headrace.errors import Code, HeadraceError
from kio.schema.find_coordinator.v3.request import FindCoordinatorRequest
from kio.schema.find_coordinator.v3.response import FindCoordinatorResponse
from kio.schema.list_offsets.v7.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.list_offsets.v7.response import ListOffsetsResponse
from kio.schema.metadata.v9.request import MetadataRequest, MetadataRequestTopic
from kio.schema.metadata.v9.response import MetadataResponse, MetadataResponseTopic
from kio.schema.offset_commit.v8.request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kio.schema.offset_commit.v8.response import OffsetCommitResponse
from kio.schema.offset_fetch.v7.request import OffsetFetchRequest, OffsetFetchRequestTopic
from kio.schema.offset_fetch.v7.response import OffsetFetchResponse
from kio.schema.types import BrokerId, GroupId, TopicName
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import DecodeError
from kio.static.primitive import i8, i32, i64
from kio.static.protocol import Entity, Payload

from headrace_spark.connection import NodeConnection
from headrace_spark.errors import RETRIABLE, BrokerError, Unreachable, code_name
from headrace_spark.options import EARLIEST, LATEST, Connection, Partition
from headrace_spark.retry import Retry

CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 40.0
"""How long an answer may take before the connection counts as lost."""
BROKEN = (OSError, HeadraceError, DecodeError)
"""What a connection to a dying or wrong node raises: lost, refused, slow, or bytes that are no answer."""

A = TypeVar("A")
Answer = TypeVar("Answer", bound=Entity)


class Cluster:
    """The cluster behind `connection.bootstrap`. Use as a context, or close it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._nodes: dict[int, tuple[str, int]] = {}
        self._leaders: dict[Partition, int] = {}
        self._open: dict[tuple[str, int], NodeConnection] = {}

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection."""
        for connection in self._open.values():
            connection.close()
        self._open.clear()

    def retry(self, what: str) -> Retry:
        """A Retry with the time that the options allow; `what` reads as "cannot <what>"."""
        return Retry(self._connection.timeout_s, what=what)

    # --- nodes ---

    def to_node(self, node: int) -> NodeConnection:
        """A connection to a node by its id, kept for later calls. Raises OSError, KeyError for an unknown node."""
        return self._to(self._nodes[node])

    def drop(self, node: int) -> None:
        """Forget the connection to a node that broke, and who leads what on it."""
        broken = self._open.pop(self._nodes.get(node, ("", 0)), None)
        if broken is not None:
            broken.close()
        self._leaders = {partition: leader for partition, leader in self._leaders.items() if leader != node}

    def forget(self, partition: Partition) -> None:
        """Forget who leads a partition; the next `leaders` asks again."""
        self._leaders.pop(partition, None)

    def _to(self, address: tuple[str, int]) -> NodeConnection:
        found = self._open.get(address)
        if found is None:
            found = self._open[address] = NodeConnection(*address, timeout_s=CONNECT_TIMEOUT_S)
            found.set_answer_timeout(ANSWER_TIMEOUT_S)
        return found

    def _ask_any(self, request: Payload, answer: type[Answer]) -> Answer:
        """The first answer that any known node gives. Raises the last node's error."""
        reason: Exception = Unreachable("the option bootstrap names no node")
        for address in dict.fromkeys((*self._open, *self._connection.bootstrap, *self._nodes.values())):
            try:
                return self._ask(address, request, answer)
            except BROKEN as error:
                reason = error
        raise reason

    def _ask(self, address: tuple[str, int], request: Payload, answer: type[Answer]) -> Answer:
        """One request and its answer over a connection that is dropped where it breaks."""
        try:
            body = io.BytesIO()
            entity_writer(type(request))(body, request)
            buffer, start = self._to(address).call(int(request.__api_key__), int(request.__version__), body.getvalue())
            entity, _ = entity_reader(answer)(buffer[start:].toreadonly(), 0)
        except BROKEN:
            broken = self._open.pop(address, None)
            if broken is not None:
                broken.close()
            raise
        return entity

    # --- topics and leaders ---

    def partition_counts(self, topics: Sequence[str] | None, *, create: bool = False) -> dict[str, int]:
        """How many partitions each topic has; of all topics for None. Absent topics are left out.

        `create` lets the cluster make a topic that it does not have, where its policy allows. Raises SourceError.
        """
        retry = self.retry("read the cluster's topics")
        counts: dict[str, int] = {}
        while True:
            try:
                answer = self._metadata(topics, create=create)
            except BROKEN as error:
                retry.pause(error)
                continue
            again = 0
            for topic in answer.topics:
                code = int(topic.error_code)
                if code == Code.NONE:
                    counts[str(topic.name)] = len(topic.partitions)
                elif code == Code.LEADER_NOT_AVAILABLE or (create and code in RETRIABLE):
                    again = code
                elif code != Code.UNKNOWN_TOPIC_OR_PARTITION:
                    raise BrokerError(code, f"topic {topic.name}: the node answers {code_name(code)}")
            if not again:
                return counts
            retry.pause(again)

    def leaders(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The node that leads each partition, as far as known; asks the cluster for those that it has not yet seen."""
        wanted = list(partitions)
        unknown = sorted({topic for topic, number in wanted if (topic, number) not in self._leaders})
        if unknown:
            self._metadata(unknown, create=False)
        return {partition: self._leaders[partition] for partition in wanted if partition in self._leaders}

    def _metadata(self, topics: Sequence[str] | None, *, create: bool) -> MetadataResponse:
        names = None if topics is None else tuple(MetadataRequestTopic(name=TopicName(topic)) for topic in topics)
        request = MetadataRequest(
            topics=names,
            allow_auto_topic_creation=create,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        answer = self._ask_any(request, MetadataResponse)
        self._nodes = {int(node.node_id): (node.host, int(node.port)) for node in answer.brokers}
        for topic in answer.topics:
            self._note_leaders(topic)
        return answer

    def _note_leaders(self, topic: MetadataResponseTopic) -> None:
        for partition in topic.partitions:
            key = (str(topic.name), int(partition.partition_index))
            if int(partition.leader_id) >= 0:
                self._leaders[key] = int(partition.leader_id)
            else:
                self._leaders.pop(key, None)

    # --- offsets ---

    def offsets(self, wanted: Mapping[Partition, int], *, read_committed: bool) -> dict[Partition, int]:
        """An offset for each partition: of the first record (EARLIEST), the next one (LATEST), or the first record at
        or after a time in milliseconds, which is the next one's where there is none.

        With `read_committed` the next one is the first of an open transaction. Raises SourceError, also where the
        cluster does not have a partition.
        """
        found: dict[Partition, int] = {}
        retry = self.retry("read the offsets of a partition")
        missing = dict(wanted)
        while missing:
            reason: Exception | int = Code.LEADER_NOT_AVAILABLE
            try:
                leaders = self.leaders(missing)
            except BROKEN as error:
                retry.pause(error)
                continue
            for node, group in _grouped(missing, leaders).items():
                try:
                    answers = self._list_offsets(node, group, read_committed=read_committed)
                except BROKEN as error:
                    self.drop(node)
                    reason = error
                    continue
                for partition, (code, offset) in answers.items():
                    if code == Code.NONE:
                        found[partition] = offset
                    elif code in RETRIABLE:
                        self.forget(partition)
                        reason = code
                    else:
                        raise BrokerError(code, f"{_shown(partition)}: the node answers {code_name(code)}")
            missing = {partition: at for partition, at in missing.items() if partition not in found}
            if missing:
                retry.pause(reason)
        late = {partition: LATEST for partition, offset in found.items() if offset < 0 and wanted[partition] >= 0}
        if late:
            found |= self.offsets(late, read_committed=read_committed)
        return found

    def _list_offsets(
        self, node: int, wanted: Mapping[Partition, int], *, read_committed: bool
    ) -> dict[Partition, tuple[int, int]]:
        topics: dict[str, list[ListOffsetsPartition]] = defaultdict(list)
        for (topic, number), at in wanted.items():
            topics[topic].append(ListOffsetsPartition(partition_index=i32(number), timestamp=i64(at)))
        request = ListOffsetsRequest(
            replica_id=BrokerId(-1),
            isolation_level=i8(1 if read_committed else 0),
            topics=tuple(
                ListOffsetsTopic(name=TopicName(topic), partitions=tuple(asked)) for topic, asked in topics.items()
            ),
        )
        answer = self._ask(self._nodes[node], request, ListOffsetsResponse)
        return {
            (str(topic.name), int(one.partition_index)): (int(one.error_code), int(one.offset))
            for topic in answer.topics
            for one in topic.partitions
        }

    # --- cursors ---

    def commit(self, group: str, cursors: Mapping[Partition, int]) -> None:
        """Commit a group's cursors. Topics that are gone are left out. Raises SourceError."""
        topics: dict[str, list[OffsetCommitRequestPartition]] = defaultdict(list)
        for (topic, number), offset in cursors.items():
            topics[topic].append(
                OffsetCommitRequestPartition(
                    partition_index=i32(number), committed_offset=i64(offset), committed_metadata=""
                )
            )
        request = OffsetCommitRequest(
            group_id=GroupId(group),
            generation_id_or_member_epoch=i32(-1),
            member_id="",
            topics=tuple(
                OffsetCommitRequestTopic(name=TopicName(topic), partitions=tuple(asked))
                for topic, asked in topics.items()
            ),
        )

        def codes(answer: OffsetCommitResponse) -> Iterator[int]:
            return (int(one.error_code) for topic in answer.topics for one in topic.partitions)

        if cursors:
            absent = (Code.UNKNOWN_TOPIC_OR_PARTITION,)
            self._ask_coordinator(group, request, OffsetCommitResponse, codes=codes, accepted=absent)

    def committed(self, group: str, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """A group's cursors, of those partitions that have one. Raises SourceError."""
        topics: dict[str, list[i32]] = defaultdict(list)
        for topic, number in partitions:
            topics[topic].append(i32(number))
        request = OffsetFetchRequest(
            group_id=GroupId(group),
            topics=tuple(
                OffsetFetchRequestTopic(name=TopicName(topic), partition_indexes=tuple(asked))
                for topic, asked in topics.items()
            ),
        )

        def codes(answer: OffsetFetchResponse) -> Iterator[int]:
            yield int(answer.error_code)
            yield from (int(one.error_code) for topic in answer.topics for one in topic.partitions)

        answer = self._ask_coordinator(group, request, OffsetFetchResponse, codes=codes, accepted=())
        return {
            (str(topic.name), int(one.partition_index)): int(one.committed_offset)
            for topic in answer.topics
            for one in topic.partitions
            if int(one.committed_offset) >= 0
        }

    def _ask_coordinator(
        self,
        group: str,
        request: Payload,
        answer: type[Answer],
        *,
        codes: Callable[[Answer], Iterator[int]],
        accepted: Sequence[int],
    ) -> Answer:
        """An answer from the group's coordinator all of whose codes are NONE or accepted. Raises SourceError."""
        retry = self.retry(f"reach the cursors of group {group}")
        while True:
            try:
                where = self._ask_any(FindCoordinatorRequest(key=group, key_type=i8(0)), FindCoordinatorResponse)
                bad = int(where.error_code)
                if bad == Code.NONE:
                    found = self._ask((where.host, int(where.port)), request, answer)
                    bad = next((code for code in codes(found) if code != Code.NONE and code not in accepted), 0)
                    if bad == Code.NONE:
                        return found
            except BROKEN as error:
                retry.pause(error)
                continue
            if bad not in RETRIABLE:
                raise BrokerError(bad, f"group {group}: the node answers {code_name(bad)}")
            retry.pause(bad)


def _grouped(wanted: Mapping[Partition, A], leaders: Mapping[Partition, int]) -> dict[int, dict[Partition, A]]:
    groups: dict[int, dict[Partition, A]] = defaultdict(dict)
    for partition, value in wanted.items():
        if partition in leaders:
            groups[leaders[partition]][partition] = value
    return groups


def _shown(partition: Partition) -> str:
    return f"{partition[0]}/{partition[1]}"


__all__ = ["EARLIEST", "LATEST", "Cluster"]
