"""The cost of a plan with 100 nodes and 30,000 containers, in CPU time of this thread, so that other load on the
machine does not matter."""

import dataclasses
import gc
import time
import uuid
from collections.abc import Iterator
from typing import Final

import pytest

from headrace.base.ids import ContainerId, Epoch, NodeId, Position
from headrace.control.balance import BalanceState, balance
from headrace.control.changes import Change, PutContainer
from headrace.control.inventory import Inventory
from headrace.control.lasting_conditions import finding
from headrace.control.observations import Condition, Observed, ProbeResult
from headrace.control.plan import planning
from headrace.peer.messages import ProbeAnswer
from headrace.peer.reports import NodeLoad, ReplicaState
from headrace.store.records import ContainerRecord, NodeRecord, VolumeRecord

NODES: Final = 100
CONTAINERS: Final = 30_000
VOLUMES: Final = 20
PLAN_S: Final = 0.1
HELD_S: Final = 0.05
"""Most time by which one step may delay the loop."""
NOW: Final = 1000.0


def observed_whole() -> Observed:
    nodes = {
        NodeId(n): NodeRecord(NodeId(n), uuid.UUID(int=n), uuid.UUID(int=n), "h", 1, f"h{n}", peer_port=1)
        for n in range(1, NODES + 1)
    }
    inventory = Inventory()
    for number in range(1, CONTAINERS + 1):
        container = ContainerId(number)
        first, volume, state = number % NODES + 1, number // NODES % VOLUMES, "open"
        if number > NODES * VOLUMES:
            state = "closed"
        members = [NodeId((first - 1 + i * 7) % NODES + 1) for i in range(3)]
        formats = [uuid.UUID(int=number * 1000 + node) for node in members]
        inventory.put(
            container,
            ContainerRecord(
                container,
                "catalog" if number == 1 else "data",
                members[0],
                Epoch(3),
                tuple(zip(members, formats, strict=True)),
                tuple(members),
                state=state,
                volume="default" if not volume else f"v{volume}",
                min_in_sync=2,
                wanted=3,
            ),
            number,
        )
        for node, format in zip(members, formats, strict=True):
            role = "primary" if node == members[0] else "follower"
            inventory.tell(
                node,
                container,
                ReplicaState(container, role, Epoch(3), Epoch(3), Position(10), Position(10), format=str(format)),
            )
    names = ["default", *(f"v{each}" for each in range(1, VOLUMES))]
    load = NodeLoad(1e6, 1e6, 100, 10**12, 10**13, 3)
    answers = {
        node: ProbeAnswer(node, record.run, [], load, True, True, sorted(nodes)) for node, record in nodes.items()
    }
    return Observed(
        own=NodeId(1),
        nodes=nodes,
        containers=inventory.containers,
        versions=inventory.versions,
        volumes={name: VolumeRecord(name, 3, 2) for name in names},
        probes={node: ProbeResult(answer, NOW) for node, answer in answers.items()},
        kept=inventory,
    )


@pytest.fixture(scope="module")
def whole() -> Iterator[Observed]:
    """Freeze the objects that earlier tests left, as a node does at its start: collecting all of them takes a
    second."""
    observed = observed_whole()
    for _ in observed.find_at_rest(NOW):
        pass
    gc.collect()
    gc.freeze()
    yield observed
    gc.unfreeze()


class Cost:
    """The cost of steps: the sum, and the longest."""

    def __init__(self) -> None:
        self.sum = self.longest = 0.0
        self._began = time.thread_time()

    def step(self) -> None:
        took = time.thread_time() - self._began
        self.sum += took
        self.longest = max(self.longest, took)
        self._began = time.thread_time()


def one_plan(observed: Observed, since: dict[Condition, float]) -> tuple[list[Change], Cost]:
    """Make a plan as the controller does."""

    def steps() -> Iterator[None]:
        yield from observed.find_at_rest(NOW)
        found: set[Condition] = set()
        for conditions in finding(observed, NOW):
            found.update(conditions)
            yield
        told = dataclasses.replace(observed, since={each: since.get(each, NOW) for each in found})
        for some in planning(told, NOW):
            changes.extend(some)
            yield
        moves, _ = balance(told, BalanceState(), NOW)
        changes.extend(moves)
        yield

    changes: list[Change] = []
    cost = Cost()
    for _ in steps():
        cost.step()
    return changes, cost


def test_a_plan_of_thirty_thousand_containers_at_rest_takes_little(whole: Observed) -> None:
    assert len(set(whole.active_containers())) == 1, "the catalog's"
    changes, cost = min((one_plan(dataclasses.replace(whole), {}) for _ in range(3)), key=lambda each: each[1].sum)
    assert changes == []
    assert cost.sum < PLAN_S
    assert cost.longest < HELD_S


def test_a_silent_node_of_a_hundred_has_all_that_it_led_handed_over_by_one_plan(whole: Observed) -> None:
    dead = NodeId(7)
    probes = {
        node: ProbeResult(result.answer, NOW - 3, NOW - 2)
        if node == dead
        else ProbeResult(_unheard(result.answer, dead), NOW)
        for node, result in whole.probes.items()
    }
    observed = dataclasses.replace(whole, probes=probes)
    led = {key for key, record in whole.containers.items() if record.leader == dead}
    changes, cost = one_plan(observed, {})
    assert {each.record.container_id for each in changes if isinstance(each, PutContainer)} == led
    assert len(led) == CONTAINERS // NODES
    assert cost.sum < 3 * PLAN_S
    assert cost.longest < HELD_S


def _unheard(answer: ProbeAnswer | None, dead: NodeId) -> ProbeAnswer:
    assert answer is not None
    return ProbeAnswer(
        answer.node, answer.run, [], answer.load, True, True, [each for each in answer.heard if each != dead]
    )
