"""The rows of the catalog, as plain tuples. Knows nothing of SQLite.

Rows are named tuples because one listing may create a hundred thousand of them.
"""

from collections.abc import Mapping
from typing import NamedTuple

from headrace.base.ids import (
    ContainerId,
    Epoch,
    Home,
    LeaderEpoch,
    Millis,
    Offset,
    PartitionletId,
    Position,
    StreamNumber,
)
from headrace.catalog.link_config import LinkConfig
from headrace.catalog.policy import StreamPolicy

INTENDED, OPEN, SEALED = 0, 1, 2
"""States of a partitionlet. A chain consists of sealed partitionlets, one open, and at most one intended."""


class StreamRow(NamedTuple):
    """A stream, with the numbers of its topics and partitions."""

    number: StreamNumber
    path: str
    policy: StreamPolicy
    created: Millis
    topics: int
    partitions: int


class TopicRow(NamedTuple):
    """A topic. `configs` are its own configs, which override the stream's policy; do not modify them.

    `home`: None if it has been this cluster ever since the topic's creation. `origin`: the cluster of the home with
    counter 0; empty for this cluster.
    """

    number: int
    topic_id: bytes
    stream_number: StreamNumber
    stream: str
    name: str
    partitions: int
    configs: Mapping[str, str]
    created: Millis
    home: Home | None = None
    origin: str = ""

    @property
    def full_name(self) -> str:
        """`/path/of/stream:topic`."""
        return f"{self.stream}:{self.name}"


class PartitionletRow(NamedTuple):
    """A partitionlet of a partition's chain.

    `first` is -1 while the partitionlet is intended; `end` (exclusive) is -1 until it is sealed. `leader_epoch` and
    `container_epoch` are those at its opening; `epochs` is the (leader epoch, first offset) history in its seal.
    """

    id: PartitionletId
    topic: int
    partition: int
    container: ContainerId
    first: Offset
    end: Offset
    leader_epoch: LeaderEpoch
    container_epoch: Epoch
    state: int
    epochs: tuple[tuple[LeaderEpoch, Offset], ...]
    cut: bool = False
    """Whether the partitionlet was cut by an edit of the chain: there may be a gap before `end`."""

    @property
    def sealed_epoch(self) -> Epoch:
        """The container's epoch in which the partitionlet was sealed."""
        last = self.epochs[-1][0] if self.epochs else self.leader_epoch
        return Epoch(self.container_epoch + last - self.leader_epoch)

    def current_leader_epoch(self, container_epoch: Epoch) -> LeaderEpoch:
        """The partition's leader epoch while this partitionlet is open, given its container's present epoch (invariant
        10)."""
        return LeaderEpoch(self.leader_epoch + container_epoch - self.container_epoch)


class Owner(NamedTuple):
    """The partition that a live partitionlet belongs to. `end` is -1 until sealed, `first` -1 while intended."""

    topic: int
    topic_id: bytes
    partition: int
    first: Offset
    end: Offset
    log_start: Offset


class HomeStart(NamedTuple):
    """The offset from which on a partition's records are those of a home, for homes with a counter above 0."""

    counter: int
    cluster: str
    offset: Offset


RUNNING, PAUSED = "Running", "Paused"
"""The states of a link, as set by users."""


class LinkRow(NamedTuple):
    """A link, which pulls into `stream`. `id` is never assigned again."""

    id: int
    name: str
    stream: str
    config: LinkConfig
    state: str
    created: Millis


class CommittedOffsetRow(NamedTuple):
    """A group's committed offset."""

    topic_id: bytes
    stream: str
    name: str
    partition: int
    offset: Offset
    leader_epoch: LeaderEpoch
    metadata: str
    committed_at: Millis


class GroupRow(NamedTuple):
    """A consumer group as stored by its coordinator; `members` are bytes of the coordinator, opaque to the catalog."""

    group: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    member_ids: tuple[str, ...]
    members: bytes
    state: str
    changed: Millis


class UserRow(NamedTuple):
    """A user. `groups` are sorted."""

    name: str
    groups: tuple[str, ...]
    created: Millis


class CredentialRow(NamedTuple):
    """A user's SCRAM credential for one mechanism: salted keys (catalog.users)."""

    user: str
    mechanism: str
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"CredentialRow({self.user!r}, {self.mechanism!r})"


class AccessRow(NamedTuple):
    """An access expression. `object` is a stream's path, a topic's full name, a prefix, or empty (catalog.access)."""

    kind: str
    object: str
    permission: str
    expression: str
    topic_id: bytes = b""


class QuotaRow(NamedTuple):
    """A quota (catalog.quotas)."""

    entity: str
    key: str
    value: float


class Retention(NamedTuple):
    """Retention by time (`ttl_ms` in milliseconds, 0 = for ever) and size (`bytes` per partition, -1 = no limit)."""

    ttl_ms: int
    bytes: int


class StreamRetention(NamedTuple):
    """The retention of a stream, and by topic number the retention of each topic that overrides it."""

    rule: Retention
    overrides: Mapping[int, Retention]


class Replaced(NamedTuple):
    """Passed to listeners instead of commands: all rows were replaced by another replica's, applied up to `position`.

    Listeners must drop everything that they have read before, or are reading at that time, since it may be out of date.
    """

    position: Position
