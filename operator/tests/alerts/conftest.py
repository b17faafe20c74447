"""Fixtures: Prometheus and clusters that it scrapes, for one test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.cluster_nodes import Cluster, MakeCluster
from kit.linked_clusters import Linked

from .prometheus import Prometheus

METRICS = "--metrics-port=0"
MakePrometheus = Callable[[int], Prometheus]
"""Starts a Prometheus whose rules run faster by this factor."""


@pytest.fixture
def make_prometheus(tmp_path: Path) -> Iterator[MakePrometheus]:
    made: list[Prometheus] = []

    def make(faster: int) -> Prometheus:
        made.append(Prometheus(tmp_path / f"prometheus-{len(made)}", faster=faster))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[MakeCluster]:
    """Starts a cluster of nodes that serve metrics; every container has all its replicas in sync."""
    made: list[Cluster] = []

    def make(*options: str, count: int = 3, name: str = "plant") -> Cluster:
        made.append(Cluster(tmp_path / name, count, (METRICS, *options)))
        made[-1].start()
        made[-1].await_ready()
        made[-1].await_whole()
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def linked(tmp_path: Path) -> Iterator[Linked]:
    """Starts linked clusters by name."""
    found = Linked(tmp_path)
    yield found
    found.close()
