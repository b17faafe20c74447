"""A topic as it is in memory while clients use it, and the rows that it is made of."""

from typing import Any

from headrace.base.ids import Home
from headrace.catalog.reader import Reader
from headrace.catalog.rows import StreamRow, TopicRow
from headrace.metrics.traffic import Flow
from headrace.partitions.partition import Partition
from headrace.partitions.topic_configs import EffectivePolicy

EntryKey = tuple[int, str, int]
"""Of an entry in Metadata answers: version, shown name, authorized operations."""


class Topic:
    """A topic in use: its row, what holds for it, and the partitions that are in memory."""

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
        """What its clients write and read is added to."""
        self.home: Home | None = row.home
        """None for the most: at home here since it was made."""
        self.policy = policy
        self.partitions: dict[int, Partition] = {}
        self.loading = 0
        """Partitions that are on their way into memory."""
        self.names: list[str] = []
        """Those under which clients use it, whatever their listeners."""
        self.deleted = False
        self.encoded: dict[EntryKey, bytes] | None = None
        """Its entry in Metadata answers; emptied when leaders or their epochs change."""
        self.encoded_at = -1
        """The version of the broker's layout that the entry is of."""

    def take(self, row: TopicRow) -> None:
        """The catalog has another row of it."""
        self.row = row
        self.home = row.home

    @property
    def topic_id(self) -> bytes:
        """16 bytes, stable for the topic's life."""
        return self.row.topic_id

    @property
    def full_name(self) -> str:
        """`/path/of/stream:topic`, by which it is asked what a client may do with it."""
        return self.row.full_name

    @property
    def partition_count(self) -> int:
        """Partitions 0 to this, exclusive."""
        return self.row.partitions

    @property
    def stream(self) -> str:
        """Its stream's path."""
        return self.row.stream

    @property
    def stream_number(self) -> int:
        """Its stream's number."""
        return self.row.stream_number

    @property
    def name(self) -> str:
        """Its name within the stream."""
        return self.row.name

    @property
    def configs(self) -> Any:
        """Its own configs, over the stream's policy."""
        return self.row.configs

    @property
    def idle(self) -> bool:
        """It can be forgotten without loss."""
        return not self.loading and all(partition.idle for partition in self.partitions.values())


def rows_by_name(reader: Reader, wanted: dict[str, list[str]]) -> list[tuple[TopicRow, StreamRow]]:
    """[blocking] Those of these topics that exist, with their streams; `wanted`: names by path of the stream."""
    found = []
    for path, names in wanted.items():
        stream = reader.streams.at(path)
        if stream is not None:
            found += [(row, stream) for row in reader.topics.named(path, names).values()]
    return found


def rows_by_id(reader: Reader, topic_ids: list[bytes]) -> list[tuple[TopicRow, StreamRow]]:
    """[blocking] Those of these topics that exist, with their streams."""
    found = []
    streams: dict[int, StreamRow | None] = {}
    for row in reader.topics.by_ids(topic_ids).values():
        if row.stream_number not in streams:
            streams[row.stream_number] = reader.streams.by_number(row.stream_number)
        stream = streams[row.stream_number]
        if stream is not None:
            found.append((row, stream))
    return found
