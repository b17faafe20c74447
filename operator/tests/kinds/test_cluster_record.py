"""Which image the nodes of a StreamCluster run, and which version its status names."""

import pytest

from headrace_operator.kinds.cluster_record import IMAGE_CHOSEN_BY

from ..fake_api import Object
from ..fake_cluster import IMAGE, World
from .test_cluster import KEY, SPEC, images, pods, started

NEWER = "registry:5000/headrace/node:2"
NO_SUCH_IMAGE: Object = {
    "containerStatuses": [
        {
            "name": "node",
            "ready": False,
            "restartCount": 0,
            "state": {
                "waiting": {
                    "reason": "ImagePullBackOff",
                    "message": 'Back-off pulling image "registry:5000/headrace/node:9.9.9": ErrImagePull: failed to'
                    ' pull and unpack image "registry:5000/headrace/node:9.9.9": not found',
                }
            },
        }
    ]
}


def version(world: World) -> object:
    return world.api.one("StreamCluster", "c")["status"].get("version")


async def with_a_bad_one(world: World, **spec: object) -> None:
    """One pod was recreated with an image that does not exist."""
    world.declare("StreamCluster", "c", SPEC | spec)
    await world.once(KEY)
    world.cluster.converge()
    world.api.one("Pod", "c-2")["status"] = NO_SUCH_IMAGE
    await world.once(KEY)


@pytest.mark.parametrize("bad", [{"version": "9.9.9"}, {"image": "registry:5000/headrace/node:9.9.9"}])
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_bad_version_that_is_removed_again_leaves_nothing_behind(bad: Object, restarted: bool) -> None:
    world = await started()
    await with_a_bad_one(world, **bad)
    assert version(world) == "1", "no node ever ran the other one"
    if restarted:
        world.start_operator()
    world.declare("StreamCluster", "c", SPEC)
    await world.run(KEY)
    assert images(world) == {IMAGE}
    assert world.condition("StreamCluster", "c")[:2] == ("True", "Ready")
    assert version(world) == "1"


async def test_a_version_that_is_removed_means_the_operators_default() -> None:
    world = await started(version="0")
    assert images(world) == {"registry:5000/headrace/node:0"}
    world.start_operator(image=NEWER)
    world.declare("StreamCluster", "c", SPEC)
    await world.run(KEY)
    assert images(world) == {NEWER}
    world.start_operator(image="registry:5000/headrace/node:3")
    await world.run(KEY)
    assert images(world) == {NEWER}, "a newer operator changes nothing by itself"


async def test_what_an_earlier_operator_made_of_a_version_that_was_removed_is_mended() -> None:
    """It took the StatefulSet's template for what runs, and noted nothing else."""
    world = await started()
    await with_a_bad_one(world, version="9.9.9")
    del world.api.one("Secret", "c-cluster")["metadata"]["annotations"][IMAGE_CHOSEN_BY]
    world.start_operator(image=NEWER)
    world.declare("StreamCluster", "c", SPEC)
    await world.run(KEY)
    assert images(world) == {IMAGE}


async def test_a_cluster_of_an_earlier_operator_stays_at_what_it_runs_also_while_it_is_down() -> None:
    world = await started()
    del world.api.one("Secret", "c-cluster")["metadata"]["annotations"][IMAGE_CHOSEN_BY]
    for pod in world.api.find("Pod"):
        pod["status"] = {}
    world.cluster.away = True
    world.start_operator(image=NEWER)
    await world.once(KEY)
    assert world.api.one("StatefulSet", "c")["spec"]["template"]["spec"]["containers"][0]["image"] == IMAGE


async def test_the_status_names_both_versions_while_pods_are_made_anew() -> None:
    world = await started()
    world.declare("StreamCluster", "c", SPEC | {"version": "2"})
    await world.once(KEY)
    world.cluster.converge()
    world.cluster.lacking = [{"container": 7, "in_sync": 2, "wanted": 3, "reason": "node 3 catches up"}]
    await world.once(KEY)
    assert version(world) == "1, 2"
    world.cluster.lacking = []
    await world.run(KEY)
    assert pods(world) == ["c-0", "c-1", "c-2"]
    assert version(world) == "2"
