"""The protocol `Source`: what a link requests from its source, of whatever kind, and the answers.

There are two implementations: `headrace_source.py` (another Headrace cluster) and `kafka_source.py` (any Apache Kafka
cluster). Implementations do not repeat a call that has failed: that is up to their callers. Topic names are those
inside the stream, without its path; topic ids have 16 bytes.

Every call raises `SourceUnreachable` (no usable answer before its deadline), `SourceRefuses` (credentials), and
KafkaError where the source answers the whole call with an error. Errors of single topics or partitions are in the
answer, as `code`. A call to a node that the source does not have raises `SourceUnreachable` too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from headrace.base.errors import Code
from headrace.base.ids import Home, LeaderEpoch, Millis, NodeId, Offset

MIN_WAIT_MS, MAX_WAIT_MS = 5_000, 30_000
"""Shortest and longest wait of a poll, in milliseconds; each empty answer lengthens the next wait."""
NOT_READY = frozenset({Code.COORDINATOR_LOAD_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR})
"""Errors that say that committed offsets cannot be read at the moment, but can be soon."""
NO_NODE = NodeId(-1)
NO_OFFSET = Offset(-1)
NO_EPOCH = LeaderEpoch(-1)
NO_HOME = Home(0, "")


def longer_wait(wait_ms: int) -> int:
    """How long the next poll waits after an empty answer, in milliseconds."""
    return min(2 * wait_ms, MAX_WAIT_MS)


class TopicPartition(NamedTuple):
    """A partition, by its topic's id."""

    topic_id: bytes
    partition: int


class CommittedOffsetKey(NamedTuple):
    """The group, topic and partition of a committed offset."""

    group: str
    topic_id: bytes
    partition: int


class HomeStart(NamedTuple):
    """One entry of a history, which is in ascending order: the offset from which on a home wrote a partition's
    records."""

    counter: int
    cluster: str
    offset: Offset


@dataclass(frozen=True, slots=True)
class SourceNode:
    """A node, as the source's listener reports it to clients."""

    node_id: NodeId
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Hello:
    """The source's identity. `problem` says, for people, why a link cannot copy this stream, or is None."""

    cluster_id: str
    nodes: Sequence[SourceNode]
    policy: Mapping[str, Any]
    """The stream's policy, with the field names of Headrace's admin API; empty if the source has none."""
    problem: str | None


@dataclass(frozen=True, slots=True)
class SourceTopic:
    """A topic at the source."""

    name: str
    topic_id: bytes
    partitions: int
    configs: Mapping[str, str] | None
    """Configs that were set on the topic itself; None if the source does not show them."""
    home: Home
    origin: str
    """The cluster that counter 0 means."""
    leaders: Sequence[NodeId]
    """By partition; `NO_NODE` where there is no leader at present."""


@dataclass(frozen=True, slots=True)
class TopicPage:
    """Topics in ascending order of name. `after`: where the next page begins, or None on the last page."""

    topics: Sequence[SourceTopic]
    after: str | None


class FeedPlace(NamedTuple):
    """How far one node's feed has been read. Meaningless to other nodes."""

    run: str
    serial: int


@dataclass(frozen=True, slots=True)
class Changes:
    """What changed since a place in a node's feed. With `reset` the changes are unknown: list everything again
    first."""

    place: FeedPlace
    reset: bool
    partitions: Sequence[tuple[TopicPartition, Offset]]
    """Partitions led by the node that was asked, and their high watermarks."""
    topics: Sequence[bytes]
    """Topics created, changed, moved or deleted."""
    committed_offsets: Sequence[CommittedOffsetKey]


@dataclass(frozen=True, slots=True)
class Meeting:
    """A partition's state at its leader. All fields but `code` and `message` count only if `code` is NONE."""

    at: TopicPartition
    code: Code = Code.NONE
    message: str = ""
    leader_epoch: LeaderEpoch = NO_EPOCH
    """Sent with each fetch. If the source refuses it, the home or the leader has changed: meet again."""
    home: Home = NO_HOME
    origin: str = ""
    history: Sequence[HomeStart] = ()
    log_start: Offset = NO_OFFSET
    high_watermark: Offset = NO_OFFSET
    """The offset up to which records can be fetched."""
    empty_from: Offset = NO_OFFSET
    """There are no records from this offset up to `high_watermark`; `NO_OFFSET` if that is not known."""


@dataclass(frozen=True, slots=True)
class SourceCommittedOffset:
    """A group's committed offset."""

    key: CommittedOffsetKey
    offset: Offset
    metadata: str
    committed_ms: Millis
    """-1 if the source does not report it."""


@dataclass(frozen=True, slots=True)
class CommittedOffsetPage:
    """Committed offsets in ascending order of key. `after`: where the next page begins, or None on the last page."""

    committed_offsets: Sequence[SourceCommittedOffset]
    after: CommittedOffsetKey | None


class Wanted(NamedTuple):
    """What to fetch of a partition: whole batches from `offset` on, at most `max_bytes` but at least one batch."""

    at: TopicPartition
    offset: Offset
    leader_epoch: LeaderEpoch
    max_bytes: int


@dataclass(slots=True)
class Fetched:
    """The answer for one partition. `records` are whole batches, as views of the answer's buffer, which they keep
    alive."""

    at: TopicPartition
    code: Code
    records: Sequence[memoryview] = field(default_factory=list)
    high_watermark: Offset = NO_OFFSET
    log_start: Offset = NO_OFFSET
    resume: Offset = NO_OFFSET
    """Where to fetch next, if not at the end of the last batch: there is nothing to copy in between."""
    ask: NodeId = NO_NODE
    """The node to ask from now on, as it leads the partition or holds these old offsets; `NO_NODE` means no change."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """A topic's higher home, sent to a cluster that may not know it."""

    topic_id: bytes
    home: Home
    origin: str
    histories: Mapping[int, Sequence[HomeStart]]
    """By partition."""


@dataclass(frozen=True, slots=True)
class Demoted:
    """A home's answer to the demotion of one topic: the topic's new home, and where each partition ended."""

    topic_id: bytes
    code: Code
    message: str = ""
    home: Home = NO_HOME
    ends: Sequence[Offset] = ()


class Source(Protocol):
    """A cluster's stream as something to copy from. It is open from construction until `close`."""

    name: str
    """For logs and messages: the bootstrap addresses and the stream."""

    async def hello(self) -> Hello:
        """The source's identity, and whether a link can copy the stream. Raises SourceUnreachable for an answer without
        nodes, which a source gives while it starts."""
        ...

    async def topics(self, *, after: str | None, limit: int) -> TopicPage:
        """A page of the stream's topics, beginning with the first name after `after`."""
        ...

    async def topics_by_id(self, topic_ids: Sequence[bytes]) -> Sequence[SourceTopic]:
        """The topics with these ids; those that do not exist are left out."""
        ...

    async def changes(
        self, node: NodeId, since: FeedPlace | None, *, topics: bool, committed_offsets: bool, wait_ms: int, limit: int
    ) -> Changes:
        """What changed at `node`: at once if anything has, otherwise an empty answer after `wait_ms` (at most
        MAX_WAIT_MS).

        Changes of partitions may be left out of an answer about topics or committed offsets."""
        ...

    async def meet(self, node: NodeId, partitions: Sequence[TopicPartition]) -> Sequence[Meeting]:
        """The states of these partitions, which `node` leads; one answer for each, in order."""
        ...

    async def committed_offsets(self, *, after: CommittedOffsetKey | None, limit: int) -> CommittedOffsetPage:
        """A page of the stream's committed offsets, of all groups."""
        ...

    async def committed_offsets_of(self, keys: Sequence[CommittedOffsetKey]) -> Sequence[SourceCommittedOffset]:
        """The committed offsets with these keys; those that do not exist are left out."""
        ...

    async def fetch(
        self, node: NodeId, wanted: Sequence[Wanted], *, max_bytes: int, min_bytes: int = 1, wait_ms: int = 0
    ) -> Sequence[Fetched]:
        """Batches of partitions that `node` leads; one answer for each, in order."""
        ...

    async def announce(
        self, items: Sequence[Announcement], *, bootstrap: Sequence[str], cluster: str, stream: str = ""
    ) -> Sequence[tuple[Code, str]]:
        """Announce higher homes to the source; returns a code and a message for each.

        `cluster` is the announcing cluster, `bootstrap` its addresses as the source reaches them, and `stream` the
        stream's path there if it is another.
        """
        ...

    async def demote(self, topic_ids: Sequence[bytes], *, to: str) -> Sequence[Demoted]:
        """Ask the home to make the cluster `to` home, from where the partitions end; one answer for each, in order."""
        ...

    async def close(self) -> None:
        """Close all connections. Calls in progress raise `SourceUnreachable`. Closing twice is allowed."""
        ...
