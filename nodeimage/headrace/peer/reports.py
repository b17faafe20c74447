"""What a node reports of itself: its replicas as it sees them, and what it carries.

Parts of the answer to a probe (peer.messages), and of the versions that are promised there: a field is only ever added,
and with a default. Plain data for those who plan; knows nothing of how it travels.
"""

from typing import Literal

import msgspec

from headrace.base.ids import ContainerId, Epoch, NodeId, Position


class ReplicaState(msgspec.Struct, frozen=True, omit_defaults=True):
    """One replica, as its node sees it."""

    container: ContainerId
    role: Literal["primary", "follower", "none"]
    epoch: Epoch
    """The highest it has seen."""
    last_epoch: Epoch
    """Of its log's history: what `end` is to be compared under."""
    end: Position
    committed: Position
    stalled: bool = False
    """A leader that cannot commit, as it would go below the minimum in sync."""
    in_sync: list[NodeId] = []
    format: str = ""
    """Of the replica's folder (invariant 5)."""
    damaged: bool = False
    """What it holds cannot all be read: another is to lead."""
    stuck: bool = False
    """Its disk hangs: what is to be written has not got on for some seconds. It concerns the whole node."""
    cramped: bool = False
    """A leader whose disk is full so that not even seals have room: its partitions cannot go on elsewhere."""
    change: str = ""
    """The id of the newest change of its record that it knows (store.lineage)."""
    recovered: int = 0
    """As in that record."""


class NodeLoad(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node carries, and how it fares; rates are over the last seconds."""

    bytes_in_per_s: float = 0.0
    bytes_out_per_s: float = 0.0
    requests_per_s: float = 0.0
    disk_used: int = 0
    disk_total: int = 0
    led_containers: int = 0
    catalog_damage: str = ""
    """Why its tables of the catalog are damaged; "": they are not, or it does not tell."""
    applied: Position = Position(-1)
    """Below which everything of the catalog's log is in force on the node. -1: it does not tell, or reads its rules."""
