"""What other parts of a node learn about its replicas, and what replicas need to know about other nodes.

Listeners are called on the loop's thread, in the order in which they were added, and return at once.
"""

from collections.abc import Collection, Iterable
from typing import Protocol

from headrace.base.errors import HeadraceError
from headrace.base.ids import ContainerId, NodeId
from headrace.container.leader import Leader
from headrace.container.local_replica import LocalReplica
from headrace.peer.reports import ReplicaState


class ContainerListener(Protocol):
    """Is notified when this node begins or ceases to lead a container."""

    def container_led(self, container: Leader, /) -> None:
        """This node leads the container from now on."""

    def container_left(self, container: Leader, /) -> None:
        """This node no longer leads the container; it may follow."""


class ReplicaListener:
    """Is notified about this node's replicas. A subclass overrides the events it needs."""

    def replica_opened(self, replica: LocalReplica, /) -> None:
        """The replica is open and has no role yet."""

    def chunk_full(self, container: ContainerId, /) -> None:
        """A chunk of the container's replica can be closed."""

    def chunk_waits(self, container: ContainerId, /) -> None:
        """Full chunks of the container, which this node leads, are still waiting to be closed."""

    def replica_unreadable(self, container: ContainerId, /) -> None:
        """The container's replica may be damaged."""

    def replica_unusable(self, container: ContainerId, error: HeadraceError, /) -> None:
        """The container's replica is damaged and no other replica has its data, or there is no room for its role."""


class OtherNodes(Protocol):
    """What this node knows about other nodes (control.controller)."""

    def gone(self) -> Collection[NodeId]:
        """Return the nodes on which no process is running any longer."""

    def heard(self) -> Collection[NodeId]:
        """Return the nodes that answer."""

    def told_of(self, container: ContainerId, /) -> Iterable[ReplicaState]:
        """Return what other nodes last reported about their replicas of a container."""

    def look_at(self, node: NodeId, /) -> None:
        """Probe a node now: a connection to it has ended, or it did not answer."""
