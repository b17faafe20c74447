"""Claims grow, one after the other, or the condition says why they cannot."""

import copy

from headrace.store.kubernetes.api import ApiError

from ..fake_cluster import IMAGE
from .test_cluster import KEY, SPEC, images, started


async def test_claims_grow_and_the_stateful_set_is_made_anew_without_its_pods() -> None:
    world = await started()
    before = {pod["metadata"]["uid"] for pod in world.api.find("Pod")}
    world.declare("StreamCluster", "c", SPEC | {"storage": {"size": "2Gi"}})
    await world.run(KEY)
    assert {claim["spec"]["resources"]["requests"]["storage"] for claim in world.api.find("PersistentVolumeClaim")} == {
        "2Gi"
    }
    template = world.api.one("StatefulSet", "c")["spec"]["volumeClaimTemplates"][0]
    assert template["spec"]["resources"]["requests"]["storage"] == "2Gi"
    assert {pod["metadata"]["uid"] for pod in world.api.find("Pod")} == before


async def test_claims_grow_and_a_newer_operator_changes_no_version_by_that() -> None:
    """The StatefulSet, which names the running image, is deleted in between."""
    world = await started()
    before = {pod["metadata"]["uid"] for pod in world.api.find("Pod")}
    world.start_operator(image="registry:5000/headrace/node:2")
    world.declare("StreamCluster", "c", SPEC | {"storage": {"size": "2Gi"}})
    await world.run(KEY)
    assert {pod["metadata"]["uid"] for pod in world.api.find("Pod")} == before
    assert images(world) == {IMAGE}


async def test_claims_have_grown_once_their_volumes_have() -> None:
    world = await started()
    claimed = world.api.find("PersistentVolumeClaim")
    for claim in claimed:
        claim["status"] = {"capacity": {"storage": "1Gi"}}
    world.declare("StreamCluster", "c", SPEC | {"storage": {"size": "2Gi"}})
    await world.run(KEY)
    said = world.condition("StreamCluster", "c", "Storage")
    assert said == ("False", "Growing", "claim data-c-0 has 1Gi of 2Gi, and 2 more are too small")
    claimed = world.api.find("PersistentVolumeClaim")
    waits = {"type": "FileSystemResizePending", "status": "True", "message": "start a pod"}
    for claim in claimed[1:]:
        claim["status"] = {"capacity": {"storage": "2Gi"}}
    claimed[0]["status"]["conditions"] = [waits]
    await world.once(KEY)
    said = world.condition("StreamCluster", "c")
    assert said == ("False", "Growing", "claim data-c-0 has 1Gi of 2Gi; FileSystemResizePending: start a pod")
    claimed[0]["status"] = {"capacity": {"storage": "2Gi"}}
    unused = copy.deepcopy(claimed[0])
    unused["metadata"]["name"], unused["status"] = "data-c-3", {"capacity": {"storage": "1Gi"}}
    world.api.put(unused)
    await world.once(KEY)
    assert world.condition("StreamCluster", "c")[0] == "True"


async def test_claims_that_cannot_grow_or_shrink_are_a_condition() -> None:
    world = await started()
    world.declare("StreamCluster", "c", SPEC | {"storage": {"size": "512Mi"}})
    await world.run(KEY)
    assert world.condition("StreamCluster", "c")[:2] == ("False", "CannotShrink")
    world.declare("StreamCluster", "c", SPEC | {"storage": {"size": "2Gi"}})

    def refuse(method: str, path: str) -> ApiError | None:
        return ApiError(403, "the storage class cannot") if method == "PATCH" and "claims" in path else None

    world.api.refuse = refuse
    await world.run(KEY)
    assert world.condition("StreamCluster", "c")[:2] == ("False", "CannotGrow")
