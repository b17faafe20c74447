"""What the parts of a replica report: one protocol, from the log's sync cycle up to the owner of all replicas.

Events are reported on the loop's thread, by a replica and by either of its halves; handlers return at once. `Replicas`
implements the protocol, and passes on to other parts of the node what they listen for (listeners.py).
"""

from typing import Protocol

from headrace.base.errors import NewerFormat
from headrace.base.ids import ContainerId, Epoch, NodeId


class ReplicaEvents(Protocol):
    """Is notified about the replicas of a node. A class that inherits it ignores the events it does not define."""

    def chunk_full(self, container: ContainerId, /) -> None:
        """A chunk of the replica is full and fully committed: it can be closed."""

    def chunk_waits(self, container: ContainerId, /) -> None:
        """A write job of the leader is on disk and there are chunks that can be closed: either a chunk that was
        reported when it was committed, or one that ended because of its age, which no commit reported."""

    def damaged(self, container: ContainerId, /) -> None:
        """The replica's data cannot be used: its files cannot be cut or reopened, or the catalog's commands cannot be
        read (invariant 14). May be reported repeatedly."""

    def unreadable(self, container: ContainerId, /) -> None:
        """A follower cannot be fed because this node's log cannot be read."""

    def newer(self, error: NewerFormat, /) -> None:
        """A newer version wrote data that was found here, or that the leader sent."""

    def other_epoch(self, container: ContainerId, epoch: Epoch, /) -> None:
        """The node that this replica asked to follow knows another epoch."""

    def superseded(self, container: ContainerId, epoch: Epoch, /) -> None:
        """A follower of a container led here has left for a higher epoch."""

    def lost_touch(self, node: NodeId, /) -> None:
        """A connection between a replica here and one on that node has ended, or the node did not answer."""

    def stirs(self, container: ContainerId, /) -> None:
        """A replica that may have been resting changes: the timer has to look after it again."""
