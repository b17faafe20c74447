"""Who this node is, and the cluster as its clients are told of it: which nodes there are, who leads and holds what.

Made of the cluster's records, which may be a moment old: whoever is asked for what it does not lead says so. What is
told is kept until the layout changes, since clients ask for it all the time.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.base.ids import ContainerId, Epoch, NodeId
from headrace.partitions.cluster_client import ClusterClient


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """What an operator sets for one node. Sizes are bytes."""

    chunk_bytes: int = 256 * 1024 * 1024
    container_bytes: int = 16 * 1024 * 1024 * 1024
    partitionlet_bytes: int = 2 * 1024 * 1024 * 1024
    disk_quota: int = 0
    """0: the whole disk."""
    disk_reserve: int = 256 * 1024 * 1024
    """Room on the disk that new chunks leave free."""
    rebalance_delay_ms: int = 50
    """How long a group's first rebalance waits for more members."""
    snapshot_rate: int = 32 * 1024 * 1024
    """Bytes a second of the catalog's snapshots that this node sends to all others together; 0: no limit."""
    max_connections: int = 0
    """Of clients; 0: as many as the process has descriptors for."""
    max_connections_per_ip: int = 0
    """0: half of `max_connections`."""
    connections_max_idle_ms: int = 600_000
    metrics_topics: int = 0
    """Most topics whose traffic `/metrics` tells by topic; 0: none."""
    fsync: bool = True


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Who this node is."""

    node_id: NodeId
    cluster_id: str
    host: str
    port: int
    settings: NodeSettings
    rack: str | None = None
    started_at: float = field(default_factory=time.monotonic)


class Address(NamedTuple):
    """A node as clients reach it."""

    node_id: NodeId
    host: str
    port: int
    rack: str | None


class Placed(NamedTuple):
    """Who leads and who holds a container."""

    leader: NodeId
    epoch: Epoch
    replicas: Sequence[NodeId]
    in_sync: Sequence[NodeId]
    """Those that are dead left out: at its minimum the in-sync set of the records keeps them (invariant 6)."""
    away: Sequence[NodeId]
    """Replicas on nodes that are dead, or not known."""


class Layout:
    """What clients are told."""

    def __init__(self, cluster: ClusterClient, node: NodeIdentity) -> None:
        self.version = 0
        """Rises with every change of who leads what and of the nodes: what was made of them before is made anew."""
        self._cluster = cluster
        self._node = node
        self._nodes: list[NodeId] | None = None
        self._dead: frozenset[NodeId] = frozenset()
        self._placed: dict[ContainerId, Placed | None] = {}

    def changed(self) -> None:
        """A record of a node or a container has changed, or this node leads something or leads it no more."""
        self.version += 1
        self._placed.clear()
        self._nodes = None

    def see(self, dead: frozenset[NodeId]) -> None:
        """These nodes are dead."""
        if dead != self._dead:
            self._dead = dead
            self.changed()

    def address(self, node_id: NodeId, listener: str) -> Address | None:
        """The address of a node for clients that came through a listener; None for a node that is not known."""
        node = self._cluster.node(node_id)
        if node is not None:
            return Address(node_id, *node.address(listener), node.zone or None)
        if node_id == self._node.node_id:
            return Address(node_id, self._node.host, self._node.port, self._node.rack)
        return None

    def addresses(self, listener: str) -> list[Address]:
        """The nodes that a client should know, by id: all but those that have said that they stop, and lead nothing."""
        if self._nodes is None:
            leads = {record.leader for record in self._cluster.view.containers.values() if record.state != "deleted"}
            known = {node.node_id for node in self._cluster.nodes() if not node.stopping or node.node_id in leads}
            self._nodes = sorted(known | {self._node.node_id})
        return [address for node_id in self._nodes if (address := self.address(node_id, listener)) is not None]

    def living(self, listener: str) -> list[Address]:
        """Those of `addresses` that are not dead. Metadata tells of the dead ones too: they come back, or others lead
        soon, and clients that ask them meanwhile try again."""
        return [address for address in self.addresses(listener) if address.node_id not in self._dead]

    def placed(self, container_id: ContainerId) -> Placed | None:
        """A container; None: nobody is known to lead it."""
        if container_id not in self._placed:
            self._placed[container_id] = self._look_up(container_id)
        return self._placed[container_id]

    def _look_up(self, container_id: ContainerId) -> Placed | None:
        leader, record = self._cluster.leader(container_id), self._cluster.record(container_id)
        if leader is None or record is None:
            return None
        own = self._node.node_id
        unknown = {each for each in record.replicas if each != own and self._cluster.node(each) is None}
        if leader[0] in unknown:
            return None
        in_sync = [node for node, _ in record.in_sync if node not in self._dead]
        away = [node for node in record.replicas if node in unknown or node in self._dead]
        return Placed(*leader, record.replicas, in_sync, away)
