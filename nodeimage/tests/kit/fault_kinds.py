"""What can go wrong with a cluster's processes, networks, disks and store, for tests that do it by chance.

Each fault lasts while inside its context; then what it has broken is put right, as an operator would. At most one node
is down, cut off or broken at a time, so that writes go on, but for those faults that meet all. Afterwards the nodes
need not be the same: some come and go.
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
"""Nodes that a cluster begins with, and shrinks to."""
MOST = 5
MOST_RESTARTS = 4
MOST_DAMAGED = 3
"""Chunks of one node at a time."""
LOST = 0.02
MOVED_S = 90.0
"""Within which a drained node is empty."""
SCRUBBED_EACH_S = 0.5
SCRUBBED_S = 300.0
"""All that a node has may have to be read: after an hour of faults that takes more than a minute."""
ROUND_TRIP_S = 0.005

Fault = AbstractContextManager[str]
"""What it is, once it is there."""


class Faults:
    """Which node a fault meets, which of its others, and how, is up to `chance`."""

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
        """Within the time that frames take to a follower and back."""
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
        """As soon as it serves."""
        node = self._node()
        count = self._chance.randint(2, MOST_RESTARTS)
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
        """To what it was a moment ago; and then built anew, which is what an operator has to do."""
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
        """Noticed where a chunk is wanted, not by the filesystem's figures."""
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
        """The folder is lost: what starts in its place is a new node."""
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
        """Bits flip in chunks that were full, or these are cut, while a node is down."""
        node = self._node()
        self._cluster.kill(node.number)
        full = [path for folder in (node.data / "containers").iterdir() for path in sorted(folder.glob("*.chunk"))[:-1]]
        count = min(len(full), self._chance.randint(1, MOST_DAMAGED))
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
                self._cluster.admin("scrub.start", node=node.number)  # nobody may read what was closed long ago
            return not left

        what = f"what is damaged of {sorted(formats)} is made anew"
        until(what, made_anew, timeout_s=SCRUBBED_S, every_s=SCRUBBED_EACH_S)

    def _is_as_before(self, node: Node, container: int, format: str) -> bool:
        """Whether a replica is the damaged one still, or on its way to another."""
        record = next((each for each in self._cluster.containers() if each.container_id == container), None)
        if record is None or record.state == "deleted" or node.node_id not in record.replicas:
            return False
        return self._cluster.format(node.number, container) in ("", format)

    # --- which nodes there are

    @contextmanager
    def resized(self) -> Iterator[str]:
        """A node joins, or one is drained and leaves: not the last of those that clients were told to begin with, or
        they find nobody once all nodes have been away (librdkafka begins again with them, as KIP-899 says)."""
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
    """What was done to it, "" for nothing: where all is dead, or a gap. The footer can be made again, and is let be."""
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
    """The bytes of a full chunk that anybody may still read."""
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
    """How often a fault is chosen, and how long it lasts at most."""

    fault: Callable[[Faults], Fault]
    weight: int
    longest_s: float = LONGEST_S

    @property
    def name(self) -> str:
        """As HEADRACE_FAULT_KINDS names it."""
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
