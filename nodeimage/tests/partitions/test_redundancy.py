"""When redundancy was lost and restored, judged by a view of records."""

import uuid

from headrace.base.ids import ContainerId, Epoch, Millis, NodeId
from headrace.partitions.redundancy import Redundancy
from headrace.store.records import ContainerRecord
from headrace.store.sqlite import SqliteStore
from headrace.store.view import ClusterView


def container(number: int, in_sync: int, *, wanted: int = 3, state: str = "open") -> ContainerRecord:
    members = tuple((NodeId(node), uuid.UUID(int=node)) for node in range(1, in_sync + 1))
    replicas = tuple(NodeId(node) for node in range(1, wanted + 1))
    return ContainerRecord(
        ContainerId(number), "data", NodeId(1), Epoch(1), members, replicas, state=state, wanted=wanted
    )


def test_it_tells_when_it_was_lost_and_how_long_that_lasted(tmp_path) -> None:
    kept = Redundancy(ClusterView(SqliteStore(tmp_path / "store")))
    kept.see([container(1, 3), container(2, 3)], now=Millis(1_000), at=1.0)
    assert (kept.whole, kept.since, list(kept)) == (True, None, [])

    kept.see([container(1, 3), container(2, 2)], now=Millis(2_000), at=2.0)
    assert (kept.whole, kept.since) == (False, 2_000)
    kept.see([container(1, 2), container(2, 2)], now=Millis(2_100), at=2.1)
    kept.see([container(1, 3), container(2, 2)], now=Millis(4_000), at=4.0)
    kept.see([container(1, 3), container(2, 3)], now=Millis(5_500), at=5.5)
    assert (kept.whole, kept.since) == (True, 5_500)
    lost, again = kept
    assert (lost.at, again.at) == (2_000, 5_500)
    assert (lost.kind, again.kind) == ("lost", "whole")
    assert "container 2" in lost.reason
    assert again.reason.endswith("2 had not, after 3.5 s")


def test_containers_that_are_deleted_lack_nothing(tmp_path) -> None:
    kept = Redundancy(ClusterView(SqliteStore(tmp_path / "store")))
    kept.see([container(1, 1, state="deleted"), container(2, 1, wanted=1)], now=Millis(1), at=0.001)
    assert kept.whole


def test_a_wall_clock_that_jumps_back_meanwhile_does_not_count(tmp_path) -> None:
    kept = Redundancy(ClusterView(SqliteStore(tmp_path / "store")))
    kept.see([container(1, 2)], now=Millis(600_000), at=1.0)
    kept.see([container(1, 3)], now=Millis(2_000), at=3.5)
    _, again = kept
    assert again.reason.endswith("after 2.5 s")
