"""Every record arrives everywhere once, at its own offset, however the links lead."""

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from kit.cluster_clients import at
from kit.cluster_nodes import Cluster, until
from kit.linked_clusters import (
    STREAM,
    Linked,
    await_caught_up,
    await_same,
    batches,
    call,
    commit,
    committed,
    ends,
    fill,
    link,
    make,
    sent,
    shown,
)

pytestmark = pytest.mark.timeout(240)


def size_of(cluster: Cluster, *topics: str, partitions: int = 3) -> int:
    return sum(
        len(batch) for topic in topics for index in range(partitions) for batch in batches(cluster, topic, index)
    )


def test_one_to_one_brings_topics_partitions_configs_and_committed_offsets_as_they_come(linked: Linked) -> None:
    north, south = linked.start("north", "south")
    make(north, "before", **{"max.message.bytes": "500000"})
    fill(north, "before")
    commit(north, "group", "before", [3, 5, 7])
    link(south, north)
    await_same(south, north, "before")
    until("the cursors are there", lambda: committed(south, "group", "before", 3) == [3, 5, 7])
    # Later topics and records follow automatically.
    make(north, "after", partitions=1)
    fill(north, "after", partitions=1)
    admin = AdminClient(at(north.bootstrap))
    admin.create_partitions([NewPartitions("before", 5)])["before"].result(30)
    until("all see the new partitions", lambda: len(admin.list_topics("before").topics["before"].partitions) == 5)
    fill(north, "before", partitions=5)
    commit(north, "group", "before", [9, 9, 9, 2, 2])
    await_same(south, north, "after", "before")
    until("the cursors follow", lambda: committed(south, "group", "before", 5) == [9, 9, 9, 2, 2])
    assert call(south, "topic.show", topic=f"{STREAM}:before")["configs"]["max.message.bytes"] == "500000"
    await_caught_up(south)
    told = shown(south)
    assert (told["refused"], told["diverged"], told["last_error"]) == ([], [], None)


def test_many_to_one_stream(linked: Linked) -> None:
    *sources, target = linked.start("a", "b", "c", "hub")
    for number, source in enumerate(sources):
        make(source, f"of-{number}")
        fill(source, f"of-{number}")
        link(target, source, f"l{number}")
    for number, source in enumerate(sources):
        await_same(target, source, f"of-{number}")
    await_caught_up(target, "l0", "l1", "l2")


def test_one_to_many(linked: Linked) -> None:
    source, *targets = linked.start("source", "a", "b", "c")
    make(source, "t")
    fill(source, "t")
    for target in targets:
        link(target, source)
    for target in targets:
        await_same(target, source, "t")


def test_a_tree_of_three_levels(linked: Linked) -> None:
    root, left, right, leaf, other_leaf = linked.start("root", "left", "right", "leaf", "other-leaf")
    make(root, "t")
    fill(root, "t")
    commit(root, "group", "t", [4, 4, 4])
    for target, source in ((left, root), (right, root), (leaf, left), (other_leaf, right)):
        link(target, source)
    for each in (left, right, leaf, other_leaf):
        await_same(each, root, "t")
    until("cursors reach the leaves", lambda: committed(leaf, "group", "t", 3) == [4, 4, 4])
    fill(root, "t")
    make(root, "later")
    fill(root, "later")
    for each in (left, right, leaf, other_leaf):
        await_same(each, root, "t", "later")


def test_a_ring_of_four_carries_no_record_round(linked: Linked) -> None:
    ring = linked.start("a", "b", "c", "d")
    make(ring[0], "t")
    for number, target in enumerate(ring):
        link(target, ring[number - 1])
    fill(ring[0], "t", 200)
    for each in ring[1:]:
        await_caught_up(each)
    _await_everywhere(ring, "t", 200)
    carried = [sent(each) for each in ring]
    size = size_of(ring[0], "t")
    assert carried == [size, size, size, 0], "each cluster sends a record on once, and the last one to nobody"
    for each in ring[1:]:
        await_same(each, ring[0], "t")


def test_a_star_shares_what_each_has(linked: Linked) -> None:
    hub, *rays = linked.start("hub", "a", "b", "c")
    names = ["hub-t", *(f"ray-{number}" for number in range(3))]
    for name, home in zip(names, [hub, *rays], strict=True):
        make(home, name)
        fill(home, name)
    for number, ray in enumerate(rays):
        link(ray, hub, f"l{number}", direction="both", bootstrap=[ray.bootstrap])
    for name, home in zip(names, [hub, *rays], strict=True):
        for each in (hub, *rays):
            if each is not home:
                await_same(each, home, name)


def test_a_full_mesh_of_four_carries_each_record_once_to_each(linked: Linked) -> None:
    mesh = linked.start("a", "b", "c", "d")
    names = [f"of-{number}" for number in range(4)]
    for target in mesh:
        for number, source in enumerate(mesh):
            if source is not target:
                link(target, source, f"from-{number}")
    for name, home in zip(names, mesh, strict=True):
        make(home, name)
        fill(home, name)
    for name in names:
        _await_everywhere(mesh, name, 50)
    carried = sum(map(sent, mesh))
    sizes = sum(size_of(home, name) for name, home in zip(names, mesh, strict=True))
    assert carried == 3 * sizes, "every other cluster is sent each record once"
    for name, home in zip(names, mesh, strict=True):
        for each in mesh:
            if each is not home:
                await_same(each, home, name)


def test_both_ways_with_homes_on_both_sides(linked: Linked) -> None:
    north, south = linked.start("north", "south")
    make(north, "of-north")
    make(south, "of-south")
    link(south, north, direction="both", bootstrap=[south.bootstrap])
    fill(north, "of-north")
    fill(south, "of-south")
    await_same(south, north, "of-north")
    await_same(north, south, "of-south")
    commit(north, "g", "of-north", [1, 1, 1])
    commit(south, "g", "of-south", [2, 2, 2])
    until("one's cursors are at the other", lambda: committed(south, "g", "of-north", 3) == [1, 1, 1])
    until("and the other's at the one", lambda: committed(north, "g", "of-south", 3) == [2, 2, 2])


def _await_everywhere(clusters: list[Cluster], topic: str, each_partition: int) -> None:
    """Wait without fetching, since the test counts what is fetched."""
    for cluster in clusters:
        until(f"{topic} is everywhere", lambda cluster=cluster: ends(cluster, topic) == [each_partition] * 3)
