"""Which followers rest, agreed between the two nodes of a pair, so that one heartbeat counts for all of them.

A node that leads hundreds of idle containers would otherwise send hundreds of heartbeats to each other node, and
receive as many answers. Instead:

    followers' node                                        leaders' node
    PairUp                                          --->
                                                    <---   PairBeat(sent at)                          every 0.3 s
    PairAnswer(sent at, rests=[7: container, epoch,
               replica, position], digest)          --->   does the follower have everything, all committed?
                                                    <---   PairBeat(sent at, taken=[7])
    PairAnswer(sent at, digest)                     --->   every resting follower lives, and follows in its epoch

A follower announces that it rests. From then on, and until its node withdraws the announcement, an answer counts for
the follower:

1. An answer covers what was announced before it, in order, on the same session. A follower that no longer follows in
   that epoch over that connection is withdrawn before the next answer; only afterwards does it close, cut its log, or
   see a higher epoch (invariants 4, 7, 16).
2. The leader counts an answer for a follower only while the follower has the whole log, all of it is committed, and the
   connection between leader and follower is open. The first new frame, a closed connection or another epoch ends that
   at once: each follower acknowledges new frames itself. So an answer never acknowledges a byte (invariant 1), and a
   follower that is stuck on new frames is removed from the in-sync set as usual. The next heartbeat notifies the
   follower, which then hears from its leader, or finds that their connection is dead.
3. If no answers arrive for a while, no follower is covered (leader_state.Vouch). The end of the session withdraws all
   followers.

Both sides keep a count and a digest of the followers that are announced and not withdrawn, covered or not. A mismatch
is a fault: the session ends, and everything is announced again.

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

MAX_TOLD: Final = 1_000
"""The maximum number of replicas announced in one answer."""
_DIGEST_FIELDS: Final = struct.Struct(">QQQQ")
"""The numeric fields that a resting follower's digest covers: number, container, epoch, position. It also covers the
replica's incarnation."""
_MODULUS: Final = 1 << 62
"""Digests are added modulo this number."""


class RestingFollower(Protocol):
    """A follower on this node that wants to rest (follower.py)."""

    def rest(self, number: int, /) -> None:
        """The follower rests: from now on, the heartbeats of the pair replace those of its leader and its own."""

    def stir(self, number: int, *, silent: bool) -> None:
        """The follower no longer rests. `silent`: nothing was heard from its leader's node."""


class FedFollower(Protocol):
    """A follower on another node, as its leader here feeds it (follower_feed.py)."""

    def spoken_for(self, vouch: Vouch, resting: Resting, stirred: Callable[[int], None], /) -> bool:
        """Return whether the heartbeats of its node count for the follower from now on, until it stirs.

        `stirred`: called with the follower's number when the follower leaves rest on this side.
        """

    def stir(self) -> None:
        """The heartbeats of its node no longer count for the follower."""

    def look_at(self) -> None:
        """No heartbeats have arrived for a while: have the leader check the follower."""


class Sum:
    """Count and digest of the followers that are announced and not withdrawn, independent of their order."""

    __slots__ = ("count", "digest")

    def __init__(self) -> None:
        self.count = 0
        self.digest = 0

    def add(self, each: Resting, by: int = 1) -> None:
        """Add a follower, or remove it with `by=-1`."""
        self.count += by
        self.digest = (self.digest + by * _digest(each)) % _MODULUS


def _digest(each: Resting) -> int:
    fixed = _DIGEST_FIELDS.pack(each.number, each.container, each.epoch, each.position)
    return zlib.crc32(fixed) << 30 ^ zlib.crc32(each.format.encode(), zlib.crc32(fixed[::-1]))


class FollowersRoster:
    """The followers' side of a pair: which of the followers here, of one other node's leaders, rest."""

    def __init__(self) -> None:
        self._last = 0
        self._followers: dict[int, RestingFollower] = {}
        """Followers by number: those that have been announced or will be, and have not been withdrawn."""
        self._unannounced: dict[int, Resting] = {}
        """Followers to announce with the next answer."""
        self._announced: dict[int, Resting] = {}
        """Followers that have been announced."""
        self._withdrawn: list[int] = []
        """Numbers of followers to withdraw with the next answer."""
        self._sum = Sum()

    def __len__(self) -> int:
        return len(self._followers)

    def add(
        self, follower: RestingFollower, *, container: ContainerId, epoch: Epoch, format: str, position: Position
    ) -> int:
        """Register a follower that wants to rest; return its number.

        The follower is later notified by `rest` that it rests, or by `stir` that it does not.
        """
        self._last += 1
        self._followers[self._last] = follower
        self._unannounced[self._last] = Resting(self._last, container, epoch, format, position)
        return self._last

    def take_back(self, number: int) -> None:
        """Withdraw a follower: no later answer counts for it. A repeated call changes nothing."""
        self._followers.pop(number, None)
        if self._unannounced.pop(number, None) is None and (told := self._announced.pop(number, None)) is not None:
            self._withdrawn.append(number)
            self._sum.add(told, -1)

    def answer(self, beat: PairBeat) -> PairAnswer:
        """Return the answer to a heartbeat."""
        for number in beat.astir:
            follower = self._followers.get(number)
            self.take_back(number)
            if follower is not None:
                follower.stir(number, silent=False)
        for number in beat.taken:
            if (follower := self._followers.get(number)) is not None:
                follower.rest(number)
        rests = []
        for number in list(self._unannounced)[:MAX_TOLD]:
            resting = self._announced[number] = self._unannounced.pop(number)
            self._sum.add(resting)
            rests.append(resting)
        back, self._withdrawn = self._withdrawn, []
        return PairAnswer(sent_at=beat.sent_at, rests=rests, stirs=back, count=self._sum.count, digest=self._sum.digest)

    def end(self, *, silent: bool) -> None:
        """The session has ended: no follower is covered. `silent`: it ended because nothing was heard from the other
        node."""
        followers, self._followers = self._followers, {}
        for number, follower in followers.items():
            follower.stir(number, silent=silent)


class LeadersRoster:
    """The leaders' side of a pair: which followers on one other node rest."""

    def __init__(self, now: float) -> None:
        self.vouch = Vouch(heard=now, assured=float("-inf"))
        self._announced: dict[int, tuple[Resting, FedFollower | None]] = {}
        self._sum = Sum()
        self._taken: list[int] = []
        self._astir: list[int] = []
        self._sent_at = float("-inf")

    def beat(self, now: float) -> PairBeat:
        """Return the next heartbeat."""
        taken, self._taken = self._taken, []
        astir, self._astir = self._astir, []
        self._sent_at = now
        return PairBeat(sent_at=now, taken=taken, astir=astir)

    def answered(self, answer: PairAnswer, now: float, fed: Callable[[Resting], FedFollower | None]) -> None:
        """Process the answer to a heartbeat. `fed`: finds the announced follower if a leader here feeds it in that
        epoch.

        Raises MalformedRequest for an invalid answer.
        """
        if answer.sent_at > self._sent_at:
            raise MalformedRequest("an answer to a heartbeat that was never sent")
        for number in answer.stirs:
            self._take_back(number)
        for resting in answer.rests:
            if resting.number in self._announced:
                raise MalformedRequest(f"number {resting.number} of a resting replica was used before")
            follower = fed(resting)
            if follower is not None and not follower.spoken_for(self.vouch, resting, self._stirred):
                follower = None
            self._announced[resting.number] = resting, follower
            self._sum.add(resting)
            (self._astir if follower is None else self._taken).append(resting.number)
        if (answer.count, answer.digest) != (self._sum.count, self._sum.digest):
            raise MalformedRequest(
                f"the other side vouches for {answer.count} resting replicas, but has announced {self._sum.count}"
                + (" others" if answer.count == self._sum.count else "")
            )
        # Only now, because this answer does not count for the followers that it withdraws.
        self.vouch.heard = max(self.vouch.heard, now)
        self.vouch.assured = max(self.vouch.assured, answer.sent_at)

    def _stirred(self, number: int) -> None:
        told = self._announced.get(number)
        if told is not None and told[1] is not None:
            self._announced[number] = told[0], None
            self._astir.append(number)

    def _take_back(self, number: int) -> None:
        told = self._announced.pop(number, None)
        if told is None:
            raise MalformedRequest(f"number {number} was not announced as resting")
        resting, follower = told
        self._sum.add(resting, -1)
        if follower is not None:
            follower.stir()

    def stir(self) -> None:
        """Have all leaders here check their followers on the other node, from which nothing was heard for a while."""
        for _, follower in self._announced.values():
            if follower is not None:
                follower.look_at()

    def end(self) -> None:
        """The session has ended: no follower is covered."""
        told, self._announced = self._announced, {}
        for _, follower in told.values():
            if follower is not None:
                follower.stir()
