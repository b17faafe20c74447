"""A node's replicas, reported in pages: a prober ends up with all replicas, and knows when it has all."""

import uuid

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from headrace.base.ids import ContainerId, Epoch, NodeId, Position
from headrace.peer import replica_pages
from headrace.peer.framing import MAX_HEADER, encode_message
from headrace.peer.messages import ALL_AT_ONCE, NO_REPLICAS, Probe, ProbeAnswer
from headrace.peer.replica_pages import PAGE_BYTES, ReplicaReporter, ReportedReplicas
from headrace.peer.reports import NodeLoad, ReplicaState

ALIVE = ProbeAnswer(NodeId(1), uuid.UUID(int=1), [], NodeLoad(), True, True)


def state(number: int, end: int = 0, **fields: object) -> ReplicaState:
    told = ReplicaState(ContainerId(number), "follower", Epoch(1), Epoch(1), Position(end), Position(0))
    return structs.replace(told, **fields)


def ask(teller: ReplicaReporter, told: ReportedReplicas) -> ProbeAnswer:
    since = told.since
    answer = teller.answer(Probe(since, told.begun), ALIVE)
    told.take(answer, asked_since=since)
    return answer


def ask_all(teller: ReplicaReporter, told: ReportedReplicas, most: int = 1000) -> int:
    """Requests pages until there are no more; returns their number."""
    for pages in range(1, most):
        if not ask(teller, told).more:
            return pages
    raise AssertionError("there is no end to it")


def there(teller: ReplicaReporter) -> dict[int, ReplicaState]:
    return {each.container: each for each in teller.all()}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("is"), st.integers(1, 12), st.integers(0, 3)),
        st.tuples(st.just("gone"), st.integers(1, 12), st.just(0)),
        st.tuples(st.just("ask"), st.integers(0, 1), st.just(0)),
    ),
    max_size=80,
)


COMES_BACK = [
    *(("is", number, 0) for number in (2, 5, 6)),
    ("ask", 0, 0),
    *(("is", number, 0) for number in (4, 1)),
    ("ask", 0, 0),
    ("gone", 1, 0),
    ("is", 3, 0),
    ("gone", 4, 0),
    ("is", 1, 0),
    ("ask", 0, 0),
    ("ask", 0, 0),
    ("is", 4, 0),
]
"""A replica that a prober knew before it started again is gone, and comes back before the prober has all replicas."""


@settings(max_examples=300, deadline=None)
@given(steps=STEPS, page=st.integers(1, 900), kept=st.integers(1, 8))
@example(steps=COMES_BACK, page=410, kept=1)
def test_askers_know_all_that_there_is_once_they_are_told_so(
    steps: list[tuple[str, int, int]], page: int, kept: int
) -> None:
    """In any order of pages and changes, even though a node soon forgets replicas that are gone."""
    teller = ReplicaReporter(page_bytes=page, gone_kept=kept)
    askers = [ReportedReplicas(), ReportedReplicas()]
    for kind, number, end in steps:
        match kind:
            case "is":
                teller.note(ContainerId(number), state(number, end))
            case "gone":
                teller.note(ContainerId(number), None)
            case "ask":
                answer = ask(teller, askers[number])
                if not answer.more:
                    assert askers[number].complete
                    assert askers[number].replicas == there(teller)
    for told in askers:
        ask_all(teller, told)
        assert told.replicas == there(teller)


def test_only_what_changed_is_told_again() -> None:
    teller, told = ReplicaReporter(), ReportedReplicas()
    for number in range(1, 101):
        teller.note(ContainerId(number), state(number))
    ask_all(teller, told)
    teller.note(ContainerId(7), state(7))
    assert ask(teller, told).replicas == []
    teller.note(ContainerId(7), state(7, end=5))
    teller.note(ContainerId(8), None)
    answer = ask(teller, told)
    assert (answer.replicas, answer.gone, answer.more) == ([state(7, end=5)], [8], False)


def test_twenty_thousand_replicas_come_in_pages_that_fit_a_frame() -> None:
    teller, told = ReplicaReporter(), ReportedReplicas()
    large = {"format": str(uuid.UUID(int=2**128 - 1)), "in_sync": [NodeId(2**31)] * 5, "change": "9" * 37}
    for number in range(1, 20_001):
        teller.note(ContainerId(2**40 + number), state(2**40 + number, end=2**62, stalled=True, **large))
    pages = 0
    while True:
        answer = ask(teller, told)
        pages += 1
        assert len(encode_message(answer)) <= PAGE_BYTES + 1024 < MAX_HEADER
        assert told.complete == (not answer.more)
        if not answer.more:
            break
    assert pages > 10
    assert told.replicas == there(teller)


def test_an_older_version_is_told_of_all_at_once_or_as_many_as_a_frame_holds() -> None:
    teller = ReplicaReporter()
    for number in range(1, 20_001):
        role = "primary" if number > 19_990 else "follower"
        teller.note(ContainerId(number), state(number, role=role, format=str(uuid.UUID(int=number))))
    answer = teller.answer(Probe(), ALIVE)
    assert len(encode_message(answer)) < MAX_HEADER
    assert {each.container for each in answer.replicas} >= set(range(19_991, 20_001)), "what it leads comes first"
    assert (answer.counter, answer.more) == (ALL_AT_ONCE, False)


def test_what_an_older_version_tells_is_all_that_it_has() -> None:
    told = ReportedReplicas()
    told.take(structs.replace(ALIVE, replicas=[state(1), state(2)]), asked_since=0)
    assert told.complete
    news, known = told.take(structs.replace(ALIVE, replicas=[state(2, end=9)]), asked_since=0)
    assert known
    assert dict(news.changes) == {2: state(2, end=9), 1: None}


def test_of_two_answers_to_one_question_the_second_does_not_take_back_what_the_first_told() -> None:
    teller, told = ReplicaReporter(), ReportedReplicas()
    teller.note(ContainerId(1), state(1, end=1))
    old = teller.answer(Probe(0, 0), ALIVE)
    teller.note(ContainerId(1), state(1, end=2))
    ask_all(teller, told)
    news, known = told.take(old, asked_since=0)
    assert (news.changes, known) == ([], False)
    assert told.replicas == {1: state(1, end=2)}


def test_a_node_that_cannot_tell_of_its_replicas_answers_nevertheless(monkeypatch: pytest.MonkeyPatch) -> None:
    teller, told = ReplicaReporter(), ReportedReplicas()
    teller.note(ContainerId(1), state(1))
    ask_all(teller, told)

    def fails(_state: ReplicaState) -> int:
        raise ValueError("planted")

    teller.note(ContainerId(2), state(2))
    monkeypatch.setattr(replica_pages, "_bytes_of", fails)
    for asked in (Probe(), Probe(told.since, told.begun), Probe(0, 0)):
        assert teller.answer(asked, ALIVE).node == ALIVE.node
    answer = ask(teller, told)
    assert answer.more, "it is not said that this is all"
    assert told.replicas == {1: state(1)}
    monkeypatch.undo()
    ask_all(teller, told)
    assert told.replicas == there(teller)


def test_who_asks_nothing_of_replicas_is_told_nothing() -> None:
    teller = ReplicaReporter()
    teller.note(ContainerId(1), state(1))
    assert teller.answer(Probe(NO_REPLICAS), ALIVE) == ALIVE
