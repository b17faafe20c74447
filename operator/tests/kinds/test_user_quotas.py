"""A user's quotas, by Kafka's own calls."""

from headrace_operator.kinds.user_quotas import alter_quotas, asked
from headrace_operator.specs import Quotas

from ..fake_cluster import World

WHERE = "c-bootstrap.ns.svc:9092"


async def test_a_user_has_the_quotas_that_are_asked_for_and_no_others(world: World) -> None:
    cluster = world.cluster
    cluster.quotas["alice"] = {"consumer_byte_rate": 5.0, "request_percentage": 1.0}
    wanted = Quotas(producer_byte_rate=1000, request_percentage=2.5)
    await alter_quotas(cluster, WHERE, "alice", wanted)
    assert cluster.quotas["alice"] == asked(wanted) == {"producer_byte_rate": 1000.0, "request_percentage": 2.5}
    before = len(cluster.calls)
    await alter_quotas(cluster, WHERE, "alice", wanted)
    assert len(cluster.calls) == before
    await alter_quotas(cluster, WHERE, "alice", Quotas())
    assert cluster.quotas["alice"] == {}
