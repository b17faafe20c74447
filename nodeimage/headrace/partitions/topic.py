"""A topic in memory while clients use it, and the catalog rows that it is built from."""

from typing import Any

from headrace.base.ids import Home
from headrace.catalog.reader import Reader
from headrace.catalog.rows import StreamRow, TopicRow
from headrace.metrics.traffic import Flow
from headrace.partitions.partition import Partition
from headrace.partitions.topic_configs import EffectivePolicy

EntryKey = tuple[int, str, int]
"""Key of a topic's encoded entry in Metadata answers: version, shown name, authorized operations."""


class Topic:
    """A topic in use: its catalog row, its effective policy, and those of its partitions that are in memory."""

    __slots__ = (
        "deleted",
        "encoded",
        "encoded_at",
        "home",
        "loading",
        "names",
        "partitions",
        "policy",
        "row",
        "traffic",
    )

    def __init__(self, row: TopicRow, policy: EffectivePolicy, traffic: Flow | None = None) -> None:
        self.row = row
        self.traffic = Flow() if traffic is None else traffic
        """The traffic counters of the topic."""
        self.home: Home | None = row.home
        """None for most topics: at home in this cluster ever since their creation."""
        self.policy = policy
        self.partitions: dict[int, Partition] = {}
        self.loading = 0
        """Number of partitions that are being loaded into memory."""
        self.names: list[str] = []
        """The names under which clients of any listener use the topic."""
        self.deleted = False
        self.encoded: dict[EntryKey, bytes] | None = None
        """The topic's encoded entries in Metadata answers; reset when leaders or their epochs change."""
        self.encoded_at = -1
        """The version of the cluster layout that `encoded` belongs to."""

    def take(self, row: TopicRow) -> None:
        """Replace the topic's row by a newer one from the catalog."""
        self.row = row
        self.home = row.home

    @property
    def topic_id(self) -> bytes:
        """16 bytes, stable for the topic's life."""
        return self.row.topic_id

    @property
    def full_name(self) -> str:
        """`/path/of/stream:topic`, the name by which permissions on the topic are checked."""
        return self.row.full_name

    @property
    def partition_count(self) -> int:
        """The number of partitions; their indexes begin at 0."""
        return self.row.partitions

    @property
    def stream(self) -> str:
        """The path of the topic's stream."""
        return self.row.stream

    @property
    def stream_number(self) -> int:
        """The number of the topic's stream."""
        return self.row.stream_number

    @property
    def name(self) -> str:
        """The topic's name within its stream."""
        return self.row.name

    @property
    def configs(self) -> Any:
        """The topic's own configs, which override the stream's policy."""
        return self.row.configs

    @property
    def idle(self) -> bool:
        """Whether the topic can be forgotten without losing anything."""
        return not self.loading and all(partition.idle for partition in self.partitions.values())


def rows_by_name(reader: Reader, wanted: dict[str, list[str]]) -> list[tuple[TopicRow, StreamRow]]:
    """[blocking] The rows of the existing topics, with their streams; `wanted`: topics' names by stream path."""
    found = []
    for path, names in wanted.items():
        stream = reader.streams.at(path)
        if stream is not None:
            found += [(row, stream) for row in reader.topics.named(path, names).values()]
    return found


def rows_by_id(reader: Reader, topic_ids: list[bytes]) -> list[tuple[TopicRow, StreamRow]]:
    """[blocking] The rows of the existing ones of these topics, with their streams."""
    found = []
    streams: dict[int, StreamRow | None] = {}
    for row in reader.topics.by_ids(topic_ids).values():
        if row.stream_number not in streams:
            streams[row.stream_number] = reader.streams.by_number(row.stream_number)
        stream = streams[row.stream_number]
        if stream is not None:
            found.append((row, stream))
    return found
