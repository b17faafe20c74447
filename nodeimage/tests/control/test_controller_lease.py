"""Which node holds the controller's lease, and when another may take it, with a store and a clock of the test's own."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from headrace.base.ids import NodeId
from headrace.control.controller_lease import (
    HOLD_OFF_S,
    LOOKED_S,
    RELUCTANT_S,
    RENEW_S,
    TAKE_REFUSED_S,
    TAKE_S,
    TRUST_S,
    ControllerLease,
)
from headrace.control.observations import ProbeResult
from headrace.store import records
from headrace.store.protocol import ClusterStore, StoreUnavailable
from headrace.store.records import NOBODY, LeaseRecord
from headrace.store.sqlite import SqliteStore

T = TypeVar("T")
RUNS = {NodeId(number): uuid.UUID(int=number) for number in (1, 2)}


class Cluster:
    """One store, one clock, and each node's view of both."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.now = 1000.0
        self.nodes: dict[NodeId, Any] = {node: SimpleNamespace(run=run, stopping=False) for node, run in RUNS.items()}
        self.refused: set[NodeId] = set()
        """Hosts that refuse connections."""
        self.fails: Callable[[], None] = lambda: None
        """Called before a put."""
        self.loses_answers = False

    def time(self) -> float:
        return self.now

    async def call(self, function: Callable[[ClusterStore], T], /) -> T:
        self.fails()
        result = function(self.store)
        if self.loses_answers and not isinstance(result, tuple):
            raise StoreUnavailable("the answer was lost")
        return result

    @property
    def lease(self) -> LeaseRecord | None:
        found = records.get_lease(self.store)
        return None if found is None else found[0]


class Node:
    """A node that may become the controller."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.node = NodeId(number)
        self.turns: list[bool] = []
        self.reluctant = False
        self.view: Any = SimpleNamespace(
            lease=None, lease_version=None, nodes=cluster.nodes, reachable_at=cluster.now, refresh=self.look
        )
        self.look()
        self.controller_lease = ControllerLease(
            own=self.node,
            run=RUNS[self.node],
            view=self.view,
            store_call=cluster.call,  # type: ignore[arg-type]  # of a class
            probe_result=lambda node: ProbeResult(refused_twice=node in cluster.refused),
            changed=self.turns.append,
            reluctant=lambda: self.reluctant,
        )
        clock: Any = cluster
        self.controller_lease._loop = clock
        self.controller_lease._seen_at = self.controller_lease._stepped_at = cluster.now

    def look(self) -> None:
        """Refresh the view of the store."""
        found = records.get_lease(self.cluster.store)
        self.view.lease, self.view.lease_version = (None, None) if found is None else found
        self.view.reachable_at = self.cluster.now

    async def step(self, passed: float = 0.0, *, looks: bool = True) -> bool:
        """Take a step after the given seconds; return whether the node then holds the lease."""
        self.cluster.now += passed
        if looks:
            self.look()
        await self.controller_lease._step()
        return self.controller_lease.is_held()

    async def steps(self, seconds: float, *, looks: bool = True) -> bool:
        """Take steps four times a second."""
        for _ in range(round(4 * seconds)):
            await self.step(0.25, looks=looks)
        return self.controller_lease.is_held()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    store = SqliteStore(tmp_path / "cluster.sqlite")
    records.ensure_cluster(store)
    yield Cluster(store)
    store.close()


async def test_a_free_lease_is_taken_and_renewed_twice_a_second(cluster: Cluster) -> None:
    one = Node(cluster, 1)
    assert await one.step()
    assert (one.turns, one.controller_lease.term) == ([True], 1)
    assert await one.step(RENEW_S / 2)
    assert cluster.lease is not None
    assert cluster.lease.renewal == 0
    assert await one.step(RENEW_S / 2)
    assert cluster.lease.renewal == 1


async def test_a_lease_that_is_renewed_is_nobody_elses(cluster: Cluster) -> None:
    one, other = Node(cluster, 1), Node(cluster, 2)
    await one.step()
    for _ in range(20):
        assert await one.step(0.25)
        assert not await other.step()


async def test_without_renewals_another_takes_it_after_a_while_in_a_new_term(cluster: Cluster) -> None:
    one, other = Node(cluster, 1), Node(cluster, 2)
    await one.step()
    await other.step()
    assert not await other.steps(TAKE_S - 0.25)
    assert await other.steps(0.25)
    assert other.controller_lease.term == 2
    assert not one.controller_lease.is_held(), "it has trusted its last renewal for less than that"
    assert TRUST_S < TAKE_S
    one.look()
    assert not await one.step()
    assert one.turns == [True, False]


async def test_a_host_that_says_that_its_process_is_gone_is_waited_for_less(cluster: Cluster) -> None:
    one, other = Node(cluster, 1), Node(cluster, 2)
    await one.step()
    await other.step()
    cluster.refused.add(one.node)
    assert not await other.steps(TAKE_REFUSED_S - 0.25)
    assert await other.steps(0.25)


async def test_renewals_that_could_not_be_seen_were_not_missed(cluster: Cluster) -> None:
    one, other = Node(cluster, 1), Node(cluster, 2)
    await one.step()
    await other.step()
    assert not await other.steps(10 * LOOKED_S, looks=False)
    assert not await other.step(), "it looks again, and counts from now on"
    assert not await other.step(5.0), "it stood still itself"
    assert not await other.steps(TAKE_S - 0.25)
    assert await other.steps(0.25)


@pytest.mark.parametrize("holder", [NOBODY, NodeId(2), NodeId(77)])
async def test_a_lease_of_nobody_or_of_a_run_that_is_not_registered_is_free(cluster: Cluster, holder: NodeId) -> None:
    records.put_lease(cluster.store, LeaseRecord(holder, uuid.UUID(int=99), 7, 3), None)
    one = Node(cluster, 1)
    assert await one.step()
    assert one.controller_lease.term == 8


async def test_who_gives_it_back_leaves_it_to_others_for_a_while(cluster: Cluster) -> None:
    one, other = Node(cluster, 1), Node(cluster, 2)
    await one.step()
    await one.controller_lease.give_back()
    assert cluster.lease is not None
    assert cluster.lease.node == NOBODY
    assert not await one.steps(HOLD_OFF_S - 0.25)
    assert await other.step()
    assert one.turns == [True, False]


async def test_who_hears_few_nodes_leaves_a_free_lease_to_others_at_first(cluster: Cluster) -> None:
    one = Node(cluster, 1)
    one.reluctant = True
    assert not await one.step()
    assert not await one.steps(RELUCTANT_S - 0.25)
    assert await one.steps(0.25)


async def test_a_node_that_stops_or_is_another_run_by_now_does_not_hold_the_lease(cluster: Cluster) -> None:
    one = Node(cluster, 1)
    await one.step()
    cluster.nodes[one.node].stopping = True
    assert not one.controller_lease.is_held()
    assert not await one.step(0.25)
    assert one.turns == [True, False]
    assert cluster.lease is not None
    assert cluster.lease.node == NOBODY, "it is given back at once"
    cluster.nodes[one.node] = SimpleNamespace(run=uuid.UUID(int=50), stopping=False)
    assert not await one.step(10)


async def test_a_put_that_landed_though_its_answer_was_lost_counts(cluster: Cluster) -> None:
    one = Node(cluster, 1)
    cluster.loses_answers = True
    assert await one.step()
    cluster.loses_answers = False
    assert await one.step(RENEW_S), "it knows the version that landed"


async def test_who_finds_anothers_lease_when_it_renews_ceases_to_be_the_controller(cluster: Cluster) -> None:
    one = Node(cluster, 1)
    await one.step()
    found = records.get_lease(cluster.store)
    assert found is not None
    records.put_lease(cluster.store, LeaseRecord(NodeId(2), RUNS[NodeId(2)], 2), found[1])
    assert not await one.step(RENEW_S, looks=False)
    assert one.turns == [True, False]


async def test_without_the_store_a_holder_trusts_its_last_renewal_no_longer_than_it_may(cluster: Cluster) -> None:
    one = Node(cluster, 1)
    await one.step()

    def away() -> None:
        raise StoreUnavailable("away")

    cluster.fails = away
    cluster.now += TRUST_S - 0.1
    assert one.controller_lease.is_held()
    with pytest.raises(StoreUnavailable):
        await one.controller_lease._step()
    cluster.now += 0.1
    assert not one.controller_lease.is_held()
