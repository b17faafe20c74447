"""What the catalog holds and answers, as plain rows. Knows nothing of SQLite.

Rows are named tuples: a listing makes a hundred thousand of them.
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
"""States of a partitionlet. A chain is sealed ones, one open, and at most one intended."""


class StreamRow(NamedTuple):
    """A stream, with the numbers of its topics and partitions."""

    number: StreamNumber
    path: str
    policy: StreamPolicy
    created: Millis
    topics: int
    partitions: int


class TopicRow(NamedTuple):
    """A topic. `configs` are its own, over the stream's policy; read it only.

    `home` None: this cluster since it was made. `origin` is the cluster that counter 0 of its homes stands for; empty
    for this one.
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

    `first` is -1 while intended; `end` (exclusive) is -1 until sealed. `leader_epoch` and `container_epoch` are those
    at its opening; `epochs` the (leader epoch, first offset) history that its seal carried.
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
    """It ended later once, and was cut by an edit of the chain: a gap may lie before `end`."""

    @property
    def sealed_epoch(self) -> Epoch:
        """The container's epoch in which it was sealed."""
        last = self.epochs[-1][0] if self.epochs else self.leader_epoch
        return Epoch(self.container_epoch + last - self.leader_epoch)

    def current_leader_epoch(self, container_epoch: Epoch) -> LeaderEpoch:
        """The partition's leader epoch while this is open, given its container's epoch now (invariant 10)."""
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
    """From which offset on a partition's records are those of a home, for homes with a counter above 0."""

    counter: int
    cluster: str
    offset: Offset


RUNNING, PAUSED = "Running", "Paused"
"""What a link is told to do."""


class LinkRow(NamedTuple):
    """A link, which pulls into `stream`. `id` is never given again."""

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
    """A consumer group as its coordinator stored it; `members` is the coordinator's own bytes."""

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
    """A user. `groups` are in order."""

    name: str
    groups: tuple[str, ...]
    created: Millis


class CredentialRow(NamedTuple):
    """What proves a user by a mechanism of SCRAM: salted keys (catalog.users)."""

    user: str
    mechanism: str
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"CredentialRow({self.user!r}, {self.mechanism!r})"


class AccessRow(NamedTuple):
    """An expression. `object` is a stream's path, a topic's full name, a prefix, or empty (catalog.access)."""

    kind: str
    object: str
    permission: str
    expression: str
    topic_id: bytes = b""


class QuotaRow(NamedTuple):
    """A limit (catalog.quotas)."""

    entity: str
    key: str
    value: float


class Retention(NamedTuple):
    """How long and how much: `ttl_ms` 0 = for ever, `bytes` per partition, -1 = no limit."""

    ttl_ms: int
    bytes: int


class StreamRetention(NamedTuple):
    """What retention needs of a stream: its own rule, and the rule of each topic number that has another."""

    rule: Retention
    overrides: Mapping[int, Retention]


class Replaced(NamedTuple):
    """Told to listeners instead of commands: all rows are another replica's now, as applied up to `position`.

    Whatever was read before, or is being read while this comes, may be old: drop it.
    """

    position: Position
