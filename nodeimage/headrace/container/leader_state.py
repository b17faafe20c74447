"""The leader's state of a container, a state machine without I/O and without a clock: what each replica has, what is
committed, and which replicas are in sync.

Responsible for `committed`, the position below which every member of the in-sync set has the log on disk (invariants
1, 2), and for membership: a follower that falls silent or makes no progress is proposed out of the set, one that has
caught up is proposed in (invariants 5, 6). leader.py writes, syncs and sends; in_sync_writer.py puts proposals into the
cluster store; both report here what happened and when. Times are seconds of any monotonic clock.

While a proposal is under way, commit waits for the union of the old and the proposed set, until the store has been
seen to hold one or the other (invariant 3): a put that timed out may land late.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace.base.ids import Epoch, NodeId, Position

LET_GO_S: Final = 1.2
"""Seconds of silence after which a follower is proposed out of the in-sync set (DESIGN section 4 allows 2 s)."""
STIR_S: Final = 0.7
"""Seconds of silence of a node after which those who feed followers there look at each of them again."""
STUCK_S = 5.0
"""Seconds without progress after which a connected follower that has frames to write is proposed out of the in-sync
set: its disk is full or dead."""
IN_TOUCH_S: Final = 1.0
"""The lease of invariant 16: shorter than any failover takes."""


class Member(NamedTuple):
    """A replica's identity in the in-sync set (invariant 5): the node, and the incarnation of the replica, which is the
    uuid of its folder (`format` in records and messages)."""

    node: NodeId
    incarnation: str


@dataclass(slots=True)
class Vouch:
    """What the heartbeats of a node tell of all its followers that rest (pair_roster.py): as an acknowledgement of each
    would. `heard`, `assured`: as of one follower, below."""

    heard: float
    assured: float


@dataclass(slots=True)
class _Peer:
    """What the leader knows of another replica. `moved`: when its position was last higher than ever, or it had all.

    `reached`: the highest position it had in this epoch, over all its connections.

    `assured`: it followed, in this epoch, at this time or later. What was on its way or waited here, while this process
    stood still, says nothing of now: so it is the time of the heartbeat that it answered, not of the answer.
    """

    position: Position
    heard: float
    moved: float
    reached: Position = Position(0)  # noqa: RUF009
    connected: bool = True
    spoke: bool = False
    """In this epoch, ever."""
    has_told: bool = False
    """`position` is what it said that it has, on this connection."""
    assured: float = float("-inf")
    vouch: Vouch | None = None
    """It rests, with all that there is: its node's heartbeats are its own."""

    @property
    def heard_at(self) -> float:
        """When it was heard last, or its node for it."""
        return self.heard if self.vouch is None else max(self.heard, self.vouch.heard)

    @property
    def assured_at(self) -> float:
        """See `assured`; as its node said, where that is later."""
        return self.assured if self.vouch is None else max(self.assured, self.vouch.assured)

    def stand_alone(self) -> None:
        """From now on it counts by what it says itself."""
        if self.vouch is not None:
            self.heard, self.assured = self.heard_at, self.assured_at
            self.moved = max(self.moved, self.heard)  # it had all until then
            self.vouch = None


class LeaderState:
    """What the leader of a container knows and decides in one epoch."""

    __slots__ = (
        "_confirmed",
        "_min_in_sync",
        "_own",
        "_peers",
        "_proposed",
        "_replicas",
        "_waited_for",
        "committed",
        "end",
        "epoch",
        "epoch_start",
        "me",
        "stalled",
    )

    def __init__(
        self,
        *,
        me: Member,
        epoch: Epoch,
        in_sync: Iterable[Member],
        replicas: Collection[NodeId],
        start: Position,
        min_in_sync: int,
        committed: Position = Position(0),  # noqa: B008
        now: float = 0.0,
    ) -> None:
        """`start`: where this epoch's first frame goes, all below is on the leader's disk. `committed`: as known."""
        self.me = me
        self.epoch = epoch
        self.epoch_start = start
        self.end = start
        """The leader's log, what is not on its disk yet included; the shell keeps it true at each sync cycle."""
        self.committed = committed
        self.stalled = False
        """Too few members speak: nothing is committed until one comes back (invariant 6)."""
        self._min_in_sync = min_in_sync
        self._replicas = frozenset(replicas)
        self._own = Position(0)
        self._confirmed = frozenset(in_sync)
        self._proposed: frozenset[Member] | None = None
        self._peers = {
            member: _Peer(Position(0), now, now, connected=False) for member in self._confirmed if member != me
        }
        self._waited_for: tuple[_Peer, ...] = ()
        self._choose_waited_for()

    # --- events

    def on_disk(self, member: Member, position: Position, *, now: float = 0.0) -> bool:
        """`member` holds everything below `position`; true if `committed` moved."""
        if member == self.me:
            self._own = max(self._own, position)
        else:
            peer = self._peers.get(member)
            if peer is None:
                return False
            peer.heard = now
            peer.has_told = True
            peer.position = max(peer.position, position)
            if position > peer.reached or position >= self.end:
                peer.reached = max(peer.reached, position)
                peer.moved = now
        return self._commit()

    def may_have(self, position: Position) -> bool:
        """Whether a follower may have everything below `position`: of what is not here it has something else."""
        return position <= self.end

    def follows(self, member: Member, position: Position, *, now: float) -> None:
        """A follower has spoken in this epoch; what it has matches the leader's log up to `position` (invariant 7)."""
        peer = _Peer(position, now, now, position, spoke=True)
        before = self._peers.get(member)
        # One that connects again and again may be stuck too.
        if before is not None and now - before.heard_at < LET_GO_S:
            peer.moved, peer.reached = before.moved, max(before.reached, position)
        self._peers[member] = peer
        self._choose_waited_for()

    def assured(self, member: Member, at: float) -> None:
        """A follower answers a heartbeat that was sent at `at`, on this node's clock."""
        peer = self._peers.get(member)
        if peer is not None:
            peer.assured = max(peer.assured, at)

    def vouched(self, member: Member, position: Position, vouch: Vouch) -> bool:
        """A follower rests at `position`, and its node's heartbeats count as its own from now on, until `stirs`.

        False: it does not, since there is more to be had or to be said than its node knows of.
        """
        peer = self._peers.get(member)
        if peer is None or not peer.connected or not peer.has_told:
            return False
        if not peer.position == position == self.end == self.committed:
            return False
        peer.vouch = vouch
        return True

    def stirs(self, member: Member) -> None:
        """A follower counts by what it says itself again."""
        peer = self._peers.get(member)
        if peer is not None:
            peer.stand_alone()

    def gone(self, member: Member) -> None:
        """A follower's connection has ended. It may come back before it is let go."""
        peer = self._peers.get(member)
        if peer is None:
            return
        peer.connected = False
        peer.stand_alone()
        if member not in self._confirmed and (self._proposed is None or member not in self._proposed):
            del self._peers[member]

    def proposal(self, now: float, left: Collection[NodeId] = ()) -> frozenset[Member] | None:
        """The in-sync set that should be put into the store now; None: nothing to change, or a put is under way.

        `left`: nodes that have said that they stop, or whose process is gone: a follower there that is not connected is
        not waited for. Calling it makes the proposal: from now on commit waits for both sets, until `decided`.
        """
        wanted = self._wanted(now, left)
        if self._proposed is not None or wanted == self._confirmed:
            return None
        self._proposed = wanted
        self._choose_waited_for()
        return wanted

    def look(self, now: float, left: Collection[NodeId] = ()) -> None:
        """See whether it is stalled, where nothing can be proposed as something is being put already."""
        self._wanted(now, left)

    def _wanted(self, now: float, left: Collection[NodeId]) -> frozenset[Member]:
        silent = {
            member
            for member, peer in self._peers.items()
            if member in self._confirmed
            and (self._let_go(peer, now) or self._lacks(peer) or (not peer.connected and member.node in left))
        }
        silent |= {member for member in self._confirmed - {self.me} if member.node not in self._replicas}
        joining = {
            member
            for member, peer in self._peers.items()
            if member not in self._confirmed and self._may_join(member, peer, now)
        }
        # Another replica of a member's node: a folder that was lost. The old one can never come back.
        silent |= {old for old in self._confirmed for new in joining if old.node == new.node}
        wanted = (self._confirmed - silent) | joining
        self.stalled = len(wanted) < self._min_in_sync
        # Invariant 6: never below the minimum; those who left count until others came.
        return self._confirmed | joining if self.stalled else wanted

    def decided(self, in_sync: Iterable[Member]) -> bool:
        """The store has been seen to hold this set in this epoch, at a version newer than the proposal's base.

        True if `committed` moved.
        """
        self._confirmed = frozenset(in_sync)
        self._proposed = None
        for member in [member for member, peer in self._peers.items() if not peer.connected]:
            if member not in self._confirmed:
                del self._peers[member]
        self._choose_waited_for()
        return self._commit()

    def placed(self, replicas: Collection[NodeId], min_in_sync: int) -> None:
        """The record names these replicas and this minimum now."""
        self._replicas = frozenset(replicas)
        self._min_in_sync = min_in_sync

    def stood_still(self, seconds: float) -> None:
        """This process did, for so long: what followers said meanwhile waits here, so their silence does not count.

        Who can have taken over meanwhile is another question: the lease goes on (`in_touch`).
        """
        for peer in self._peers.values():
            peer.heard += seconds
            peer.moved += seconds

    # --- state

    @property
    def serves(self) -> bool:
        """Latest offsets, reads and committed offsets wait until `committed` reaches the start of the epoch (invariant
        8).

        By then every member has followed in this epoch, and takes nothing from a leader of before (invariant 4): what
        the next leader finds is fenced before it is told. BookKeeper lost entries where the reads of a ledger's
        recovery did not fence: one that they had not found could still be acknowledged.
        """
        return self.committed >= self.epoch_start

    @property
    def in_sync(self) -> frozenset[Member]:
        """The set that the store holds, as last seen."""
        return self._confirmed

    @property
    def waits_for(self) -> frozenset[Member]:
        """The members whose disks `committed` waits for."""
        return self._confirmed | (self._proposed or frozenset())

    def in_touch(self, now: float) -> bool:
        """Whether every other member followed within the lease, so that none can have taken over (invariant 16).

        Those who are proposed count: if the put has landed, one of them may lead already.
        """
        return all(peer.connected and now - peer.assured_at < IN_TOUCH_S for peer in self._waited_for)

    def is_settled(self, now: float) -> bool:
        """Whether nothing changes here by time alone, as long as the nodes of all followers are heard: all that there
        is is committed, nothing is proposed, and every follower rests."""
        return (
            not self.stalled
            and self._proposed is None
            and self.committed == self.end
            and all(
                peer.connected and peer.vouch is not None and now - peer.vouch.heard < STIR_S
                for peer in self._peers.values()
            )
        )

    def near(self, now: float) -> frozenset[NodeId]:
        """The nodes of those other members that live: they came to follow, though they may not have been fed."""
        return frozenset(
            member.node
            for member in self.waits_for - {self.me}
            if (peer := self._peers[member]).spoke and now - peer.heard_at < LET_GO_S
        )

    def positions(self) -> dict[Member, Position]:
        """What each replica has on disk, as far as the leader knows."""
        return {self.me: self._own} | {member: peer.position for member, peer in self._peers.items()}

    # --- inside

    def _let_go(self, peer: _Peer, now: float) -> bool:
        if now - peer.heard_at >= LET_GO_S:
            return True
        return peer.position < self.end and now - peer.moved >= STUCK_S

    def _lacks(self, peer: _Peer) -> bool:
        """It has lost what it had acknowledged, as a volume that was put back to a snapshot has: it counts for nothing
        until it has all again.
        """
        return peer.has_told and peer.position < self.committed

    def lacks(self, member: Member) -> bool:
        """Whether a member of the in-sync set has less than is committed."""
        peer = self._peers.get(member)
        return member in self._confirmed and peer is not None and self._lacks(peer)

    def _may_join(self, member: Member, peer: _Peer, now: float) -> bool:
        """Invariant 5: at or above `committed`, having spoken in this epoch; a named replica, and alive.

        A follower that was taken away and given back while its node was down comes with its former data, and
        incarnation. It counts by what matches in this epoch alone, as Redpanda's stale followers, removed and added
        again, did not.
        """
        return (
            peer.connected
            and member.node in self._replicas
            and peer.position >= self.committed
            and peer.position >= self.epoch_start
            and not self._let_go(peer, now)
        )

    def _choose_waited_for(self) -> None:
        members = self.waits_for - {self.me}
        for member in members:
            self._peers.setdefault(member, _Peer(Position(0), 0.0, 0.0, connected=False))
        self._waited_for = tuple(self._peers[member] for member in members)

    def _commit(self) -> bool:
        if len(self._confirmed) < self._min_in_sync:
            return False
        if self._proposed is not None and len(self._proposed) < self._min_in_sync:
            return False
        committed = self._own
        for peer in self._waited_for:
            committed = min(committed, peer.position)
        if committed <= self.committed:
            return False
        self.committed = committed
        return True
