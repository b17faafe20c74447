"""What stands in the cluster store: its keys, and the records under them.

    cluster                  ClusterRecord
    node/<id>                NodeRecord
    container/<id>           ContainerRecord; of one that has been deleted for a while its id alone is left:
    deleted                  DeletedContainers
    removed                  RemovedNodes
    volume/<name>            VolumeRecord
    controller               LeaseRecord
    balance                  BalanceRecord
    features                 FeaturesRecord
    next/{node,container}    NextId: ids are handed out once and never again; whoever has seen a higher one than a store
                             that was set back has, raises it again (node.registration)
    producer-ids             ProducerIdBlock

Values are JSON, to be read by people too; fields that this version does not know are kept out of its way, not refused.
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
"""The catalog's container has this id, and no other has: so it is made once, whoever tries."""
NOBODY = NodeId(0)
"""In a lease that was given back: no node has this id."""
SECRET_BYTES = 16
MOST_REPLICAS = 9

FORMAT_VERSION = FORMAT
"""Of a cluster's records and folders. A newer one is refused."""
PRODUCER_ID_BITS = 40
"""Of a producer id: the number within the cluster. Above it stand the cluster's 23 random bits, below the sign."""

_VOLUME_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}")

R = TypeVar("R", bound=msgspec.Struct)


class Record(msgspec.Struct, frozen=True):
    """A value of the store."""


class ClusterRecord(Record, frozen=True):
    """Made once, with the store."""

    cluster_id: str
    """22 characters, as Kafka's."""
    random_bits: int
    """23 bits, never 0, in the high bits of producer ids: those of linked clusters never meet."""
    format_version: int = 1
    secret: str = ""
    """32 hexadecimal characters that the nodes know each other by."""
    first_nodes: int = 1
    """So many nodes the first containers wait for, a few seconds at most."""
    replicas: int = 0
    """Of the volume `default`, as it is made; 0: `default_replicas` of the first nodes."""
    min_in_sync: int = 0
    """Likewise; 0: `default_min_in_sync` of its replicas."""


class SupportedLevels(Record, frozen=True):
    """The feature levels that a run of a node supports (store.features)."""

    run: uuid.UUID
    """Of another run it says nothing: that may be of an older version, which leaves it as it stands."""
    oldest: int
    newest: int


class NodeRecord(Record, frozen=True):
    """A storage node. `format` was made with its folder, `run` with this start of its process."""

    node_id: NodeId
    format: uuid.UUID
    run: uuid.UUID
    host: str
    port: int
    failure_host: str = ""
    """What fails together with it."""
    peer_port: int = 0
    """Where other nodes reach it, at `peer_host`."""
    peer_host: str = ""
    """"": as `host`."""
    advertised: dict[str, str] = {}
    """Other addresses, `host:port` by listener, for clients that came through that one. Of intent, not of this run,
    but for the listeners of the node's own file, where the store is not Kubernetes'."""
    zone: str = ""
    labels: dict[str, str] = {}
    draining: bool = False
    """Its roles go to others, then its replicas; it gets none."""
    stopping: bool = False
    """This run is about to end: its roles go to others at once."""
    slot: str = ""
    """Where its process runs, for ever: of two nodes with the same one, the older has lost its disk."""
    full: bool = False
    """This run has hardly any room left: partitions go on elsewhere, replicas are made elsewhere, where that can be."""
    supports: SupportedLevels | None = None
    """None: level 0 alone."""

    @property
    def peer_address(self) -> tuple[str, int]:
        """Where other nodes reach it."""
        return self.peer_host or self.host, self.peer_port

    def address(self, listener: str) -> tuple[str, int]:
        """Where clients reach it that came through a listener."""
        host, _, port = self.advertised.get(listener, "").rpartition(":")
        return (host, int(port)) if host and port.isdecimal() else (self.host, self.port)

    @property
    def fails_with(self) -> str:
        """Nodes of which this is the same fail together; one that does not say fails alone."""
        return self.failure_host or f"node {self.node_id}"


class Room(IntEnum):
    """Which of a container's nodes have room for more."""

    NONE = 0
    """Not its leader, or too few to commit."""
    ENOUGH = 1
    ALL = 2


class ContainerRecord(Record, frozen=True, rename={"leader": "primary"}):
    """(leader, epoch, in_sync) change only here (invariant 3); the in-sync set names (node, format) (invariant 5).

    `format` was made with the replica's folder, so another one on the same node does not count.
    """

    container_id: ContainerId
    kind: str
    """`catalog` or `data`."""
    leader: NodeId
    epoch: Epoch
    in_sync: tuple[tuple[NodeId, uuid.UUID], ...]
    replicas: tuple[NodeId, ...]
    """The leader is among them."""
    state: str = "open"
    """`open`, `closed` or `deleted`."""
    volume: str = "default"
    min_in_sync: int = 1
    wanted: int = 1
    """Replicas that it should have, as its volume says."""
    recovered: int = 0
    """Times that an operator chose a leader from outside the in-sync set (invariant 15)."""
    recovered_epoch: Epoch = Epoch(0)
    """The epoch in which that happened last: of what was written in those before, the end may be gone."""
    changes: Changes = ()
    """The ids of its last changes (store.lineage)."""

    def room(self, full: Collection[NodeId], *, leader: NodeId | None = None) -> Room:
        """Which of its nodes have room, where the disks of `full` have none; with `leader`: if that one led."""
        without = sum(node in full for node in self.replicas)
        if not without:
            return Room.ALL
        # Of more than are wanted some are still being copied: these help nobody to commit.
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
    """Over what fails together: `preferred`, or `required`, which rather has fewer replicas."""
    zones: tuple[str, ...] = ()
    """Nodes of these zones only; (): of any."""
    labels: dict[str, str] = {}
    """Nodes that have all of these only."""
    size_limit: int = 0
    """Bytes; 0: none."""
    durability: str = "fsync"
    """`fsync`, or `memory`: acknowledged from the page caches of the in-sync set."""

    def admits(self, node: NodeRecord) -> bool:
        """Whether its replicas may lie on a node: zone and labels say so."""
        return (not self.zones or node.zone in self.zones) and self.labels.items() <= node.labels.items()


class LeaseRecord(Record, frozen=True):
    """Who is the controller. Judged by whether `renewal` moves while one looks on, never by clocks of others."""

    node: NodeId
    run: uuid.UUID
    term: int
    """Rises whenever the role is taken."""
    renewal: int = 0


class Gone(Record, frozen=True):
    """Ids of what is gone for good, as ranges (first, last), ascending and apart. No id ever leaves it."""

    ranges: tuple[tuple[int, int], ...] = ()

    def __contains__(self, id: int) -> bool:
        at = bisect_right(self.ranges, id, key=lambda each: each[0]) - 1
        return at >= 0 and id <= self.ranges[at][1]

    def and_these(self, ids: Iterable[int]) -> Self:
        """With more ids."""
        ranges: list[tuple[int, int]] = []
        for first, last in sorted((*self.ranges, *((each, each) for each in ids))):
            if ranges and first <= ranges[-1][1] + 1:
                ranges[-1] = (ranges[-1][0], max(ranges[-1][1], last))
            else:
                ranges.append((first, last))
        return type(self)(tuple(ranges))


class RemovedNodes(Gone, frozen=True):
    """The ids of nodes that somebody removed. A node whose record is missing, and that is not among them, has lost it
    with a cluster store that was set back; versions before feature level 1 do not write it.
    """


class DeletedContainers(Gone, frozen=True):
    """The ids of deleted containers that have no record any more.

    Ids rise and the old go first, so there are never more ranges than containers. No id leaves it: a node may have been
    away since before, with a replica, and a roll may be meant for one that is gone.
    """

    def beyond(self, other: "DeletedContainers") -> Iterator[ContainerId]:
        """The ids that the other one has not; those of both cost nothing, however many there are."""
        for first, last in self.ranges:
            at = first
            for theirs, end in other.ranges[max(0, bisect_right(other.ranges, first, key=lambda each: each[0]) - 1) :]:
                if theirs > last:
                    break
                yield from map(ContainerId, range(at, theirs))
                at = max(at, end + 1)
            yield from map(ContainerId, range(at, last + 1))


class BalanceRecord(Record, frozen=True):
    """Whether the controller may move load, and from when on (control.balance)."""

    paused: bool = False
    over_mean: float = 1.25
    """A node is hot if it carries more than so many times the mean,"""
    traffic_floor: int = 8 * 2**20
    """and more than so many bytes a second,"""
    requests_floor: int = 2_000
    """or requests a second,"""
    disk_floor: int = 8 * 2**30
    """or bytes on its disk."""
    moves_per_minute: int = 6
    """Of hot nodes; and so many nodes that carry little may get something from all others."""


class FeaturesRecord(Record, frozen=True):
    """Which feature level the cluster is at (store.features)."""

    level: int = 0
    """What may be written. It never falls."""
    raising: int = 0
    """The level that is about to be, if that is higher: versions that do not support it are refused already."""
    wanted: int = 0
    """The level that somebody asked for: it is not waited for."""
    most: int | None = None
    """It is held there: not raised any higher, by itself or on request."""
    wait_s: float = 86_400.0
    """So long all nodes have to support the next level, and to be well, before it is raised by itself."""
    able_since: Millis = Millis(0)
    """Since when that is so, by the cluster's time; 0: it is not."""
    epoch: int = 0
    """Rises with each change that somebody may want to know of: Kafka's epoch of the finalized features."""

    @property
    def required(self) -> int:
        """The level that whoever runs has to support: others are refused."""
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
"""Made here, once: msgspec learns a class at the first use, and two threads that come first at once crash in it."""


def default_replicas(nodes: int) -> int:
    """Replicas of the volume `default` of a cluster of so many nodes, where nobody says it."""
    return min(3, nodes)


def default_min_in_sync(replicas: int) -> int:
    """How many replicas of a volume must have a record where nobody says it: the larger half.

    Of three two, and of two one, so that either may stop.
    """
    return (replicas + 1) // 2


def check_volume(volume: VolumeRecord) -> None:
    """Raise HeadraceError, with one line that says why, for a volume that cannot be kept to."""
    wrong = ""
    if not _VOLUME_NAME.fullmatch(volume.name):
        wrong = "a name has 1 to 63 letters, digits, '-' and '_'"
    elif not 1 <= volume.replicas <= MOST_REPLICAS:
        wrong = f"replicas is {volume.replicas}; it may be 1 to {MOST_REPLICAS}"
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
    """A container's record as `get` and `list` of the store give it. Raises CorruptLog."""
    return decode(found.value, ContainerRecord, found.key)


def decode(value: bytes, type_: type[R], key: str) -> R:
    """A record as it stands in the store under `key`. Raises CorruptLog where it cannot be read.

    `type_`: of the records above.
    """
    decoder: msgspec.json.Decoder[R] = _DECODERS[type_]
    try:
        return decoder.decode(value)
    except msgspec.DecodeError as error:
        raise CorruptLog(f"the cluster store's record {key} cannot be read: {error}") from error
