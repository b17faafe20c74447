"""A requested restart: pod by pod, each when all are in sync, as for another image."""

import pytest

from ..fake_cluster import World
from .test_cluster import KEY, SPEC, pods, started

ROLLOUT = "kubectl.kubernetes.io/restartedAt"
OURS = "headrace.dev/restart"


def lives(world: World) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in world.api.find("Pod")}


def ask(world: World, name: str, value: str) -> None:
    if name == OURS:
        world.declare("StreamCluster", "c", SPEC, annotations={OURS: value})
    else:  # like `kubectl rollout restart statefulset/c`
        world.api.one("StatefulSet", "c")["spec"]["template"]["metadata"]["annotations"][ROLLOUT] = value


@pytest.mark.parametrize("name", [OURS, ROLLOUT])
async def test_a_restart_makes_all_pods_anew_one_by_one_and_once(name: str) -> None:
    world = await started()
    before = lives(world)
    ask(world, name, "2026-11-29T10:00:00Z")
    await world.once(KEY)
    assert pods(world) == ["c-0", "c-1"], "one at a time, the last one first"
    world.cluster.converge()
    world.cluster.lacking = [{"container": 7, "in_sync": 2, "wanted": 3, "reason": "node 3 catches up"}]
    for _ in range(3):
        await world.once(KEY)
    assert pods(world) == ["c-0", "c-1", "c-2"], "the next waits until all are in sync"
    assert world.condition("StreamCluster", "c", "Current")[:2] == ("False", "Rolling")
    world.cluster.lacking = []
    await world.run(KEY)
    after = lives(world)
    assert all(after[pod] != before[pod] for pod in before)
    assert world.condition("StreamCluster", "c", "Current")[0] == "True"
    told = [each["message"] for each in world.api.find("Event") if each["reason"] == "PodRolled"]
    assert len(told) == 3
    assert all("a restart was asked for" in each for each in told)
    world.start_operator()
    await world.run(KEY)
    assert lives(world) == after
    ask(world, name, "2026-11-29T11:00:00Z")
    await world.run(KEY)
    assert all(lives(world)[pod] != after[pod] for pod in after)


async def test_a_request_that_is_taken_back_restarts_nothing() -> None:
    world = await started()
    ask(world, OURS, "one")
    await world.run(KEY)
    before = lives(world)
    world.declare("StreamCluster", "c", SPEC, annotations={})
    await world.run(KEY)
    assert lives(world) == before


async def test_another_image_makes_pods_anew_one_by_one_each_when_all_are_in_sync() -> None:
    world = await started()
    world.declare("StreamCluster", "c", SPEC | {"image": "headrace/node:2"})
    uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in world.api.find("Pod")}
    gone: list[str] = []
    for _ in range(20):
        await world.once(KEY)
        now = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in world.api.find("Pod")}
        missing = [name for name in uids if name not in now]
        assert len(missing) <= 1
        gone += missing
        if missing:
            await world.once(KEY)
            assert len(world.api.find("Pod")) == 2, "another pod went before this one was back"
            world.cluster.converge()
            world.cluster.lacking = [{"container": 7, "in_sync": 2, "wanted": 3, "reason": "node 3 catches up"}]
            await world.once(KEY)
            assert len(world.api.find("Pod")) == 3, "another pod went before this one had caught up"
            world.cluster.lacking = []
    assert gone == ["c-2", "c-1", "c-0"]
    assert world.condition("StreamCluster", "c", "Current")[0] == "True"


async def test_a_roll_waits_for_every_node_that_cannot_be_spared_by_its_own_word() -> None:
    world = await started()
    world.declare("StreamCluster", "c", SPEC | {"image": "headrace/node:2"})
    world.cluster.unsafe = {"c-0": "container 7 would have too few replicas in sync"}
    await world.once(KEY)
    assert pods(world) == ["c-0", "c-1", "c-2"]
    said = world.condition("StreamCluster", "c", "Current")
    assert said[:2] == ("False", "Rolling")
    assert "waiting: without c-0 container 7 would have too few replicas in sync" in said[2]
    world.cluster.unsafe = {"c-1": None}
    await world.once(KEY)
    assert pods(world) == ["c-0", "c-1", "c-2"]
    assert "c-1 does not say" in world.condition("StreamCluster", "c", "Current")[2]
    world.cluster.unsafe = {}
    await world.once(KEY)
    assert pods(world) == ["c-0", "c-1"]


async def test_containers_that_cannot_have_more_replicas_hold_no_roll_up() -> None:
    world = await started(nodes=2)
    world.cluster.lacking = [{"container": 7, "in_sync": 2, "wanted": 3, "reason": "there are 2 nodes"}]
    world.declare("StreamCluster", "c", SPEC | {"nodes": 2, "image": "x:2"})
    await world.run(KEY)
    assert world.condition("StreamCluster", "c", "Current")[0] == "True"


@pytest.mark.parametrize("reason", ["CrashLoopBackOff", "ErrImageNeverPull", "ImagePullBackOff"])
async def test_a_pod_that_crashes_for_ever_is_made_anew_first(reason: str) -> None:
    world = await started()
    world.declare("StreamCluster", "c", SPEC | {"image": "bad:1"})
    await world.once(KEY)
    world.cluster.converge()
    broken = world.api.one("Pod", "c-2")
    broken["status"] = {"containerStatuses": [{"state": {"waiting": {"reason": reason}}}]}
    await world.once(KEY)
    assert len(world.api.find("Pod")) == 3, "a healthy pod went while one was broken"
    world.declare("StreamCluster", "c", SPEC | {"image": "good:1"})
    await world.once(KEY)
    assert pods(world) == ["c-0", "c-1"]
    await world.run(KEY)
    assert world.condition("StreamCluster", "c")[0] == "True"


async def test_a_pod_that_cannot_run_is_made_anew_where_a_new_one_would_be_another() -> None:
    """A newer operator changes the template; pods that run may wait for it, one that does not run may not."""
    world = await started()
    world.api.one("StatefulSet", "c")["status"] = {"updateRevision": "c-2"}
    waiting = [{"state": {"waiting": {"reason": "ErrImagePull"}}}]
    for name, revision in (("c-0", "c-1"), ("c-1", "c-2"), ("c-2", "c-1")):
        world.api.one("Pod", name)["metadata"]["labels"]["controller-revision-hash"] = revision
    for name in ("c-0", "c-1"):
        world.api.one("Pod", name)["status"] = {"containerStatuses": waiting}
    await world.once(KEY)
    assert pods(world) == ["c-1", "c-2"]
