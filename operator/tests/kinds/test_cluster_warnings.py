"""Events of a cluster's controller are of type Warning if they report a fault."""

import time

import pytest

from .test_cluster import KEY, happened, started


@pytest.mark.parametrize(
    ("kind", "reason", "type"),
    [
        ("wait", "nodes 1 and 2 have to come back", "Warning"),
        ("lost", "3 of 4 containers have too few replicas in sync", "Warning"),
        ("whole", "redundancy is whole", "Normal"),
        ("node", "node 2 refuses connections", "Warning"),
        ("node", "node 2 is silent", "Warning"),
        ("node", "node 2 answers again", "Normal"),
        ("clock", "node 2's clock is 9 s ahead of the cluster's time", "Warning"),
        ("clock", "node 2's clock is right again", "Normal"),
        ("primary", "node 2 is silent", "Normal"),
        ("roll", "to node 3", "Normal"),
    ],
)
async def test_what_is_wrong_is_a_warning(kind: str, reason: str, type: str) -> None:
    world = await started()
    world.cluster.happened = {"c-0:9092": [happened(time.time(), kind, reason)]}
    await world.once(KEY)
    (found,) = [each for each in world.api.find("Event") if each["message"].endswith(reason)]
    assert found["type"] == type
