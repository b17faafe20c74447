"""A cluster shrinks and grows one pod at a time, without losing data."""

import copy
import time

import pytest

from headrace_operator.status import instant

from ..fake_api import Object
from .test_cluster import KEY, ONE_REPLICA, SPEC, claims, node_ids, pods, started


async def test_a_smaller_cluster_is_drained_pod_by_pod_and_the_claims_go() -> None:
    world = await started(nodes=5)
    world.declare("StreamCluster", "c", SPEC | {"nodes": 3})
    world.cluster.hold_drains = True
    await world.run(KEY)
    assert pods(world) == [f"c-{index}" for index in range(5)]
    assert world.condition("StreamCluster", "c", "Sized")[:2] == ("False", "Draining")
    drained = [call[1]["node"] for call in world.cluster.calls if call[0] == "node.drain"]
    assert len(drained) == 1
    world.cluster.hold_drains = False
    await world.run(KEY)
    assert pods(world) == ["c-0", "c-1", "c-2"]
    assert claims(world) == ["data-c-0", "data-c-1", "data-c-2"]
    assert len(node_ids(world)) == 3
    assert world.condition("StreamCluster", "c", "Sized")[0] == "True"
    assert {"Draining", "ScaledDown", "NodeRemoved", "ClaimDeleted"} <= set(world.events())


async def test_a_larger_cluster_after_a_smaller_one_has_new_nodes_with_new_ids() -> None:
    world = await started(nodes=4)
    before = node_ids(world)
    world.declare("StreamCluster", "c", SPEC | {"nodes": 3})
    await world.run(KEY)
    world.declare("StreamCluster", "c", SPEC | {"nodes": 4})
    await world.run(KEY)
    assert len(node_ids(world)) == 4
    assert max(node_ids(world)) > max(before)


async def test_a_change_of_mind_in_the_middle_of_a_drain_takes_the_drain_back() -> None:
    world = await started(nodes=4)
    before = node_ids(world)
    world.cluster.hold_drains = True
    world.declare("StreamCluster", "c", SPEC | {"nodes": 3})
    await world.run(KEY)
    world.declare("StreamCluster", "c", SPEC | {"nodes": 4})
    await world.run(KEY)
    assert node_ids(world) == before
    assert not any(node["spec"]["drain"] for node in world.cluster.nodes())
    assert world.condition("StreamCluster", "c", "Sized")[0] == "True"


async def test_a_drain_that_a_volume_forbids_is_a_condition_and_nothing_goes() -> None:
    world = await started()
    world.cluster.refuse_drain = "without node 3, volume 'default' could not have 2 in sync"
    world.declare("StreamCluster", "c", SPEC | {"nodes": 1})
    await world.run(KEY)
    state, reason, message = world.condition("StreamCluster", "c", "Sized")
    assert (state, reason) == ("False", "DrainRefused")
    assert "volume 'default'" in message
    assert len(pods(world)) == 3


async def test_a_smaller_cluster_that_a_volume_could_not_have_its_replicas_in_is_refused_before_anything_goes() -> None:
    world = await started(nodes=5)
    world.declare("StreamCluster", "c", SPEC | {"nodes": 2})
    await world.run(KEY)
    state, reason, message = world.condition("StreamCluster", "c", "Sized")
    assert (state, reason) == ("False", "DrainRefused")
    assert "volume 'default' asks for 3 replicas" in message
    assert 'headrace.dev/fewer-replicas: "2"' in message
    assert len(pods(world)) == 5, "nothing goes, not even as far as it could"
    assert not [call for call in world.cluster.calls if call[0] == "node.drain"]
    assert world.events().count("DrainRefused") == 1


@pytest.mark.parametrize(
    "way",
    [
        {"replication": {"replicas": 2, "minInSync": 1}},
        {"annotations": {"headrace.dev/fewer-replicas": "2"}},
    ],
)
async def test_a_smaller_cluster_comes_about_once_fewer_replicas_are_asked_for_or_confirmed(way: Object) -> None:
    world = await started()
    annotations = way.pop("annotations", {})
    world.declare("StreamCluster", "c", SPEC | {"nodes": 2} | way, annotations=annotations)
    await world.run(KEY)
    assert pods(world) == ["c-0", "c-1"]
    assert world.condition("StreamCluster", "c", "Sized")[0] == "True"
    if annotations:
        world.declare("StreamCluster", "c", SPEC | {"nodes": 1})
        await world.run(KEY)
        assert pods(world) == ["c-0", "c-1"], "that was another number"


async def test_replicas_are_counted_by_pods_zones_labels_and_hosts() -> None:
    world = await started(nodes=4, shards=2)
    for volume, refused in (
        ({"volume": "v", "replicas": 3, "min_in_sync": 1}, False),
        ({"volume": "v", "replicas": 4, "min_in_sync": 1}, True),
        ({"volume": "v", "replicas": 1, "min_in_sync": 1, "zones": ["z4"]}, True),
        ({"volume": "v", "replicas": 1, "min_in_sync": 1, "labels": {"disk": "fast"}}, True),
        ({"volume": "v", "replicas": 3, "min_in_sync": 1, "spread": "required"}, True),
        ({"volume": "v", "replicas": 3, "min_in_sync": 1, "labels": {"disk": "none has it"}}, False),
    ):
        nodes = {each["metadata"]["name"]: each for each in world.cluster.nodes()}
        world.cluster.placed = {
            each["status"]["nodeId"]: {
                "zone": f"z{int(each['status']['slot'][2]) + 1}",
                "labels": {"disk": "fast"} if each["status"]["slot"].startswith("c-3") else {},
                "host": {"c-0": "h0", "c-1": "h0"}.get(each["status"]["slot"][:3], each["status"]["slot"][:3]),
            }
            for each in nodes.values()
        }
        world.cluster.hold_drains = True
        world.cluster.volumes["v"] = volume
        world.declare("StreamCluster", "c", SPEC | {"nodes": 3, "shards": 2})
        await world.once(KEY)
        assert (world.condition("StreamCluster", "c", "Sized")[1] == "DrainRefused") is refused, volume
        world.declare("StreamCluster", "c", SPEC | {"nodes": 4, "shards": 2})
        await world.run(KEY)


async def test_no_pod_goes_while_the_cluster_does_not_answer() -> None:
    world = await started(nodes=4)
    world.cluster.away = True
    world.declare("StreamCluster", "c", SPEC | {"nodes": 3})
    await world.run(KEY)
    assert len(pods(world)) == 4
    assert len(claims(world)) == 4
    assert world.condition("StreamCluster", "c", "Sized")[:2] == ("False", "NoAnswer")


async def test_no_claim_goes_because_storage_nodes_were_deleted_by_hand() -> None:
    world = await started(nodes=4)
    for node in list(world.cluster.nodes()):
        world.api.remove("StorageNode", node["metadata"]["name"])
    world.declare("StreamCluster", "c", SPEC | {"nodes": 3})
    await world.run(KEY)
    assert claims(world) == [f"data-c-{index}" for index in range(4)]


async def test_a_stateful_set_that_was_scaled_by_hand_is_set_right_without_a_loss() -> None:
    world = await started()
    for wrong in (1, 5):
        stateful_set = copy.deepcopy(world.api.one("StatefulSet", "c"))
        stateful_set["spec"]["replicas"] = wrong
        world.api.put(stateful_set)
        world.cluster.converge()
        await world.run(KEY)
        assert pods(world) == ["c-0", "c-1", "c-2"]
        assert claims(world) == ["data-c-0", "data-c-1", "data-c-2"]


async def test_a_pod_that_is_still_coming_is_drained_once_it_has_registered() -> None:
    """Otherwise it would register while it is removed, and leave a claim and a node that nobody may delete."""
    world = await started()
    stateful_set = copy.deepcopy(world.api.one("StatefulSet", "c"))
    stateful_set["spec"]["replicas"] = 4
    stateful_set["status"] = {"observedGeneration": stateful_set["metadata"]["generation"]}
    world.api.put(stateful_set)
    assert stateful_set["status"]["observedGeneration"] < world.api.one("StatefulSet", "c")["metadata"]["generation"]
    await world.once(KEY)
    assert world.api.one("StatefulSet", "c")["spec"]["replicas"] == 4, "its pod may be made at any moment"
    world.cluster.converge()
    (node,) = [each for each in world.cluster.nodes() if each["status"]["slot"] == "c-3/0"]
    world.api.remove("StorageNode", node["metadata"]["name"])
    pod = world.api.one("Pod", "c-3")
    pod["metadata"]["creationTimestamp"] = instant(time.time())
    pod["status"] = {}
    await world.once(KEY)
    assert pods(world) == ["c-0", "c-1", "c-2", "c-3"]
    assert world.condition("StreamCluster", "c", "Sized")[1] == "Shrinking"
    world.api.put(node)
    await world.run(KEY)
    assert pods(world) == ["c-0", "c-1", "c-2"]
    assert claims(world) == ["data-c-0", "data-c-1", "data-c-2"]
    assert len(node_ids(world)) == 3


@pytest.mark.parametrize("status", [{}, {"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull"}}}]}])
async def test_a_pod_that_never_registers_goes_and_leaves_its_claim(status: Object) -> None:
    world = await started(nodes=4)
    world.api.remove("StorageNode", "c-4")
    pod = world.api.one("Pod", "c-3")
    if status:
        pod["metadata"]["creationTimestamp"] = instant(time.time())
    pod["status"] = status
    world.declare("StreamCluster", "c", SPEC | {"nodes": 3})
    await world.run(KEY)
    assert pods(world) == ["c-0", "c-1", "c-2"]
    assert "data-c-3" in claims(world)


async def test_a_claim_goes_only_once_all_of_its_shards_are_drained() -> None:
    world = await started(shards=2, **ONE_REPLICA)
    (node,) = [each for each in world.cluster.nodes() if each["status"]["slot"] == "c-2/1"]
    world.api.remove("StorageNode", node["metadata"]["name"])
    world.declare("StreamCluster", "c", SPEC | {"nodes": 2, "shards": 2} | ONE_REPLICA)
    await world.run(KEY)
    assert pods(world) == ["c-0", "c-1"]
    assert "data-c-2" in claims(world), "nobody knows what its second shard holds"
    world.declare("StreamCluster", "c", SPEC | {"nodes": 1, "shards": 2} | ONE_REPLICA)
    await world.run(KEY)
    assert claims(world) == ["data-c-0", "data-c-2"], "both shards of the second pod were drained"


async def test_a_shard_that_is_there_twice_stands_for_no_other() -> None:
    """Its folder was lost, so it has registered again, and the former node is not forgotten yet."""
    world = await started(shards=2)
    of_slot = {each["status"]["slot"]: each for each in world.cluster.nodes()}
    (other,) = [each for slot, each in of_slot.items() if slot == "c-2/1"]
    other["status"]["slot"] = "c-2/0"
    world.declare("StreamCluster", "c", SPEC | {"nodes": 2, "shards": 2})
    await world.run(KEY)
    assert "data-c-2" in claims(world)
