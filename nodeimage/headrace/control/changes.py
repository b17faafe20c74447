"""What a plan can ask for. Every change says why, for the events that people read."""

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
    """Nothing is wrong; another node carries less."""
    is_planned: bool = False
    """The former leader is well: it stops, is drained, or leads more than its share."""
    began: float | None = None
    """When a former leader that has failed was heard last, or what is wrong with it began; None: it is not known."""


@dataclass(frozen=True, slots=True)
class CreateContainer:
    """Make a container; the first member leads."""

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
    """The part of what is written to it that should move."""
    limit: float
    """And the part that it must not exceed."""
    to: ContainerId
    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be done for a container now, and this is why."""

    container: ContainerId
    reason: str
    set_back: bool = False
    """As the cluster store was set back: it concerns many, and is told once."""


Change = PutContainer | CreateContainer | Roll | Wait
