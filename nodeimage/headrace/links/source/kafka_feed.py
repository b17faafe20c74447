"""The change feed of one node of an Apache Kafka cluster, made from an incremental fetch session (KIP-227).

The session holds all partitions that the node leads, each at the last offset that the node reported. The node answers
only with partitions that have more records, and sends the offsets of all of these, but at most one batch, since the
request's limit is one byte. An idle partition costs nothing but its entry in the node's memory. A session that the node
has dropped is reopened with the offsets known here. A partition that the node refuses to report (say, because its topic
may be described but not read) would end every wait at once: it is left out for `REFUSED_S`.

The places of this feed number its answers. An answer that was lost on its way to the caller is repeated.
"""

import asyncio
import uuid
from collections.abc import Iterable
from typing import Final

from headrace.base.errors import Code, code_of
from headrace.base.ids import NodeId, Offset
from headrace.kafka_client.client import Client, Lane
from headrace.links.source.kafka_topics import LATEST, READ_COMMITTED, KafkaTopics
from headrace.links.source.source import Changes, FeedPlace, TopicPartition
from headrace.wire.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic

_SESSION_LOST: Final = frozenset(
    {Code.FETCH_SESSION_ID_NOT_FOUND, Code.INVALID_FETCH_SESSION_EPOCH, Code.FETCH_SESSION_TOPIC_ID_ERROR}
)
_LAST_EPOCH: Final = (1 << 31) - 1
_SOON: Final = frozenset(
    {
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.LEADER_NOT_AVAILABLE,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.UNKNOWN_TOPIC_ID,
        Code.FENCED_LEADER_EPOCH,
        Code.UNKNOWN_LEADER_EPOCH,
        Code.OFFSET_NOT_AVAILABLE,
    }
)
"""Errors after which a partition is looked up again with the next table of topics: its leader has changed or is about
to change."""
REFUSED_S: Final = 10.0
"""How long a partition is left out, in seconds, after the node has refused it for a reason that is not in `_SOON`."""


class KafkaFeed:
    """The feed of one node. Callers take turns."""

    def __init__(self, client: Client, topics: KafkaTopics, node: NodeId) -> None:
        self._client = client
        self._topics = topics
        self._node = node
        self._lock = asyncio.Lock()
        self._run = ""
        self._serial = 0
        self._known: dict[TopicPartition, Offset] = {}
        """The partitions in the session, each with the offset up to which the caller knows it."""
        self._table = -1
        """The serial of the table of topics that `_known` was made from."""
        self._refused: dict[TopicPartition, float] = {}
        """Partitions that the node refuses to report, each with the loop's time until which it is left out."""
        self._session = 0
        self._epoch = 0
        self._moved: set[TopicPartition] = set()
        """Partitions whose offsets the next request sends to the session."""
        self._forgotten: set[TopicPartition] = set()
        self._reported: dict[TopicPartition, Offset] = {}
        """What the last answer contained, kept until the caller returns its place."""
        self._unreported: dict[TopicPartition, Offset] = {}

    async def changes(self, since: FeedPlace | None, *, wait_ms: int, limit: int) -> Changes:
        """As `Source.changes`, for partitions only."""
        async with self._lock:
            if since is None or since.run != self._run or since.serial not in (self._serial, self._serial - 1):
                await self._begin()
                return Changes(FeedPlace(self._run, self._serial), True, [], [], [])
            if since.serial != self._serial:
                self._unreported = self._reported | self._unreported
            self._reported = {}
            await self._topics.refresh_at_pace()
            await self._follow_table()
            if len(self._unreported) < limit:
                await self._ask(0 if self._unreported else wait_ms)
            for at in list(self._unreported)[:limit]:
                self._reported[at] = self._unreported.pop(at)
            self._serial += 1
            return Changes(FeedPlace(self._run, self._serial), False, list(self._reported.items()), [], [])

    async def _begin(self) -> None:
        """Begin a new run. It reads the offsets before the caller lists anything, so that nothing is missed in
        between."""
        await self._topics.refresh_if_older(0.0)
        self._run = ""
        self._known, self._reported, self._unreported, self._refused = {}, {}, {}, {}
        self._lose_session()
        self._table = -1
        await self._follow_table()
        self._unreported = {}
        self._run, self._serial = uuid.uuid4().hex, 0

    async def _follow_table(self) -> None:
        """Add the partitions that this node leads now, and drop those that it no longer leads."""
        now = asyncio.get_running_loop().time()
        if self._table == self._topics.serial and all(until > now for until in self._refused.values()):
            return
        table = self._topics.serial
        led = self._topics.led_by(self._node)
        for at in self._known.keys() - led:
            self._drop(at)
        self._refused = {at: until for at, until in self._refused.items() if at in led and until > now}
        self._table = -1
        await self._add(led - self._known.keys() - self._refused.keys())
        self._table = table

    async def _add(self, partitions: Iterable[TopicPartition]) -> None:
        for at, (code, end) in (await self._topics.offsets(self._node, partitions, LATEST)).items():
            if code is Code.NONE:
                self._known[at] = self._unreported[at] = end
                self._moved.add(at)
                self._forgotten.discard(at)
            else:
                self._leave_out(at, code)

    def _leave_out(self, at: TopicPartition, code: Code) -> None:
        if code in _SOON:
            self._topics.mark_outdated()
        else:
            self._refused[at] = asyncio.get_running_loop().time() + REFUSED_S

    def _drop(self, at: TopicPartition) -> None:
        del self._known[at]
        self._unreported.pop(at, None)
        self._moved.discard(at)
        self._forgotten.add(at)

    def _lose_session(self) -> None:
        self._session = self._epoch = 0
        self._moved = set(self._known)
        self._forgotten = set()

    async def _ask(self, wait_ms: int) -> None:
        if not self._known:
            await asyncio.sleep(wait_ms / 1000)
            return
        moved, forgotten = self._moved, self._forgotten
        self._moved, self._forgotten = set(), set()
        asked = moved if self._session else set(self._known)
        topics: dict[bytes, FetchTopic] = {}
        for at in asked:
            topic = topics.setdefault(at.topic_id, FetchTopic(None, at.topic_id, []))
            topic.partitions.append(FetchPartition(at.partition, -1, self._known[at], -1, -1, 1))
        gone: dict[bytes, list[int]] = {}
        for at in forgotten if self._session else ():
            gone.setdefault(at.topic_id, []).append(at.partition)
        request = FetchRequest(
            wait_ms,
            1,
            1,
            READ_COMMITTED,
            self._session,
            self._epoch,
            list(topics.values()),
            [(None, topic_id, indexes) for topic_id, indexes in gone.items()],
            "",
        )
        try:
            response = await self._client.fetch(self._node, request, lane=Lane.POLLS)
        except BaseException:
            self._lose_session()  # the request may or may not have arrived
            raise
        if response.error:
            self._lose_session()
            if code_of(response.error) not in _SESSION_LOST:
                self._topics.mark_outdated()
            return
        self._session = response.session_id
        self._epoch = 0 if not self._session else 1 if self._epoch == _LAST_EPOCH else self._epoch + 1
        await self._take(response)

    async def _take(self, response: FetchResponse) -> None:
        again: list[TopicPartition] = []
        for topic in response.topics:
            for result in topic.partitions:
                at = TopicPartition(topic.topic_id or b"", result.partition)
                if at not in self._known:
                    continue
                code = code_of(result.error)
                if code is Code.NONE:
                    if result.last_stable > self._known[at]:
                        self._known[at] = self._unreported[at] = Offset(result.last_stable)
                        self._moved.add(at)
                    continue
                self._drop(at)
                if code is Code.OFFSET_OUT_OF_RANGE:
                    again.append(at)
                else:
                    self._leave_out(at, code)
                    self._table = -1
        await self._add(again)
