"""Faults of processes, networks and disks by chance, one after the other: HEADRACE_FAULT_SECONDS of it, 30 by default.

Prints its seed, and each fault; `HEADRACE_FAULT_SEED` chooses the same ones again (what they meet is up to the clock).
At most one node is down, cut off or broken at a time, so that writes go on, but for the one fault that meets all.
"""

import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from cluster_clients import Load, make_topics
from cluster_nodes import Cluster, Node
from confluent_kafka import KafkaException

SECONDS = float(os.environ.get("HEADRACE_FAULT_SECONDS", "30"))
LONGEST_S = 6.0
QUIET_S = 2.0
GO_ON_S = 30.0
"""After a fault: also where it met all nodes, and where clients wait for one that stood still."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(SECONDS + 300)]

EXIT_DISK_FAILED = 70


class Faults:
    """Each fault lasts while inside. Which node, which of its others, and how, is up to `chance`."""

    def __init__(self, cluster: Cluster, chance: random.Random) -> None:
        self._cluster = cluster
        self._chance = chance

    def _node(self) -> Node:
        return self._cluster.nodes[self._chance.choice(sorted(self._cluster.nodes))]

    def _others(self, node: Node) -> list[int]:
        return [number for number in self._cluster.nodes if number != node.number]

    def _again(self, *nodes: Node) -> None:
        numbers = [node.number for node in nodes]
        self._cluster.start(*numbers)
        self._cluster.await_ready(*numbers)

    @contextmanager
    def killed(self) -> Iterator[str]:
        node = self._node()
        self._cluster.kill(node.number)
        yield f"node {node.number} is killed"
        self._again(node)

    @contextmanager
    def all_killed(self) -> Iterator[str]:
        self._cluster.kill(*self._cluster.nodes)
        yield "all nodes are killed"
        self._again(*self._cluster.nodes.values())

    @contextmanager
    def stopped(self) -> Iterator[str]:
        node = self._node()
        self._cluster.terminate(node.number)
        yield f"node {node.number} is stopped"
        self._again(node)

    @contextmanager
    def paused(self) -> Iterator[str]:
        node = self._node()
        with self._cluster.paused(node.number):
            yield f"node {node.number} stands still"

    @contextmanager
    def isolated(self) -> Iterator[str]:
        node = self._node()
        self._cluster.ways.isolate(node.number)
        yield f"node {node.number} is isolated"

    @contextmanager
    def cut(self) -> Iterator[str]:
        node = self._node()
        other = self._chance.choice(self._others(node))
        self._cluster.ways.cut_both(node.number, other)
        yield f"nodes {node.number} and {other} are cut from each other"

    @contextmanager
    def cut_one_way(self) -> Iterator[str]:
        node = self._node()
        deaf = self._chance.random() < 0.5
        for other in self._others(node):
            self._cluster.ways.cut(*((other, node.number) if deaf else (node.number, other)))
        yield f"node {node.number} {'hears nobody' if deaf else 'is heard by nobody'}"

    @contextmanager
    def slow(self) -> Iterator[str]:
        node = self._node()
        delay_s = self._chance.uniform(0.02, 0.4)
        for other in self._others(node):
            self._cluster.ways.slow(node.number, other, delay_s)
            self._cluster.ways.slow(other, node.number, delay_s)
        yield f"ways of node {node.number} take {delay_s:.2f} s more"

    @contextmanager
    def dropped(self) -> Iterator[str]:
        node = self._node()
        for other in self._others(node):
            self._cluster.ways.drop(node.number, other)
        yield f"connections of node {node.number} are reset"

    @contextmanager
    def store_away(self) -> Iterator[str]:
        node = self._node()
        with node.fault(fault := self._chance.choice(["store-away", "store-deaf"])):
            yield f"{fault} from node {node.number}"

    @contextmanager
    def full(self) -> Iterator[str]:
        node = self._node()
        with node.fault("full"):
            yield f"the disk of node {node.number} is full"

    @contextmanager
    def sync_fails(self) -> Iterator[str]:
        node = self._node()
        with node.fault("sync-fails"):
            yield f"syncs of node {node.number} fail"
            assert node.wait() == EXIT_DISK_FAILED
        self._again(node)

    def all(self) -> list[Callable[[], "object"]]:
        return [
            self.killed,
            self.all_killed,
            self.stopped,
            self.paused,
            self.isolated,
            self.cut,
            self.cut_one_way,
            self.slow,
            self.dropped,
            self.store_away,
            self.full,
            self.sync_fails,
        ]


def test_faults_by_chance_lose_nothing_and_reach_no_program(three: Cluster) -> None:
    seed = int(os.environ.get("HEADRACE_FAULT_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"seed {seed}", file=sys.stderr)
    chance = random.Random(seed)
    load = Load(three, topics=2, partitions=6)
    faults = Faults(three, chance)
    weights = [4, 1, 2, 2, 3, 2, 2, 2, 2, 2, 1, 1]
    began = time.monotonic()
    count = 0
    while time.monotonic() < began + SECONDS:
        (fault,) = chance.choices(faults.all(), weights)
        lasts_s = chance.uniform(0.1, LONGEST_S)
        with fault() as what:  # type: ignore[attr-defined]
            print(f"{time.monotonic():.3f} {what} for {lasts_s:.1f} s", file=sys.stderr)
            threading.Event().wait(lasts_s)
            load.fail_on_errors()
        three.ways.heal()
        count += 1
        make_topics_again(three, f"{load.name}-made-{count}")
        load.await_writes(time.monotonic(), within_s=GO_ON_S)
        three.await_whole()  # or the next fault might meet the last replica in sync
        if chance.random() < 0.5:
            threading.Event().wait(chance.uniform(0, QUIET_S))
    three.await_whole()
    load.finish()
    print(f"{count} faults", file=sys.stderr)


def make_topics_again(cluster: Cluster, name: str) -> None:
    """A topic, made while things settle. It is there afterwards, whatever its maker was told."""
    try:
        make_topics(cluster, [name], 2)
    except KafkaException as error:
        if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
            raise
