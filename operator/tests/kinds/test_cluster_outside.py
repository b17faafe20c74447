"""The ports for clients outside outlive the StreamCluster, as the data do."""

import pytest

from headrace.store.kubernetes.api import ApiError

from ..fake_api import Object
from ..fake_cluster import World
from .test_cluster import KEY, SPEC, pods, started


def ports(world: World) -> dict[str, list[int]]:
    return {
        each["metadata"]["name"]: [port["nodePort"] for port in each["spec"]["ports"]]
        for each in world.api.find("Service")
        if each["metadata"]["name"].endswith("-external")
    }


async def deleted_and_applied_again(world: World, **spec: object) -> None:
    world.api.remove("StreamCluster", "c")
    for pod in pods(world):
        world.api.remove("Pod", pod)
    assert not ports(world)
    world.cluster.first_port = 31000
    world.start_operator()
    world.declare("StreamCluster", "c", SPEC | spec)
    world.api.one("StreamCluster", "c")["metadata"]["uid"] = "another"
    await world.run(KEY)


@pytest.mark.parametrize("shards", [1, 2])
async def test_a_cluster_that_is_deleted_and_applied_again_has_its_node_ports(shards: int) -> None:
    world = await started(shards=shards)
    before = ports(world)
    assert before["c-1-external"][0] == 30010
    await deleted_and_applied_again(world, shards=shards)
    assert ports(world) == before
    assert {node["spec"]["advertised"]["external"] for node in world.cluster.nodes()} == {
        f"10.0.0.1:{port}" for each in before.values() for port in each
    }


async def test_a_service_that_is_deleted_by_hand_has_its_node_port_again() -> None:
    world = await started()
    before = ports(world)
    world.api.remove("Service", "c-1-external")
    world.cluster.first_port = 31000
    await world.run(KEY)
    assert ports(world) == before


async def test_a_port_that_somebody_took_meanwhile_is_another_one_and_a_warning() -> None:
    world = await started()
    before = ports(world)

    def refuse(method: str, path: str) -> ApiError | None:
        if method != "PATCH" or not path.endswith("c-1-external") or refused:
            return None
        refused.append(path)
        return ApiError(
            422,
            'Service "c-1-external" is invalid: spec.ports[0].nodePort: Invalid value: 30010: provided port is'
            " already allocated",
        )

    refused: list[str] = []
    world.api.refuse = refuse
    await deleted_and_applied_again(world)
    assert ports(world) == {**before, "c-1-external": [31010]}
    (told,) = [each for each in world.api.find("Event") if each["reason"] == "NodePortChanged"]
    assert told["type"] == "Warning"
    assert "30010" in told["message"]
    await deleted_and_applied_again(world)
    assert ports(world)["c-1-external"] == [31010]


async def test_a_port_that_the_resource_names_is_as_it_says_or_refused() -> None:
    world = await started()
    external: Object = {"type": "NodePort", "nodePorts": [30500]}
    await deleted_and_applied_again(world, listeners={"external": external})
    assert ports(world)["c-0-external"] == [30500]
    assert ports(world)["c-1-external"] == [30010]
    taken = ApiError(422, "provided port is already allocated")
    world.api.refuse = lambda method, path: taken if (method, path[-12:]) == ("PATCH", "c-0-external") else None
    external["nodePorts"] = [30501]
    world.declare("StreamCluster", "c", SPEC | {"listeners": {"external": external}})
    await world.once(KEY)
    assert world.condition("StreamCluster", "c")[:2] == ("False", "Refused")
    assert "NodePortChanged" not in world.events()


async def test_ports_outlive_a_listener_that_is_closed_for_a_while() -> None:
    world = await started()
    before = ports(world)
    world.declare("StreamCluster", "c", {"nodes": 3, "storage": {"size": "1Gi"}})
    await world.run(KEY)
    assert not ports(world)
    world.cluster.first_port = 31000
    world.declare("StreamCluster", "c", SPEC)
    await world.run(KEY)
    assert ports(world) == before


async def test_what_else_is_wrong_with_a_service_is_no_reason_to_give_its_port_up() -> None:
    world = await started()
    invalid = ApiError(
        422, 'Service "c-0-external" is invalid: metadata.annotations: Too long: must have at most 262144'
    )
    world.api.refuse = lambda method, path: invalid if (method, path[-12:]) == ("PATCH", "c-0-external") else None
    external: Object = {"type": "NodePort", "annotations": {"a": "b"}}
    world.declare("StreamCluster", "c", SPEC | {"listeners": {"external": external}})
    await world.once(KEY)
    assert world.condition("StreamCluster", "c")[:2] == ("False", "Refused")
    assert "NodePortChanged" not in world.events()
