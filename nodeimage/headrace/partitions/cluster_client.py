"""The cluster as this node sees it, and requests to its other nodes.

The records come from this node's view of the cluster store, so they may be slightly out of date; a node that receives a
request checks again, and refuses it for a container that it does not lead. Knows nothing of Kafka's APIs.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import ContainerId, Epoch, Millis, NodeId, Position
from headrace.container.leader import Leader
from headrace.container.replicas import Replicas
from headrace.log.container_log import ContainerLog
from headrace.peer.client import PeerClient
from headrace.peer.framing import Buffer
from headrace.peer.messages import Message, Request
from headrace.store.records import ContainerRecord, NodeRecord, VolumeRecord
from headrace.store.view import ClusterView

A = TypeVar("A", bound=Message)

CALL_S = 5.0
"""Seconds to wait for another node's answer."""


class Event(Protocol):
    """An action of the controller (control.events.Event)."""

    @property
    def at(self) -> Millis: ...

    @property
    def kind(self) -> str: ...

    @property
    def reason(self) -> str: ...

    @property
    def container(self) -> ContainerId | None: ...


class ClusterTime(Protocol):
    """The time of the cluster, independent of any single node's clock (control.cluster_clock.Clocks)."""

    def now(self) -> Millis:
        """The cluster's time; this node's own time while the cluster's is not known."""

    def agreed(self) -> Millis | None:
        """The cluster's time; None while it is not known."""


class ControllerLink(Protocol):
    """The controller on this node (control.controller.Controller)."""

    @property
    def events(self) -> Iterable[Event]: ...

    @property
    def clocks(self) -> ClusterTime: ...

    def clocks_off(self) -> Mapping[NodeId, float]:
        """The nodes whose clocks are off, each with the seconds by which its clock is ahead of the cluster's time."""

    def dead(self) -> frozenset[NodeId]:
        """The registered nodes that are dead as far as this node can tell."""

    async def create(self, *, first: NodeId, volume: VolumeRecord) -> ContainerRecord:
        """Create a container now."""


class ClusterClient:
    """The cluster as this node sees it, and requests to its other nodes."""

    def __init__(self, *, node_id: NodeId, view: ClusterView, replicas: Replicas, peers: PeerClient) -> None:
        self.node_id = node_id
        self.view = view
        self.replicas = replicas
        self.peers = peers

    # --- who is where

    def nodes(self) -> list[NodeRecord]:
        """All storage nodes, by id."""
        return sorted(self.view.nodes.values(), key=lambda node: node.node_id)

    @property
    def node_count(self) -> int:
        """The number of storage nodes, at least 1."""
        return max(1, len(self.view.nodes))

    def node(self, node_id: NodeId) -> NodeRecord | None:
        """A storage node's record; None for an unknown node."""
        return self.view.nodes.get(node_id)

    def record(self, container_id: ContainerId) -> ContainerRecord | None:
        """A container's record; None for an unknown container."""
        return self.view.containers.get(container_id)

    def is_deleted(self, container_id: ContainerId) -> bool:
        """Whether a container is known to be deleted."""
        return self.view.is_deleted(container_id)

    def leader(self, container_id: ContainerId) -> tuple[NodeId, Epoch] | None:
        """The node that leads a container, and its epoch. For a container that this node leads, its own state counts
        rather than the record."""
        container = self.replicas.led.get(container_id)
        if container is not None:
            return self.node_id, container.epoch
        record = self.view.containers.get(container_id)
        return None if record is None or record.state == "deleted" else (record.leader, record.epoch)

    @property
    def catalog(self) -> ContainerRecord | None:
        """The record of the catalog's container."""
        return next((each for each in self.view.containers.values() if each.kind == "catalog"), None)

    @property
    def catalog_container(self) -> Leader | None:
        """The catalog's container if this node leads it, else None."""
        record = self.catalog
        return None if record is None else self.replicas.led.get(record.container_id)

    def open_data(self, *, volume: str = "default") -> list[ContainerRecord]:
        """The containers of a volume that take new partitionlets, whichever nodes lead them."""
        return [
            each
            for each in self.view.containers.values()
            if each.kind == "data" and each.state == "open" and each.volume == volume
        ]

    def any_log(self, container_id: ContainerId) -> tuple[ContainerLog, Position] | None:
        """The log of this node's replica of a container and its committed position; None without a replica."""
        return self.replicas.any_log(container_id)

    # --- requests

    async def ask_leader(
        self,
        container_id: ContainerId,
        message: Request[A],
        buffers: Sequence[Buffer] = (),
        *,
        timeout_s: float = CALL_S,
    ) -> tuple[A, memoryview]:
        """Send a request to the node that leads a container; returns the answer and its payload. Raises KafkaError,
        PeerUnreachable."""
        found = self.leader(container_id)
        node = None if found is None else self.view.nodes.get(found[0])
        if node is None:
            raise KafkaError(Code.LEADER_NOT_AVAILABLE, f"nobody leads container {container_id}")
        return await self.ask(node, message, buffers, timeout_s=timeout_s)

    async def ask(
        self, node: NodeRecord, message: Request[A], buffers: Sequence[Buffer] = (), *, timeout_s: float = CALL_S
    ) -> tuple[A, memoryview]:
        """Send a request to a node; returns the answer and its payload. Raises KafkaError, PeerUnreachable."""
        return await self.peers.call(node.peer_address, message, buffers, timeout_s=timeout_s)
