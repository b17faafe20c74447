"""StreamUsers: a Secret for each, which is nobody else's, and whose password stays."""

import base64

from headrace.store.kubernetes.api import ApiError

from ..fake_cluster import NS, World
from .declared import REF


async def test_a_user_has_a_secret_whose_password_stays(world: World) -> None:
    key = world.declare("StreamUser", "alice", REF)
    await world.run(key)
    found = world.api.one("Secret", "alice")
    told = {name: base64.b64decode(value).decode() for name, value in found["data"].items()}
    assert told["bootstrap"] == "c-bootstrap.ns.svc:9092"
    assert "bootstrap.servers=c-bootstrap.ns.svc:9092" in told["client.properties"]
    assert found["metadata"]["ownerReferences"][0]["kind"] == "StreamUser"
    world.start_operator()
    await world.run(key)
    assert world.api.one("Secret", "alice")["data"] == found["data"]


async def test_a_secret_of_somebody_else_is_not_taken(world: World) -> None:
    world.api.put({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "alice", "namespace": NS}, "data": {}})
    await world.run(world.declare("StreamUser", "alice", REF))
    assert world.condition("StreamUser", "alice")[1] == "SecretTaken"
    assert world.api.one("Secret", "alice")["data"] == {}


async def test_a_secret_of_another_name_takes_the_place_of_the_former(world: World) -> None:
    key = world.declare("StreamUser", "alice", REF)
    await world.run(key)
    world.declare("StreamUser", "alice", {**REF, "secretName": "alice-kafka"})
    await world.run(key)
    assert [each["metadata"]["name"] for each in world.api.find("Secret") if "alice" in each["metadata"]["name"]] == [
        "alice-kafka"
    ]
    world.api.put({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "bobs", "namespace": NS}, "data": {}})
    world.api.one("StreamUser", "alice")["status"]["secret"] = "bobs"  # whoever says so
    world.watch()
    world.start_operator()
    await world.run(key)
    assert world.api.find("Secret", "bobs")


async def test_a_secret_that_cannot_be_is_a_condition_and_no_failure(world: World) -> None:
    def refuse(method: str, path: str) -> ApiError | None:
        refused = method == "PATCH" and "/secrets/" in path
        return ApiError(422, 'metadata.name: Invalid value: "Alice"') if refused else None

    world.api.refuse = refuse
    assert await world.once(world.declare("StreamUser", "alice", {**REF, "secretName": "Alice"})) == 60.0
    state, reason, message = world.condition("StreamUser", "alice")
    assert (state, reason) == ("False", "Refused")
    assert "Secret Alice" in message
