"""Clusters of three nodes for the tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.cluster_nodes import Cluster, MakeCluster


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[MakeCluster]:
    """Starts a cluster: `make_cluster("--rebuild-after-s=5")`; all nodes serve, and every container is whole."""
    made: list[Cluster] = []

    def make(*options: str, count: int = 3, watch_power: bool = False, code: Path | None = None) -> Cluster:
        cluster = Cluster(tmp_path / f"cluster-{len(made)}", count, options)
        made.append(cluster)
        for node in cluster.nodes.values():
            node.code = code
        if watch_power:
            cluster.watch_power()
        cluster.start()
        cluster.await_ready()
        cluster.await_whole()
        return cluster

    yield make
    for cluster in made:
        cluster.close()


@pytest.fixture
def three(make_cluster: MakeCluster) -> Cluster:
    """Three nodes."""
    return make_cluster()
