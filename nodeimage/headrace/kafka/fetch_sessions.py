"""Fetch sessions (KIP-227): a consumer names its partitions once, then only what changes.

A session keeps its partitions in the order in which they were served least recently, and a set of those that may have
something to say: a fetch looks only at these, so that a consumer of ten thousand quiet partitions costs nothing. A
partition joins the set when its high watermark or log start moves (`Interest.wake`), or when the client moves its
offset. A sessionless fetch is a session that lives for one request.

At most `MAX_SESSIONS` are kept, of `MAX_PARTITIONS` together. Where there is no room, one that was not used for
`UNUSED_S` goes, and its client starts a new one (FETCH_SESSION_ID_NOT_FOUND); where all are in use, the client that
begins gets none (id 0), and names all of its partitions each time. Kafka does the same: sessions that took each other's
place in turns would cost more than none.
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
"""Some 700 bytes each."""
UNUSED_S: Final = 120.0
"""Kafka's `min.incremental.fetch.session.eviction.ms`."""
FINAL_EPOCH: Final = -1
INITIAL_EPOCH: Final = 0

Key = tuple[str | bytes, int]
"""Topic name or topic id as the client gave it, and the partition's number."""


class Interest:
    """One partition of one session: what the client asked for, and what it was last told."""

    __slots__ = (
        "asked",
        "error",
        "key",
        "partition",
        "rules",
        "session",
        "told_high_watermark",
        "told_log_start",
        "topic",
    )

    def __init__(self, *, session: "FetchSession", key: Key, asked: FetchPartition) -> None:
        self.session = session
        self.key = key
        self.asked = asked
        self.partition: Partition | None = None
        self.topic: Topic | None = None
        """The partition's."""
        self.error: KafkaError | None = None
        self.told_high_watermark = -1
        self.told_log_start = -1
        self.rules = -1
        """Those by which the client may read the partition (Authorization.rules); under others it is asked again."""

    def watch(self, partition: Partition, topic: Topic) -> None:
        """Follow `partition`, which is of `topic`."""
        if partition is self.partition:
            return
        self.unwatch()
        self.partition, self.topic = partition, topic
        partition.watch(self)

    def unwatch(self) -> None:
        """Follow none."""
        if self.partition is not None:
            self.partition.unwatch(self)
            self.partition = self.topic = None

    def wake(self) -> None:
        """The partition has news."""
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
        """Whose it is."""
        self.default_stream = default_stream
        """Of the bare names in its keys."""
        self.id = 0
        self.epoch = INITIAL_EPOCH
        self.closed = False
        self.used_at = 0.0
        """Loop time of its last request or answer."""
        self.counted = 0
        """Its partitions, as `FetchSessions` counts them."""
        self.interests: dict[Key, Interest] = {}
        self.active: dict[Key, Interest] = {}
        """Those to look at, longest unserved first."""
        self._wake: Callable[[], None] | None = None

    def is_of(self, principal: Principal) -> bool:
        """Whether a user may go on with it, by whichever connection. Takes up the groups that the user has now."""
        own = self.principal
        if principal is own:
            return True
        if principal.user != own.user:
            return False
        self.principal = principal
        if principal.groups != own.groups:
            for key, interest in self.interests.items():
                interest.rules = -1
                self.active[key] = interest
        return True

    @property
    def incremental(self) -> bool:
        """Answers leave out what has not changed."""
        return self.id != 0 and self.epoch != INITIAL_EPOCH

    @property
    def to_tell(self) -> dict[Key, Interest]:
        """Those that the next answer may tell of."""
        return self.active if self.incremental else self.interests

    @property
    def is_busy(self) -> bool:
        """A fetch is under way."""
        return self._wake is not None

    def fetch_waits(self, wake: Callable[[], None]) -> None:
        """A fetch is under way; `wake` is called when it has news to tell, or nothing to wait for any more."""
        self._wake = wake

    def fetch_ended(self) -> None:
        """No fetch is under way any more."""
        self._wake = None

    def wake(self) -> None:
        """Wake the fetch that is under way, if there is one."""
        if self._wake is not None:
            self._wake()

    def ask(self, key: Key, asked: FetchPartition) -> None:
        """The client names a partition, anew or with another offset. A closed session takes none."""
        if self.closed:
            return
        interest = self.interests.get(key)
        if interest is None:
            interest = self.interests[key] = Interest(session=self, key=key, asked=asked)
        else:
            interest.asked = asked
        self.active[key] = interest

    def forget(self, key: Key) -> None:
        """The client no longer wants a partition."""
        interest = self.interests.pop(key, None)
        self.active.pop(key, None)
        if interest is not None:
            interest.unwatch()

    def close(self) -> None:
        """Let go of all partitions. A fetch that waits has nothing to wait for any more."""
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
        """`time`: the loop's."""
        self._time = time
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        """Longest unused first."""
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
        """The session that a request continues, or a new one where it begins one (epoch 0) or goes without (epoch -1).

        Raises `KafkaError` FETCH_SESSION_ID_NOT_FOUND, of another user's session too, and at a listener where the
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
        self._used(session)
        return session

    def named(self, session: FetchSession, *, begins: bool) -> None:
        """The client has named its partitions. A session that begins is kept, with an id, if there is room.

        Raises `KafkaError` FETCH_SESSION_ID_NOT_FOUND if one that was kept is no more: it may have outgrown the room.
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
            self._used(session)
            self._count(session, more)

    def advance(self, session: FetchSession) -> None:
        """An answer of `session` goes out: the next request carries the next epoch."""
        if not session.id:
            session.close()
            return
        session.epoch = 1 if session.epoch >= 0x7FFFFFFF else session.epoch + 1
        if not session.closed:
            self._used(session)

    def close(self, session_id: int) -> None:
        """End a session, if there is one of that id."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._count(session, -session.counted)
            session.close()

    def _used(self, session: FetchSession) -> None:
        session.used_at = self._time()
        self._sessions.move_to_end(session.id)

    def _count(self, session: FetchSession, more: int) -> None:
        session.counted += more
        self._partitions += more

    def _make_room(self, *, sessions: int, partitions: int) -> bool:
        """Whether there is room for so many more, if need be once unused sessions are closed."""
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
