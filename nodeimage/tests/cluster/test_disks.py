"""Disks that are full, fail, lose everything, or return what was never written, each on one node of three."""

import itertools
import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient

from headrace.container.sync_cycle import HANGS_S
from headrace.log.files import FILE_HEAD_BYTES
from headrace.log.frames import HEADER_BYTES
from headrace.log.synced_mark import read_mark
from headrace.store.records import ContainerRecord
from kit.cluster_clients import CALL_S, GO_ON_S, Load, at, make_topics
from kit.cluster_nodes import Cluster, MakeCluster, until
from kit.cluster_targets import Target, busiest_leader, catalog_follower, catalog_leader
from kit.patience import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EXIT_DISK_FAILED = 70
FULL_S = 30.0
"""A chunk fills, and the node looks at its disk, within it."""
WRITTEN_S = 60.0 * PATIENCE
"""Nodes that are let go first, and copies that are made, included."""
PARTITIONS = 8
PICKED: tuple[Target, ...] = (busiest_leader, catalog_follower)


@pytest.mark.parametrize(
    ("fault", "target"), [("full", busiest_leader), ("full", catalog_follower), ("over-quota", busiest_leader)]
)
def test_a_full_disk_of_one_node_stops_nobody(make_cluster: MakeCluster, fault: str, target: Target) -> None:
    three = make_cluster("--chunk-bytes=262144")
    load = Load(three, filling=1000)
    victim = target(three, load)
    node = three.nodes[victim]
    with node.fault(fault):
        until(
            "the node says that it is full",
            lambda: three.is_full(victim) and "disk full" in node.log(),
            timeout_s=FULL_S,
        )
        until(
            "a container goes on without it",
            lambda: load.history.errors or any(node.node_id not in _in_sync(each) for each in _of_records(three)),
            timeout_s=FULL_S,
        )
        load.await_writes(time.monotonic())
    until("the node says that it has room again", lambda: not three.is_full(victim), timeout_s=FULL_S)
    three.await_whole()
    taken = _records_taken(three, victim)
    load.await_writes(time.monotonic())
    until("it takes records again", lambda: _records_taken(three, victim) > taken)
    load.finish()


def test_where_full_disks_leave_no_container_partitions_go_on_where_there_is_room(make_cluster: MakeCluster) -> None:
    """Of a volume of two replicas, both needed: the other two of four nodes have no container in common."""
    four = make_cluster("--chunk-bytes=262144", count=4)
    four.admin("volume.create", {"name": "pairs", "replicas": 2, "min_in_sync": 2})
    four.admin("stream.create", {"path": "/pairs", "policy": {"volume": "pairs"}})
    make_topics(four, ["/pairs:t"], PARTITIONS)
    writes = Writes(four, "/pairs:t")
    writes.each_once()
    until("each node leads a container of the volume", lambda: len({each.leader for each in _pairs(four)}) == 4)
    four.await_whole()
    common = {frozenset(each.replicas) for each in _pairs(four)}
    numbers = {node.node_id: number for number, node in four.nodes.items()}
    roomy = next(set(pair) for pair in itertools.combinations(numbers, 2) if frozenset(pair) not in common)
    full = [numbers[each] for each in numbers.keys() - roomy]
    with four.nodes[full[0]].fault("nearly-full"), four.nodes[full[1]].fault("nearly-full"):
        until("both say that they are full", lambda: all(map(four.is_full, full)), timeout_s=FULL_S)

        def made() -> list[ContainerRecord]:
            return [each for each in _pairs(four) if set(each.replicas) == roomy]

        def moved() -> bool:
            writes.each_once()
            # Where each pair has one of them, both lead everything before anything has moved.
            return leaders(four, "/pairs:t") <= roomy and bool(made())

        until("all is written where there is room", moved, timeout_s=FULL_S)
        assert len(made()) == 1
    until("they have room again", lambda: not any(map(four.is_full, full)), timeout_s=FULL_S)
    writes.each_once()


def test_where_all_followers_disks_are_full_at_once_a_node_with_room_has_what_they_cannot_take(
    make_cluster: MakeCluster,
) -> None:
    """More is under way than they still have room for, so that neither it nor a seal behind it is committed there."""
    four = make_cluster("--chunk-bytes=262144", count=4)
    make_topics(four, ["burst"], PARTITIONS)
    writes = Writes(four, "burst")
    writes.each_once()
    load = Load(four)
    numbers = {node.node_id: number for number, node in four.nodes.items()}
    leading = led_by(four, "burst")
    leader = max(leading, key=lambda node: len(leading[node]))
    record = next(each for each in _of_records(four) if each.leader == leader)
    one, other = (numbers[node] for node in record.replicas if node != leader)
    with four.nodes[one].fault("full"), four.nodes[other].fault("full"):
        writes.send(leading[leader], count=20_000, filling=1000)
        until("both say that they are full", lambda: four.is_full(one) and four.is_full(other), timeout_s=FULL_S)
        # All are acknowledged by now. Without another replica nothing would be, unless records came so slowly, on a
        # busy machine, that their partitions had gone on elsewhere before too many were under way.
        if PATIENCE == 1:
            until(
                "a replica is made where there is room",
                lambda: any("too few of those in sync have room" in node.log() for node in four.nodes.values()),
                timeout_s=FULL_S,
            )
        load.await_writes(time.monotonic())
    until("they have room again", lambda: not four.is_full(one) and not four.is_full(other), timeout_s=FULL_S)
    four.await_whole()
    until("none has a replica too many", lambda: all(len(each.replicas) == 3 for each in four.containers()))
    load.await_writes(time.monotonic())
    load.finish()


def _pairs(cluster: Cluster) -> list[ContainerRecord]:
    return [each for each in cluster.containers() if each.volume == "pairs" and each.state == "open"]


class Writes:
    """To a topic's partitions, by one client; fails unless all are acknowledged."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._producer = Producer(at(cluster.bootstrap))

    def each_once(self) -> None:
        """A record to each partition."""
        self.send(range(PARTITIONS), count=PARTITIONS, filling=1)

    def send(self, partitions: Sequence[int], *, count: int, filling: int) -> None:
        """`count` records of so many bytes, to each partition in turn."""
        refused: list[KafkaError] = []
        for number in range(count):
            self._producer.produce(
                self._topic,
                b"v" * filling,
                partition=partitions[number % len(partitions)],
                on_delivery=lambda error, _: error and refused.append(error),
            )
        assert self._producer.flush(WRITTEN_S) == 0, self._cluster.events()
        assert not refused, (refused[0], self._cluster.events())


def leaders(cluster: Cluster, topic: str) -> set[int]:
    """The nodes that lead a topic's partitions, as clients are told."""
    return set(led_by(cluster, topic))


def led_by(cluster: Cluster, topic: str) -> dict[int, list[int]]:
    """The partitions that each node leads, as clients are told."""
    told = AdminClient(at(cluster.bootstrap)).list_topics(topic, timeout=CALL_S).topics[topic]
    found: dict[int, list[int]] = {}
    for index, part in sorted(told.partitions.items()):
        found.setdefault(part.leader, []).append(index)
    return found


@pytest.mark.parametrize("target", PICKED, ids=lambda each: each.__name__)
def test_a_sync_that_fails_ends_that_node_alone(three: Cluster, target: Target) -> None:
    load = Load(three)
    victim = target(three, load)
    with three.nodes[victim].fault("sync-fails"):
        since = time.monotonic()
        assert three.nodes[victim].wait() == EXIT_DISK_FAILED
        load.await_writes(since)
    three.start(victim)
    three.await_ready(victim)
    three.await_whole()
    load.await_writes(time.monotonic())
    load.finish()


@pytest.mark.parametrize("target", [busiest_leader, catalog_leader], ids=lambda each: each.__name__)
def test_a_leader_whose_disk_hangs_is_replaced_and_follows_when_it_writes_again(three: Cluster, target: Target) -> None:
    load = Load(three)
    victim = target(three, load)
    hangs = three.nodes[victim].node_id
    with three.nodes[victim].fault("sync-hangs"):
        load.await_writes(time.monotonic(), within_s=HANGS_S + GO_ON_S)
        assert all(each.leader != hangs for each in three.containers())
        load.await_writes(time.monotonic())
    three.await_whole()
    load.await_writes(time.monotonic())
    load.finish()


@pytest.mark.parametrize("target", PICKED, ids=lambda each: each.__name__)
def test_a_wiped_folder_comes_back_as_a_new_node_and_takes_replicas(make_cluster: MakeCluster, target: Target) -> None:
    three = make_cluster("--rebuild-after-s=3")
    load = Load(three)
    victim = target(three, load)
    before = three.nodes[victim].node_id
    three.kill(victim)
    three.wipe(victim)
    load.await_writes(time.monotonic())
    three.start(victim)
    three.await_ready(victim)
    new = three.nodes[victim].node_id
    assert new != before
    until(
        "the new node has replicas of all that the old one had",
        lambda: all(before not in each.replicas and new in each.replicas for each in three.containers()),
    )
    three.await_whole()
    load.await_writes(time.monotonic())
    load.finish()


def test_a_wiped_replica_of_a_node_that_kept_its_name_counts_as_empty(three: Cluster) -> None:
    """node.json is there, the containers are not: another format, which is never in sync by its name (invariant 14)."""
    load = Load(three)
    victim = catalog_leader(three, load)
    three.kill(victim)
    for folder in (three.nodes[victim].data / "containers").iterdir():
        for file in sorted(folder.rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        folder.rmdir()
    load.await_writes(time.monotonic())
    three.start(victim)
    three.await_ready(victim)
    three.await_whole()
    load.await_writes(time.monotonic())
    load.finish()


@pytest.mark.parametrize("harm", ["flip", "truncate"])
def test_a_damaged_log_on_a_minority_is_made_anew_from_the_others(make_cluster: MakeCluster, harm: str) -> None:
    """What is damaged of the newest chunk makes another format of the replica, of which the rest is damaged still."""
    three = make_cluster("--chunk-bytes=262144")
    load = Load(three)
    victim = busiest_leader(three, load)
    containers = three.nodes[victim].data / "containers"
    until(
        "each container of records has a chunk that is closed",
        lambda: {each.container_id for each in _of_records(three)} <= set(_closed(containers)),
    )
    three.kill(victim)
    damaged = _closed(containers)
    load.await_writes(time.monotonic())
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for path in sorted(containers.rglob("*.chunk")):
        written = _written(path)
        if harm == "flip":
            with path.open("r+b") as file:
                for _ in range(3):
                    at = chance.randrange(written)
                    file.seek(at)
                    byte = file.read(1)[0]
                    file.seek(at)
                    file.write(bytes([byte ^ 1 << chance.randrange(8)]))
        else:
            with path.open("r+b") as file:
                file.truncate(chance.randrange(written))
    three.start(victim)
    three.await_ready(victim)

    def made_anew() -> bool:
        if harm == "flip" and not three.admin("scrub.status", node=victim)["running"]:
            three.admin("scrub.start", node=victim)  # nobody else may ever read what was closed long ago
        return three.nodes[victim].log().count("a damaged replica is fetched again") >= len(damaged)

    until("the damaged replicas are made anew", made_anew, every_s=0.5)
    three.await_whole()
    load.await_writes(time.monotonic())
    others = [number for number in three.nodes if number != victim]
    three.kill(others[0])  # what was made anew counts from now on
    load.await_writes(time.monotonic())
    three.start(others[0])
    three.await_ready(others[0])
    three.await_whole()
    load.finish()


@pytest.mark.parametrize("target", PICKED, ids=lambda each: each.__name__)
def test_a_node_that_lost_what_it_had_synced_last_does_not_lead_though_it_is_up_first(
    three: Cluster, target: Target
) -> None:
    """Far above the last checkpoint. By its format it was in sync: it led, and the others cut what it had not."""
    load = Load(three)
    victim = target(three, load)
    others = [number for number in three.nodes if number != victim]
    containers = three.nodes[victim].data / "containers"
    load.write_on_for(3.0)
    load.forgive_coordinators_lost_twice()
    three.kill(*three.nodes)
    harmed = []
    for folder in sorted(containers.iterdir()):
        path = max(folder.glob("*.chunk"))
        synced, at = read_mark(folder) - int(path.stem), FILE_HEAD_BYTES + HEADER_BYTES
        if synced > at:
            raw = bytearray(path.read_bytes())
            raw[at] ^= 4
            path.write_bytes(raw)
            harmed.append(int(folder.name))
    assert harmed
    three.start(victim)
    node = three.nodes[victim]
    until(
        "it has looked at its replicas, and is the controller",
        lambda: three.controller() == victim and node.log().count("has lost what it had synced") == len(harmed),
    )
    three.start(*others)
    three.await_ready()
    load.await_writes(time.monotonic(), within_s=30.0)
    three.await_whole()
    load.finish()


def _of_records(cluster: Cluster) -> list[ContainerRecord]:
    return [each for each in cluster.containers() if each.kind == "data" and each.state == "open"]


def _in_sync(record: ContainerRecord) -> set[int]:
    return {node for node, _ in record.in_sync}


def _closed(containers: Path) -> list[int]:
    """The containers that have a chunk behind which there is another."""
    return [int(each.name) for each in containers.iterdir() if len(list(each.glob("*.chunk"))) > 1]


def _records_taken(cluster: Cluster, number: int) -> int:
    """Bytes that the node has of all logs of records."""
    held = cluster.admin("status", node=number)["containers"]
    return sum(each["end"] for each in held if each["kind"] == "data")


def _written(path: Path) -> int:
    """Bytes of a chunk that hold frames: a footer that is lost is made again from these."""
    start = int(path.stem)
    behind = [int(each.stem) - start for each in path.parent.glob("*.chunk") if int(each.stem) > start]
    return max(min([len(path.read_bytes().rstrip(b"\0")), *behind]), 1)
