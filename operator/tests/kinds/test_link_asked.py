"""A resolved ReplicationLink: its source, its stream, and the copy's time to live."""

from headrace_operator.engine import Key

from ..fake_cluster import NS, World
from .test_link import FAR, LINK, OWN, REF, declared, the_link


async def test_a_source_of_another_namespace_has_to_allow_it(two: World) -> None:
    key = declared(two, **FAR)
    assert await two.once(key) is None
    state, reason, message = two.condition("ReplicationLink", "l")
    assert (state, reason) == ("False", "NotAllowed")
    assert "StreamCluster far/d does not allow namespace ns" in message
    allowing = two.declare("StreamCluster", "d", {"nodes": 1, "allowedNamespaces": {"names": [NS]}}, namespace="far")
    assert key in two.index.concerned(Key("StreamCluster", "far", "d"), two.api.one("StreamCluster", "d"))
    assert allowing
    await two.run(key)
    assert the_link(two)["source"] == ["d-bootstrap.far.svc:9092"]
    assert the_link(two)["bootstrap"] == [OWN]


async def test_a_source_cluster_that_is_not_there_is_named(world: World) -> None:
    await world.once(declared(world, **FAR))
    assert world.condition("ReplicationLink", "l")[1] == "NoCluster"
    assert "source.clusterRef" in world.condition("ReplicationLink", "l")[2]


async def test_multi_home_needs_an_address_that_the_source_reaches(world: World) -> None:
    key = declared(world, mode="MultiHome")
    await world.once(key)
    assert world.condition("ReplicationLink", "l")[:2] == ("False", "NoAddress")
    assert "target.bootstrap" in world.condition("ReplicationLink", "l")[2]
    cluster = world.api.one("StreamCluster", "c")
    cluster["status"]["externalBootstrap"] = "10.0.0.1:30000"
    world.api._bump(cluster)
    await world.run(key)
    assert the_link(world)["bootstrap"] == ["10.0.0.1:30000"]
    declared(world, mode="MultiHome", target={"stream": "/plant", "bootstrap": "plant.example.com:9092"})
    await world.run(key)
    assert the_link(world)["bootstrap"] == ["plant.example.com:9092"]
    world.api.remove("ReplicationLink", "l")
    await world.once(key)
    assert "NotDeleted" in world.events(), "the reverse link is the source's"


async def test_a_stream_that_is_declared_comes_first_and_says_how_long_it_lives(world: World) -> None:
    stream = world.declare("Stream", "plant", {**REF, "path": "/plant", "ttl": "7d"})
    key = declared(world, target={"stream": "/plant", "ttl": "30d"})
    await world.once(key)
    assert world.condition("ReplicationLink", "l")[:2] == ("False", "TtlTwice")
    declared(world)
    await world.once(key)
    assert world.condition("ReplicationLink", "l")[:2] == ("False", "StreamFirst")
    world.woken.clear()
    await world.run(stream)
    assert world.woken == [key]
    await world.run(key)
    assert world.condition("ReplicationLink", "l")[0] == "True"
    assert world.cluster.streams["/plant"]["ttl_ms"] == 7 * 86_400_000


async def test_without_a_stream_the_link_says_how_long_the_copy_lives(world: World) -> None:
    key = declared(world, target={"stream": "/plant", "ttl": "30d"})
    await world.run(key)
    assert world.cluster.streams["/plant"]["ttl_ms"] == 30 * 86_400_000
    other = world.declare(
        "ReplicationLink",
        "m",
        {**LINK, "target": {"stream": "/plant", "ttl": "1d"}},
        creationTimestamp="2026-02-02T00:00:00Z",
    )
    await world.once(other)
    assert world.condition("ReplicationLink", "m")[1] == "TtlTwice"
    await world.run(key)
    assert world.cluster.streams["/plant"]["ttl_ms"] == 30 * 86_400_000


async def test_of_two_of_one_name_the_older_one_holds(world: World) -> None:
    await world.run(declared(world))
    young = world.declare("ReplicationLink", "m", {**LINK, "name": "l"}, creationTimestamp="2026-02-02T00:00:00Z")
    await world.once(young)
    assert world.condition("ReplicationLink", "m")[1] == "Clash"
