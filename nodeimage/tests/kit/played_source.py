"""A source inside the test: partitions with batches, the feeds of its nodes, and faults on demand.

Polls wait until something changes, or for ever; no time passes. With `away` or `refuses` every call fails.
"""

import asyncio
from collections.abc import Callable, Sequence

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.base.ids import Home, LeaderEpoch, NodeId, Offset
from headrace.kafka_client.errors import SourceUnreachable
from headrace.links.source.source import (
    NO_NODE,
    Announcement,
    Changes,
    CommittedOffsetKey,
    CommittedOffsetPage,
    Demoted,
    FeedPlace,
    Fetched,
    Hello,
    HomeStart,
    Meeting,
    SourceCommittedOffset,
    SourceNode,
    SourceTopic,
    TopicPage,
    TopicPartition,
    Wanted,
)
from headrace.wire.batch import build_batch, read_batch, stamp

HOME = "source-cluster"


class PlayedPartition:
    """Batches of a partition, by base offset, and its leader."""

    def __init__(self, leader: NodeId) -> None:
        self.leader = leader
        self.epoch = 3
        self.log_start = 0
        self.end = 0
        self.batches: list[tuple[int, bytearray]] = []
        self.home = Home(0, HOME)
        self.origin = HOME
        self.history: list[HomeStart] = []


class PlayedSource:
    """See `Source`."""

    name = "played"

    def __init__(self, nodes: int = 1) -> None:
        self.cluster_id = HOME
        self.nodes = [NodeId(number) for number in range(1, nodes + 1)]
        self.problem: str | None = None
        self.error: HeadraceError | None = None
        self.before_fetch: Callable[[Sequence[Wanted]], None] = lambda _wanted: None
        self.names: dict[bytes, str] = {}
        self.partitions: dict[TopicPartition, PlayedPartition] = {}
        self.calls: list[str] = []
        self.fetched: dict[TopicPartition, int] = {}
        """By partition, the number of records returned."""
        self.largest_fetch = 0
        self.closed = False
        self._runs = dict.fromkeys(self.nodes, 1)
        self._serials = dict.fromkeys(self.nodes, 0)
        self._feeds: dict[NodeId, dict[TopicPartition, int]] = {node: {} for node in self.nodes}
        self._changed = asyncio.Event()

    # --- for the test

    def topic(self, name: str, topic_id: bytes, partitions: int = 1) -> list[TopicPartition]:
        self.names[topic_id] = name
        made = [TopicPartition(topic_id, index) for index in range(partitions)]
        for at in made:
            self.partitions[at] = PlayedPartition(self.nodes[at.partition % len(self.nodes)])
        return made

    def produce(
        self, at: TopicPartition, *values: bytes, gap: int = 0, compression: int = 0, pid: int = -1, bits: int = 0
    ) -> bytes:
        """Add one batch of these records; returns its bytes as the source has them."""
        partition = self.partitions[at]
        partition.end += gap
        base = partition.end
        batch = build_batch(
            [(1_000_000 + base + index, b"k", value, [("h", b"v")]) for index, value in enumerate(values)],
            compression=compression,
            attributes=bits,
            producer_id=pid,
            producer_epoch=0 if pid >= 0 else -1,
            base_sequence=base if pid >= 0 else -1,
        )
        stamp(batch, base, partition.epoch)
        partition.batches.append((base, batch))
        partition.end += len(values)
        self.note(at)
        return bytes(batch)

    def note(self, at: TopicPartition) -> None:
        node = self.partitions[at].leader
        self._serials[node] += 1
        self._feeds[node][at] = self._serials[node]
        self.wake()

    def wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def move(self, at: TopicPartition, node: NodeId) -> None:
        """Another node leads it, by a roll."""
        self.partitions[at].leader = node
        self.partitions[at].epoch += 1
        self.note(at)

    def begin_run(self, node: NodeId) -> None:
        self._runs[node] += 1
        self._serials[node] = 0
        self._feeds[node] = {}
        self.wake()

    def drop(self, at: TopicPartition, before: int) -> None:
        """Delete the records below `before`."""
        partition = self.partitions[at]
        partition.log_start = before
        partition.batches = [each for each in partition.batches if each[0] >= before]

    def goes(self, error: HeadraceError | None) -> None:
        """From now on every call fails, including pending polls; or none does any more."""
        self.error = error
        self.wake()

    def check(self, call: str) -> None:
        self.calls.append(call)
        if self.error is not None:
            raise self.error

    def _node(self, node: NodeId) -> None:
        if node not in self.nodes:
            raise SourceUnreachable(f"there is no node {node}")

    # --- Source

    async def hello(self) -> Hello:
        self.check("hello")
        return Hello(self.cluster_id, [SourceNode(node, "h", 1) for node in self.nodes], {}, self.problem)

    async def topics(self, *, after: str | None, limit: int) -> TopicPage:
        self.check("topics")
        found = sorted((name, topic_id) for topic_id, name in self.names.items() if name > (after or ""))[:limit]
        return TopicPage(
            [self._topic(topic_id) for _, topic_id in found], found[-1][0] if len(found) == limit else None
        )

    async def topics_by_id(self, topic_ids: Sequence[bytes]) -> Sequence[SourceTopic]:
        self.check("topics_by_id")
        return [self._topic(topic_id) for topic_id in topic_ids if topic_id in self.names]

    def _topic(self, topic_id: bytes) -> SourceTopic:
        leaders = [each.leader for at, each in sorted(self.partitions.items()) if at.topic_id == topic_id]
        return SourceTopic(self.names[topic_id], topic_id, len(leaders), {}, Home(0, HOME), HOME, leaders)

    async def changes(
        self, node: NodeId, since: FeedPlace | None, *, topics: bool, committed_offsets: bool, wait_ms: int, limit: int
    ) -> Changes:
        self.check("changes")
        while True:
            self._node(node)
            place = FeedPlace(str(self._runs[node]), self._serials[node])
            if since is None or since.run != place.run:
                return Changes(place, True, [], [], [])
            found = [
                (at, Offset(self.partitions[at].end))
                for at, serial in self._feeds[node].items()
                if serial > since.serial and at in self.partitions
            ]
            if found:
                return Changes(place, False, found, [], [])
            await self._changed.wait()
            if self.error is not None:
                raise self.error

    async def meet(self, node: NodeId, partitions: Sequence[TopicPartition]) -> Sequence[Meeting]:
        self.check("meet")
        self._node(node)
        return [self._meet(node, at) for at in partitions]

    def _meet(self, node: NodeId, at: TopicPartition) -> Meeting:
        partition = self.partitions.get(at)
        if partition is None:
            return Meeting(at, Code.UNKNOWN_TOPIC_ID)
        if partition.leader != node:
            return Meeting(at, Code.NOT_LEADER_OR_FOLLOWER)
        return Meeting(
            at,
            leader_epoch=LeaderEpoch(partition.epoch),
            home=partition.home,
            origin=partition.origin,
            history=partition.history,
            log_start=Offset(partition.log_start),
            high_watermark=Offset(partition.end),
        )

    async def fetch(
        self, node: NodeId, wanted: Sequence[Wanted], *, max_bytes: int, min_bytes: int = 1, wait_ms: int = 0
    ) -> Sequence[Fetched]:
        self.check("fetch")
        self._node(node)
        self.before_fetch(wanted)
        self.largest_fetch = max(self.largest_fetch, max_bytes)
        left = max_bytes
        found = []
        for each in wanted:
            fetched = self._fetch(node, each, min(each.max_bytes, left))
            left -= sum(map(len, fetched.records))
            found.append(fetched)
        return found

    def _fetch(self, node: NodeId, wanted: Wanted, most: int) -> Fetched:
        partition = self.partitions.get(wanted.at)
        if partition is None:
            return Fetched(wanted.at, Code.UNKNOWN_TOPIC_ID)
        if partition.leader != node:
            return Fetched(wanted.at, Code.NOT_LEADER_OR_FOLLOWER)
        marks = {"high_watermark": Offset(partition.end), "log_start": Offset(partition.log_start)}
        if wanted.leader_epoch != partition.epoch:
            code = Code.FENCED_LEADER_EPOCH if wanted.leader_epoch < partition.epoch else Code.UNKNOWN_LEADER_EPOCH
            return Fetched(wanted.at, code, **marks)
        if not partition.log_start <= wanted.offset <= partition.end:
            return Fetched(wanted.at, Code.OFFSET_OUT_OF_RANGE, **marks)
        run = bytearray()
        for base, batch in partition.batches:
            if base >= wanted.offset and most > 0 and (not run or len(run) + len(batch) <= most):
                run += batch
                self.fetched[wanted.at] = self.fetched.get(wanted.at, 0) + _count(batch)
        return Fetched(wanted.at, Code.NONE, [memoryview(run)] if run else [], **marks, ask=NO_NODE)

    async def committed_offsets(self, *, after: CommittedOffsetKey | None, limit: int) -> CommittedOffsetPage:
        self.check("committed_offsets")
        return CommittedOffsetPage([], None)

    async def committed_offsets_of(self, keys: Sequence[CommittedOffsetKey]) -> Sequence[SourceCommittedOffset]:
        self.check("committed_offsets_of")
        return []

    async def announce(
        self, items: Sequence[Announcement], *, bootstrap: Sequence[str], cluster: str
    ) -> Sequence[tuple[Code, str]]:
        raise KafkaError(Code.UNSUPPORTED_VERSION)

    async def demote(self, topic_ids: Sequence[bytes], *, to: str) -> Sequence[Demoted]:
        raise KafkaError(Code.UNSUPPORTED_VERSION)

    async def close(self) -> None:
        self.closed = True
        self.goes(SourceUnreachable("closed"))


def _count(batch: bytearray) -> int:
    try:
        return read_batch(batch, from_client=False, check_crc=False).record_count
    except HeadraceError:
        return 0
