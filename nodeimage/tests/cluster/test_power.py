"""The power of all nodes goes at the same moment, and with it whatever was not synced (invariants 1, 4 and 13)."""

import time

import pytest

from kit.cluster_clients import Load
from kit.cluster_nodes import MakeCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CUTS = 3
MAX_CUTS = 10
"""Until one has taken something."""
BETWEEN_S = 1.0


def test_a_power_cut_of_all_nodes_takes_nothing_that_was_acknowledged(make_cluster: MakeCluster) -> None:
    three = make_cluster("--chunk-bytes=262144", watch_power=True)
    load = Load(three)
    load.forgive_coordinators_lost_twice()
    gone: list[int] = []
    while len(gone) < CUTS or (not any(gone) and len(gone) < MAX_CUTS):
        load.write_on_for(BETWEEN_S)
        gone.append(three.cut_power())
        three.start()
        three.await_ready()
        load.await_writes(time.monotonic(), within_s=30.0)
        three.await_whole()
    print(f"{gone} writes were under way")
    assert any(gone), "no cut took anything"
    load.finish()
