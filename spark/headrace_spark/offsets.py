"""Offsets and cursors: what a query's driver asks of partitions and of a group's coordinator.

Responsible for ListOffsets, FindCoordinator, OffsetCommit and OffsetFetch over a Cluster. Knows nothing of records. A
module of its own because tasks do without it: kio's schemas take a while to load.
"""

import io
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from kio.schema.find_coordinator.v3.request import FindCoordinatorRequest
from kio.schema.find_coordinator.v3.response import FindCoordinatorResponse
from kio.schema.list_offsets.v7.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.list_offsets.v7.response import ListOffsetsResponse
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

from headrace.base.errors import Code, MalformedRequest
from headrace_spark.cluster import BROKEN, Address, Cluster
from headrace_spark.errors import RETRIABLE, BrokerError, code_name
from headrace_spark.options import LATEST, Partition

Answer = TypeVar("Answer", bound=Entity)


def find_offsets(cluster: Cluster, wanted: Mapping[Partition, int], *, read_committed: bool) -> dict[Partition, int]:
    """An offset for each partition: of the first record (EARLIEST), the next one (LATEST), or the first record at or
    after a time in milliseconds, which is the next one's where there is none.

    With `read_committed` the next one is the first of an open transaction. Raises SourceError, also where the cluster
    does not have a partition.
    """
    found: dict[Partition, int] = {}
    retry = cluster.retry("read the offsets of a partition")
    missing = dict(wanted)
    while missing:
        reason: Exception | int = Code.LEADER_NOT_AVAILABLE
        try:
            leaders = cluster.leaders(missing)
        except BROKEN as error:
            retry.pause(error)
            continue
        for node, group in _by_node(missing, leaders).items():
            try:
                answers = _list_offsets(cluster, node, group, read_committed=read_committed)
            except (*BROKEN, KeyError) as error:
                cluster.drop(node)
                reason = error
                continue
            for partition, (code, offset) in answers.items():
                if code == Code.NONE:
                    found[partition] = offset
                elif code in RETRIABLE:
                    cluster.forget(partition)
                    reason = code
                else:
                    raise BrokerError(code, f"{partition[0]}/{partition[1]}: the node answers {code_name(code)}")
        missing = {partition: at for partition, at in missing.items() if partition not in found}
        if missing:
            retry.pause(reason)
    late = {partition: LATEST for partition, offset in found.items() if offset < 0 and wanted[partition] >= 0}
    if late:
        found |= find_offsets(cluster, late, read_committed=read_committed)
    return found


def _by_node(wanted: Mapping[Partition, int], leaders: Mapping[Partition, int]) -> dict[int, dict[Partition, int]]:
    groups: dict[int, dict[Partition, int]] = defaultdict(dict)
    for partition, leader in leaders.items():
        groups[leader][partition] = wanted[partition]
    return groups


def _list_offsets(
    cluster: Cluster, node: int, wanted: Mapping[Partition, int], *, read_committed: bool
) -> dict[Partition, tuple[int, int]]:
    """(error code, offset) of each partition."""
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
    answer = _ask(cluster, cluster.address(node), request, ListOffsetsResponse)
    return {
        (str(topic.name), int(one.partition_index)): (int(one.error_code), int(one.offset))
        for topic in answer.topics
        for one in topic.partitions
    }


def commit_cursors(cluster: Cluster, group: str, cursors: Mapping[Partition, int]) -> None:
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
            OffsetCommitRequestTopic(name=TopicName(topic), partitions=tuple(asked)) for topic, asked in topics.items()
        ),
    )

    def codes(answer: OffsetCommitResponse) -> Iterator[int]:
        return (int(one.error_code) for topic in answer.topics for one in topic.partitions)

    if cursors:
        absent = (Code.UNKNOWN_TOPIC_OR_PARTITION,)
        _ask_coordinator(cluster, group, request, OffsetCommitResponse, codes=codes, accepted=absent)


def committed_cursors(cluster: Cluster, group: str, partitions: Iterable[Partition]) -> dict[Partition, int]:
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

    answer = _ask_coordinator(cluster, group, request, OffsetFetchResponse, codes=codes, accepted=())
    return {
        (str(topic.name), int(one.partition_index)): int(one.committed_offset)
        for topic in answer.topics
        for one in topic.partitions
        if int(one.committed_offset) >= 0
    }


def _ask_coordinator(
    cluster: Cluster,
    group: str,
    request: Payload,
    answer: type[Answer],
    *,
    codes: Callable[[Answer], Iterator[int]],
    accepted: Sequence[int],
) -> Answer:
    """An answer from the group's coordinator all of whose codes are NONE or accepted. Raises SourceError."""
    retry = cluster.retry(f"reach the cursors of group {group}")
    while True:
        try:
            where = _ask(cluster, None, FindCoordinatorRequest(key=group, key_type=i8(0)), FindCoordinatorResponse)
            bad = int(where.error_code)
            if bad == Code.NONE:
                found = _ask(cluster, (where.host, int(where.port)), request, answer)
                bad = next((code for code in codes(found) if code != Code.NONE and code not in accepted), 0)
                if bad == Code.NONE:
                    return found
        except BROKEN as error:
            retry.pause(error)
            continue
        if bad not in RETRIABLE:
            raise BrokerError(bad, f"group {group}: the node answers {code_name(bad)}")
        retry.pause(bad)


def _ask(cluster: Cluster, address: Address | None, request: Payload, answer: type[Answer]) -> Answer:
    """One request and its answer; of any node for no address. Raises one of BROKEN."""
    body = io.BytesIO()
    entity_writer(type(request))(body, request)
    key, version = int(request.__api_key__), int(request.__version__)
    if address is None:
        buffer, start = cluster.call_any(key, version, body.getvalue())
    else:
        buffer, start = cluster.call(address, key, version, body.getvalue())
    try:
        entity, _ = entity_reader(answer)(buffer[start:].toreadonly(), 0)
    except DecodeError as error:
        raise MalformedRequest(f"an answer of API {key} cannot be read: {error}") from error
    return entity
