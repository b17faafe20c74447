"""Offsets of partitions and committed offsets of groups, for a query's driver.

Uses ListOffsets, FindCoordinator, OffsetCommit and OffsetFetch over a Cluster. This is a separate module because tasks
do not need it, and kio's schemas take a while to load.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from headrace.base.errors import Code
from headrace.wire import generic_codec
from headrace.wire.api_keys import ApiKey
from headrace_spark.cluster import BROKEN, Address, Cluster
from headrace_spark.errors import RETRIABLE, BrokerError, code_name
from headrace_spark.options import LATEST, Partition

VERSIONS: Final = {
    ApiKey.LIST_OFFSETS: 7,
    ApiKey.FIND_COORDINATOR: 3,
    ApiKey.OFFSET_COMMIT: 8,
    ApiKey.OFFSET_FETCH: 7,
}


def find_offsets(cluster: Cluster, wanted: Mapping[Partition, int], *, read_committed: bool) -> dict[Partition, int]:
    """Return an offset for each partition: of the first record (EARLIEST), the next one (LATEST), or the first record
    at or after a time in milliseconds, which is the next offset if there is no such record.

    With `read_committed` the next offset is the first one of an open transaction, if there is one. Raises SourceError,
    also if the cluster does not have a partition.
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
    """Return (error code, offset) of each partition."""
    topics: dict[str, list[dict[str, int]]] = defaultdict(list)
    for (topic, number), at in wanted.items():
        topics[topic].append({"partition_index": number, "timestamp": at})
    fields = {
        "replica_id": -1,
        "isolation_level": 1 if read_committed else 0,
        "topics": [{"name": topic, "partitions": asked} for topic, asked in topics.items()],
    }
    answer = _ask(cluster, cluster.address(node), ApiKey.LIST_OFFSETS, fields)
    return {
        (str(topic.name), int(one.partition_index)): (int(one.error_code), int(one.offset))
        for topic in answer.topics
        for one in topic.partitions
    }


def commit_cursors(cluster: Cluster, group: str, cursors: Mapping[Partition, int]) -> None:
    """Commit a group's offsets. Deleted topics are ignored. Raises SourceError."""
    topics: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for (topic, number), offset in cursors.items():
        topics[topic].append({"partition_index": number, "committed_offset": offset, "committed_metadata": ""})
    fields = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": topic, "partitions": asked} for topic, asked in topics.items()],
    }

    def codes(answer: Any) -> Iterator[int]:
        return (int(one.error_code) for topic in answer.topics for one in topic.partitions)

    if cursors:
        absent = (Code.UNKNOWN_TOPIC_OR_PARTITION,)
        _ask_coordinator(cluster, group, ApiKey.OFFSET_COMMIT, fields, codes=codes, accepted=absent)


def committed_cursors(cluster: Cluster, group: str, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """Return a group's committed offsets, for the partitions that have one. Raises SourceError."""
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, number in partitions:
        topics[topic].append(number)
    fields = {
        "group_id": group,
        "topics": [{"name": topic, "partition_indexes": asked} for topic, asked in topics.items()],
    }

    def codes(answer: Any) -> Iterator[int]:
        yield int(answer.error_code)
        yield from (int(one.error_code) for topic in answer.topics for one in topic.partitions)

    answer = _ask_coordinator(cluster, group, ApiKey.OFFSET_FETCH, fields, codes=codes, accepted=())
    return {
        (str(topic.name), int(one.partition_index)): int(one.committed_offset)
        for topic in answer.topics
        for one in topic.partitions
        if int(one.committed_offset) >= 0
    }


def _ask_coordinator(
    cluster: Cluster,
    group: str,
    key: ApiKey,
    fields: Mapping[str, Any],
    *,
    codes: Callable[[Any], Iterator[int]],
    accepted: Sequence[int],
) -> Any:
    """Return a response of the group's coordinator whose error codes are all NONE or accepted. Raises SourceError."""
    retry = cluster.retry(f"reach the cursors of group {group}")
    while True:
        try:
            where = _ask(cluster, None, ApiKey.FIND_COORDINATOR, {"key": group, "key_type": 0})
            bad = int(where.error_code)
            if bad == Code.NONE:
                found = _ask(cluster, (where.host, int(where.port)), key, fields)
                bad = next((code for code in codes(found) if code != Code.NONE and code not in accepted), 0)
                if bad == Code.NONE:
                    return found
        except BROKEN as error:
            retry.pause(error)
            continue
        if bad not in RETRIABLE:
            raise BrokerError(bad, f"group {group}: the node answers {code_name(bad)}")
        retry.pause(bad)


def _ask(cluster: Cluster, address: Address | None, key: ApiKey, fields: Mapping[str, Any]) -> Any:
    """Send a request and return the response as kio's entity; without an address, to any node. Raises one of BROKEN."""
    version = VERSIONS[key]
    body = generic_codec.encode_request(key, version, fields)
    answer = cluster.call_any(key, version, body) if address is None else cluster.call(address, key, version, body)
    return generic_codec.decode_response(key, version, answer)
