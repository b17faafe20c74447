"""The changes that a plan can request. Every change has a reason, for the events that people read."""

from dataclasses import dataclass

from headrace.base.ids import ContainerId, NodeId
from headrace.store.records import ContainerRecord


@dataclass(frozen=True, slots=True)
class PutContainer:
    """Replace a container's record, if it is still at `version`."""

    record: ContainerRecord
    version: int
    reason: str
    is_balance: bool = False
    """Nothing is wrong; the change balances load."""
    is_planned: bool = False
    """The former leader is well: it stops, is drained, or leads more than its share."""
    began: float | None = None
    """When a failed former leader was last heard from, or when its problem began; None if unknown."""


@dataclass(frozen=True, slots=True)
class CreateContainer:
    """Create a container; the first member leads."""

    kind: str
    members: tuple[NodeId, ...]
    volume: str
    reason: str


@dataclass(frozen=True, slots=True)
class Roll:
    """Have the leader of a container roll its hottest partitionlets to container `to`."""

    node: NodeId
    container: ContainerId
    share: float
    """The part of the container's writes that should move."""
    limit: float
    """The largest part of the container's writes that may move."""
    to: ContainerId
    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be done for a container now, for this reason."""

    container: ContainerId
    reason: str
    set_back: bool = False
    """The reason is that the cluster store was restored to an old copy: this affects many containers, and is reported
    once."""


Change = PutContainer | CreateContainer | Roll | Wait
