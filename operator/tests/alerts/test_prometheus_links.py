"""The alerts about links, in a Prometheus that scrapes two clusters with a link between them."""

import pytest

from kit.cluster_nodes import Cluster, until
from kit.linked_clusters import (
    STREAM,
    Linked,
    await_caught_up,
    call,
    cluster_id,
    fill,
    headrace_json,
    link,
    make,
)

from .conftest import METRICS, MakePrometheus
from .promtool import promtool

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(promtool() is None, reason="needs prometheus: .ci/tools gets it"),
]

SHORT_LIVED = "/short-lived"
SINGLE = "/single"
"""Topics whose records only one node has."""


def home_of(cluster: Cluster, topic: str) -> str:
    """Return the home of a topic, as this cluster knows it."""
    home = call(cluster, "topic.show", topic=f"{STREAM}:{topic}").get("home")
    return cluster_id(cluster) if home is None else str(home["cluster"])


def _leaders(cluster: Cluster, volume: str) -> set[int]:
    return {each.leader for each in cluster.containers() if each.volume == volume}


def test_links(linked: Linked, make_prometheus: MakePrometheus) -> None:
    prometheus = make_prometheus(60)
    (north,) = linked.start("north", count=2, options=(METRICS,))
    (south,) = linked.start("south", options=(METRICS,))
    prometheus.watch("north", north)
    prometheus.watch("south", south)
    make(north, "t")
    fill(north, "t")
    link(south, north)
    north.admin("volume.create", {"name": "single", "replicas": 1})
    call(north, "stream.create", path=SINGLE, policy={"volume": "single"})
    until("each node leads a container of that volume", lambda: len(_leaders(north, "single")) == 2)
    make(north, f"{SINGLE}:t", partitions=4)
    fill(north, f"{SINGLE}:t", partitions=4)
    await_caught_up(south)

    linked.cut("north", "south")
    prometheus.await_firing("HeadraceLinkLag")
    linked.ways.heal()
    prometheus.await_cleared("HeadraceLinkLag")

    gone = next(number for number, node in north.nodes.items() if node.node_id != north.catalog().leader)
    north.kill(gone)
    link(south, north, "single", source_stream=SINGLE, stream=SINGLE)
    prometheus.await_firing("HeadraceLinkBlocked")
    north.start(gone)
    north.await_ready(gone)
    prometheus.look()
    prometheus.await_cleared("HeadraceLinkBlocked")

    call(north, "stream.create", path=SHORT_LIVED)
    link(south, north, "short", source_stream=SHORT_LIVED, stream=SHORT_LIVED)
    call(north, "stream.delete", path=SHORT_LIVED)
    prometheus.await_firing("HeadraceLinkFailed")
    call(south, "link.delete", name="short")
    prometheus.await_cleared("HeadraceLinkFailed")

    linked.cut("north", "south")
    (moved,) = headrace_json(south, "topic", "move-home", f"{STREAM}:t", "--force")
    assert (moved["moved"], moved["error"]) == (True, None)
    fill(north, "t", 10)
    fill(south, "t", 20)
    linked.ways.heal()
    prometheus.await_firing("HeadraceRecordsSetAside")
    assert home_of(north, "t") == cluster_id(south)
    prometheus.await_cleared("HeadraceRecordsSetAside")
