"""A cluster whose operator is upgraded first, then its nodes: forward, back, and only as far as possible."""

from collections.abc import Iterator
from pathlib import Path

import kube
import pytest
from rolls import roll

from headrace.base.levels import NEWEST
from kit.cluster_clients import Load
from kit.old_versions import LEVEL_0, export, needs_level_0

OLD = kube.tagged("node", LEVEL_0)
NEW = kube.IMAGES["node"]
LEVEL = "FeatureLevel"

pytestmark = needs_level_0


@pytest.fixture(scope="module")
def old_operator(kind: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The operator, CRDs and nodes' image of a version without feature levels; this version afterwards."""
    source: Path = tmp_path_factory.mktemp("old") / "source"
    export(LEVEL_0, source)
    kube.build(["node", "operator"], source=source, tag=LEVEL_0)
    kube.install(source=source, tag=LEVEL_0)
    yield
    kube.install()


def await_level(cluster: kube.Cluster, level: int, reason: str) -> None:
    """Wait until the resource reports the level and the reason."""

    def told() -> bool:
        found = (cluster.body["status"].get("featureLevel"), *cluster.condition(LEVEL))
        assert (found[0], found[2]) == (level, reason), found
        return True

    kube.until(f"level {level}, {reason}", told)


def test_the_operator_is_upgraded_first_and_then_the_nodes_and_back_until_the_level_is_raised(
    old_operator: None, namespace: str
) -> None:
    cluster = kube.Cluster("c", namespace)
    cluster.apply()
    cluster.await_ready()
    lives = cluster.lives()
    kube.install()
    await_level(cluster, 0, "Newest")
    assert cluster.lives() == lives, "a newer operator leaves the nodes as they are"

    roll(cluster, image=NEW)
    await_level(cluster, 0, "Waits")
    roll(cluster, image=OLD)
    await_level(cluster, 0, "Newest")
    roll(cluster, image=NEW)

    with kube.reported("4 the feature level is raised, and an older image is refused") as figures:
        load = Load(cluster)
        cluster.apply(featureLevel=NEWEST)
        await_level(cluster, NEWEST, "Newest")
        cluster.await_told("FeatureLevelChanged")
        lives = cluster.lives()
        cluster.apply(image=OLD)
        last = f"{cluster.name}-2"
        cluster.await_other_life(last, lives)

        def refused() -> str:
            return next((line for line in said(cluster, last).splitlines() if "use a newer headrace" in line), "")

        figures["said"] = str(kube.until("the older image says why it does not run", refused))
        assert {pod: life for pod, life in cluster.lives().items() if pod != last} == {
            pod: life for pod, life in lives.items() if pod != last
        }
        cluster.apply(image=NEW)
        cluster.await_ready()
        history = load.finish()
        figures["produced"] = len(history.times)


def said(cluster: kube.Cluster, pod: str) -> str:
    """Return the log of a pod's process, and of the one before it."""
    logs = ("logs", pod, "-n", cluster.namespace, "--tail=20")
    return kube.kubectl(*logs, check=False) + kube.kubectl(*logs, "--previous", check=False)
