"""What the parts of a replica report: one protocol, from the log's cycle up to who looks after all replicas.

Events are reported on the loop's thread, by a replica and by either of its halves; whoever hears of one returns at
once. `Replicas` implements it; what it passes on to other parts of the node has listeners (listeners.py).
"""

from typing import Protocol

from headrace.base.errors import NewerFormat
from headrace.base.ids import ContainerId, Epoch, NodeId


class ReplicaEvents(Protocol):
    """Hears of the replicas of a node. A class that inherits it ignores what it does not define."""

    def chunk_full(self, container: ContainerId, /) -> None:
        """A chunk of the replica is full, and all of it is committed: it can be closed."""

    def chunk_waits(self, container: ContainerId, /) -> None:
        """A job of the leader is on disk, and there are chunks that can be closed: one that was reported when it was
        committed, or one that ended by its age, with which no commit came."""

    def damaged(self, container: ContainerId, /) -> None:
        """What the replica holds cannot be used: its files cannot be cut or opened again, or the catalog's commands
        cannot be read (invariant 14). May be reported again."""

    def unreadable(self, container: ContainerId, /) -> None:
        """A follower cannot be fed, since the log does not check here."""

    def newer(self, error: NewerFormat, /) -> None:
        """A newer version wrote what is here, or what came from the leader."""

    def other_epoch(self, container: ContainerId, epoch: Epoch, /) -> None:
        """The node that was asked to be followed knows another epoch."""

    def superseded(self, container: ContainerId, epoch: Epoch, /) -> None:
        """A follower of the container that is led here has left for a higher epoch."""

    def lost_touch(self, node: NodeId, /) -> None:
        """A connection between a replica here and one of that node has ended, or the node did not answer."""

    def stirs(self, container: ContainerId, /) -> None:
        """Something changes here of a replica that may have been at rest: it is to be looked after again."""
