"""The removal of a user's password, by Kafka's own call."""

import pytest

from headrace.base.errors import Code, KafkaError
from headrace_operator.kinds.user_passwords import remove_password

from ..fake_cluster import World

WHERE = "c-bootstrap.ns.svc:9092"
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")


async def test_a_user_stays_without_its_password(world: World) -> None:
    world.cluster.users["alice"] = {"groups": ["ops"], "password": "long enough"}
    await remove_password(world.cluster, WHERE, "alice", MECHANISMS)
    assert world.cluster.users["alice"] == {"groups": ["ops"], "password": None}


async def test_a_refusal_is_an_error(world: World) -> None:
    world.cluster.users["alice"] = {"groups": [], "password": "long enough"}
    world.cluster.refuses = KafkaError(Code.POLICY_VIOLATION, "not now")
    with pytest.raises(KafkaError, match="not now"):
        await remove_password(world.cluster, WHERE, "alice", MECHANISMS)
    assert world.cluster.users["alice"]["password"] == "long enough"
