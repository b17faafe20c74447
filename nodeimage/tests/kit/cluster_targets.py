"""The choice of the node for a fault."""

from collections import Counter
from collections.abc import Callable

from confluent_kafka.admin import AdminClient

from kit.cluster_clients import Load, at
from kit.cluster_nodes import Cluster

Target = Callable[[Cluster, Load], int]


def busiest_leader(cluster: Cluster, load: Load) -> int:
    """The node that leads most of the partitions that receive writes."""
    topics = AdminClient(at(cluster.bootstrap)).list_topics(timeout=20).topics
    led = Counter(part.leader for name in load.topics for part in topics[name].partitions.values())
    return cluster.number_of(led.most_common(1)[0][0])


def catalog_leader(cluster: Cluster, load: Load) -> int:
    """The node that leads the catalog, and so coordinates groups."""
    return cluster.number_of(cluster.catalog().leader)


def catalog_follower(cluster: Cluster, load: Load) -> int:
    """A node that only follows the catalog."""
    return next(number for number, node in cluster.nodes.items() if node.node_id != cluster.catalog().leader)


def controller(cluster: Cluster, load: Load) -> int:
    """The node that is the controller."""
    return cluster.controller() or 1


TARGETS: tuple[Target, ...] = (busiest_leader, catalog_leader, catalog_follower, controller)
