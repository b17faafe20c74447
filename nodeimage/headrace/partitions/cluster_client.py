"""What a node knows of the other nodes, and how it asks them.

The records come from the view of the cluster store, so what is said here may be a moment old; whoever is asked checks
again, and refuses what it does not lead. Knows nothing of Kafka's APIs.
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
"""How long a peer's answer is waited for."""


class Event(Protocol):
    """Something that the controller did (control.events.Event)."""

    @property
    def at(self) -> Millis: ...

    @property
    def kind(self) -> str: ...

    @property
    def reason(self) -> str: ...

    @property
    def container(self) -> ContainerId | None: ...


class ClusterTime(Protocol):
    """What time it is, whatever one node's clock shows (control.cluster_clock.Clocks)."""

    def now(self) -> Millis:
        """The cluster's time, or this node's own."""

    def agreed(self) -> Millis | None:
        """The cluster's time; None: it is not known."""


class ControllerLink(Protocol):
    """This node's part in deciding (control.controller.Controller)."""

    @property
    def events(self) -> Iterable[Event]: ...

    @property
    def clocks(self) -> ClusterTime: ...

    def clocks_off(self) -> Mapping[NodeId, float]:
        """By how many seconds clocks are ahead of the cluster's time, of those that are off."""

    def dead(self) -> frozenset[NodeId]:
        """The registered nodes that are dead as far as this one can tell."""

    async def create(self, *, first: NodeId, volume: VolumeRecord) -> ContainerRecord:
        """Make a container now."""


class ClusterClient:
    """The cluster as this node sees it, and calls to its other nodes."""

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
        """How many storage nodes there are."""
        return max(1, len(self.view.nodes))

    def node(self, node_id: NodeId) -> NodeRecord | None:
        """One node."""
        return self.view.nodes.get(node_id)

    def record(self, container_id: ContainerId) -> ContainerRecord | None:
        """A container's record."""
        return self.view.containers.get(container_id)

    def is_deleted(self, container_id: ContainerId) -> bool:
        """Whether a container is known to be deleted."""
        return self.view.is_deleted(container_id)

    def leader(self, container_id: ContainerId) -> tuple[NodeId, Epoch] | None:
        """Who leads a container, in which epoch; as this node itself knows where it leads."""
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
        """The catalog's container, where this node leads it."""
        record = self.catalog
        return None if record is None else self.replicas.led.get(record.container_id)

    def open_data(self, *, volume: str = "default") -> list[ContainerRecord]:
        """The containers of a volume that take new partitionlets, whoever leads them."""
        return [
            each
            for each in self.view.containers.values()
            if each.kind == "data" and each.state == "open" and each.volume == volume
        ]

    def any_log(self, container_id: ContainerId) -> tuple[ContainerLog, Position] | None:
        """The log of this node's replica, if it has one, and what of it is committed."""
        return self.replicas.any_log(container_id)

    # --- asking

    async def ask_leader(
        self,
        container_id: ContainerId,
        message: Request[A],
        buffers: Sequence[Buffer] = (),
        *,
        timeout_s: float = CALL_S,
    ) -> tuple[A, memoryview]:
        """Ask the node that leads a container. Raises KafkaError, PeerUnreachable."""
        found = self.leader(container_id)
        node = None if found is None else self.view.nodes.get(found[0])
        if node is None:
            raise KafkaError(Code.LEADER_NOT_AVAILABLE, f"nobody leads container {container_id}")
        return await self.ask(node, message, buffers, timeout_s=timeout_s)

    async def ask(
        self, node: NodeRecord, message: Request[A], buffers: Sequence[Buffer] = (), *, timeout_s: float = CALL_S
    ) -> tuple[A, memoryview]:
        """Ask one node. Raises KafkaError, PeerUnreachable."""
        return await self.peers.call(node.peer_address, message, buffers, timeout_s=timeout_s)
