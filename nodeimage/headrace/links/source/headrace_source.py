"""Another Headrace cluster as a source: the calls `link.*` and `home.cede` of its admin API, and Fetch by topic id.

The calls use the highest version that both sides understand, which `link.hello` reports; the first call sends
`link.hello` if nobody has yet. Unknown fields of a newer source are ignored; a required field that is missing makes the
answer unreadable (`SourceUnreachable`).
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec

from headrace.base.errors import Code, KafkaError, code_of
from headrace.base.ids import HOMES, Home, LeaderEpoch, Millis, NodeId, Offset
from headrace.kafka_client.client import ANY, Client, Lane
from headrace.kafka_client.errors import SourceUnreachable
from headrace.links.source.fetch_answers import fetch_request, fetched
from headrace.links.source.source import (
    MAX_WAIT_MS,
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

VERSIONS: Final = (1, 1)
"""Lowest and highest version of the link calls that this node speaks."""
MAX_ITEMS: Final = 10_000
MAX_PARTITIONS: Final = 1_000_000
"""Limit on the partitions of one topic in an answer."""
LAST_OFFSET: Final = 1 << 62
MAX_ROWS: Final = 2_000
"""Rows of committed offsets that one call may ask for; sources refuse more (links/serving/params.py)."""

T = TypeVar("T")


class HeadraceSource:
    """The stream `stream` of the cluster that `client` calls. `close` closes the client too."""

    def __init__(self, client: Client, stream: str) -> None:
        self.name = f"{client.name}{stream}"
        self._client = client
        self._stream = stream
        self._version: int | None = None
        self._teller = ANY
        """The node whose feed reports topics and committed offsets. They are read from this node only: the others may
        not have applied yet what its feed reported."""

    async def hello(self) -> Hello:
        """As `Source` says."""
        said = await self._client.admin(ANY, "link.hello", {"version": VERSIONS[1], "stream": self._stream}, _hello)
        lowest, highest = said.versions
        version = min(highest, VERSIONS[1])
        problem = said.problem
        if version < max(lowest, VERSIONS[0]):
            problem = (
                f"{self._client.name} speaks the versions {lowest} to {highest} of links, this cluster "
                f"{VERSIONS[0]} to {VERSIONS[1]}: upgrade the older one"
            )
        else:
            self._version = version
        nodes = [SourceNode(NodeId(node), host, port) for node, host, port in said.nodes]
        if not nodes and not problem:
            raise SourceUnreachable(f"{self._client.name} names no nodes yet")
        return Hello(said.cluster_id, nodes, said.policy, problem)

    async def topics(self, *, after: str | None, limit: int) -> TopicPage:
        """As `Source` says."""
        said = await self._ask(self._teller, "link.topics", {"after": after, "limit": min(limit, MAX_ITEMS)}, _topics)
        return TopicPage([_topic(row) for row in said.topics], said.after)

    async def topics_by_id(self, topic_ids: Sequence[bytes]) -> Sequence[SourceTopic]:
        """As `Source` says."""
        params = {"limit": max(1, len(topic_ids)), "ids": list(topic_ids)}
        said = await self._ask(self._teller, "link.topics", params, _topics)
        return [_topic(row) for row in said.topics]

    async def changes(
        self, node: NodeId, since: FeedPlace | None, *, topics: bool, committed_offsets: bool, wait_ms: int, limit: int
    ) -> Changes:
        """As `Source` says."""
        wait_ms = min(wait_ms, MAX_WAIT_MS)
        params = {
            "since": since,
            "topics": topics,
            "cursors": committed_offsets,
            "wait_ms": wait_ms,
            "limit": min(limit, MAX_ITEMS),
        }
        if topics or committed_offsets:
            self._teller = node
        try:
            said = await self._ask(node, "link.changes", params, _changes, lane=Lane.POLLS, wait_ms=wait_ms)
        except BaseException:
            self._teller = ANY
            raise
        return Changes(
            FeedPlace(said.run, said.serial),
            said.reset,
            [(TopicPartition(topic_id, index), Offset(end)) for topic_id, index, end in said.partitions],
            said.topics,
            [CommittedOffsetKey(*key) for key in said.committed_offsets],
        )

    async def meet(self, node: NodeId, partitions: Sequence[TopicPartition]) -> Sequence[Meeting]:
        """As `Source` says."""
        params = {"partitions": [list(each) for each in partitions]}
        said = await self._ask(node, "link.meet", params, _meetings, stream=False)
        self._check_count("link.meet", len(said.partitions), len(partitions))
        return [_meeting(at, row) for at, row in zip(partitions, said.partitions, strict=True)]

    async def committed_offsets(self, *, after: CommittedOffsetKey | None, limit: int) -> CommittedOffsetPage:
        """As `Source` says."""
        said = await self._ask(
            self._teller, "link.cursors", {"after": after, "limit": min(limit, MAX_ROWS)}, _committed_offsets
        )
        return CommittedOffsetPage(
            [_committed_offset(row) for row in said.committed_offsets],
            CommittedOffsetKey(*said.after) if said.after is not None else None,
        )

    async def committed_offsets_of(self, keys: Sequence[CommittedOffsetKey]) -> Sequence[SourceCommittedOffset]:
        """As `Source` says. A key without a topic, `(group, b"", -1)`, which a feed may return, means all committed
        offsets of the group."""
        said = await self._ask(self._teller, "link.cursors", {"keys": [list(key) for key in keys]}, _committed_offsets)
        return [_committed_offset(row) for row in said.committed_offsets]

    async def fetch(
        self, node: NodeId, wanted: Sequence[Wanted], *, max_bytes: int, min_bytes: int = 1, wait_ms: int = 0
    ) -> Sequence[Fetched]:
        """As `Source` says. A batch that begins below the wanted offset is trimmed (batch_trim.py)."""
        request = fetch_request(wanted, max_bytes=max_bytes, min_bytes=min_bytes, wait_ms=wait_ms, isolation=0)
        response = await self._client.fetch(node, request)
        if response.error:
            raise KafkaError(code_of(response.error), f"{self._client.name} refuses the whole fetch")
        results = {
            TopicPartition(topic.topic_id or b"", result.partition): result
            for topic in response.topics
            for result in topic.partitions
        }
        return [await fetched(each, results.get(each.at)) for each in wanted]

    async def announce(
        self, items: Sequence[Announcement], *, bootstrap: Sequence[str], cluster: str, stream: str = ""
    ) -> Sequence[tuple[Code, str]]:
        """As `Source` says."""
        params = {
            "items": [[each.topic_id, each.home, each.origin, _lists(each.histories)] for each in items],
            "bootstrap": list(bootstrap),
            "cluster": cluster,
            "source_stream": stream,
        }
        said = await self._ask(ANY, "link.announce", params, _outcomes)
        self._check_count("link.announce", len(said.items), len(items))
        return [(code_of(each.error), each.message or "") for each in said.items]

    async def demote(self, topic_ids: Sequence[bytes], *, to: str) -> Sequence[Demoted]:
        """As `Source` says."""
        said = await self._ask(ANY, "home.cede", {"topic_ids": list(topic_ids), "to": to}, _demoted, stream=False)
        self._check_count("home.cede", len(said.topics), len(topic_ids))
        return [
            Demoted(topic_id, code_of(row.error), row.message or "", Home(*row.home), [Offset(end) for end in row.ends])
            for topic_id, row in zip(topic_ids, said.topics, strict=True)
        ]

    async def close(self) -> None:
        """As `Source` says."""
        await self._client.close()

    async def _ask(
        self,
        node: NodeId,
        method: str,
        params: Mapping[str, Any],
        result: msgspec.msgpack.Decoder[T],
        *,
        lane: Lane = Lane.CALLS,
        wait_ms: int = 0,
        stream: bool = True,
    ) -> T:
        if self._version is None and (problem := (await self.hello()).problem):
            raise KafkaError(Code.UNSUPPORTED_VERSION, problem)
        head: dict[str, Any] = {"version": self._version}
        if stream:
            head["stream"] = self._stream
        try:
            return await self._client.admin(node, method, head | dict(params), result, lane=lane, wait_ms=wait_ms)
        except KafkaError as error:
            if error.code is Code.UNSUPPORTED_VERSION:  # the source has changed its version
                self._version = None
            raise

    def _check_count(self, method: str, found: int, wanted: int) -> None:
        if found != wanted:
            raise SourceUnreachable(f"{self._client.name} answered {method} of {wanted} with {found}")


def _lists(histories: Mapping[int, Sequence[HomeStart]]) -> dict[int, list[list[object]]]:
    return {partition: [list(start) for start in starts] for partition, starts in histories.items()}


# --- answers, as received. A source is not trusted: numbers that no sound source has, and that our tables or our memory
# could not hold, make an answer unreadable.

_Id = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
_Index = Annotated[int, msgspec.Meta(ge=0, lt=MAX_PARTITIONS)]
_At = Annotated[int, msgspec.Meta(ge=0, le=LAST_OFFSET)]
_Known = Annotated[int, msgspec.Meta(ge=-1, le=LAST_OFFSET)]
_Int32 = Annotated[int, msgspec.Meta(ge=-1, lt=1 << 31)]
_Int64 = Annotated[int, msgspec.Meta(ge=-1, le=(1 << 63) - 1)]
_Counter = Annotated[int, msgspec.Meta(ge=0, lt=HOMES)]
_Cluster = Annotated[str, msgspec.Meta(max_length=64)]
_Start = tuple[_Counter, _Cluster, _At]


class _Hello(msgspec.Struct, frozen=True):
    versions: tuple[int, int]
    cluster_id: _Cluster
    nodes: list[tuple[int, str, int]]
    policy: dict[str, Any]
    problem: str | None = None


class _Topic(msgspec.Struct, frozen=True):
    name: str
    topic_id: _Id
    partitions: Annotated[int, msgspec.Meta(ge=1, le=MAX_PARTITIONS)]
    configs: dict[str, str]
    home: tuple[_Counter, _Cluster]
    origin: _Cluster
    leaders: Annotated[list[_Int32], msgspec.Meta(max_length=MAX_PARTITIONS)]


class _Topics(msgspec.Struct, frozen=True):
    topics: list[_Topic]
    after: str | None = None


class _Changes(msgspec.Struct, frozen=True):
    run: str
    serial: int
    reset: bool
    partitions: list[tuple[_Id, _Index, _At]]
    topics: list[_Id]
    committed_offsets: list[tuple[str, bytes, int]] = msgspec.field(name="cursors")


class _Meeting(msgspec.Struct, frozen=True):
    error: int = 0
    message: str | None = None
    leader_epoch: _Int32 = -1
    home: tuple[_Counter, _Cluster] = (0, "")
    origin: _Cluster = ""
    history: list[_Start] = []
    log_start: _Known = -1
    high_watermark: _Known = -1
    empty_from: _Known = -1


class _Meetings(msgspec.Struct, frozen=True):
    partitions: list[_Meeting]


class _CommittedOffsets(msgspec.Struct, frozen=True):
    committed_offsets: list[tuple[str, _Id, _Index, _Int64, str, _Int64]] = msgspec.field(name="cursors")
    after: tuple[str, bytes, int] | None = None


class _Outcome(msgspec.Struct, frozen=True):
    error: int = 0
    message: str | None = None


class _Outcomes(msgspec.Struct, frozen=True):
    items: list[_Outcome]


class _DemotedTopic(msgspec.Struct, frozen=True):
    error: int = 0
    message: str | None = None
    home: tuple[_Counter, _Cluster] = (0, "")
    ends: list[_At] = []


class _Demoted(msgspec.Struct, frozen=True):
    topics: list[_DemotedTopic]


_hello = msgspec.msgpack.Decoder(_Hello)
_topics = msgspec.msgpack.Decoder(_Topics)
_changes = msgspec.msgpack.Decoder(_Changes)
_meetings = msgspec.msgpack.Decoder(_Meetings)
_committed_offsets = msgspec.msgpack.Decoder(_CommittedOffsets)
_outcomes = msgspec.msgpack.Decoder(_Outcomes)
_demoted = msgspec.msgpack.Decoder(_Demoted)


def _topic(row: _Topic) -> SourceTopic:
    if len(row.leaders) != row.partitions:  # so that a topic cannot take more memory here than its answer had bytes
        raise SourceUnreachable(
            f"topic {row.name[:100]!r} has {row.partitions} partitions and {len(row.leaders)} leaders"
        )
    leaders = [NodeId(node) for node in row.leaders]
    return SourceTopic(row.name, row.topic_id, row.partitions, row.configs, Home(*row.home), row.origin, leaders)


def _meeting(at: TopicPartition, row: _Meeting) -> Meeting:
    return Meeting(
        at,
        code_of(row.error),
        row.message or "",
        LeaderEpoch(row.leader_epoch),
        Home(*row.home),
        row.origin,
        [HomeStart(counter, cluster, Offset(offset)) for counter, cluster, offset in row.history],
        Offset(row.log_start),
        Offset(row.high_watermark),
        Offset(row.empty_from),
    )


def _committed_offset(row: tuple[str, bytes, int, int, str, int]) -> SourceCommittedOffset:
    group, topic_id, partition, offset, metadata, committed_ms = row
    return SourceCommittedOffset(
        CommittedOffsetKey(group, topic_id, partition), Offset(offset), metadata, Millis(committed_ms)
    )
