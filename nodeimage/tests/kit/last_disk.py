"""All disks of a cluster but one are lost, and that one was behind: an operator lets it go on from there."""

import contextlib
from collections.abc import Iterator

from headrace.store.records import ContainerRecord
from kit.cluster_nodes import Cluster, until


def in_sync(record: ContainerRecord) -> set[int]:
    """The nodes whose replicas are."""
    return {node for node, _ in record.in_sync}


@contextlib.contextmanager
def left_behind(cluster: Cluster, left: int) -> Iterator[None]:
    """A node stands still and is in sync no more. What is written while inside never comes to it: else it would find
    some of that in its sockets, of connections that its leaders have not given up yet.
    """
    node = cluster.nodes[left].node_id
    with cluster.paused(left):
        for other in cluster.nodes.keys() - {left}:
            cluster.ways.silence(left, other)
        until("it is let go", lambda: all(node not in in_sync(each) for each in cluster.containers()))
        yield


def lose_others(cluster: Cluster, left: int) -> None:
    """All nodes but one end at once, and what they have kept is gone."""
    others = [number for number in cluster.nodes if number != left]
    cluster.kill(*others)
    for number in others:
        cluster.wipe(number)


def go_on_from(cluster: Cluster, left: int) -> None:
    """Recover what one node has, let the cluster forget the others, and start these anew."""
    own = cluster.nodes[left].node_id
    for each in cluster.containers():
        if own in each.replicas or each.kind == "catalog":
            recover(cluster, each.container_id, by=left)
    for node in cluster.nodes.values():
        if node.number != left:  # else its replicas are waited for, ten minutes
            cluster.admin("node.remove", {"node": node.node_id, "force": True}, node=left)
    others = [number for number in cluster.nodes if number != left]
    cluster.start(*others)
    cluster.await_ready(*others)


def recover(cluster: Cluster, container: int, *, by: int) -> None:
    """As `headrace recover-unclean` does it, asking a node."""

    def shown() -> object:
        try:
            return cluster.admin("container.recover", {"container": container}, node=by)
        except AssertionError:  # the others are not known to be gone yet
            return None

    epoch = until(f"container {container} can be recovered", shown)["epoch"]
    cluster.admin("container.recover", {"container": container, "epoch": epoch}, node=by)
