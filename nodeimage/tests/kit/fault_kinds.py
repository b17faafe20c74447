"""The faults of a cluster's processes, networks, disks and store, for tests that draw them at random.

Each fault lasts within its context; then the damage is repaired, as an operator would. At most one node is down, cut
off or broken at a time, so that writes continue, except in faults that affect all. Afterwards the nodes need not be the
same: some join and leave.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.base.errors import CorruptLog
from headrace.log.chunk import load_body
from headrace.log.files import FILE_HEAD_BYTES
from kit.cluster_nodes import Cluster, Node, until

EXIT_DISK_FAILED = 70
LONGEST_S = 6.0
FIRST = 3
"""The number of nodes with which a cluster begins, and to which it shrinks."""
MOST = 5
MAX_RESTARTS = 4
MAX_DAMAGED = 3
"""The most damaged chunks of a node at a time."""
LOST = 0.02
MOVED_S = 90.0
"""Seconds within which a drained node is empty."""
SCRUBBED_EACH_S = 0.5
SCRUBBED_S = 300.0
"""Seconds within which damaged replicas are found and recreated: all of a node's data may have to be read, which after
an hour of faults takes more than a minute."""
ROUND_TRIP_S = 0.005

Fault = AbstractContextManager[str]
"""A fault, whose context gives its description once it is active."""


class Faults:
    """The faults. The affected node, the way in which it is affected, and the other nodes are drawn from `chance`."""

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

    # --- processes

    @contextmanager
    def killed(self) -> Iterator[str]:
        node = self._node()
        self._cluster.kill(node.number)
        yield f"node {node.number} is killed"
        self._again(node)

    @contextmanager
    def two_killed(self) -> Iterator[str]:
        """Two nodes, within the time that frames take to a follower and back."""
        one = self._node()
        other = self._cluster.nodes[self._chance.choice(self._others(one))]
        apart_s = self._chance.choice([0.0, self._chance.uniform(0, ROUND_TRIP_S)])
        if apart_s:
            self._cluster.kill(one.number)
            time.sleep(apart_s)
            self._cluster.kill(other.number)
        else:
            self._cluster.kill(one.number, other.number)
        yield f"nodes {one.number} and {other.number} are killed, {apart_s * 1000:.1f} ms apart"
        first, second = self._chance.sample([one, other], 2)
        self._again(first)
        self._again(second)

    @contextmanager
    def all_killed(self) -> Iterator[str]:
        self._cluster.kill(*self._cluster.nodes)
        yield "all nodes are killed"
        self._again(*self._cluster.nodes.values())

    @contextmanager
    def killed_again_and_again(self) -> Iterator[str]:
        """A node, each time as soon as it serves."""
        node = self._node()
        count = self._chance.randint(2, MAX_RESTARTS)
        for _ in range(count - 1):
            self._cluster.kill(node.number)
            self._again(node)
        self._cluster.kill(node.number)
        yield f"node {node.number} is killed for the {count}th time"
        self._again(node)

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
    def power_cut(self) -> Iterator[str]:
        gone = self._cluster.cut_power()
        yield f"the power of all nodes is cut, {gone} writes were under way"
        self._again(*self._cluster.nodes.values())

    # --- the network

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
    def lossy(self) -> Iterator[str]:
        node = self._node()
        for other in self._others(node):
            self._cluster.ways.lose(node.number, other, LOST, self._chance)
            self._cluster.ways.lose(other, node.number, LOST, self._chance)
        yield f"ways of node {node.number} lose packets"

    @contextmanager
    def dropped(self) -> Iterator[str]:
        node = self._node()
        for other in self._others(node):
            self._cluster.ways.drop(node.number, other)
        yield f"connections of node {node.number} are reset"

    # --- the cluster store

    @contextmanager
    def store_away(self) -> Iterator[str]:
        node = self._node()
        with node.fault(fault := self._chance.choice(["store-away", "store-deaf"])):
            yield f"{fault} from node {node.number}"

    @contextmanager
    def store_away_from_all(self) -> Iterator[str]:
        fault = self._chance.choice(["store-away", "store-deaf"])
        with ExitStack() as faults:
            for node in self._cluster.nodes.values():
                faults.enter_context(node.fault(fault))
            yield f"{fault} from all nodes"

    @contextmanager
    def store_put_back(self) -> Iterator[str]:
        """Set the store back to an earlier copy, and then rebuild it, as an operator has to do."""
        copy = self._cluster.copy_store()
        yield "the cluster store is copied"
        self._cluster.kill(*self._cluster.nodes)
        self._cluster.put_store(copy)
        self._cluster.recover_store()
        self._again(*self._cluster.nodes.values())

    # --- disks

    @contextmanager
    def full(self) -> Iterator[str]:
        node = self._node()
        with node.fault("full"):
            until("it says that it is full", lambda: self._cluster.is_full(node.number))
            yield f"the disk of node {node.number} is full"
        until("it says that it has room again", lambda: not self._cluster.is_full(node.number))

    @contextmanager
    def over_quota(self) -> Iterator[str]:
        """A quota, which shows only when a chunk is needed, not in the filesystem's figures."""
        node = self._node()
        with node.fault("over-quota"):
            until("it says that it is full", lambda: self._cluster.is_full(node.number))
            yield f"the quota of node {node.number} is used up"
        until("it says that it has room again", lambda: not self._cluster.is_full(node.number))

    @contextmanager
    def sync_fails(self) -> Iterator[str]:
        node = self._node()
        with node.fault("sync-fails"):
            yield f"syncs of node {node.number} fail"
            assert node.wait() == EXIT_DISK_FAILED
        self._again(node)

    @contextmanager
    def wiped(self) -> Iterator[str]:
        """The folder is lost: the process that starts in its place is a new node."""
        node = self._node()
        before = node.node_id
        self._cluster.kill(node.number)
        self._cluster.wipe(node.number)
        yield f"node {node.number} has lost its folder"
        self._again(node)
        assert node.node_id != before, "it kept its name"
        self._cluster.admin("node.remove", {"node": before, "force": True})

    @contextmanager
    def damaged(self) -> Iterator[str]:
        """Bits flip in full chunks, or these are truncated, while a node is down."""
        node = self._node()
        self._cluster.kill(node.number)
        full = [path for folder in (node.data / "containers").iterdir() for path in sorted(folder.glob("*.chunk"))[:-1]]
        count = min(len(full), self._chance.randint(1, MAX_DAMAGED))
        chosen = self._chance.sample(sorted(full), count)
        harms = {path: harm for path in chosen if (harm := _damage(path, self._chance))}
        hurt = {int(path.parent.name) for path in harms}
        formats = {container: self._cluster.format(node.number, container) for container in hurt}
        told = ", ".join(harms.values()) or "it has no full chunk in which anything lives"
        yield f"node {node.number} is killed, and damaged: {told}"
        self._again(node)

        def made_anew() -> bool:
            left = [number for number, before in formats.items() if self._is_as_before(node, number, before)]
            if left and not self._cluster.admin("scrub.status", node=node.number)["running"]:
                self._cluster.admin("scrub.start", node=node.number)  # perhaps nobody else reads long-closed chunks
            return not left

        what = f"what is damaged of {sorted(formats)} is made anew"
        until(what, made_anew, timeout_s=SCRUBBED_S, every_s=SCRUBBED_EACH_S)

    def _is_as_before(self, node: Node, container: int, format: str) -> bool:
        """Whether a replica is still the damaged one, or being replaced by another."""
        record = next((each for each in self._cluster.containers() if each.container_id == container), None)
        if record is None or record.state == "deleted" or node.node_id not in record.replicas:
            return False
        return self._cluster.format(node.number, container) in ("", format)

    # --- which nodes there are

    @contextmanager
    def resized(self) -> Iterator[str]:
        """A node joins, or one is drained and leaves, but not the last of the clients' bootstrap nodes, or they would
        find nobody once all nodes have been away (librdkafka starts again with those, as KIP-899 says).
        """
        nodes = self._cluster.nodes
        if len(nodes) == FIRST or (len(nodes) < MOST and self._chance.random() < 0.5):
            node = self._cluster.add()
            node.unsynced.mkdir()
            self._again(node)
            yield f"node {node.number} has joined"
            return
        known = [number for number in nodes if number <= FIRST]
        leaving = sorted(nodes.keys() - set(known)) if len(known) == 1 else sorted(nodes)
        node = nodes[self._chance.choice(leaving)]
        self._cluster.admin("node.drain", {"node": node.node_id})
        yield f"node {node.number} is drained"
        until("it has no replica", lambda: not self._holds(node), timeout_s=MOVED_S)
        self._cluster.terminate(node.number)
        del nodes[node.number]
        self._cluster.admin("node.remove", {"node": node.node_id})

    def _holds(self, node: Node) -> bool:
        return any(node.node_id in each.replicas for each in self._cluster.containers() if each.state != "deleted")


def _damage(path: Path, chance: random.Random) -> str:
    """Damage a chunk; returns what was done, "" if nothing: if everything is dead, or a gap. The footer is spared,
    since it can be recreated.
    """
    living = _living(path)
    if not living:
        return ""
    (within,) = chance.choices(living, [len(each) for each in living])
    at = chance.choice(within)
    where = f"{path.parent.name}/{path.stem}"
    with path.open("r+b") as file:
        if chance.random() < 0.3:
            file.truncate(at)
            return f"{where} is cut at {at}"
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << chance.randrange(8)]))
    return f"a bit of {where} at {at}"


def _living(path: Path) -> list[range]:
    """The bytes of a full chunk that may still be read."""
    start = int(path.stem)
    try:
        body = load_body(path)
    except CorruptLog:  # not closed yet
        newer = min(int(each.stem) for each in path.parent.glob("*.chunk") if int(each.stem) > start)
        return [range(FILE_HEAD_BYTES, FILE_HEAD_BYTES + newer - start)]
    found = [place for part in body.parts for place in part.all_controls()]
    for part in body.parts:
        for summary in part.summaries():
            kept = body.dead.first_kept(summary.partitionlet)
            places = part.places(summary.partitionlet, 0)
            found += [(place.at, place.length) for place in places if place.last >= kept]
    return [range(FILE_HEAD_BYTES + at, FILE_HEAD_BYTES + at + length) for at, length in found]


@dataclass(frozen=True, slots=True)
class Kind:
    """How often a fault is chosen, and its longest duration."""

    fault: Callable[[Faults], Fault]
    weight: int
    longest_s: float = LONGEST_S

    @property
    def name(self) -> str:
        """The fault's name in HEADRACE_FAULT_KINDS."""
        return self.fault.__name__


KINDS = (
    Kind(Faults.killed, 8),
    Kind(Faults.two_killed, 4),
    Kind(Faults.all_killed, 2),
    Kind(Faults.killed_again_and_again, 2),
    Kind(Faults.stopped, 4),
    Kind(Faults.paused, 4),
    Kind(Faults.power_cut, 4),
    Kind(Faults.isolated, 6),
    Kind(Faults.cut, 4),
    Kind(Faults.cut_one_way, 4),
    Kind(Faults.slow, 4),
    Kind(Faults.lossy, 4),
    Kind(Faults.dropped, 4),
    Kind(Faults.store_away, 4),
    Kind(Faults.store_away_from_all, 3),
    Kind(Faults.store_put_back, 2),
    Kind(Faults.full, 3),
    Kind(Faults.over_quota, 3),
    Kind(Faults.sync_fails, 3),
    Kind(Faults.wiped, 3),
    Kind(Faults.damaged, 4),
    Kind(Faults.resized, 5),
    Kind(Faults.paused, 1, longest_s=60.0),
)
