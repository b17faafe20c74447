"""Topics, against an API server and a cluster in memory."""

import pytest

from headrace.base.errors import Code, KafkaError
from headrace_operator.kinds import kind, topic

from ..fake_api import Object
from ..fake_cluster import World
from .declared import TOPIC


async def test_a_topic_is_made_grows_and_follows_its_config(world: World) -> None:
    key = world.declare("Topic", "pumps", TOPIC | {"config": {"retention.ms": "1000"}})
    await world.run(key)
    assert world.cluster.topics["/plant:pumps"] == {"partitions": 3, "configs": {"retention.ms": "1000"}}
    assert world.api.one("Topic", "pumps")["status"]["partitions"] == 3
    world.declare("Topic", "pumps", TOPIC | {"partitions": 5})
    await world.run(key)
    assert world.cluster.topics["/plant:pumps"] == {"partitions": 5, "configs": {}}


@pytest.mark.parametrize(("lag", "ready"), [(2, "True"), (9, "False")])
async def test_a_topic_that_a_node_has_not_heard_of_yet_is_looked_for_again(
    world: World, monkeypatch: pytest.MonkeyPatch, lag: int, ready: str
) -> None:
    """One node created it and another one is asked: that is not a refusal, which would last for minutes."""
    monkeypatch.setattr(topic, "SHOWN_S", (0.0, 0.0, 0.0))
    show = world.cluster.topic_show
    left = [lag]

    def shown(topic: str) -> Object:
        if topic in world.cluster.topics and left[0]:
            left[0] -= 1
            raise KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic}")
        return show(topic)

    monkeypatch.setattr(world.cluster, "topic_show", shown)
    again = await world.once(world.declare("Topic", "pumps", TOPIC))
    assert world.condition("Topic", "pumps")[0] == ready
    assert [call for call, _ in world.cluster.calls].count("CREATE_TOPICS") == 1
    if ready == "False":
        assert "does not know of it yet" in world.condition("Topic", "pumps")[2]
        assert again == kind.AGAIN_S


async def test_fewer_partitions_are_a_condition(world: World) -> None:
    world.cluster.topics["/plant:pumps"] = {"partitions": 8, "configs": {}}
    await world.run(world.declare("Topic", "pumps", TOPIC))
    state, reason, message = world.condition("Topic", "pumps")
    assert (state, reason) == ("False", "Refused")
    assert "8 partitions" in message
