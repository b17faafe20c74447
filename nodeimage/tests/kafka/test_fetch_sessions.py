"""The number of fetch sessions that a node keeps, and which sessions a new one may replace."""

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.catalog.names import DEFAULT_STREAM
from headrace.kafka.fetch_sessions import UNUSED_S, FetchSession, FetchSessions
from headrace.security.principals import NOBODY, Mechanism, Principal
from headrace.wire.fetch import FetchPartition


class Clients:
    """The clients of `sessions`, with a clock that stands still unless the test moves it."""

    def __init__(self, *, most: int = 2, most_partitions: int = 100) -> None:
        self.now = 1000.0
        self.sessions = FetchSessions(time=lambda: self.now, most=most, most_partitions=most_partitions)

    def fetch(
        self, session_id: int, epoch: int, *partitions: int, default_stream: str = DEFAULT_STREAM
    ) -> FetchSession:
        session = self.sessions.find(session_id=session_id, epoch=epoch, default_stream=default_stream)
        for number in partitions:
            session.ask(("t", number), FetchPartition(number, -1, 0, -1, -1, 1))
        self.sessions.named(session, begins=epoch == 0)
        return session

    def begin(self, *partitions: int) -> FetchSession:
        session = self.fetch(0, 0, *partitions)
        self.sessions.advance(session)
        return session

    def refusal(self, session: FetchSession, *partitions: int) -> Code:
        with pytest.raises(KafkaError) as refused:
            self.fetch(session.id, session.epoch, *partitions)
        return refused.value.code


def test_a_new_session_takes_the_place_of_none_that_is_in_use() -> None:
    clients = Clients()
    first, second = clients.begin(1), clients.begin(2)
    clients.now += UNUSED_S - 1
    assert clients.begin(3).id == 0
    assert clients.fetch(first.id, 1) is first
    clients.now += 1
    third = clients.begin(3)
    assert third.id
    assert clients.refusal(second) is Code.FETCH_SESSION_ID_NOT_FOUND
    clients.sessions.advance(first)
    assert clients.fetch(first.id, 2) is first
    assert clients.fetch(third.id, 1) is third


def test_a_session_whose_fetch_waits_is_in_use_however_long_it_does() -> None:
    clients = Clients(most=1)
    first = clients.begin(1)
    first.fetch_waits(lambda: None)
    clients.now += 10 * UNUSED_S
    assert clients.begin(2).id == 0
    first.fetch_ended()
    assert clients.begin(2).id
    assert first.closed


def test_all_sessions_together_keep_so_many_partitions() -> None:
    clients = Clients(most=10, most_partitions=10)
    first, second = clients.begin(*range(6)), clients.begin(*range(4))
    assert clients.begin(1).id == 0
    assert clients.refusal(second, 4) is Code.FETCH_SESSION_ID_NOT_FOUND, "it has outgrown the room"
    assert second.closed
    third = clients.begin(1, 2, 3)
    assert third.id
    for number in (1, 2):
        third.forget(("t", number))
    clients.fetch(third.id, 1, 7, 8, 9)
    assert clients.begin(1).id == 0
    clients.sessions.close(first.id)
    assert clients.begin(*range(6)).id
    assert clients.begin(1).id == 0


def test_a_session_that_was_closed_meanwhile_takes_no_partition() -> None:
    clients = Clients()
    first = clients.begin(1)
    found = clients.sessions.find(session_id=first.id, epoch=1)
    clients.begin(2)
    clients.sessions.find(session_id=first.id, epoch=0)  # its client starts a new session
    found.ask(("t", 5), FetchPartition(5, -1, 0, -1, -1, 1))
    assert not found.interests
    with pytest.raises(KafkaError):
        clients.sessions.named(found, begins=False)


def test_a_session_is_its_users_alone() -> None:
    clients = Clients()
    alice, bob = (Principal(name, Mechanism.PLAIN) for name in ("alice", "bob"))
    session = clients.sessions.find(session_id=0, epoch=0, principal=alice)
    session.ask(("t", 0), FetchPartition(0, -1, 0, -1, -1, 1))
    clients.sessions.named(session, begins=True)
    clients.sessions.advance(session)
    for stranger in (bob, NOBODY):
        with pytest.raises(KafkaError) as refused:
            clients.sessions.find(session_id=session.id, epoch=1, principal=stranger)
        assert refused.value.code is Code.FETCH_SESSION_ID_NOT_FOUND
        for epoch in (0, -1):
            other = clients.sessions.find(session_id=session.id, epoch=epoch, principal=stranger)
            assert other is not session
    assert not session.closed
    again = Principal("alice", Mechanism.SCRAM_SHA_512)
    assert clients.sessions.find(session_id=session.id, epoch=1, principal=again) is session


def test_other_groups_of_its_user_have_every_partition_asked_for_again() -> None:
    session = FetchSession(Principal("alice", Mechanism.OAUTHBEARER, frozenset({"a"})))
    session.ask(("t", 0), FetchPartition(0, -1, 0, -1, -1, 1))
    (interest,) = session.interests.values()
    interest.rules_version = 5
    session.active.clear()
    assert session.is_of(Principal("alice", Mechanism.OAUTHBEARER, frozenset({"a"})))
    assert (interest.rules_version, session.active) == (5, {})
    assert session.is_of(Principal("alice", Mechanism.OAUTHBEARER, frozenset({"b"})))
    assert (interest.rules_version, list(session.active.values())) == (-1, [interest])


def test_a_session_is_not_gone_on_with_where_its_names_mean_other_topics() -> None:
    clients = Clients()
    first = clients.begin(1)
    with pytest.raises(KafkaError) as refused:
        clients.fetch(first.id, 1, default_stream="/sensors")
    assert refused.value.code is Code.FETCH_SESSION_ID_NOT_FOUND
    assert clients.fetch(first.id, 1) is first
