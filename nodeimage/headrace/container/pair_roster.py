"""Which followers rest, as both nodes of a pair know it: one heartbeat then speaks for all of them.

A node that leads hundreds of containers which nobody writes to would send as many heartbeats to each other node, and
get as many answers. Instead of these

    followers' node                                        leaders' node
    PairUp                                          --->
                                                    <---   PairBeat(sent at)                          every 0.3 s
    PairAnswer(sent at, rests=[7: container, epoch,
               replica, position], digest)          --->   has the follower all, and is all committed?
                                                    <---   PairBeat(sent at, taken=[7])
    PairAnswer(sent at, digest)                     --->   every follower that rests lives, and follows in its epoch

A follower says that it rests; only then, and only while its node has not taken that back, does an answer count for it:

1. An answer speaks for what was told before it, on the same session, and in order. Who does not follow in that epoch
   any more, by that connection, is taken back before the next answer: it closes, cuts, or sees a higher epoch only
   afterwards (invariants 4, 7, 16).
2. The leader counts an answer for a follower only where the follower has all that there is, all of it is committed, and
   the connection between these two stands. Its first frame from then on, a closed connection or another epoch ends
   that at once: what is written is acknowledged by each follower itself. So an answer never acknowledges a byte
   (invariant 1), and one that is stuck with what it was sent is let go as ever. The next heartbeat tells the follower,
   which then hears from its leader, or finds that their connection leads nowhere.
3. Without answers for a while nobody is spoken for (leader_state.Vouch); the end of the session takes all back.

Both sides sum up what is spoken for. Sums that differ are a fault: the session ends, and all begins anew.

No I/O and no clock.
"""

import struct
import zlib
from collections.abc import Callable
from typing import Final, Protocol

from headrace.base.errors import MalformedRequest
from headrace.base.ids import ContainerId, Epoch, Position
from headrace.container.leader_state import Vouch
from headrace.peer.messages import PairAnswer, PairBeat, Resting

MOST_TOLD: Final = 1_000
"""Replicas in one answer."""
_SUMMED: Final = struct.Struct(">QQQQ")
_MODULUS: Final = 1 << 62


class RestingFollower(Protocol):
    """A follower here that wants to rest (follower.py)."""

    def rest(self, number: int, /) -> None:
        """From now on the heartbeats of the pair are its leader's, and its own."""

    def stir(self, number: int, *, silent: bool) -> None:
        """It is not spoken for any more. `silent`: its leader's node does not say anything."""


class FedFollower(Protocol):
    """A follower elsewhere, as its leader here feeds it (follower_feed.py)."""

    def spoken_for(self, vouch: Vouch, resting: Resting, stirred: Callable[[int], None], /) -> bool:
        """Whether the heartbeats of its node count for it from now on, until it stirs. `stirred`: it does, of itself;
        called with its number."""

    def stir(self) -> None:
        """They do not count any more."""

    def look_at(self) -> None:
        """They have not come for a while: have the leader look at it."""


class Sum:
    """Of what is spoken for."""

    __slots__ = ("count", "digest")

    def __init__(self) -> None:
        self.count = 0
        self.digest = 0

    def add(self, each: Resting, by: int = 1) -> None:
        """One more; or, with -1, one less."""
        self.count += by
        self.digest = (self.digest + by * _digest(each)) % _MODULUS


def _digest(each: Resting) -> int:
    fixed = _SUMMED.pack(each.number, each.container, each.epoch, each.position)
    return zlib.crc32(fixed) << 30 ^ zlib.crc32(each.format.encode(), zlib.crc32(fixed[::-1]))


class FollowersRoster:
    """The followers' side: which of those here that follow one other node's leaders rest."""

    def __init__(self) -> None:
        self._last = 0
        self._followers: dict[int, RestingFollower] = {}
        """Of those that are told, or are to be told, and not taken back."""
        self._fresh: dict[int, Resting] = {}
        """To be told."""
        self._told: dict[int, Resting] = {}
        self._back: list[int] = []
        """To be taken back."""
        self._sum = Sum()

    def __len__(self) -> int:
        return len(self._followers)

    def add(
        self, follower: RestingFollower, *, container: ContainerId, epoch: Epoch, format: str, position: Position
    ) -> int:
        """A follower wants to rest; its number. It hears by `rest` that it does, or by `stir` that it does not."""
        self._last += 1
        self._followers[self._last] = follower
        self._fresh[self._last] = Resting(self._last, container, epoch, format, position)
        return self._last

    def take_back(self, number: int) -> None:
        """It does not rest any more: no later answer speaks for it. Repeated, it changes nothing."""
        self._followers.pop(number, None)
        if self._fresh.pop(number, None) is None and (told := self._told.pop(number, None)) is not None:
            self._back.append(number)
            self._sum.add(told, -1)

    def answer(self, beat: PairBeat) -> PairAnswer:
        """What a heartbeat is answered."""
        for number in beat.astir:
            follower = self._followers.get(number)
            self.take_back(number)
            if follower is not None:
                follower.stir(number, silent=False)
        for number in beat.taken:
            if (follower := self._followers.get(number)) is not None:
                follower.rest(number)
        rests = []
        for number in list(self._fresh)[:MOST_TOLD]:
            resting = self._told[number] = self._fresh.pop(number)
            self._sum.add(resting)
            rests.append(resting)
        back, self._back = self._back, []
        return PairAnswer(sent_at=beat.sent_at, rests=rests, stirs=back, count=self._sum.count, digest=self._sum.digest)

    def end(self, *, silent: bool) -> None:
        """The session has ended: nobody is spoken for. `silent`: as nothing was heard of the other node."""
        followers, self._followers = self._followers, {}
        for number, follower in followers.items():
            follower.stir(number, silent=silent)


class LeadersRoster:
    """The leaders' side: which followers on one other node rest."""

    def __init__(self, now: float) -> None:
        self.vouch = Vouch(heard=now, assured=float("-inf"))
        self._told: dict[int, tuple[Resting, FedFollower | None]] = {}
        self._sum = Sum()
        self._taken: list[int] = []
        self._astir: list[int] = []
        self._sent_at = float("-inf")

    def beat(self, now: float) -> PairBeat:
        """The next heartbeat."""
        taken, self._taken = self._taken, []
        astir, self._astir = self._astir, []
        self._sent_at = now
        return PairBeat(sent_at=now, taken=taken, astir=astir)

    def answered(self, answer: PairAnswer, now: float, fed: Callable[[Resting], FedFollower | None]) -> None:
        """A heartbeat was answered. `fed`: the follower that is meant, where a leader here feeds it in that epoch.

        Raises MalformedRequest for what cannot be.
        """
        if answer.sent_at > self._sent_at:
            raise MalformedRequest("an answer to a heartbeat that was not sent")
        for number in answer.stirs:
            self._take_back(number)
        for resting in answer.rests:
            if resting.number in self._told:
                raise MalformedRequest(f"number {resting.number} of a replica that rests was given before")
            follower = fed(resting)
            if follower is not None and not follower.spoken_for(self.vouch, resting, self._stirred):
                follower = None
            self._told[resting.number] = resting, follower
            self._sum.add(resting)
            (self._astir if follower is None else self._taken).append(resting.number)
        if (answer.count, answer.digest) != (self._sum.count, self._sum.digest):
            raise MalformedRequest(
                f"the other side speaks for {answer.count} replicas that rest, and told of {self._sum.count}"
                + (", of others" if answer.count == self._sum.count else "")
            )
        # Only now: what was taken back is not spoken for by this answer.
        self.vouch.heard = max(self.vouch.heard, now)
        self.vouch.assured = max(self.vouch.assured, answer.sent_at)

    def _stirred(self, number: int) -> None:
        told = self._told.get(number)
        if told is not None and told[1] is not None:
            self._told[number] = told[0], None
            self._astir.append(number)

    def _take_back(self, number: int) -> None:
        told = self._told.pop(number, None)
        if told is None:
            raise MalformedRequest(f"number {number} was not told of as resting")
        resting, follower = told
        self._sum.add(resting, -1)
        if follower is not None:
            follower.stir()

    def stir(self) -> None:
        """Have all leaders look at their followers here again: nothing was heard of the node for a while."""
        for _, follower in self._told.values():
            if follower is not None:
                follower.look_at()

    def end(self) -> None:
        """The session has ended: nobody is spoken for."""
        told, self._told = self._told, {}
        for _, follower in told.values():
            if follower is not None:
                follower.stir()
