"""Records are put several at a time, in order, and a put that fails or hangs does not hold up the others."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.ids import ContainerId, Epoch, NodeId
from headrace.control.changes import PutContainer
from headrace.control.events import Events
from headrace.control.put_queue import PUTS_AT_ONCE, PutQueue
from headrace.store.protocol import StoreUnavailable, VersionConflict
from headrace.store.records import ContainerRecord

MANY = 5 * PUTS_AT_ONCE


def change(number: int, leader: int = 2) -> PutContainer:
    node = NodeId(leader)
    record = ContainerRecord(ContainerId(number), "data", node, Epoch(2), ((node, uuid.UUID(int=1)),), (node,))
    return PutContainer(record, 10 + number, "test")


class Cluster:
    """A view that shows what was put, and a store in which each put waits until the test lets it through."""

    def __init__(self) -> None:
        records = {each: change(each, leader=1).record for each in range(1, MANY + 1)}
        self.view: Any = SimpleNamespace(
            containers=dict(records),
            versions={each: 10 + each for each in records},
            may=lambda _level: False,
            refresh=lambda: None,
            put_seen=self._seen,
        )
        self.begun: list[int] = []
        self.under_way = 0
        self.most_under_way = 0
        self.fails: dict[int, Exception] = {}
        self.gate = asyncio.Event()
        self.holds_lease = True
        self.tasks: set[asyncio.Task[None]] = set()
        self.queue = PutQueue(
            view=self.view,
            store_call=self._call,
            events=Events(),
            may_put=lambda: self.holds_lease,
            changed=lambda: None,
            spawn=self._spawn,
        )

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self.tasks.add(task)

    async def _call(self, put: Callable[[Any], Any]) -> Any:
        number: list[int] = []
        put(SimpleNamespace(put=lambda key, _value, version: number.append(int(key.split("/")[1])) or version))
        self.begun += number
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await self.gate.wait()
            if (error := self.fails.get(number[0])) is not None:
                raise error
            return 1000 + number[0]
        finally:
            self.under_way -= 1

    def _seen(self, record: ContainerRecord, version: int) -> None:
        self.view.containers[record.container_id] = record
        self.view.versions[record.container_id] = version


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    cluster = Cluster()
    yield cluster
    for task in cluster.tasks:
        task.cancel()
    await asyncio.gather(*cluster.tasks, return_exceptions=True)


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_several_are_put_at_a_time_the_first_ones_first(cluster: Cluster) -> None:
    for number in range(1, MANY + 1):
        cluster.queue.put(change(number))
    await turns()
    assert cluster.begun == list(range(1, PUTS_AT_ONCE + 1))
    cluster.gate.set()
    await cluster.queue.rest(60)
    assert cluster.begun == list(range(1, MANY + 1))
    assert cluster.most_under_way == PUTS_AT_ONCE
    assert {each.leader for each in cluster.view.containers.values()} == {2}


@pytest.mark.parametrize(
    "error",
    [StoreUnavailable("away"), VersionConflict("container/3", expected=13, found=14), RuntimeError("planted")],
    ids=["away", "conflict", "unexpected"],
)
async def test_one_that_fails_is_only_that_ones(cluster: Cluster, error: Exception) -> None:
    cluster.fails[3] = error
    cluster.gate.set()
    for number in range(1, MANY + 1):
        cluster.queue.put(change(number))
    await cluster.queue.rest(60)
    assert {key for key, each in cluster.view.containers.items() if each.leader == 1} == {3}
    assert cluster.queue.is_unsure == (not isinstance(error, VersionConflict))


async def test_what_is_not_sure_is_put_again_as_it_was_and_nothing_else_for_its_container(cluster: Cluster) -> None:
    cluster.fails[3] = StoreUnavailable("away")
    cluster.gate.set()
    cluster.queue.put(change(3))
    await cluster.queue.rest(60)
    cluster.queue.put(change(3, leader=5))
    await cluster.queue.rest(60)
    assert cluster.begun == [3]
    del cluster.fails[3]
    cluster.queue.begin()
    await cluster.queue.rest(60)
    assert cluster.begun == [3, 3]
    assert cluster.view.containers[3].leader == 2
    assert not cluster.queue.is_unsure


async def test_a_new_plan_takes_the_place_of_what_waits_and_waits_for_nothing_that_hangs(cluster: Cluster) -> None:
    for number in range(1, MANY + 1):
        cluster.queue.put(change(number))
    await turns()
    await cluster.queue.rest(0.01)  # all hang
    cluster.queue.begin()
    cluster.queue.put(change(MANY, leader=9))
    cluster.queue.put(change(1, leader=9))  # is under way
    cluster.gate.set()
    await cluster.queue.rest(60)
    assert cluster.begun == [*range(1, PUTS_AT_ONCE + 1), MANY]
    assert cluster.view.containers[MANY].leader == 9
    assert cluster.view.containers[1].leader == 2


async def test_who_is_out_of_office_puts_nothing_more(cluster: Cluster) -> None:
    for number in range(1, MANY + 1):
        cluster.queue.put(change(number))
    await turns()
    cluster.holds_lease = False
    cluster.gate.set()
    await cluster.queue.rest(60)
    assert len(cluster.begun) == PUTS_AT_ONCE
    cluster.holds_lease = True
    cluster.queue.begin()
    cluster.queue.put(change(MANY))
    await cluster.queue.rest(60)
    assert cluster.begun[-1] == MANY


async def test_moves_for_balance_and_hand_overs_are_no_failovers(cluster: Cluster) -> None:
    cluster.gate.set()
    for each in (
        *(change(1), change(2), replace(change(3), is_balance=True), change(4, leader=1)),
        replace(change(5), is_planned=True),
    ):
        cluster.queue.put(each)
    await cluster.queue.rest(10.0)
    events = cluster.queue._events
    assert (events.failovers, events.hand_overs, events.balance_moves) == (2, 1, 1)
