"""The power of all nodes goes at the same moment, and with it whatever was not synced (invariants 1, 4 and 13)."""

import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from cluster_clients import Load
from cluster_nodes import Cluster
from conftest import MakeCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CUTS = 3


def restart(cluster: Cluster) -> None:
    cluster.start()
    cluster.await_ready()


def test_a_power_cut_of_all_nodes_takes_nothing_that_was_acknowledged(make_cluster: MakeCluster) -> None:
    three = make_cluster("--chunk-bytes=262144")
    three.kill(*three.nodes)
    three.watch_power()
    restart(three)
    three.await_whole()
    load = Load(three)
    gone = 0
    for _ in range(CUTS):
        load.write_on_for(2.0)
        gone += three.cut_power()
        restart(three)
        load.await_writes(time.monotonic(), within_s=30.0)
        three.await_whole()
    print(f"{gone} writes were under way")
    load.finish()
