"""What other parts of a node hear of its replicas, and what replicas ask of other nodes' state.

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
    """Hears of which containers this node leads."""

    def container_led(self, container: Leader, /) -> None:
        """This node leads the container from now on."""

    def container_left(self, container: Leader, /) -> None:
        """This node leads the container no longer; it may follow."""


class ReplicaListener:
    """Hears of the replicas here. Whoever inherits it defines what it wants to hear of."""

    def replica_opened(self, replica: LocalReplica, /) -> None:
        """The replica is open, and has no role yet."""

    def chunk_full(self, container: ContainerId, /) -> None:
        """A chunk of the container's replica can be closed."""

    def chunk_waits(self, container: ContainerId, /) -> None:
        """Full chunks of the container, which this node leads, still wait to be closed."""

    def replica_unreadable(self, container: ContainerId, /) -> None:
        """The container's replica may be damaged."""

    def replica_unusable(self, container: ContainerId, error: HeadraceError, /) -> None:
        """The container's replica is damaged and nowhere else, or has no room to take up its role."""


class OtherNodes(Protocol):
    """What this node knows of others (control.controller)."""

    def gone(self) -> Collection[NodeId]:
        """Nodes on which no process runs any more."""

    def heard(self) -> Collection[NodeId]:
        """Nodes that answer."""

    def told_of(self, container: ContainerId, /) -> Iterable[ReplicaState]:
        """What other nodes told last of their replicas of a container."""

    def look_at(self, node: NodeId, /) -> None:
        """Ask a node now: a connection with it has ended, or it did not answer."""
