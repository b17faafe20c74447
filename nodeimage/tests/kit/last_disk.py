"""All disks of a cluster except one are lost, and that one was behind: an operator continues from it."""

import contextlib
from collections.abc import Iterator

from headrace.store.records import ContainerRecord
from kit.cluster_nodes import Cluster, until


def in_sync(record: ContainerRecord) -> set[int]:
    """The nodes whose replicas are in sync."""
    return {node for node, _ in record.in_sync}


@contextlib.contextmanager
def left_behind(cluster: Cluster, left: int) -> Iterator[None]:
    """A node is suspended and no longer in sync. Records written within the context never reach it: otherwise it would
    find some in its sockets, from connections that its leaders have not given up yet.
    """
    node = cluster.nodes[left].node_id
    with cluster.paused(left):
        for other in cluster.nodes.keys() - {left}:
            cluster.ways.silence(left, other)
        until("it is let go", lambda: all(node not in in_sync(each) for each in cluster.containers()))
        yield


def lose_others(cluster: Cluster, left: int) -> None:
    """All nodes except one end at once, and lose their data."""
    others = [number for number in cluster.nodes if number != left]
    cluster.kill(*others)
    for number in others:
        cluster.wipe(number)


def go_on_from(cluster: Cluster, left: int) -> None:
    """Recover the contents of one node, have the cluster forget the others, and start these as new nodes."""
    own = cluster.nodes[left].node_id
    for each in cluster.containers():
        if own in each.replicas or each.kind == "catalog":
            recover(cluster, each.container_id, by=left)
    for node in cluster.nodes.values():
        if node.number != left:  # otherwise the cluster waits ten minutes for its replicas
            cluster.admin("node.remove", {"node": node.node_id, "force": True}, node=left)
    others = [number for number in cluster.nodes if number != left]
    cluster.start(*others)
    cluster.await_ready(*others)


def recover(cluster: Cluster, container: int, *, by: int) -> None:
    """Do as `headrace recover-unclean` does, at a node."""

    def shown() -> object:
        try:
            return cluster.admin("container.recover", {"container": container}, node=by)
        except AssertionError:  # it is not known yet that the others are gone
            return None

    epoch = until(f"container {container} can be recovered", shown)["epoch"]
    cluster.admin("container.recover", {"container": container, "epoch": epoch}, node=by)
