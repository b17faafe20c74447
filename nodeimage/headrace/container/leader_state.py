"""The leader's state of a container: what each replica has, what is committed, and which replicas are in sync.

A state machine without I/O and without a clock. Responsible for `committed`, the position below which every member of
the in-sync set has the log on disk (invariants 1, 2), and for membership: a follower that falls silent or makes no
progress is proposed out of the set, one that has caught up is proposed in (invariants 5, 6). leader.py writes, syncs
and sends; in_sync_writer.py puts proposals into the cluster store; both report here what happened and when. Times are
seconds of any monotonic clock.

While a proposal is in progress, commits wait for the union of the old and the proposed set, until the store is known to
hold one or the other (invariant 3): a put that timed out may still be stored later.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace.base.ids import Epoch, NodeId, Position

LET_GO_S: Final = 1.2
"""Seconds of silence after which a follower is proposed out of the in-sync set."""
STIR_S: Final = 0.7
"""Seconds of silence of a node after which the leaders that feed followers there check each of these followers again.
"""
STUCK_S = 5.0
"""Seconds without progress after which a connected follower that has frames to write is proposed out of the in-sync
set: its disk is full or dead."""
IN_TOUCH_S: Final = 1.0
"""Duration, in seconds, of the lease of invariant 16: shorter than any failover."""


class Member(NamedTuple):
    """A replica's identity in the in-sync set (invariant 5): the node, and the incarnation of the replica, which is the
    uuid of its folder (`format` in records and messages)."""

    node: NodeId
    incarnation: str


@dataclass(slots=True)
class Vouch:
    """What the heartbeats of a node show for all of its followers that rest (pair_roster.py).

    `heard` and `assured` mean the same as for a single follower in `_Peer`.
    """

    heard: float
    assured: float


@dataclass(slots=True)
class _Peer:
    """What the leader knows of another replica.

    `heard`: when the follower was last heard from. `moved`: when its position last rose above `reached`, or it had the
    whole log.

    `reached`: the highest position it had in this epoch, over all its connections.

    `assured`: it followed, in this epoch, at this time or later. This is the time when the heartbeat that it answered
    was sent, not the time of the answer: messages that were in flight, or waited here while this process was suspended,
    say nothing about the present.
    """

    position: Position
    heard: float
    moved: float
    reached: Position = Position(0)  # noqa: RUF009
    connected: bool = True
    spoke: bool = False
    """It has asked to follow in this epoch."""
    has_told: bool = False
    """`position` is what the follower reported on this connection."""
    assured: float = float("-inf")
    vouch: Vouch | None = None
    """Set while the follower rests, with the whole log: its node's heartbeats count as its own."""

    @property
    def heard_at(self) -> float:
        """When the follower itself, or its node for it, was last heard from."""
        return self.heard if self.vouch is None else max(self.heard, self.vouch.heard)

    @property
    def assured_at(self) -> float:
        """`assured`, or the value of its node's heartbeats if that is later."""
        return self.assured if self.vouch is None else max(self.assured, self.vouch.assured)

    def stand_alone(self) -> None:
        """From now on only the follower's own messages count for it."""
        if self.vouch is not None:
            self.heard, self.assured = self.heard_at, self.assured_at
            self.moved = max(self.moved, self.heard)  # it had the whole log until then
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
        """`start`: the position of this epoch's first frame; everything below is on the leader's disk. `committed`: as
        known so far."""
        self.me = me
        self.epoch = epoch
        self.epoch_start = start
        self.end = start
        """The end of the leader's log, including frames not on its disk yet; leader.py updates it at each sync cycle.
        """
        self.committed = committed
        self.stalled = False
        """Too few members are alive: nothing is committed until one returns (invariant 6)."""
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
        """`member` has everything below `position` on disk; return whether `committed` moved."""
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
        """Return whether a follower can have everything below `position`: beyond the end of this log, its frames must
        differ."""
        return position <= self.end

    def follows(self, member: Member, position: Position, *, now: float) -> None:
        """A follower has asked to follow in this epoch; its log matches the leader's up to `position` (invariant 7)."""
        peer = _Peer(position, now, now, position, spoke=True)
        before = self._peers.get(member)
        # A follower that keeps reconnecting may be stuck too.
        if before is not None and now - before.heard_at < LET_GO_S:
            peer.moved, peer.reached = before.moved, max(before.reached, position)
        self._peers[member] = peer
        self._choose_waited_for()

    def assured(self, member: Member, at: float) -> None:
        """A follower has answered a heartbeat that was sent at `at`, on this node's clock."""
        peer = self._peers.get(member)
        if peer is not None:
            peer.assured = max(peer.assured, at)

    def vouched(self, member: Member, position: Position, vouch: Vouch) -> bool:
        """A follower wants to rest at `position`: from now on, until `stirs`, its node's heartbeats count as its own.

        Returns False if it cannot rest, because there is something to send or acknowledge that its node does not know
        of.
        """
        peer = self._peers.get(member)
        if peer is None or not peer.connected or not peer.has_told:
            return False
        if not peer.position == position == self.end == self.committed:
            return False
        peer.vouch = vouch
        return True

    def stirs(self, member: Member) -> None:
        """A follower leaves rest: from now on only its own messages count for it."""
        peer = self._peers.get(member)
        if peer is not None:
            peer.stand_alone()

    def gone(self, member: Member) -> None:
        """A follower's connection has ended. The follower may return before it is removed from the set."""
        peer = self._peers.get(member)
        if peer is None:
            return
        peer.connected = False
        peer.stand_alone()
        if member not in self._confirmed and (self._proposed is None or member not in self._proposed):
            del self._peers[member]

    def proposal(self, now: float, left: Collection[NodeId] = ()) -> frozenset[Member] | None:
        """Return the in-sync set to put into the store now; None if nothing is to change, or a put is in progress.

        `left`: nodes that have announced that they stop, or whose process is gone: a disconnected follower there is not
        waited for. The call itself makes the proposal: from now on commits wait for both sets, until `decided`.
        """
        wanted = self._wanted(now, left)
        if self._proposed is not None or wanted == self._confirmed:
            return None
        self._proposed = wanted
        self._choose_waited_for()
        return wanted

    def look(self, now: float, left: Collection[NodeId] = ()) -> None:
        """Update `stalled` while nothing can be proposed because a put is in progress."""
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
        # A new incarnation on a member's node means that the old one's folder was lost: it can never return.
        silent |= {old for old in self._confirmed for new in joining if old.node == new.node}
        wanted = (self._confirmed - silent) | joining
        self.stalled = len(wanted) < self._min_in_sync
        # Invariant 6: the set never shrinks below the minimum; departed members stay in it until others join.
        return self._confirmed | joining if self.stalled else wanted

    def decided(self, in_sync: Iterable[Member]) -> bool:
        """The store is known to hold this set in this epoch, at a version newer than the proposal's base.

        Returns whether `committed` moved.
        """
        self._confirmed = frozenset(in_sync)
        self._proposed = None
        for member in [member for member, peer in self._peers.items() if not peer.connected]:
            if member not in self._confirmed:
                del self._peers[member]
        self._choose_waited_for()
        return self._commit()

    def placed(self, replicas: Collection[NodeId], min_in_sync: int) -> None:
        """The container's record now names these replicas and this minimum."""
        self._replicas = frozenset(replicas)
        self._min_in_sync = min_in_sync

    def stood_still(self, seconds: float) -> None:
        """This process was suspended for `seconds`: followers' messages may still be waiting to be read, so that time
        does not count as silence.

        The lease of `in_touch` is not extended: another node may have become leader meanwhile.
        """
        for peer in self._peers.values():
            peer.heard += seconds
            peer.moved += seconds

    # --- state

    @property
    def serves(self) -> bool:
        """Whether reads, latest offsets and committed offsets may be answered: `committed` has reached the epoch's
        start.

        This is invariant 8. By then every member has followed in this epoch, and accepts nothing from an earlier leader
        (invariant 4): what a new leader finds is fenced before it is served. BookKeeper lost entries because the
        reads of a ledger's recovery did not fence: an entry that they had not found could still be acknowledged.
        """
        return self.committed >= self.epoch_start

    @property
    def in_sync(self) -> frozenset[Member]:
        """The set that the store holds, as last seen."""
        return self._confirmed

    @property
    def waits_for(self) -> frozenset[Member]:
        """The members that must have frames on disk before `committed` moves."""
        return self._confirmed | (self._proposed or frozenset())

    def in_touch(self, now: float) -> bool:
        """Return whether every other member followed within the lease, so that none can have become leader (invariant
        16).

        Proposed members count too: if the put has been stored, one of them may lead already.
        """
        return all(peer.connected and now - peer.assured_at < IN_TOUCH_S for peer in self._waited_for)

    def is_settled(self, now: float) -> bool:
        """Return whether time alone changes nothing here while the nodes of all followers are heard from.

        That is: the whole log is committed, nothing is proposed, and every follower rests.
        """
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
        """Return the nodes of the other members that are alive: they asked to follow, but may not have been fed yet."""
        return frozenset(
            member.node
            for member in self.waits_for - {self.me}
            if (peer := self._peers[member]).spoke and now - peer.heard_at < LET_GO_S
        )

    def positions(self) -> dict[Member, Position]:
        """Return what each replica has on disk, as far as the leader knows."""
        return {self.me: self._own} | {member: peer.position for member, peer in self._peers.items()}

    # --- inside

    def _let_go(self, peer: _Peer, now: float) -> bool:
        if now - peer.heard_at >= LET_GO_S:
            return True
        return peer.position < self.end and now - peer.moved >= STUCK_S

    def _lacks(self, peer: _Peer) -> bool:
        """The follower has lost frames that it had acknowledged, as after its volume was restored from a snapshot. It
        is not counted as in sync until it has all of them again."""
        return peer.has_told and peer.position < self.committed

    def lacks(self, member: Member) -> bool:
        """Return whether a member of the in-sync set has less than what is committed."""
        peer = self._peers.get(member)
        return member in self._confirmed and peer is not None and self._lacks(peer)

    def _may_join(self, member: Member, peer: _Peer, now: float) -> bool:
        """Return whether a follower may join the set: at or above `committed` and the epoch's start, alive, and a named
        replica.

        This is invariant 5. A follower that was removed and added again while its node was down returns with its former
        data and incarnation. Only what matches in this epoch counts, unlike for Redpanda's stale followers that were
        removed and added again.
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
