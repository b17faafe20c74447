"""This node's identity, and the cluster's layout for clients: its nodes, and the leaders and replicas of containers.

The layout derives from the cluster's records, which may be slightly out of date: a node refuses requests for what it
does not lead. Results are cached until the layout changes, since clients request them all the time.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.base.ids import ContainerId, Epoch, NodeId
from headrace.partitions.cluster_client import ClusterClient


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """The settings of one node, made by its operator. Sizes are bytes."""

    chunk_bytes: int = 256 * 1024 * 1024
    container_bytes: int = 16 * 1024 * 1024 * 1024
    partitionlet_bytes: int = 2 * 1024 * 1024 * 1024
    disk_quota: int = 0
    """Bytes of the disk that the node may use; 0: the whole disk."""
    disk_reserve: int = 256 * 1024 * 1024
    """Bytes of the disk that new chunks leave free."""
    rebalance_delay_ms: int = 50
    """Milliseconds for which a group's first rebalance waits for more members."""
    snapshot_rate: int = 32 * 1024 * 1024
    """Bytes of catalog snapshots per second that this node sends to all other nodes together; 0: no limit."""
    max_connections: int = 0
    """Limit of client connections; 0: as many as the process has descriptors for."""
    max_connections_per_ip: int = 0
    """Limit of client connections from one address, or one /64 network of IPv6; 0: half of `max_connections`."""
    connections_max_idle_ms: int = 600_000
    metrics_topics: int = 0
    """Limit of topics whose traffic `/metrics` shows by topic; 0: none."""
    fsync: bool = True


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """This node's identity and settings."""

    node_id: NodeId
    cluster_id: str
    host: str
    port: int
    settings: NodeSettings
    rack: str | None = None
    started_at: float = field(default_factory=time.monotonic)


class Address(NamedTuple):
    """A node, and where clients reach it."""

    node_id: NodeId
    host: str
    port: int
    rack: str | None


class Placed(NamedTuple):
    """The leader and the replicas of a container."""

    leader: NodeId
    epoch: Epoch
    replicas: Sequence[NodeId]
    in_sync: Sequence[NodeId]
    """The in-sync set without dead nodes, which the record keeps while the set is at its minimum (invariant 6)."""
    away: Sequence[NodeId]
    """Replicas on nodes that are dead or unknown."""


class Layout:
    """The nodes of the cluster and the placement of containers, as answers to clients show them."""

    def __init__(self, cluster: ClusterClient, node: NodeIdentity) -> None:
        self.version = 0
        """Rises with every change of a leader or a node; whatever was derived from an older version is out of date."""
        self._cluster = cluster
        self._node = node
        self._nodes: list[NodeId] | None = None
        self._dead: frozenset[NodeId] = frozenset()
        self._placed: dict[ContainerId, Placed | None] = {}

    def changed(self) -> None:
        """A record of a node or a container has changed, or this node has begun or ceased to lead a container."""
        self.version += 1
        self._placed.clear()
        self._nodes = None

    def see(self, dead: frozenset[NodeId]) -> None:
        """Take note of which nodes are dead."""
        if dead != self._dead:
            self._dead = dead
            self.changed()

    def address(self, node_id: NodeId, listener: str) -> Address | None:
        """The address of a node for clients of a listener; None for an unknown node."""
        node = self._cluster.node(node_id)
        if node is not None:
            return Address(node_id, *node.address(listener), node.zone or None)
        if node_id == self._node.node_id:
            return Address(node_id, self._node.host, self._node.port, self._node.rack)
        return None

    def addresses(self, listener: str) -> list[Address]:
        """The nodes that a client should know, by id: all except those that are stopping and lead nothing."""
        if self._nodes is None:
            leads = {record.leader for record in self._cluster.view.containers.values() if record.state != "deleted"}
            known = {node.node_id for node in self._cluster.nodes() if not node.stopping or node.node_id in leads}
            self._nodes = sorted(known | {self._node.node_id})
        return [address for node_id in self._nodes if (address := self.address(node_id, listener)) is not None]

    def living(self, listener: str) -> list[Address]:
        """The nodes of `addresses` that are not dead. Metadata answers contain dead nodes, too: they come back, or
        other nodes lead soon, and clients that try to reach them meanwhile retry."""
        return [address for address in self.addresses(listener) if address.node_id not in self._dead]

    def placed(self, container_id: ContainerId) -> Placed | None:
        """The leader and replicas of a container; None if its leader is not known."""
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
