"""Offsets and committed offsets: requested from the responsible node, and again if that has changed."""

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import Code
from headrace.wire.api_keys import ApiKey
from headrace_spark import offsets
from headrace_spark.errors import BrokerError
from headrace_spark.offsets import commit_cursors, committed_cursors, find_offsets
from headrace_spark.options import LATEST

A, B = ("/s:a", 0), ("/s:b", 0)


class Retries:
    def __init__(self) -> None:
        self.reasons: list[object] = []

    def pause(self, reason: object) -> None:
        self.reasons.append(reason)
        assert len(self.reasons) < 10


class Cluster:
    """Two nodes: 1 leads a, 2 leads b."""

    def __init__(self) -> None:
        self.retries = Retries()
        self.forgotten: list[object] = []
        self.dropped: list[int] = []
        self.nodes = {A: 1, B: 2}

    def retry(self, what: str) -> Retries:
        return self.retries

    def leaders(self, partitions: Any) -> dict[Any, int]:
        return {partition: self.nodes[partition] for partition in partitions}

    def forget(self, partition: object) -> None:
        self.forgotten.append(partition)

    def drop(self, node: int) -> None:
        self.dropped.append(node)


@pytest.fixture
def cluster() -> Any:
    return Cluster()


def listing(monkeypatch: pytest.MonkeyPatch, *answers: Any) -> list[tuple[int, dict[Any, int]]]:
    """Script responses of ListOffsets, one for each call; return the recorded requests."""
    left, asked = list(answers), []

    def list_offsets(cluster: object, node: int, wanted: Any, *, read_committed: bool) -> Any:
        asked.append((node, dict(wanted)))
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(offsets, "_list_offsets", list_offsets)
    return asked


def test_each_leader_is_asked_for_its_partitions(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = listing(monkeypatch, {A: (0, 5)}, {B: (0, 7)})
    assert find_offsets(cluster, {A: LATEST, B: LATEST}, read_committed=False) == {A: 5, B: 7}
    assert sorted(node for node, _ in asked) == [1, 2]


def test_what_has_moved_or_was_not_answered_is_asked_for_again(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = ConnectionResetError("gone")
    listing(monkeypatch, {A: (Code.NOT_LEADER_OR_FOLLOWER, -1)}, lost, {A: (0, 5)}, {B: (0, 7)})
    assert find_offsets(cluster, {A: LATEST, B: LATEST}, read_committed=False) == {A: 5, B: 7}
    assert (cluster.forgotten, cluster.dropped, cluster.retries.reasons) == ([A], [2], [lost])


def test_a_time_behind_the_last_record_means_the_end(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = listing(monkeypatch, {A: (0, -1)}, {A: (0, 9)})
    assert find_offsets(cluster, {A: 1_700_000_000_000}, read_committed=True) == {A: 9}
    assert asked[1] == (1, {A: LATEST})


def test_an_answer_that_is_final_is_an_error_with_its_partition(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    listing(monkeypatch, {A: (Code.TOPIC_AUTHORIZATION_FAILED, -1)})
    with pytest.raises(BrokerError, match="/s:a/0: the node answers TOPIC_AUTHORIZATION_FAILED"):
        find_offsets(cluster, {A: LATEST}, read_committed=False)


def coordinator(monkeypatch: pytest.MonkeyPatch, *answers: Any) -> list[tuple[Any, ApiKey, Any]]:
    """Script responses, FindCoordinator's too; return the recorded requests with their nodes."""
    left, asked = list(answers), []

    def ask(cluster: object, address: Any, key: ApiKey, fields: Any) -> Any:
        asked.append((address, key, fields))
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(offsets, "_ask", ask)
    return asked


def found(code: int = 0) -> Any:
    return SimpleNamespace(error_code=code, host="h", port=9)


def stored(*codes: int) -> Any:
    partitions = [SimpleNamespace(partition_index=0, error_code=code, committed_offset=5) for code in codes]
    return SimpleNamespace(error_code=0, topics=[SimpleNamespace(name="/s:a", partitions=partitions)])


def test_offsets_are_committed_at_the_groups_coordinator(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = coordinator(monkeypatch, found(), stored(0))
    commit_cursors(cluster, "g", {A: 5})
    assert [(address, key) for address, key, _ in asked] == [
        (None, ApiKey.FIND_COORDINATOR),
        (("h", 9), ApiKey.OFFSET_COMMIT),
    ]
    commit_cursors(cluster, "g", {})
    assert len(asked) == 2, "nothing is asked for nothing"


def test_a_coordinator_that_has_moved_is_looked_for_again(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator(
        monkeypatch, found(Code.COORDINATOR_NOT_AVAILABLE), found(), stored(Code.NOT_COORDINATOR), found(), stored(0)
    )
    commit_cursors(cluster, "g", {A: 5})
    assert cluster.retries.reasons == [Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR]


def test_a_topic_that_is_gone_is_left_out_and_another_refusal_is_an_error(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator(monkeypatch, found(), stored(Code.UNKNOWN_TOPIC_OR_PARTITION))
    commit_cursors(cluster, "g", {A: 5})
    coordinator(monkeypatch, found(), stored(Code.GROUP_AUTHORIZATION_FAILED))
    with pytest.raises(BrokerError, match="group g: the node answers GROUP_AUTHORIZATION_FAILED"):
        commit_cursors(cluster, "g", {A: 5})


def test_partitions_without_a_committed_offset_are_left_out(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = stored(0)
    answer.topics.append(
        SimpleNamespace(name="/s:b", partitions=[SimpleNamespace(partition_index=0, error_code=0, committed_offset=-1)])
    )
    coordinator(monkeypatch, found(), answer)
    assert committed_cursors(cluster, "g", [A, B]) == {A: 5}
