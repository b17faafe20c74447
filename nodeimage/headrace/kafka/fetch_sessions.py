"""Fetch sessions (KIP-227): a consumer names its partitions once, then only what changes.

A session keeps its partitions in the order in which they were served, least recent first, and a set of those that may
have news. A fetch looks only at that set, so a consumer of ten thousand quiet partitions costs nothing. A partition
joins the set when its high watermark or log start moves (`WatchedPartition.wake`), or when the client moves its offset.
A sessionless fetch is a session that lives for one request.

At most `MAX_SESSIONS` are kept, with `MAX_PARTITIONS` together. When there is no room, a session that has been unused
for `UNUSED_S` is closed, and its client starts a new one (FETCH_SESSION_ID_NOT_FOUND). If all are in use, a client that
begins a session gets none (id 0), and names all of its partitions each time. Kafka does the same: sessions that evict
each other in turns would cost more than none.
"""

import random
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from headrace.base.errors import Code, KafkaError
from headrace.catalog.names import DEFAULT_STREAM
from headrace.partitions.partition import Partition
from headrace.partitions.topic import Topic
from headrace.security.principals import NOBODY, Principal
from headrace.wire.fetch import FetchPartition

MAX_SESSIONS: Final = 1000
MAX_PARTITIONS: Final = 400_000
"""Partitions in all sessions together; each takes some 700 bytes."""
UNUSED_S: Final = 120.0
"""Kafka's `min.incremental.fetch.session.eviction.ms`."""
FINAL_EPOCH: Final = -1
INITIAL_EPOCH: Final = 0

Key = tuple[str | bytes, int]
"""The topic name or topic id that the client used, and the partition's number."""


class WatchedPartition:
    """One partition of one session: what the client requested, and what it was last sent."""

    __slots__ = (
        "asked",
        "error",
        "key",
        "partition",
        "rules_version",
        "sent_high_watermark",
        "sent_log_start",
        "session",
        "topic",
    )

    def __init__(self, *, session: "FetchSession", key: Key, asked: FetchPartition) -> None:
        self.session = session
        self.key = key
        self.asked = asked
        self.partition: Partition | None = None
        self.topic: Topic | None = None
        """The partition's topic."""
        self.error: KafkaError | None = None
        self.sent_high_watermark = -1
        self.sent_log_start = -1
        self.rules_version = -1
        """The version of the rules under which the client may read the partition (Authorization.rules_version); under
        other rules it is checked again."""

    def watch(self, partition: Partition, topic: Topic) -> None:
        """Watch `partition`, which belongs to `topic`, instead of any earlier partition."""
        if partition is self.partition:
            return
        self.unwatch()
        self.partition, self.topic = partition, topic
        partition.watch(self)

    def unwatch(self) -> None:
        """Stop watching the partition, if any."""
        if self.partition is not None:
            self.partition.unwatch(self)
            self.partition = self.topic = None

    def wake(self) -> None:
        """Mark the partition as having news, and wake the session."""
        self.session.active[self.key] = self
        self.session.wake()


class FetchSession:
    """The partitions of one consumer at this node."""

    __slots__ = (
        "_wake",
        "active",
        "closed",
        "counted",
        "default_stream",
        "epoch",
        "id",
        "interests",
        "principal",
        "used_at",
    )

    def __init__(self, principal: Principal = NOBODY, default_stream: str = DEFAULT_STREAM) -> None:
        self.principal = principal
        """The principal to which the session belongs."""
        self.default_stream = default_stream
        """The stream of the bare names in the session's keys."""
        self.id = 0
        self.epoch = INITIAL_EPOCH
        self.closed = False
        self.used_at = 0.0
        """Loop time of the session's last request or answer."""
        self.counted = 0
        """The number of the session's partitions, as counted by `FetchSessions`."""
        self.interests: dict[Key, WatchedPartition] = {}
        self.active: dict[Key, WatchedPartition] = {}
        """The partitions that may have news, longest unserved first."""
        self._wake: Callable[[], None] | None = None

    def is_of(self, principal: Principal) -> bool:
        """Whether a principal may continue the session, over any connection. If it may, the session adopts the
        principal; if its groups have changed, all partitions are checked again."""
        own = self.principal
        if principal is own:
            return True
        if principal.user != own.user:
            return False
        self.principal = principal
        if principal.groups != own.groups:
            for key, interest in self.interests.items():
                interest.rules_version = -1
                self.active[key] = interest
        return True

    @property
    def incremental(self) -> bool:
        """Whether answers leave out partitions without a change."""
        return self.id != 0 and self.epoch != INITIAL_EPOCH

    @property
    def reportable(self) -> dict[Key, WatchedPartition]:
        """The partitions that the next answer may report."""
        return self.active if self.incremental else self.interests

    @property
    def is_busy(self) -> bool:
        """Whether a fetch is under way."""
        return self._wake is not None

    def fetch_waits(self, wake: Callable[[], None]) -> None:
        """Begin a fetch; `wake` is called when there is news for it, or nothing left to wait for."""
        self._wake = wake

    def fetch_ended(self) -> None:
        """End the fetch that is under way, if any."""
        self._wake = None

    def wake(self) -> None:
        """Wake the fetch that is under way, if any."""
        if self._wake is not None:
            self._wake()

    def ask(self, key: Key, asked: FetchPartition) -> None:
        """Add a partition that the client names, or update its request. Does nothing in a closed session."""
        if self.closed:
            return
        interest = self.interests.get(key)
        if interest is None:
            interest = self.interests[key] = WatchedPartition(session=self, key=key, asked=asked)
        else:
            interest.asked = asked
        self.active[key] = interest

    def forget(self, key: Key) -> None:
        """Remove a partition that the client no longer wants."""
        interest = self.interests.pop(key, None)
        self.active.pop(key, None)
        if interest is not None:
            interest.unwatch()

    def close(self) -> None:
        """Release all partitions, and wake a waiting fetch, which has nothing left to wait for."""
        self.closed = True
        for interest in self.interests.values():
            interest.unwatch()
        self.interests.clear()
        self.active.clear()
        self.wake()


class FetchSessions:
    """All sessions of a node."""

    def __init__(
        self, *, time: Callable[[], float], most: int = MAX_SESSIONS, most_partitions: int = MAX_PARTITIONS
    ) -> None:
        """`time`: the loop's clock, in seconds."""
        self._time = time
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        """The sessions by id, longest unused first."""
        self._most = most
        self._most_partitions = most_partitions
        self._partitions = 0
        self._random = random.Random()

    def __len__(self) -> int:
        return len(self._sessions)

    def find(
        self,
        *,
        session_id: int,
        epoch: int,
        principal: Principal = NOBODY,
        default_stream: str = DEFAULT_STREAM,
    ) -> FetchSession:
        """The session that a request continues, or a new one if the request begins a session (epoch 0) or has none
        (epoch -1).

        Raises `KafkaError` FETCH_SESSION_ID_NOT_FOUND, also for another user's session and at a listener where the
        session's names mean other topics; or INVALID_FETCH_SESSION_EPOCH.
        """
        session = self._sessions.get(session_id)
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if session is not None and session.is_of(principal):
                self.close(session_id)
            return FetchSession(principal, default_stream)
        if session is None or session.default_stream != default_stream or not session.is_of(principal):
            raise _not_found(session_id)
        if session.epoch != epoch or session.is_busy:
            raise KafkaError(Code.INVALID_FETCH_SESSION_EPOCH, f"session {session_id} expects epoch {session.epoch}")
        self._touch(session)
        return session

    def named(self, session: FetchSession, *, begins: bool) -> None:
        """Count the partitions that the client has named. A session that begins is kept, with an id, if there is room.

        Raises `KafkaError` FETCH_SESSION_ID_NOT_FOUND if a kept session no longer exists, or there is no room for
        its further partitions.
        """
        more = len(session.interests) - session.counted
        if session.id:
            if not session.closed and (more <= 0 or self._make_room(sessions=0, partitions=more)):
                self._count(session, more)
                return
            self.close(session.id)
            raise _not_found(session.id)
        if begins and self._make_room(sessions=1, partitions=more):
            while not session.id or session.id in self._sessions:
                session.id = self._random.randint(1, 0x7FFFFFFF)
            self._sessions[session.id] = session
            self._touch(session)
            self._count(session, more)

    def advance(self, session: FetchSession) -> None:
        """Note that an answer of `session` is sent: the next request carries the next epoch."""
        if not session.id:
            session.close()
            return
        session.epoch = 1 if session.epoch >= 0x7FFFFFFF else session.epoch + 1
        if not session.closed:
            self._touch(session)

    def close(self, session_id: int) -> None:
        """End the session with this id, if any."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._count(session, -session.counted)
            session.close()

    def _touch(self, session: FetchSession) -> None:
        session.used_at = self._time()
        self._sessions.move_to_end(session.id)

    def _count(self, session: FetchSession, more: int) -> None:
        session.counted += more
        self._partitions += more

    def _make_room(self, *, sessions: int, partitions: int) -> bool:
        """Whether there is room for this many more, closing unused sessions if necessary."""
        while len(self._sessions) + sessions > self._most or self._partitions + partitions > self._most_partitions:
            unused = self._unused()
            if unused is None:
                return False
            self.close(unused.id)
        return True

    def _unused(self) -> FetchSession | None:
        for session in self._sessions.values():
            if session.used_at > self._time() - UNUSED_S:
                return None
            if not session.is_busy:
                return session
        return None


def _not_found(session_id: int) -> KafkaError:
    return KafkaError(Code.FETCH_SESSION_ID_NOT_FOUND, f"no fetch session {session_id}")
