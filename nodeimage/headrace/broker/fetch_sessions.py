"""Fetch sessions (KIP-227): a consumer names its partitions once, then only what changes.

A session keeps its partitions in the order in which they were served least recently, and a set of those that may have
something to say: a fetch looks only at these, so that a consumer of ten thousand quiet partitions costs nothing. A
partition joins the set when its high watermark or log start moves (`Interest.wake`), or when the client moves its
offset. A sessionless fetch is a session that lives for one request.

At most `MAX_SESSIONS` are kept; the least recently used goes first, and its client starts a new one
(FETCH_SESSION_ID_NOT_FOUND).
"""

import random
from collections import OrderedDict
from collections.abc import Callable

from headrace.broker.partition import Partition
from headrace.errors import Code, KafkaError
from headrace.wire.fetch import FetchPartition

MAX_SESSIONS = 1000
FINAL_EPOCH = -1
INITIAL_EPOCH = 0

Key = tuple[str | bytes, int]
"""Topic name or topic id as the client gave it, and the partition's number."""


class Interest:
    """One partition of one session: what the client asked for, and what it was last told."""

    __slots__ = ("asked", "error", "key", "partition", "session", "told_high_watermark", "told_log_start")

    def __init__(self, *, session: "FetchSession", key: Key, asked: FetchPartition) -> None:
        self.session = session
        self.key = key
        self.asked = asked
        self.partition: Partition | None = None
        self.error: KafkaError | None = None
        self.told_high_watermark = -1
        self.told_log_start = -1

    def watch(self, partition: Partition | None) -> None:
        """Follow `partition`, or none."""
        if partition is self.partition:
            return
        if self.partition is not None:
            self.partition.unwatch(self)
        self.partition = partition
        if partition is not None:
            partition.watch(self)

    def wake(self) -> None:
        """The partition has news."""
        self.session.active[self.key] = self
        waiting = self.session.waiting
        if waiting is not None:
            waiting()


class FetchSession:
    """The partitions of one consumer at this node."""

    __slots__ = ("active", "epoch", "id", "interests", "waiting")

    def __init__(self, session_id: int) -> None:
        self.id = session_id
        self.epoch = INITIAL_EPOCH
        self.interests: dict[Key, Interest] = {}
        self.active: dict[Key, Interest] = {}
        """Those to look at, longest unserved first."""
        self.waiting: Callable[[], None] | None = None

    @property
    def incremental(self) -> bool:
        """Answers leave out what has not changed."""
        return self.id != 0 and self.epoch != INITIAL_EPOCH

    def ask(self, key: Key, asked: FetchPartition) -> None:
        """The client names a partition, anew or with another offset."""
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
            interest.watch(None)

    def close(self) -> None:
        """Let go of all partitions."""
        for interest in self.interests.values():
            interest.watch(None)
        self.interests.clear()
        self.active.clear()


class FetchSessions:
    """All sessions of a node."""

    def __init__(self, *, most: int = MAX_SESSIONS) -> None:
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._most = most
        self._random = random.Random()

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, *, session_id: int, epoch: int) -> FetchSession:
        """The session that a request continues, begins (epoch 0), or goes without (epoch -1).

        Raises `KafkaError` FETCH_SESSION_ID_NOT_FOUND or INVALID_FETCH_SESSION_EPOCH.
        """
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self.close(session_id)
            return self._begin() if epoch == INITIAL_EPOCH else FetchSession(0)
        session = self._sessions.get(session_id)
        if session is None:
            raise KafkaError(Code.FETCH_SESSION_ID_NOT_FOUND, f"no fetch session {session_id}")
        if session.epoch != epoch or session.waiting is not None:
            raise KafkaError(Code.INVALID_FETCH_SESSION_EPOCH, f"session {session_id} expects epoch {session.epoch}")
        self._sessions.move_to_end(session_id)
        return session

    def advance(self, session: FetchSession) -> None:
        """An answer of `session` goes out: the next request carries the next epoch."""
        if session.id:
            session.epoch = 1 if session.epoch >= 0x7FFFFFFF else session.epoch + 1
        else:
            session.close()

    def close(self, session_id: int) -> None:
        """End a session, if there is one of that id."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()

    def _begin(self) -> FetchSession:
        while len(self._sessions) >= self._most:
            self._sessions.popitem(last=False)[1].close()
        session_id = self._random.randint(1, 0x7FFFFFFF)
        while session_id in self._sessions:
            session_id = self._random.randint(1, 0x7FFFFFFF)
        session = self._sessions[session_id] = FetchSession(session_id)
        return session
