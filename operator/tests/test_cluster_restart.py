"""A restart that somebody asks for: pod by pod, each when all are in sync, as for another image."""

import pytest

from .fake_cluster import World
from .test_cluster import KEY, SPEC, pods, started

ROLLOUT = "kubectl.kubernetes.io/restartedAt"
OURS = "headrace.dev/restart"


def lives(world: World) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in world.api.find("Pod")}


def ask(world: World, name: str, value: str) -> None:
    if name == OURS:
        world.declare("StreamCluster", "c", SPEC, annotations={OURS: value})
    else:  # as `kubectl rollout restart statefulset/c`
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
