"""The content of the cluster store: its keys, and the records under them.

    cluster                  ClusterRecord
    node/<id>                NodeRecord
    container/<id>           ContainerRecord; some time after a container's deletion only its id is left, in:
    deleted                  DeletedContainers
    removed                  RemovedNodes
    volume/<name>            VolumeRecord
    controller               LeaseRecord
    balance                  BalanceRecord
    features                 FeaturesRecord
    next/{node,container}    NextId: ids are handed out once and never again; if the store was restored to an old copy,
                             a node that has seen a higher value raises the counter again (node.registration)
    producer-ids             ProducerIdBlock

Values are JSON, so that people can read them; fields that this version does not know are ignored, not refused.
"""

import re
import uuid
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any, Final, Self, TypeVar

import msgspec

from headrace.base.errors import CorruptLog, HeadraceError
from headrace.base.ids import ContainerId, Epoch, Millis, NodeId
from headrace.base.levels import FORMAT
from headrace.store.lineage import Changes
from headrace.store.protocol import Versioned

CLUSTER_KEY = "cluster"
NODE_PREFIX = "node/"
CONTAINER_PREFIX = "container/"
VOLUME_PREFIX = "volume/"
PRODUCER_IDS_KEY = "producer-ids"
LEASE_KEY = "controller"
BALANCE_KEY = "balance"
FEATURES_KEY = "features"
DELETED_KEY = "deleted"
REMOVED_KEY = "removed"

CATALOG_ID = ContainerId(1)
"""Id reserved for the catalog's container, so that the catalog is created only once, whichever node tries."""
NOBODY = NodeId(0)
"""The holder of a lease that was given back: no node has this id."""
SECRET_BYTES = 16
"""Length of the cluster's secret, in bytes."""
MAX_REPLICAS = 9
"""The maximum number of replicas that a volume may have."""

FORMAT_VERSION = FORMAT
"""Format of a cluster's records and folders. A newer one is refused."""
PRODUCER_ID_BITS = 40
"""Low bits of a producer id: its number within the cluster. Above them are the cluster's 23 random bits and the sign.
"""

_VOLUME_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}")

R = TypeVar("R", bound=msgspec.Struct)


class Record(msgspec.Struct, frozen=True):
    """A value of the store."""


class ClusterRecord(Record, frozen=True):
    """Written once, when the store is created."""

    cluster_id: str
    """22 characters, as in Kafka."""
    random_bits: int
    """23 bits, never 0: the high bits of producer ids, so that those of linked clusters never collide."""
    format_version: int = 1
    secret: str = ""
    """32 hexadecimal characters by which the nodes recognize each other."""
    first_nodes: int = 1
    """Number of nodes that the first containers wait for, at most for a few seconds."""
    replicas: int = 0
    """Replicas of the volume `default` when it is created; 0: `default_replicas` of the first nodes."""
    min_in_sync: int = 0
    """Replicas of the volume `default` that must be in sync when it is created; 0: `default_min_in_sync` of its
    replicas."""


class SupportedLevels(Record, frozen=True):
    """The feature levels that a process incarnation of a node supports (store.features)."""

    run: uuid.UUID
    """The process incarnation that published this. If it is not the node's `run`, the value is left over from an
    earlier process and counts as None: the present one may be of an older version, which does not know this field and
    may leave or drop it."""
    oldest: int
    newest: int


class NodeRecord(Record, frozen=True):
    """A storage node. `format` was created with its folder, `run` with the current start of its process."""

    node_id: NodeId
    format: uuid.UUID
    """The incarnation of its folder; nothing to do with `format_version`."""
    run: uuid.UUID
    host: str
    port: int
    failure_host: str = ""
    """Nodes with the same value fail together; empty: the node fails alone."""
    peer_port: int = 0
    """The port at which other nodes reach it, at `peer_host`."""
    peer_host: str = ""
    """The host at which other nodes reach it; "": `host`."""
    advertised: dict[str, str] = {}
    """Other addresses, `host:port` by listener, for clients that use that listener. They are configuration and survive
    a restart. Unless the store is on Kubernetes, each start overwrites those of the listeners in the node's own
    file."""
    zone: str = ""
    labels: dict[str, str] = {}
    draining: bool = False
    """Its roles, then its replicas go to other nodes; it gets no new ones."""
    stopping: bool = False
    """This process incarnation is about to end: its roles go to other nodes at once."""
    slot: str = ""
    """The permanent place in which its process runs: of two nodes with the same one, the older has lost its disk."""
    full: bool = False
    """This process incarnation has hardly any room left: partitions and replicas go to other nodes if possible."""
    supports: SupportedLevels | None = None
    """None: only level 0."""

    @property
    def peer_address(self) -> tuple[str, int]:
        """Host and port at which other nodes reach it."""
        return self.peer_host or self.host, self.peer_port

    def address(self, listener: str) -> tuple[str, int]:
        """Return host and port at which clients that use a listener reach it."""
        host, _, port = self.advertised.get(listener, "").rpartition(":")
        return (host, int(port)) if host and port.isdecimal() else (self.host, self.port)

    @property
    def fails_with(self) -> str:
        """Nodes with the same value fail together; a node without `failure_host` fails alone."""
        return self.failure_host or f"node {self.node_id}"


class Room(IntEnum):
    """How much room for records a container's nodes have."""

    NONE = 0
    """Its leader has no room, or too few members have room to commit."""
    ENOUGH = 1
    """Enough members have room to commit, but not all."""
    ALL = 2
    """All its nodes have room."""


class ContainerRecord(Record, frozen=True, rename={"leader": "primary"}):
    """A container: its leader, epoch, in-sync set and replicas.

    (leader, epoch, in_sync) change only in this record (invariant 3); the in-sync set names (node, replica
    incarnation) (invariant 5). An incarnation is created with the replica's folder, so another replica on the same node
    does not count.
    """

    container_id: ContainerId
    kind: str
    """`catalog` or `data`."""
    leader: NodeId
    epoch: Epoch
    in_sync: tuple[tuple[NodeId, uuid.UUID], ...]
    replicas: tuple[NodeId, ...]
    """The nodes with replicas, including the leader."""
    state: str = "open"
    """`open`, `closed` or `deleted`."""
    volume: str = "default"
    min_in_sync: int = 1
    wanted: int = 1
    """Number of replicas that it should have, as its volume says."""
    recovered: int = 0
    """How often an operator chose a leader from outside the in-sync set (invariant 15)."""
    recovered_epoch: Epoch = Epoch(0)
    """The epoch in which that last happened: the end of what was written in earlier epochs may be gone."""
    changes: Changes = ()
    """The ids of its latest changes (store.lineage)."""

    def room(self, full: Collection[NodeId], *, leader: NodeId | None = None) -> Room:
        """Return how much room its nodes have if the disks of `full` have none; with `leader`, as if that node led."""
        without = sum(node in full for node in self.replicas)
        if not without:
            return Room.ALL
        # If there are more replicas than wanted, some are still being copied: these do not help to commit.
        able = self.replicas if len(self.replicas) <= self.wanted else [node for node, _ in self.in_sync]
        if (leader or self.leader) in full or sum(node not in full for node in able) < self.min_in_sync:
            return Room.NONE
        return Room.ENOUGH


class VolumeRecord(Record, frozen=True):
    """A placement policy."""

    name: str
    replicas: int = 1
    min_in_sync: int = 1
    spread: str = "preferred"
    """Whether no two replicas lie on nodes that fail together: `preferred`, or `required` (then there may be fewer
    replicas)."""
    zones: tuple[str, ...] = ()
    """Only nodes in these zones; (): any zone."""
    labels: dict[str, str] = {}
    """Only nodes that have all of these labels."""
    size_limit: int = 0
    """Bytes; 0: none."""
    durability: str = "fsync"
    """`fsync`, or `memory`: records are acknowledged from the page caches of the in-sync set."""

    def admits(self, node: NodeRecord) -> bool:
        """Return whether zone and labels allow a replica on a node."""
        return (not self.zones or node.zone in self.zones) and self.labels.items() <= node.labels.items()


class LeaseRecord(Record, frozen=True):
    """Which node is the controller. Observers judge it by whether `renewal` changes, never by another node's clock."""

    node: NodeId
    run: uuid.UUID
    term: int
    """Increases whenever a node takes the lease."""
    renewal: int = 0


class Gone(Record, frozen=True):
    """Ids that are permanently gone, as ranges (first, last), ascending and not adjacent. No id is ever removed."""

    ranges: tuple[tuple[int, int], ...] = ()

    def __contains__(self, id: int) -> bool:
        at = bisect_right(self.ranges, id, key=lambda each: each[0]) - 1
        return at >= 0 and id <= self.ranges[at][1]

    def and_these(self, ids: Iterable[int]) -> Self:
        """Return a record with these ids added."""
        ranges: list[tuple[int, int]] = []
        for first, last in sorted((*self.ranges, *((each, each) for each in ids))):
            if ranges and first <= ranges[-1][1] + 1:
                ranges[-1] = (ranges[-1][0], max(ranges[-1][1], last))
            else:
                ranges.append((first, last))
        return type(self)(tuple(ranges))


class RemovedNodes(Gone, frozen=True):
    """The ids of nodes that an operator removed.

    A node whose record is missing but that is not among them has lost it because the store was restored to an old copy;
    versions before feature level 1 do not write this record.
    """


class DeletedContainers(Gone, frozen=True):
    """The ids of deleted containers that no longer have a record.

    Ids increase and the oldest go first, so there are never more ranges than containers. Ids are kept forever, because
    a node may have been away since before a deletion and still have a replica, and a roll may still name a deleted
    container.
    """

    def beyond(self, other: "DeletedContainers") -> Iterator[ContainerId]:
        """Yield the ids that `other` does not have; ids that both have cost nothing, however many there are."""
        for first, last in self.ranges:
            at = first
            for theirs, end in other.ranges[max(0, bisect_right(other.ranges, first, key=lambda each: each[0]) - 1) :]:
                if theirs > last:
                    break
                yield from map(ContainerId, range(at, theirs))
                at = max(at, end + 1)
            yield from map(ContainerId, range(at, last + 1))


class BalanceRecord(Record, frozen=True):
    """Whether the controller may move load, and above which load (control.balance)."""

    paused: bool = False
    over_mean: float = 1.25
    """A node is hot if it carries more than this multiple of the mean, and more than the floor of the same measure."""
    traffic_floor: int = 8 * 2**20
    """Bytes per second below which traffic does not make a node hot."""
    requests_floor: int = 2_000
    """Requests per second below which requests do not make a node hot."""
    disk_floor: int = 8 * 2**30
    """Bytes below which disk use does not make a node hot."""
    moves_per_minute: int = 6
    """The maximum number of moves per minute from one node to another; also, counted separately, how often per minute a
    cold node is filled from all nodes above the mean."""


class FeaturesRecord(Record, frozen=True):
    """Which feature level the cluster is at (store.features)."""

    level: int = 0
    """The level whose data may be written. It never decreases."""
    raising: int = 0
    """If higher than `level`, the level that is about to be reached: versions that do not support it are already
    refused."""
    wanted: int = 0
    """The level that was requested: it is raised without waiting."""
    most: int | None = None
    """The level at which the cluster is held: it is not raised any higher, neither automatically nor on request."""
    wait_s: float = 86_400.0
    """Seconds for which all nodes must support the next level, and be well, before it is raised automatically."""
    able_since: Millis = Millis(0)
    """Since when all nodes support the next level and are well, by the cluster's time; 0: they do not, or are not."""
    epoch: int = 0
    """Increases with each relevant change: Kafka's epoch of the finalized features."""

    @property
    def required(self) -> int:
        """The level that a running node must support: others are refused."""
        return max(self.level, self.raising)


class ProducerIdBlock(Record, frozen=True):
    """`next`: the first number, without the cluster's bits, that was not handed out."""

    next: int = 0


class NextId(Record, frozen=True):
    """`next`: the first id that was not handed out."""

    next: int = 1


_DECODERS: Final[Mapping[type[msgspec.Struct], msgspec.json.Decoder[Any]]] = {
    type_: msgspec.json.Decoder(type_)
    for type_ in (
        ClusterRecord,
        NodeRecord,
        ContainerRecord,
        DeletedContainers,
        RemovedNodes,
        VolumeRecord,
        LeaseRecord,
        BalanceRecord,
        FeaturesRecord,
        ProducerIdBlock,
        NextId,
    )
}
"""Created once, at import: msgspec inspects a class at its first use, and crashes if two threads do so at the same
time."""


def default_replicas(nodes: int) -> int:
    """Return the number of replicas of the volume `default` in a cluster of `nodes` nodes, if not specified."""
    return min(3, nodes)


def default_min_in_sync(replicas: int) -> int:
    """Return how many replicas of a volume must have a record, if not specified: half of them, rounded up.

    That is two of three, and one of two, so that either of the two may stop.
    """
    return (replicas + 1) // 2


def check_volume(volume: VolumeRecord) -> None:
    """Raise HeadraceError, with a one-line reason, for a volume with invalid settings."""
    wrong = ""
    if not _VOLUME_NAME.fullmatch(volume.name):
        wrong = "a name has 1 to 63 letters, digits, '-' and '_'"
    elif not 1 <= volume.replicas <= MAX_REPLICAS:
        wrong = f"replicas is {volume.replicas}; it may be 1 to {MAX_REPLICAS}"
    elif not 1 <= volume.min_in_sync <= volume.replicas:
        wrong = f"min_in_sync is {volume.min_in_sync}; it may be 1 to {volume.replicas}, the number of replicas"
    elif volume.spread not in ("preferred", "required"):
        wrong = f"spread is {volume.spread!r}; it may be 'preferred' or 'required'"
    elif volume.durability not in ("fsync", "memory"):
        wrong = f"durability is {volume.durability!r}; it may be 'fsync' or 'memory'"
    elif volume.size_limit < 0:
        wrong = f"size_limit is {volume.size_limit}; it may be 0 (none) or more bytes"
    elif not all(volume.zones):
        wrong = "a zone has no name"
    if wrong:
        raise HeadraceError(f"volume {volume.name!r}: {wrong}")


def decode_container(found: Versioned) -> ContainerRecord:
    """Return a container's record from the result of the store's `get` or `list`. Raises CorruptLog."""
    return decode(found.value, ContainerRecord, found.key)


def decode(value: bytes, type_: type[R], key: str) -> R:
    """Return the record stored under `key`. Raises CorruptLog if it cannot be read.

    `type_`: one of the records above.
    """
    decoder: msgspec.json.Decoder[R] = _DECODERS[type_]
    try:
        return decoder.decode(value)
    except msgspec.DecodeError as error:
        raise CorruptLog(f"the cluster store's record {key} cannot be read: {error}") from error
