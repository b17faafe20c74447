"""Sends record batches to the leaders of their partitions until each is acknowledged.

Handles Produce requests and retries. A batch whose response was lost is sent again unchanged; its token makes the
server store it once, and report a repeat as such.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headrace.base.errors import Code
from headrace.wire import produce
from headrace.wire.api_keys import ApiKey
from headrace_spark.cluster import BROKEN, Cluster
from headrace_spark.errors import RETRIABLE, BrokerError, code_name
from headrace_spark.options import Partition
from headrace_spark.retry import Retry

VERSION = 9
REQUEST_BYTES = 16 << 20
"""The maximum number of bytes of small batches in one request; a larger batch is sent alone."""
ANSWER_WITHIN_MS = 30_000
ACKS_ALL = -1

Outgoing = tuple[Partition, bytes]


class Repeat(NamedTuple):
    """A batch whose token the partition had already, and the offset of the stored batch; -1 if the node does not report
    it.
    """

    sent: Outgoing
    base_offset: int


def send_all(cluster: Cluster, batches: Iterable[Outgoing]) -> list[Repeat]:
    """Store every batch, those of one partition in the order given; return those that were taken for repeats. Returns
    when all are acknowledged.

    Raises SourceError once the time that the options allow has passed without any acknowledgement.
    """
    waiting, repeats = deque(batches), list[Repeat]()
    retry = cluster.retry("write records")
    while waiting:
        group: list[Outgoing] = []
        try:
            leaders = cluster.leaders({partition for partition, _ in waiting})
            node, group = _next_request(waiting, leaders)
            if node is None:
                retry.pause(Code.LEADER_NOT_AVAILABLE)
                continue
            refused = _send(cluster, node, group, retry, repeats)
        except (*BROKEN, KeyError) as error:
            if group:
                cluster.drop(leaders[group[0][0]])
            retry.pause(error)
            continue
        sent = {id(batch) for _, batch in group} - {id(batch) for _, batch in refused}
        waiting = deque(one for one in waiting if id(one[1]) not in sent)
    return repeats


def _next_request(waiting: Iterable[Outgoing], leaders: dict[Partition, int]) -> tuple[int | None, list[Outgoing]]:
    """Return the leader of the first batch that has one, and the batches for it in one request: one per partition."""
    node, group, size = None, list[Outgoing](), 0
    seen: set[Partition] = set()
    for partition, batch in waiting:
        leader = leaders.get(partition)
        if leader is None or partition in seen or (node is not None and leader != node):
            continue
        seen.add(partition)
        if group and size + len(batch) > REQUEST_BYTES:
            continue
        node = leader
        group.append((partition, batch))
        size += len(batch)
    return node, group


def _send(
    cluster: Cluster, node: int, group: Sequence[Outgoing], retry: Retry, repeats: list[Repeat]
) -> list[Outgoing]:
    """Send one request; return the batches that are to be sent again. Adds to `repeats`. Raises SourceError for final
    errors.
    """
    request = produce.ProduceRequest(
        transactional_id=None,
        acks=ACKS_ALL,
        timeout_ms=ANSWER_WITHIN_MS,
        partitions=[produce.PartitionRecords(topic, number, memoryview(batch)) for (topic, number), batch in group],
    )
    answer = cluster.to_node(node).call(ApiKey.PRODUCE, VERSION, produce.encode_request(VERSION, request))
    results, _ = produce.decode_response(answer, 0, VERSION)
    by_partition = {(result.topic, result.partition): result for result in results}
    refused: list[Outgoing] = []
    reason = 0
    for partition, batch in group:
        result = by_partition.get(partition)
        code = int(Code.UNKNOWN_SERVER_ERROR) if result is None else result.error
        if code == Code.DUPLICATE_SEQUENCE_NUMBER and result is not None:
            repeats.append(Repeat((partition, batch), result.base_offset))
            continue
        if code == Code.NONE:
            continue
        if code not in RETRIABLE:
            raise BrokerError(code, _explained(partition, code, size=len(batch), said=result and result.message))
        cluster.forget(partition)
        refused.append((partition, batch))
        reason = code
    if len(refused) < len(group):
        retry.progressed()
    if refused:
        retry.pause(reason)
    return refused


def _explained(partition: Partition, code: int, *, size: int, said: str | None) -> str:
    text = f"{partition[0]}/{partition[1]}: the node answers {code_name(code)}"
    if code in (Code.MESSAGE_TOO_LARGE, Code.RECORD_LIST_TOO_LARGE):
        return f"{text} to a record batch of {size} bytes; raise the topic's max.message.bytes or lower maxBatchBytes"
    return f"{text}: {said}" if said else text
