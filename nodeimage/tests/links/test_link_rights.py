"""A link whose source is secured: what its user needs there, and what is refused without it.

Every client of the secured cluster is the user `link`, as if it had authenticated.
"""

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.kafka.connection import Connection
from headrace.node.parts import NodeParts
from kit.access import principal
from kit.callers import Callers
from kit.one_node import OneNode, until
from kit.replaced_methods import replace_method
from kit.two_clusters import caught_up, has, home_is, linked


def identified(parts: NodeParts, user: str, patched: pytest.MonkeyPatch) -> None:
    """Make every client of a node the user `user`."""
    connected = parts.dispatcher.connected

    def known(session: Connection) -> None:
        session.principal = principal(user)
        connected(session)

    replace_method(patched, parts.dispatcher, "connected", known)


@pytest.fixture
async def north(north_cluster: OneNode, monkeypatch: pytest.MonkeyPatch) -> Callers:
    """The source: secured, administered by root."""
    identified(north_cluster.parts, "link", monkeypatch)
    callers = Callers(north_cluster.parts)
    await callers.secure()
    return callers


async def append(cluster: OneNode, *values: bytes, topic: str = "t") -> None:
    await cluster.append(topic, *values)


async def test_a_user_who_has_only_copy_copies_topics_records_and_committed_offsets(
    south: OneNode, north_cluster: OneNode, north: Callers
) -> None:
    await north.access("root", {"/s": {"copy": "u:link"}})
    await append(north_cluster, b"a", b"b")
    await north_cluster.commit("g", "t", 1)
    await linked(south, north_cluster)
    await until(lambda: has(south, "t", [b"a", b"b"]))
    await append(north_cluster, b"c", topic="later")
    await until(lambda: has(south, "later", [b"c"]))

    async def committed() -> bool:
        return await south.committed_offset("g", "t") == 1

    await until(committed)
    for method, params in (
        ("stream.alter", {"path": "/s", "changes": {}}),
        ("home.move", {"stream": "/s"}),
        ("access.show", {"object": "/s"}),
        ("cluster.status", {}),
        ("link.hello", {"version": 1, "stream": "/default"}),
    ):
        await north.refused("link", method, **params)


async def test_without_copy_no_link_is_made_and_the_reason_is_told(
    south: OneNode, north_cluster: OneNode, north: Callers
) -> None:
    await north.access("root", {"/s": {"consume": "u:link", "produce": "u:link"}})
    with pytest.raises(KafkaError, match="the source refuses the link: User:link lacks copy on stream /s") as caught:
        await linked(south, north_cluster)
    assert caught.value.code == Code.TOPIC_AUTHORIZATION_FAILED
    assert await south.admin("link.list") == []


async def test_a_topic_that_is_shut_for_the_links_user_stays_at_home(
    south: OneNode, north_cluster: OneNode, north: Callers
) -> None:
    await append(north_cluster, b"secret", topic="shut")
    await append(north_cluster, b"a")
    await north.access("root", {"/s": {"copy": "u:link"}, "/s:shut": {"copy": ""}})
    await linked(south, north_cluster)
    await until(lambda: has(south, "t", [b"a"]))
    await until(lambda: caught_up(south))
    assert await south.row("shut") is None


async def test_a_right_that_is_taken_away_ends_the_copying_until_it_is_given_again(
    south: OneNode, north_cluster: OneNode, north: Callers
) -> None:
    await append(north_cluster, b"a")
    await north.access("root", {"/s": {"copy": "u:link"}})
    await linked(south, north_cluster)
    await until(lambda: has(south, "t", [b"a"]))
    await north.access("root", {"/s": {"copy": None}})
    await append(north_cluster, b"n", topic="new")

    async def told() -> bool:
        shown = await south.admin("link.show", name="l")
        return "lacks copy" in (shown["last_error"] or "")

    await until(told)
    assert await south.row("new") is None
    await north.access("root", {"/s": {"copy": "g:links | u:link"}})
    await until(lambda: has(south, "new", [b"n"]))


async def test_a_home_moves_only_by_a_user_who_has_admin_there(
    south: OneNode, north_cluster: OneNode, north: Callers
) -> None:
    await append(north_cluster, b"a")
    await north.access("root", {"/s": {"copy": "u:link"}})
    await linked(south, north_cluster)
    await until(lambda: has(south, "t", [b"a"]))
    (moved,) = await south.admin("home.move", stream="/s")
    assert moved["moved"] is False
    assert "User:link lacks admin" in moved["error"]
    row = await north_cluster.row("t")
    assert row is not None
    assert row.home is None
    await north.call(
        "root", "link.create", name="back", source=[south.bootstrap], source_stream="/s", stream="/s", topics=["t"]
    )
    await north.access("root", {"/s": {"admin": "u:link"}})
    (moved,) = await south.admin("home.move", stream="/s")
    assert (moved["moved"], moved["error"]) == (True, None)
    await append(south, b"b")
    await until(lambda: home_is(north_cluster, "t", south))
    await until(lambda: has(north_cluster, "t", [b"a", b"b"]))
    assert [each["name"] for each in await north.call("root", "link.list")] == ["back"]


async def test_a_topic_that_no_link_pulls_yet_is_followed_by_the_address_that_is_configured(
    south: OneNode, north_cluster: OneNode, north: Callers
) -> None:
    await append(north_cluster, b"a")
    await north.access("root", {"/s": {"copy": "u:link", "admin": "u:link"}})
    await linked(south, north_cluster)
    await until(lambda: has(south, "t", [b"a"]))
    made = {"name": "back", "source": [south.bootstrap], "source_stream": "/s", "stream": "/s", "topics": ["other"]}
    await north.call("root", "link.create", **made)
    row = await north_cluster.row("t")
    assert row is not None
    item = [row.topic_id, [1, south.cluster_id], north_cluster.cluster_id, {0: [[1, south.cluster_id, 1]]}]
    told = {"version": 1, "stream": "/s", "items": [item], "cluster": south.cluster_id, "bootstrap": ["10.0.0.7:9092"]}
    assert (await north.call("link", "link.announce", **told))["items"] == [{"error": 0, "message": None}]
    links = {each["name"]: each for each in await north.call("root", "link.list")}
    follower = links[f"back-{south.cluster_id}"]
    assert (follower["source"], follower["topics"]) == ([south.bootstrap], ["t"])
