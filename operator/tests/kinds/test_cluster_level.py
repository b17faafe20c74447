"""A cluster's feature level, as a StreamCluster asks for it."""

import base64
import json
from typing import Any

import pytest

from headrace_operator.kinds.cluster_level import ORIGINAL, condition, orders
from headrace_operator.specs import AUTO

from ..fake_cluster import World
from .test_cluster import KEY, SPEC, pods, started


def shown(**fields: Any) -> dict[str, Any]:
    """Return the cluster's answer."""
    return {**ORIGINAL, "raised_by_itself_after_s": 86400.0, **fields}


@pytest.mark.parametrize(
    ("asked", "found", "expected"),
    [
        (AUTO, shown(), []),
        (AUTO, shown(held_at=0), [("features.hold", {"off": True})]),
        (0, shown(), [("features.hold", {"level": 0})]),
        (0, shown(held_at=0, supported_by_all=1), []),
        (1, shown(), [("features.hold", {"level": 1})]),
        (
            1,
            shown(held_at=0, supported_by_all=1),
            [("features.hold", {"level": 1}), ("features.upgrade", {"level": 1, "wait_s": 0})],
        ),
        (1, shown(held_at=1, supported_by_all=1, wanted=1), []),
        (1, shown(held_at=1, supported_by_all=1, raising=1), []),
        (0, shown(level=1, held_at=1), []),
    ],
)
def test_what_the_cluster_is_told(asked: int | str, found: dict[str, Any], expected: list[Any]) -> None:
    assert orders(asked, found) == expected


@pytest.mark.parametrize(
    ("asked", "found", "ok", "reason"),
    [
        (AUTO, shown(), True, "Newest"),
        (AUTO, shown(supported_by_all=1), False, "Waits"),
        (AUTO, shown(supported_by_all=1, raising=1), False, "Raising"),
        (AUTO, shown(supported_by_all=1, level=1), True, "Newest"),
        (0, shown(supported_by_all=1, held_at=0), True, "Held"),
        (1, shown(held_at=1), False, "NotSupported"),
        (1, shown(held_at=1, supported_by_all=1, wanted=1), False, "Raising"),
        (0, shown(level=1, supported_by_all=1), False, "NotLowered"),
    ],
)
def test_what_is_said_of_it(asked: int | str, found: dict[str, Any], ok: bool, reason: str) -> None:
    told = condition(asked, found, "")
    assert (told.ok, told.reason) == (ok, reason)
    assert told.message


def test_a_refusal_is_passed_on() -> None:
    told = condition(1, shown(supported_by_all=1), "level 1 is not supported by node 2")
    assert (told.ok, told.reason, told.message) == (False, "Refused", "level 1 is not supported by node 2")


def of_condition(world: World) -> tuple[str, str]:
    return world.condition("StreamCluster", "c", "FeatureLevel")[:2]


def mounted(world: World) -> str:
    """Return the Secret that pods mount from now on."""
    volumes = world.api.one("StatefulSet", "c")["spec"]["template"]["spec"]["volumes"]
    return next(str(each["projected"]["sources"][0]["secret"]["name"]) for each in volumes if each["name"] == "cluster")


def levels(world: World, **fields: Any) -> None:
    """Set the cluster's answer from now on."""
    world.cluster.levels = shown(**fields)


async def test_a_level_that_waits_keeps_nobody_from_being_ready() -> None:
    world = await started()
    assert of_condition(world) == ("True", "Newest")
    levels(world, supported_by_all=1)
    await world.run(KEY)
    assert of_condition(world) == ("False", "Waits")
    assert world.condition("StreamCluster", "c")[:2] == ("True", "Ready")


async def test_from_the_first_step_on_pods_get_a_record_that_older_versions_refuse() -> None:
    world = await started()
    before = world.api.one("Secret", "c-cluster")["data"]
    levels(world, supported_by_all=1, raising=1)
    await world.run(KEY)
    assert mounted(world) == "c-cluster-2"
    record, newer = (
        json.loads(base64.b64decode(data["record"]))
        for data in (before, world.api.one("Secret", "c-cluster-2")["data"])
    )
    assert newer == {**record, "format_version": 2}
    assert world.api.one("Secret", "c-cluster")["data"] == before, "a node that runs has it mounted"
    assert pods(world) == ["c-0", "c-1", "c-2"]
    assert "PodRolled" not in world.events()

    levels(world, supported_by_all=1, level=1)
    world.start_operator()
    await world.run(KEY)
    assert mounted(world) == "c-cluster-2"
    assert world.api.one("StreamCluster", "c")["status"]["featureLevel"] == 1
    assert of_condition(world) == ("True", "Newest")


async def test_nodes_that_know_of_no_levels_are_at_the_first_one() -> None:
    world = await started()
    world.cluster.levels = None
    await world.run(KEY)
    assert of_condition(world) == ("True", "Newest")
    world.declare("StreamCluster", "c", {**SPEC, "featureLevel": 1})
    await world.run(KEY)
    assert of_condition(world) == ("False", "NotSupported")
    assert world.condition("StreamCluster", "c")[:2] == ("True", "Ready")


async def test_a_number_holds_the_level_and_has_it_raised() -> None:
    world = await started(featureLevel=0)
    assert world.cluster.levels is not None
    assert world.cluster.levels["held_at"] == 0
    levels(world, supported_by_all=1, held_at=0)
    world.declare("StreamCluster", "c", {**SPEC, "featureLevel": 1})
    await world.run(KEY)
    assert (world.cluster.levels["held_at"], world.cluster.levels["wanted"]) == (1, 1)
    world.declare("StreamCluster", "c", {**SPEC, "featureLevel": "auto"})
    await world.run(KEY)
    assert world.cluster.levels["held_at"] is None


async def test_both_records_go_with_a_cluster_that_is_deleted() -> None:
    world = await started(reclaimPolicy="Delete")
    levels(world, supported_by_all=1, level=1)
    await world.run(KEY)
    assert world.api.one("Secret", "c-cluster-2")
    world.api.remove("StreamCluster", "c")
    for _ in range(3):
        await world.once(KEY)
        for pod in pods(world):
            world.api.remove("Pod", pod)
    assert {each["kind"] for each in world.api.objects.values()} <= {"Node", "Event"}


async def test_a_record_of_a_format_between_is_not_forgotten_by_a_version_that_knows_a_newer_one() -> None:
    """Otherwise pods would be recreated with a format that the nodes' folders refuse."""
    world = await started()
    levels(world, supported_by_all=1, level=1)
    await world.run(KEY)
    world.start_operator()
    await world.run(KEY)
    assert mounted(world) == "c-cluster-2"
    levels(world, supported_by_all=2, level=2)
    await world.run(KEY)
    assert mounted(world) == "c-cluster-3"


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({"level": 0, "supported_by_all": 2}, [("features.upgrade", {"level": 2, "wait_s": 0})]),
        ({"level": 0, "supported_by_all": 1}, []),
        ({"level": 0, "supported_by_all": 2, "wanted": 2}, []),
        ({"level": 1, "supported_by_all": 2, "raising": 2}, []),
        ({"level": 2, "supported_by_all": 2}, []),
    ],
)
def test_what_security_needs_is_not_waited_for(found: dict[str, Any], told: list[Any]) -> None:
    assert orders("auto", shown(**found), least=2) == told
