"""Any Apache Kafka cluster from 3.1 on (Fetch by topic id) as a source: the way to migrate with offsets kept.

The whole cluster is one stream, without internal topics. Every topic's home is (0, the Kafka cluster's id): Kafka knows
no homes, has no histories to compare, and cannot follow. A link copies what a consumer under read_committed sees
(kafka_batches.py), up to the last stable offset. Fetches carry no leader epochs: homes do not change, and only
committed records are read. Records that an unclean election on the Kafka side discards are not noticed.

To move a home to this cluster, `demote` returns where each partition ends at that moment. Kafka keeps accepting writes
afterwards: the producers must be stopped before.
"""

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from typing import Final

from headrace.base.errors import Code, CorruptBatch, KafkaError, UnsupportedBatch, code_of
from headrace.base.ids import Home, NodeId, Offset
from headrace.kafka_client.client import FETCH_BY_ID, Client
from headrace.links.source.fetch_answers import fetch_request, fetched
from headrace.links.source.kafka_batches import copied_runs
from headrace.links.source.kafka_committed_offsets import KafkaCommittedOffsets
from headrace.links.source.kafka_feed import KafkaFeed
from headrace.links.source.kafka_topics import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    KafkaTopic,
    KafkaTopics,
)
from headrace.links.source.source import (
    MIN_WAIT_MS,
    NO_OFFSET,
    Announcement,
    Changes,
    CommittedOffsetKey,
    CommittedOffsetPage,
    Demoted,
    FeedPlace,
    Fetched,
    Hello,
    Meeting,
    SourceCommittedOffset,
    SourceNode,
    SourceTopic,
    TopicPage,
    TopicPartition,
    Wanted,
)
from headrace.wire.api_keys import ApiKey
from headrace.wire.fetch import FetchResponse, FetchResult

MAX_STARVED: Final = 8
"""The maximum number of partitions that are fetched again one by one, after an answer with room to spare had none of
their records."""
ALONE_WAIT_MS: Final = 500
"""Longest wait of such a single fetch, in milliseconds; remote storage does not answer at once."""
_CANNOT_FOLLOW: Final = "an Apache Kafka cluster cannot follow another cluster's homes"
_FRESH_S: Final = 1.0
_UNKNOWN: Final = (Code.UNKNOWN_TOPIC_OR_PARTITION, NO_OFFSET)


class KafkaSource:
    """The cluster that `client` calls. `close` closes the client too."""

    def __init__(self, client: Client) -> None:
        self.name = client.name
        self._client = client
        self._topics = KafkaTopics(client)
        self._committed_offsets = KafkaCommittedOffsets(client, self._topics)
        self._feeds: dict[NodeId, KafkaFeed] = {}
        self._scan_place = FeedPlace(uuid.uuid4().hex, 0)
        """The place in this source's own feed; `serial` counts the scans of topics and committed offsets."""
        self._table: Mapping[bytes, KafkaTopic] = {}
        """The topics at the last scan."""

    async def hello(self) -> Hello:
        """As `Source` says."""
        response = await self._client.metadata()
        nodes = [SourceNode(NodeId(each.node_id), each.host, each.port) for each in response.brokers]
        problem = await self._client.lacks(ApiKey.FETCH, FETCH_BY_ID)
        return Hello(response.cluster_id or "", nodes, {}, problem)

    async def topics(self, *, after: str | None, limit: int) -> TopicPage:
        """As `Source` says."""
        await self._topics.refresh_if_older(_FRESH_S if after is None else 60.0)
        names = sorted(name for name in self._topics.by_name if after is None or name > after)
        page = names[:limit]
        shown = await self._shown([self._topics.by_name[name] for name in page])
        return TopicPage(shown, page[-1] if len(names) > limit else None)

    async def topics_by_id(self, topic_ids: Sequence[bytes]) -> Sequence[SourceTopic]:
        """As `Source` says."""
        await self._topics.refresh_if_older(_FRESH_S)
        return await self._shown([self._topics.by_id[each] for each in topic_ids if each in self._topics.by_id])

    async def changes(
        self, node: NodeId, since: FeedPlace | None, *, topics: bool, committed_offsets: bool, wait_ms: int, limit: int
    ) -> Changes:
        """As `Source` says. Kafka does not report changes of topics and committed offsets, so a caller that asks for
        them waits, and then they are scanned.

        The answer to such a caller has no partitions: on a busy cluster they would end every wait at once.
        """
        wait_ms = min(wait_ms, MIN_WAIT_MS)  # also the interval at which the table of topics is read
        if topics or committed_offsets:
            return await self._look(since, topics=topics, committed_offsets=committed_offsets, wait_ms=wait_ms)
        feed = self._feeds.get(node)
        if feed is None:
            feed = self._feeds[node] = KafkaFeed(self._client, self._topics, node)
        return await feed.changes(since, wait_ms=wait_ms, limit=limit)

    async def meet(self, node: NodeId, partitions: Sequence[TopicPartition]) -> Sequence[Meeting]:
        """As `Source` says."""
        await self._topics.refresh_if_older(60.0)
        if any(at.topic_id not in self._topics.by_id for at in partitions):
            await self._topics.refresh_if_older(_FRESH_S)
        starts = await self._topics.offsets(node, partitions, EARLIEST)
        ends = await self._topics.offsets(node, partitions, LATEST)
        home = self._home()
        met: list[Meeting] = []
        for at in partitions:
            (start_code, start), (end_code, end) = starts.get(at, _UNKNOWN), ends.get(at, _UNKNOWN)
            code = start_code if start_code is not Code.NONE else end_code
            if code is Code.NONE:
                met.append(Meeting(at, home=home, origin=home.cluster, log_start=start, high_watermark=max(end, start)))
                continue
            self._topics.mark_outdated()
            met.append(Meeting(at, code, f"{self.name} answers {code.name}"))
        return met

    async def committed_offsets(self, *, after: CommittedOffsetKey | None, limit: int) -> CommittedOffsetPage:
        """As `Source` says."""
        return await self._committed_offsets.page(after=after, limit=limit)

    async def committed_offsets_of(self, keys: Sequence[CommittedOffsetKey]) -> Sequence[SourceCommittedOffset]:
        """As `Source` says. A key without a topic, `(group, b"", -1)`, means all committed offsets of the group."""
        return await self._committed_offsets.of_keys(keys)

    async def fetch(
        self, node: NodeId, wanted: Sequence[Wanted], *, max_bytes: int, min_bytes: int = 1, wait_ms: int = 0
    ) -> Sequence[Fetched]:
        """As `Source` says."""
        answers = await self._fetch(node, wanted, max_bytes=max_bytes, min_bytes=min_bytes, wait_ms=wait_ms)
        await self._fill_log_starts(node, answers)
        if 2 * sum(len(view) for each in answers for view in each.records) >= max_bytes:
            return answers
        starved = [
            index for index, (asked, each) in enumerate(zip(wanted, answers, strict=True)) if _is_starved(asked, each)
        ]
        for index in starved[:MAX_STARVED]:
            (answers[index],) = await self._fetch(
                node, [wanted[index]], max_bytes=max_bytes, min_bytes=1, wait_ms=ALONE_WAIT_MS
            )
        left = [(wanted[index], answers[index]) for index in starved[:MAX_STARVED]]
        await self._skip_empty_ends(node, [each for each in left if _is_starved(*each)])
        return answers

    async def announce(
        self, items: Sequence[Announcement], *, bootstrap: Sequence[str], cluster: str, stream: str = ""
    ) -> Sequence[tuple[Code, str]]:
        """As `Source` says: refuses all."""
        return [(Code.UNSUPPORTED_VERSION, _CANNOT_FOLLOW)] * len(items)

    async def demote(self, topic_ids: Sequence[bytes], *, to: str) -> Sequence[Demoted]:
        """As `Source` says; refused while a transaction is open."""
        await self._topics.refresh_if_older(0.0)
        return [await self._demoted(topic_id, to) for topic_id in topic_ids]

    async def close(self) -> None:
        """As `Source` says."""
        await self._client.close()

    def _home(self) -> Home:
        return Home(0, self._client.cluster_id or "")

    async def _shown(self, topics: Sequence[KafkaTopic]) -> Sequence[SourceTopic]:
        configs = await self._topics.configs([topic.name for topic in topics])
        home = self._home()
        return [
            SourceTopic(
                topic.name, topic.topic_id, len(topic.leaders), configs[topic.name], home, home.cluster, topic.leaders
            )
            for topic in topics
            if topic.name in configs
        ]

    async def _look(self, since: FeedPlace | None, *, topics: bool, committed_offsets: bool, wait_ms: int) -> Changes:
        """The topics and committed offsets that changed since the last scan, if `since` is the place of that scan."""
        goes_on = since == self._scan_place
        # Before anything that can be cancelled: a caller that did not get this answer starts again from the beginning.
        self._scan_place = place = FeedPlace(self._scan_place.run, self._scan_place.serial + 1)
        if goes_on:
            await asyncio.sleep(wait_ms / 1000)
            await self._topics.refresh_at_pace()
        else:
            await self._topics.refresh_if_older(0.0)
        before, now = self._table, self._topics.by_id
        self._table = now
        groups = await self._committed_offsets.changed() if committed_offsets else []
        if not goes_on:
            return Changes(place, True, [], [], [])
        changed = [each for each in before.keys() | now.keys() if before.get(each) != now.get(each)] if topics else []
        return Changes(place, False, [], changed, groups)

    async def _fetch(
        self, node: NodeId, wanted: Sequence[Wanted], *, max_bytes: int, min_bytes: int, wait_ms: int
    ) -> list[Fetched]:
        request = fetch_request(
            wanted, max_bytes=max_bytes, min_bytes=min_bytes, wait_ms=wait_ms, isolation=READ_COMMITTED
        )
        response = await self._client.fetch(node, request)
        if response.error:
            raise KafkaError(code_of(response.error), f"{self.name} refuses the whole fetch")
        results = {
            TopicPartition(topic.topic_id or b"", result.partition): result
            for topic in response.topics
            for result in topic.partitions
        }
        return [await self._fetched(each, results.get(each.at), response) for each in wanted]

    async def _skip_empty_ends(self, node: NodeId, starved: Sequence[tuple[Wanted, Fetched]]) -> None:
        """Resume at the end of partitions in which compaction left no records from the wanted offset on.

        Kafka also answers with nothing while remote storage is slow or over its quota. So an empty answer means that
        there are no records only if the node itself has the log from the wanted offset on. That is asked after the
        fetch, since the node's own part of the log only shrinks."""
        if not starved:
            return
        try:
            begins = await self._topics.offsets(node, [asked.at for asked, _ in starved], EARLIEST_LOCAL)
        except KafkaError as error:
            if error.code is not Code.UNSUPPORTED_VERSION:
                raise
            return
        for asked, answer in starved:
            code, begin = begins.get(asked.at, _UNKNOWN)
            if code is Code.NONE and 0 <= begin <= asked.offset:
                answer.resume = answer.high_watermark

    async def _fill_log_starts(self, node: NodeId, answers: Sequence[Fetched]) -> None:
        """Fill in the log starts, since Kafka reports that an offset is out of range but not where the range begins."""
        out = [each for each in answers if each.code is Code.OFFSET_OUT_OF_RANGE and each.log_start < 0]
        if out:
            starts = await self._topics.offsets(node, [each.at for each in out], EARLIEST)
            for each in out:
                each.log_start = starts.get(each.at, _UNKNOWN)[1]

    async def _fetched(self, wanted: Wanted, result: FetchResult | None, response: FetchResponse) -> Fetched:
        if result is None and response.throttle_ms > 0:  # over quota, Kafka answers without partitions
            return Fetched(wanted.at, Code.THROTTLING_QUOTA_EXCEEDED)
        try:
            if result is not None:
                result.high_watermark = result.last_stable
                views = [memoryview(each) for each in result.records]
                result.records = list(copied_runs(views, result.aborted or (), since=wanted.offset))
        except UnsupportedBatch:
            return Fetched(wanted.at, Code.UNSUPPORTED_FOR_MESSAGE_FORMAT)
        except CorruptBatch:
            return Fetched(wanted.at, Code.CORRUPT_MESSAGE)
        answer = await fetched(wanted, result)
        if answer.code in (Code.NOT_LEADER_OR_FOLLOWER, Code.UNKNOWN_TOPIC_ID, Code.UNKNOWN_TOPIC_OR_PARTITION):
            self._topics.mark_outdated()
        return answer

    async def _demoted(self, topic_id: bytes, to: str) -> Demoted:
        topic = self._topics.by_id.get(topic_id)
        if topic is None:
            return Demoted(topic_id, Code.UNKNOWN_TOPIC_ID, f"{self.name} has no such topic")
        ends: list[Offset] = []
        for index, leader in enumerate(topic.leaders):
            at = TopicPartition(topic_id, index)
            # In this order: unless a transaction is open, the stable offset read second reaches the high watermark read
            # first.
            high_code, high = (await self._topics.offsets(leader, [at], LATEST, READ_UNCOMMITTED)).get(at, _UNKNOWN)
            code, end = (await self._topics.offsets(leader, [at], LATEST)).get(at, _UNKNOWN)
            code = high_code if high_code is not Code.NONE else code
            if code is not Code.NONE:
                return Demoted(topic_id, code, f"{topic.name}-{index}: {self.name} answers {code.name}")
            if end < high:
                message = f"{topic.name}-{index} has an open transaction at offset {end}: end its producer first"
                return Demoted(topic_id, Code.POLICY_VIOLATION, message)
            ends.append(end)
        return Demoted(topic_id, Code.NONE, "", Home(1, to), ends)


def _is_starved(wanted: Wanted, answer: Fetched) -> bool:
    """Whether a partition has more records but the answer brought none."""
    return (
        answer.code is Code.NONE
        and not answer.records
        and answer.resume < 0
        and answer.ask < 0
        and answer.high_watermark > wanted.offset
    )
