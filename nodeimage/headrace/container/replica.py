"""Which of a container's positions are committed: a state machine without I/O and without a clock.

Responsible for `committed`, the position below which every member of the in-sync set has the log on disk
(invariants 1, 2 and 6). The shell (`container.py`) writes, syncs and sends; it reports here who has what, and asks
what that commits. With one replica the in-sync set is the primary alone, and `committed` follows its own disk.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.ids import Epoch, NodeId, Position


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """A replica's identity in the in-sync set (invariant 5): the node, and the uuid of the replica's folder."""

    node: NodeId
    format: str


class Primary:
    """The primary's view of one container in one epoch."""

    __slots__ = ("_on_disk", "committed", "epoch", "epoch_start", "min_in_sync")

    def __init__(self, *, epoch: Epoch, in_sync: Iterable[Member], start: Position, min_in_sync: int) -> None:
        """`start` is where this epoch's first frame goes; everything below it is on the primary's disk."""
        self.epoch = epoch
        self.epoch_start = start
        self.min_in_sync = min_in_sync
        self.committed = Position(0)
        self._on_disk: dict[Member, Position] = dict.fromkeys(in_sync, Position(0))

    def on_disk(self, member: Member, position: Position) -> bool:
        """Record that `member` holds everything below `position`; true if `committed` moved."""
        if member not in self._on_disk:
            return False
        self._on_disk[member] = max(self._on_disk[member], position)
        if len(self._on_disk) < self.min_in_sync:
            return False
        committed = min(self._on_disk.values())
        if committed <= self.committed:
            return False
        self.committed = committed
        return True

    @property
    def serves(self) -> bool:
        """Latest offsets, reads and cursors wait until `committed` reaches the start of the epoch (invariant 8)."""
        return self.committed >= self.epoch_start

    @property
    def in_sync(self) -> tuple[Member, ...]:
        """The members whose disks `committed` waits for."""
        return tuple(self._on_disk)
