"""The members of a group, its static instances, its leader, and the votes for a protocol.

Holds no state of the rebalance and decides nothing about it; group.py does.

Invariants: the leader is a member, or there are no members; `votes[p]` is the number of members that offer p; `joining`
is the number of members that wait in JoinGroup.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import InitVar, dataclass, field
from functools import partial

from headrace.coordination.deadline_heap import Alarm
from headrace.coordination.messages import Protocol, Token
from headrace.coordination.snapshot import StoredMember


@dataclass(slots=True, eq=False, kw_only=True)
class Member:
    """One member. `join_token`, `sync_token`: the requests in which the member waits now."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    owner: InitVar[object]
    """The owner of the member's alarms."""
    expired: InitVar[Callable[["Member", int], None]]
    """Called when the session has ended, with the member and the time."""
    default_stream: str
    """The stream of the bare names in the member's subscription."""
    session: Alarm = field(init=False)
    assignment: bytes = b""
    join_token: Token | None = None
    sync_token: Token | None = None
    is_new: bool = False
    """Whether the member has not been in a generation yet; its JoinGroup expires, since the client may not know the
    member id and return under another one."""

    def __post_init__(self, owner: object, expired: Callable[["Member", int], None]) -> None:
        self.session = Alarm(owner, partial(expired, self))

    @classmethod
    def of(cls, stored: StoredMember, *, owner: object, expired: Callable[["Member", int], None]) -> "Member":
        """A member from its stored form."""
        return cls(
            member_id=stored.member_id,
            instance_id=stored.instance_id,
            client_id=stored.client_id,
            client_host=stored.client_host,
            session_timeout_ms=stored.session_timeout_ms,
            rebalance_timeout_ms=max(stored.rebalance_timeout_ms, 1),
            protocols=tuple(Protocol(name, metadata) for name, metadata in stored.protocols),
            owner=owner,
            expired=expired,
            assignment=stored.assignment,
            default_stream=stored.default_stream,
        )

    def metadata(self, protocol: str) -> bytes:
        """The member's metadata in a protocol; empty if it does not offer the protocol."""
        return next((offered.metadata for offered in self.protocols if offered.name == protocol), b"")


@dataclass(slots=True)
class Members:
    """The members of one group."""

    leader: str | None = None
    _by_id: dict[str, Member] = field(default_factory=dict)
    _by_instance: dict[str, str] = field(default_factory=dict)
    _votes: Counter[str] = field(default_factory=Counter)
    joining: int = 0
    """The number of members that wait in JoinGroup."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._by_id.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._by_id

    def get(self, member_id: str) -> Member | None:
        """The member with this id, or None."""
        return self._by_id.get(member_id)

    def member_id_of(self, instance_id: str) -> str | None:
        """The present member id of a static instance, or None."""
        return self._by_instance.get(instance_id)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of all members; at least 1."""
        return max((member.rebalance_timeout_ms for member in self._by_id.values()), default=1)

    def all_joined(self) -> bool:
        """Whether all members wait in JoinGroup."""
        return self.joining == len(self._by_id)

    def wait_in_join(self, member: Member, token: Token) -> Token | None:
        """Let a member wait in JoinGroup under `token`; returns the token of an older wait that this one replaces."""
        displaced = member.join_token
        member.join_token = token
        self.joining += displaced is None
        return displaced

    def end_join(self, member: Member) -> Token | None:
        """End a member's wait in JoinGroup; returns the token to answer, if it was waiting."""
        token = member.join_token
        member.join_token = None
        self.joining -= token is not None
        return token

    def add(self, member: Member) -> None:
        """Add a member; the first one becomes the leader."""
        self._by_id[member.member_id] = member
        if member.instance_id is not None:
            self._by_instance[member.instance_id] = member.member_id
        self._votes.update({protocol.name for protocol in member.protocols})
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> None:
        """Remove a member that does not wait for an answer; if it was the leader, the oldest remaining member becomes
        the leader."""
        assert self._by_id[member_id].join_token is None
        member = self._by_id.pop(member_id)
        self._withdraw(member)
        if member.instance_id is not None and self._by_instance.get(member.instance_id) == member_id:
            del self._by_instance[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self._by_id), None)

    def rename(self, member: Member, member_id: str) -> None:
        """Give a returning static instance its new member id; it keeps its place, leadership and assignment."""
        assert member.instance_id is not None
        if self.leader == member.member_id:
            self.leader = member_id
        del self._by_id[member.member_id]
        member.member_id = member_id
        self._by_id[member_id] = member
        self._by_instance[member.instance_id] = member_id

    def offer(self, member: Member, protocols: tuple[Protocol, ...]) -> None:
        """Replace the protocols that a member offers."""
        self._withdraw(member)
        member.protocols = protocols
        self._votes.update({protocol.name for protocol in protocols})

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader is a member that has joined, replacing it if necessary. False: nobody has
        joined."""
        leader = self._by_id.get(self.leader or "")
        if leader is not None and leader.join_token is not None:
            return True
        for member in self._by_id.values():
            if member.join_token is not None:
                self.leader = member.member_id
                return True
        return False

    def all_offer_one_of(self, names: set[str]) -> bool:
        """Whether one of these protocols is offered by every member."""
        return any(self._votes[name] == len(self._by_id) for name in names)

    def select_protocol(self) -> str:
        """The protocol that all members offer and most prefer; among equals, the preference of the oldest member."""
        common = {name for name, votes in self._votes.items() if votes == len(self._by_id)}
        ballots = Counter(
            next(protocol.name for protocol in member.protocols if protocol.name in common)
            for member in self._by_id.values()
        )
        return ballots.most_common(1)[0][0]

    def _withdraw(self, member: Member) -> None:
        for name in {protocol.name for protocol in member.protocols}:
            self._votes[name] -= 1
            if not self._votes[name]:
                del self._votes[name]
