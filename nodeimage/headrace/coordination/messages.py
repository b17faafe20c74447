"""The inputs and outputs of the group state machine.

Plain values without logic. Times are milliseconds, codes are Kafka's. A token identifies a request that waits for its
answer; the shell chooses it, and gets it back exactly once in an `Answer`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, NewType

from headrace.base.errors import Code
from headrace.catalog.names import DEFAULT_STREAM
from headrace.coordination.snapshot import GroupSnapshot

Token = NewType("Token", int)
Ticket = NewType("Ticket", int)
"""Identifies one `Persist`."""

UNKNOWN_MEMBER = ""
NO_GENERATION = -1


class GroupState(StrEnum):
    """A group's states, as Kafka's tools show them."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Protocol(NamedTuple):
    """An assignment protocol that a member offers, with the member's subscription in that protocol's format."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A JoinGroup request."""

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    requires_known_member: bool
    """Whether the client supports MEMBER_ID_REQUIRED (KIP-394, version 4 and above)."""
    can_skip_assignment: bool
    """Whether the client supports `skip_assignment` (KIP-814, version 9)."""
    reason: str | None = None
    default_stream: str = DEFAULT_STREAM
    """The stream of bare names in the client's subscription, at its listener."""


class JoinedMember(NamedTuple):
    """A member as the group's leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResult:
    """The answer to a Join. `members` is only filled for the leader."""

    code: Code
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False
    other_stream: str | None = None
    """Set if the request is refused because bare names in the subscription mean other topics for existing members:
    their default stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """A SyncGroup request; `assignments` by member id are sent by the leader."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    """The answer to a Sync."""

    code: Code
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class Departure(NamedTuple):
    """A member that leaves, by member id, or by instance id only if an operator removes it."""

    member_id: str
    instance_id: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """A member as DescribeGroups shows it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """A group as DescribeGroups shows it."""

    group_id: str
    state: GroupState
    protocol_type: str
    protocol_name: str
    members: tuple[MemberView, ...]


class Answer(NamedTuple):
    """Effect: answer the request that waits under `token`."""

    token: Token
    result: JoinResult | SyncResult


class Persist(NamedTuple):
    """Effect: store the snapshot, then report `persisted` with the ticket."""

    ticket: Ticket
    snapshot: GroupSnapshot


class Note(NamedTuple):
    """Effect: log an event for operators."""

    group_id: str
    event: str
    reason: str
    generation: int
    members: int


Effect = Answer | Persist | Note
