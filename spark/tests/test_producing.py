"""Which batches share a request, and that all are sent until each is acknowledged."""

from collections import deque

import pytest

from headrace_spark import producing
from headrace_spark.producing import REQUEST_BYTES, Outgoing, _next_request

A, B, C = ("/s:a", 0), ("/s:b", 0), ("/s:c", 0)


def test_a_request_has_a_batch_for_each_partition_of_one_node() -> None:
    waiting = [(A, b"1"), (B, b"2"), (A, b"3"), (C, b"4")]
    assert _next_request(waiting, {A: 1, B: 2, C: 1}) == (1, [(A, b"1"), (C, b"4")])


def test_partitions_without_a_leader_wait_and_keep_no_other_waiting() -> None:
    assert _next_request([(A, b"1"), (B, b"2")], {B: 2}) == (2, [(B, b"2")])
    assert _next_request([(A, b"1")], {}) == (None, [])


def test_small_batches_share_a_request_and_a_large_one_goes_alone() -> None:
    large = bytes(REQUEST_BYTES)
    assert _next_request([(A, large), (B, b"2")], {A: 1, B: 1}) == (1, [(A, large)])
    assert _next_request([(A, b"1"), (B, large), (C, b"3")], {A: 1, B: 1, C: 1}) == (1, [(A, b"1"), (C, b"3")])


def test_a_later_batch_does_not_overtake_one_of_its_partition_that_did_not_fit() -> None:
    large = bytes(REQUEST_BYTES)
    assert _next_request([(A, b"1"), (B, large), (B, b"3")], {A: 1, B: 1}) == (1, [(A, b"1")])


class Retries:
    """Counts pauses."""

    def __init__(self) -> None:
        self.paused: list[object] = []

    def pause(self, reason: object) -> None:
        self.paused.append(reason)
        assert len(self.paused) < 10


class Cluster:
    """One node that leads everything, and may be dropped."""

    def __init__(self) -> None:
        self.retries = Retries()
        self.dropped: list[int] = []

    def retry(self, what: str) -> Retries:
        return self.retries

    def leaders(self, partitions: set[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return dict.fromkeys(partitions, 1)

    def drop(self, node: int) -> None:
        self.dropped.append(node)


def test_what_was_refused_or_lost_is_sent_again_as_it_is_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    sent: list[list[Outgoing]] = []

    def send(_cluster: object, node: int, group: list[Outgoing], retry: object, repeats: object) -> list[Outgoing]:
        sent.append(list(group))
        if len(sent) == 1:
            return [each for each in group if each[0] == B]
        if len(sent) == 2:
            raise ConnectionResetError("gone")
        return []

    monkeypatch.setattr(producing, "_send", send)
    batches = deque([(A, b"a1"), (B, b"b1"), (A, b"a2")])
    assert producing.send_all(cluster, batches) == []  # type: ignore[arg-type]
    assert sent == [[(A, b"a1"), (B, b"b1")], [(B, b"b1"), (A, b"a2")], [(B, b"b1"), (A, b"a2")]]
    assert cluster.dropped == [1]
    assert len(cluster.retries.paused) == 1
