"""What a link asks of its source, whatever the source is: the protocol `Source`, and its answers.

Two implementations: `headrace_source.py` (another Headrace cluster), `kafka_source.py` (any Apache Kafka cluster).
Every call is one question; nothing here tries again, waits between tries, or remembers what was asked: the callers do.
Topics are named as inside the stream, without its path; topic ids have 16 bytes.

Every call raises `SourceUnreachable` (no usable answer until its deadline), `SourceRefuses` (credentials), and
KafkaError where the source answers the whole call with an error. What is wrong with one topic or partition stands in
the answer as `code`. A call to a node that the source does not have raises `SourceUnreachable` too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from headrace.base.errors import Code
from headrace.base.ids import Home, LeaderEpoch, Millis, NodeId, Offset

LEAST_WAIT_MS, MOST_WAIT_MS = 5_000, 30_000
"""Of polls: the more have been answered with nothing, the longer the next one may wait."""
NOT_READY = frozenset({Code.COORDINATOR_LOAD_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR})
"""Committed offsets cannot be had at the moment, and can be soon."""
NO_NODE = NodeId(-1)
NO_OFFSET = Offset(-1)
NO_EPOCH = LeaderEpoch(-1)
NO_HOME = Home(0, "")


def longer(wait_ms: int) -> int:
    """How long the next poll waits after a quiet one."""
    return min(2 * wait_ms, MOST_WAIT_MS)


class TopicPartition(NamedTuple):
    """A partition, by its topic's id."""

    topic_id: bytes
    partition: int


class CommittedOffsetKey(NamedTuple):
    """Whose committed offset, on which partition."""

    group: str
    topic_id: bytes
    partition: int


class HomeStart(NamedTuple):
    """From which offset on a partition's records are those of a home; the entries of a history, in rising order."""

    counter: int
    cluster: str
    offset: Offset


@dataclass(frozen=True, slots=True)
class SourceNode:
    """A node, as the source's listener tells its clients."""

    node_id: NodeId
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Hello:
    """Who the source is. `problem` says, for people, what keeps a link from this stream, or is None."""

    cluster_id: str
    nodes: Sequence[SourceNode]
    policy: Mapping[str, Any]
    """The stream's, by the names of Headrace's admin API; empty where the source has none."""
    problem: str | None


@dataclass(frozen=True, slots=True)
class SourceTopic:
    """A topic at the source."""

    name: str
    topic_id: bytes
    partitions: int
    configs: Mapping[str, str] | None
    """Those that were set on the topic itself; None where the source does not tell."""
    home: Home
    origin: str
    """The cluster that counter 0 stands for."""
    leaders: Sequence[NodeId]
    """By partition; `NO_NODE` where there is none now."""


@dataclass(frozen=True, slots=True)
class TopicPage:
    """Topics by rising name. Go on from `after`, or None after the last page."""

    topics: Sequence[SourceTopic]
    after: str | None


class FeedPlace(NamedTuple):
    """How far one node's feed has been read. Of no meaning to another node."""

    run: str
    serial: int


@dataclass(frozen=True, slots=True)
class Changes:
    """What changed since a place in a node's feed. After `reset` nothing is known: list all anew, then go on."""

    place: FeedPlace
    reset: bool
    partitions: Sequence[tuple[TopicPartition, Offset]]
    """Partitions led by the node that was asked, and their high watermarks."""
    topics: Sequence[bytes]
    """Topics made, changed, moved or deleted."""
    committed_offsets: Sequence[CommittedOffsetKey]


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where a partition stands at its leader. Everything but `code` and `message` counts only if `code` is NONE."""

    at: TopicPartition
    code: Code = Code.NONE
    message: str = ""
    leader_epoch: LeaderEpoch = NO_EPOCH
    """To be given with each fetch: another one means that home or leader changed, and that we meet again."""
    home: Home = NO_HOME
    origin: str = ""
    history: Sequence[HomeStart] = ()
    log_start: Offset = NO_OFFSET
    high_watermark: Offset = NO_OFFSET
    """Up to where records can be fetched."""
    empty_from: Offset = NO_OFFSET
    """From there up to `high_watermark` there are none; `NO_OFFSET` where that is not known."""


@dataclass(frozen=True, slots=True)
class SourceCommittedOffset:
    """A group's committed offset."""

    key: CommittedOffsetKey
    offset: Offset
    metadata: str
    committed_ms: Millis
    """-1 where the source does not tell."""


@dataclass(frozen=True, slots=True)
class CommittedOffsetPage:
    """Committed offsets by rising key. Go on from `after`, or None after the last page."""

    committed_offsets: Sequence[SourceCommittedOffset]
    after: CommittedOffsetKey | None


class Wanted(NamedTuple):
    """What to fetch of a partition: whole batches from `offset` on, `max_bytes` at most but one batch at least."""

    at: TopicPartition
    offset: Offset
    leader_epoch: LeaderEpoch
    max_bytes: int


@dataclass(slots=True)
class Fetched:
    """What came of one partition. `records` are whole batches, views of the answer's buffer, which live as long."""

    at: TopicPartition
    code: Code
    records: Sequence[memoryview] = field(default_factory=list)
    high_watermark: Offset = NO_OFFSET
    log_start: Offset = NO_OFFSET
    resume: Offset = NO_OFFSET
    """From where to fetch next, if that is not the end of the last batch: nothing that is to be copied lies between."""
    ask: NodeId = NO_NODE
    """Ask that node instead, from now on: it leads, or it holds these old offsets. `NO_NODE`: nothing to say."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """A topic's higher home, told to a cluster that may not know of it."""

    topic_id: bytes
    home: Home
    origin: str
    histories: Mapping[int, Sequence[HomeStart]]
    """By partition."""


@dataclass(frozen=True, slots=True)
class Demoted:
    """A home's answer to the agreed failover of one topic: the topic's new home, and where each partition ended."""

    topic_id: bytes
    code: Code
    message: str = ""
    home: Home = NO_HOME
    ends: Sequence[Offset] = ()


class Source(Protocol):
    """A cluster's stream, to be copied from. Open from when it is made until `close`."""

    name: str
    """For logs and messages: the bootstrap addresses and the stream."""

    async def hello(self) -> Hello:
        """Who answers, and whether a link can copy the stream. One that names no nodes, as it is starting, has not
        answered: SourceUnreachable."""
        ...

    async def topics(self, *, after: str | None, limit: int) -> TopicPage:
        """A page of the stream's topics, with the first name beyond `after`."""
        ...

    async def topics_by_id(self, topic_ids: Sequence[bytes]) -> Sequence[SourceTopic]:
        """These topics; those that are not there (any more) are left out."""
        ...

    async def changes(
        self, node: NodeId, since: FeedPlace | None, *, topics: bool, committed_offsets: bool, wait_ms: int, limit: int
    ) -> Changes:
        """What changed at `node`: at once if something has, else after `wait_ms` (MOST_WAIT_MS), with nothing.

        Who asks for topics or committed offsets may be told of partitions, or not."""
        ...

    async def meet(self, node: NodeId, partitions: Sequence[TopicPartition]) -> Sequence[Meeting]:
        """Where these partitions, led by `node`, stand; one answer each, in order."""
        ...

    async def committed_offsets(self, *, after: CommittedOffsetKey | None, limit: int) -> CommittedOffsetPage:
        """A page of the stream's committed offsets, of all groups."""
        ...

    async def committed_offsets_of(self, keys: Sequence[CommittedOffsetKey]) -> Sequence[SourceCommittedOffset]:
        """These committed offsets; those that are not there (any more) are left out."""
        ...

    async def fetch(
        self, node: NodeId, wanted: Sequence[Wanted], *, max_bytes: int, min_bytes: int = 1, wait_ms: int = 0
    ) -> Sequence[Fetched]:
        """Batches of partitions led by `node`, one answer each, in order."""
        ...

    async def announce(
        self, items: Sequence[Announcement], *, bootstrap: Sequence[str], cluster: str, stream: str = ""
    ) -> Sequence[tuple[Code, str]]:
        """Tell the source of higher homes; a code and its message for each.

        Who tells: the cluster, its addresses as the source reaches them, and the stream's path there if it is another.
        """
        ...

    async def demote(self, topic_ids: Sequence[bytes], *, to: str) -> Sequence[Demoted]:
        """Ask the home to let the cluster `to` be home, from where the partitions end; one answer each, in order."""
        ...

    async def close(self) -> None:
        """End all connections. Calls under way raise `SourceUnreachable`. Closing twice is fine."""
        ...
