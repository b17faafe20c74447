"""Fetch requests without a session, and their answers by partition; used by both kinds of source."""

import asyncio
from collections.abc import Sequence

from headrace.base.errors import Code, CorruptBatch, code_of
from headrace.base.ids import NodeId, Offset
from headrace.links.source.batch_trim import records_from
from headrace.links.source.source import NO_NODE, Fetched, Wanted
from headrace.wire.batch import iter_batches
from headrace.wire.fetch import FetchPartition, FetchRequest, FetchResult, FetchTopic


def fetch_request(
    wanted: Sequence[Wanted], *, max_bytes: int, min_bytes: int, wait_ms: int, isolation: int
) -> FetchRequest:
    """A fetch without a session, with topics by id."""
    topics: dict[bytes, FetchTopic] = {}
    for (topic_id, partition), offset, epoch, most in wanted:
        topic = topics.get(topic_id)
        if topic is None:
            topic = topics[topic_id] = FetchTopic(None, topic_id, [])
        topic.partitions.append(FetchPartition(partition, epoch, offset, -1, -1, most))
    return FetchRequest(wait_ms, min_bytes, max_bytes, isolation, 0, -1, list(topics.values()), [], "")


async def fetched(wanted: Wanted, result: FetchResult | None) -> Fetched:
    """The answer for one partition, without records below the wanted offset (batch_trim.py)."""
    if result is None:
        return Fetched(wanted.at, Code.UNKNOWN_TOPIC_OR_PARTITION)
    ask = result.leader_id if result.leader_id >= 0 else result.preferred_replica
    answer = Fetched(
        wanted.at,
        code_of(result.error),
        [memoryview(each) for each in result.records],
        high_watermark=Offset(result.high_watermark),
        log_start=Offset(result.log_start),
        ask=NodeId(ask) if ask >= 0 else NO_NODE,
    )
    if any(_base_offset(view) < wanted.offset for view in answer.records):
        try:
            answer.records = await asyncio.to_thread(_from_offset, answer.records, wanted.offset)
        except CorruptBatch:
            answer.code, answer.records = Code.CORRUPT_MESSAGE, []
    return answer


def _base_offset(view: memoryview) -> int:
    return int.from_bytes(view[:8], "big")


def _from_offset(views: Sequence[memoryview], offset: int) -> list[memoryview]:
    """[blocking] The batches without the records below `offset`."""
    kept: list[memoryview] = []
    for view in views:
        rest = view
        for header, batch in iter_batches(view):
            if header.base_offset >= offset:
                break
            if header.base_offset + header.last_offset_delta >= offset:
                kept += records_from(header, batch, offset)
            rest = rest[header.length :]
        if rest:
            kept.append(rest)
    return kept
