"""A simulated source: topics, homes, committed offsets and a change feed, without records."""

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from headrace.base.errors import Code
from headrace.base.ids import Home, LeaderEpoch, Millis, NodeId, Offset
from headrace.kafka_client.errors import SourceUnreachable
from headrace.links.source.source import (
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

NODE = NodeId(1)


@dataclass
class FakeSource:
    """Every call is counted, and may be made to fail."""

    cluster: str
    name: str = "fake"
    problem: str | None = None
    away: bool = False
    nodes: list[NodeId] = field(default_factory=lambda: [NODE])
    unsettled: set[bytes] = field(default_factory=set)
    listed: dict[bytes, SourceTopic] = field(default_factory=dict)
    histories: dict[TopicPartition, list[HomeStart]] = field(default_factory=dict)
    committed: dict[CommittedOffsetKey, SourceCommittedOffset] = field(default_factory=dict)
    announced: list[Announcement] = field(default_factory=list)
    demoted: list[bytes] = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=dict)
    fail_at: dict[str, int] = field(default_factory=dict)
    """By call, how many times it fails from now on."""

    def __post_init__(self) -> None:
        self._changes: list[bytes | CommittedOffsetKey] = []
        self._more = asyncio.Event()
        self.run = uuid.uuid4().hex

    # --- what the test does

    def put(
        self,
        name: str,
        *,
        topic_id: bytes | None = None,
        partitions: int = 1,
        configs: Mapping[str, str] | None = None,
        home: tuple[int, str] | None = None,
        history: Sequence[tuple[int, str, int]] = (),
    ) -> SourceTopic:
        """Create or change a topic."""
        known = next((topic.topic_id for topic in self.listed.values() if topic.name == name), None)
        topic = SourceTopic(
            name=name,
            topic_id=topic_id or known or uuid.uuid4().bytes,
            partitions=partitions,
            configs=configs or {},
            home=Home(*(home or (0, self.cluster))),
            origin=self.cluster,
            leaders=[NODE] * partitions,
        )
        self.listed[topic.topic_id] = topic
        for index in range(partitions):
            self.histories[TopicPartition(topic.topic_id, index)] = [HomeStart(c, x, Offset(o)) for c, x, o in history]
        self._told(topic.topic_id)
        return topic

    def delete(self, topic: SourceTopic) -> None:
        del self.listed[topic.topic_id]
        self._told(topic.topic_id)

    def commit(self, group: str, topic: SourceTopic, offset: int, *, partition: int = 0, at: int = 1) -> None:
        key = CommittedOffsetKey(group, topic.topic_id, partition)
        self.committed[key] = SourceCommittedOffset(key, Offset(offset), "", Millis(at))
        self._told(key)

    def begin_anew(self) -> None:
        """The feed forgets all earlier changes."""
        self.run = uuid.uuid4().hex
        self._changes.clear()
        self._more.set()

    def _told(self, what: bytes | CommittedOffsetKey) -> None:
        self._changes.append(what)
        self._more.set()

    def _call(self, name: str) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1
        if self.fail_at.get(name, 0) > 0:
            self.fail_at[name] -= 1
            raise SourceUnreachable(f"{name} fails")
        if self.away:
            raise SourceUnreachable("nothing listens")

    # --- Source

    async def hello(self) -> Hello:
        self._call("hello")
        if not self.nodes:
            raise SourceUnreachable(f"{self.name} names no nodes yet")
        return Hello(self.cluster, [SourceNode(node, "127.0.0.1", 1) for node in self.nodes], {}, self.problem)

    async def topics(self, *, after: str | None, limit: int) -> TopicPage:
        self._call("topics")
        rest = sorted((t for t in self.listed.values() if after is None or t.name > after), key=lambda t: t.name)
        page = rest[: min(limit, 2)]
        return TopicPage(page, page[-1].name if len(rest) > len(page) else None)

    async def topics_by_id(self, topic_ids: Sequence[bytes]) -> Sequence[SourceTopic]:
        self._call("topics_by_id")
        return [self.listed[each] for each in topic_ids if each in self.listed]

    async def changes(
        self, node: NodeId, since: FeedPlace | None, *, topics: bool, committed_offsets: bool, wait_ms: int, limit: int
    ) -> Changes:
        self._call("changes")
        if since is None or since.run != self.run:
            return Changes(FeedPlace(self.run, len(self._changes)), True, [], [], [])
        while len(self._changes) == since.serial and self.run == since.run:
            self._more.clear()
            await self._more.wait()
            self._call("changes")
        if self.run != since.run:
            return Changes(FeedPlace(self.run, len(self._changes)), True, [], [], [])
        new = self._changes[since.serial :]
        return Changes(
            FeedPlace(self.run, len(self._changes)),
            False,
            [],
            [each for each in new if isinstance(each, bytes)],
            [each for each in new if isinstance(each, CommittedOffsetKey)],
        )

    async def meet(self, node: NodeId, partitions: Sequence[TopicPartition]) -> Sequence[Meeting]:
        self._call("meet")
        return [self._met(each) for each in partitions]

    def _met(self, at: TopicPartition) -> Meeting:
        topic = self.listed.get(at.topic_id)
        if topic is None:
            return Meeting(at, Code.UNKNOWN_TOPIC_ID)
        if at.topic_id in self.unsettled:
            return Meeting(at, Code.LEADER_NOT_AVAILABLE, "it is not settled")
        return Meeting(
            at=at,
            leader_epoch=LeaderEpoch(0),
            home=topic.home,
            origin=topic.origin,
            history=self.histories[at],
            log_start=Offset(0),
            high_watermark=Offset(0),
        )

    async def committed_offsets(self, *, after: CommittedOffsetKey | None, limit: int) -> CommittedOffsetPage:
        self._call("committed_offsets")
        return CommittedOffsetPage(sorted((c for c in self.committed.values()), key=lambda c: c.key), None)

    async def committed_offsets_of(self, keys: Sequence[CommittedOffsetKey]) -> Sequence[SourceCommittedOffset]:
        self._call("committed_offsets_of")
        return [self.committed[each] for each in keys if each in self.committed]

    async def fetch(
        self, node: NodeId, wanted: Sequence[Wanted], *, max_bytes: int, min_bytes: int = 1, wait_ms: int = 0
    ) -> Sequence[Fetched]:
        raise AssertionError("nobody fetches here")

    async def announce(
        self, items: Sequence[Announcement], *, bootstrap: Sequence[str], cluster: str, stream: str = ""
    ) -> Sequence[tuple[Code, str]]:
        self._call("announce")
        answers = []
        for item in items:
            topic = self.listed[item.topic_id]
            if item.home > topic.home:
                self.announced.append(item)
                self.listed[item.topic_id] = replace(topic, home=item.home)
                for index, history in item.histories.items():
                    self.histories[TopicPartition(item.topic_id, index)] = list(history)
                self._told(item.topic_id)
            answers.append((Code.NONE if item.home >= topic.home else Code.FENCED_LEADER_EPOCH, ""))
        return answers

    async def demote(self, topic_ids: Sequence[bytes], *, to: str) -> Sequence[Demoted]:
        self._call("cede")
        answers = []
        for topic_id in topic_ids:
            topic = self.listed.get(topic_id)
            if topic is None:
                answers.append(Demoted(topic_id, Code.UNKNOWN_TOPIC_ID))
                continue
            home = Home(topic.home.counter + 1, to)
            if topic.home.cluster != to:
                self.demoted.append(topic_id)
                self.listed[topic_id] = replace(topic, home=home)
                for index in range(topic.partitions):
                    self.histories[TopicPartition(topic_id, index)].append(HomeStart(*home, Offset(0)))
                self._told(topic_id)
            answers.append(Demoted(topic_id, Code.NONE, "", self.listed[topic_id].home, [Offset(0)] * topic.partitions))
        return answers

    async def close(self) -> None:
        pass
