"""A node's reports on itself: its replicas as it sees them, and its load.

Parts of the answer to a probe (peer.messages), to which the rules for versions there apply: fields are only ever added,
always with a default. Plain data for planning; knows nothing of how the reports are sent.
"""

from typing import Literal

import msgspec

from headrace.base.ids import ContainerId, Epoch, NodeId, Position


class ReplicaState(msgspec.Struct, frozen=True, omit_defaults=True):
    """One replica, as its node sees it."""

    container: ContainerId
    role: Literal["primary", "follower", "none"]
    epoch: Epoch
    """The highest epoch that the replica has seen."""
    last_epoch: Epoch
    """The last epoch in the history of the replica's log. Positions `end` are comparable only within the same one."""
    end: Position
    committed: Position
    stalled: bool = False
    """Whether this is a leader that cannot commit, as the in-sync set would fall below the minimum."""
    in_sync: list[NodeId] = []
    format: str = ""
    """The replica's incarnation (invariant 5)."""
    damaged: bool = False
    """Whether some of the replica's data cannot be read, so that another replica should lead."""
    stuck: bool = False
    """Whether the disk hangs: writes have made no progress for some seconds. This concerns the whole node."""
    cramped: bool = False
    """Whether this is a leader whose disk is too full even for seals, so that its partitions cannot be rolled."""
    change: str = ""
    """The id of the newest change of the container's record that the replica knows (store.lineage)."""
    recovered: int = 0
    """The value of `recovered` in that record."""


class NodeLoad(msgspec.Struct, frozen=True, omit_defaults=True):
    """The load and state of a node; rates are averages over the last seconds."""

    bytes_in_per_s: float = 0.0
    bytes_out_per_s: float = 0.0
    requests_per_s: float = 0.0
    disk_used: int = 0
    disk_total: int = 0
    led_containers: int = 0
    catalog_damage: str = ""
    """The reason why the node's catalog tables are damaged; "": they are not, or the node does not report it."""
    applied: Position = Position(-1)
    """The position below which the whole catalog log is in force on the node. -1: not reported, or the node is still
    reading its access rules."""
