"""Admin calls on links: what is refused, and what a deleted link leaves behind."""

import asyncio
from typing import Any

import pytest

from headrace.base.errors import Code, KafkaError
from kit.one_node import OneNode, until
from kit.two_clusters import has, linked


async def test_a_deleted_link_leaves_copies_and_one_made_again_goes_on(south: OneNode, north_cluster: OneNode) -> None:
    await north_cluster.produce("t", b"a")
    await linked(south, north_cluster)
    await until(lambda: has(south, "t", [b"a"]))
    await south.admin("link.delete", name="l")
    await north_cluster.produce("t", b"b")
    with pytest.raises(KafkaError):
        await south.produce("t", b"mine")
    await linked(south, north_cluster)
    await until(lambda: has(south, "t", [b"a", b"b"]))


async def test_a_source_that_cannot_be_copied_from_is_refused_with_a_clear_line(
    south: OneNode, north_cluster: OneNode
) -> None:
    async def refused(**params: Any) -> str:
        with pytest.raises(KafkaError) as caught:
            await linked(south, north_cluster, **params)
        return str(caught.value)

    assert "itself" in await refused(source=[south.bootstrap])
    assert "no stream /other" in await refused(source_stream="/other")
    assert "127.0.0.1:1" in await refused(source=["127.0.0.1:1"])
    assert await south.admin("link.list") == []


async def test_credentials_are_sent_to_a_new_address_only_if_they_are_given_with_it(
    south: OneNode, north_cluster: OneNode
) -> None:
    met: list[object] = []
    stranger = await asyncio.start_server(lambda _, writer: met.append(writer.close()), "127.0.0.1", 0)
    other = f"127.0.0.1:{stranger.sockets[0].getsockname()[1]}"
    credentials = {"security.protocol": "PLAINTEXT"}
    await linked(south, north_cluster, credentials=credentials)
    with pytest.raises(KafkaError, match=f"not given for {other}: give them again") as refused:
        await south.admin("link.alter", name="l", source=[north_cluster.bootstrap, other])
    assert refused.value.code == Code.INVALID_REQUEST
    assert met == []
    same = await south.admin("link.alter", name="l", source=[north_cluster.bootstrap], topics=["t*"])
    assert (same["source"], same["topics"]) == ([north_cluster.bootstrap], ["t*"])
    given = await south.admin("link.alter", name="l", source=[north_cluster.bootstrap, other], credentials=credentials)
    assert given["source"] == [north_cluster.bootstrap, other]
    without = await south.admin("link.alter", name="l", source=[north_cluster.bootstrap], credentials={})
    assert without["credentials"] == []
    free = await south.admin("link.alter", name="l", source=[north_cluster.bootstrap, other])
    assert free["source"] == [north_cluster.bootstrap, other]
    stranger.close()


async def test_moving_home_without_a_link_says_what_to_do(south: OneNode, north_cluster: OneNode) -> None:
    await north_cluster.produce("t", b"a")
    await linked(south, north_cluster)
    await until(lambda: has(south, "t", [b"a"]))
    await south.admin("link.delete", name="l")
    (moved,) = await south.admin("home.move", stream="/s")
    assert "--force" in moved["error"]
    with pytest.raises(KafkaError, match="run this at that cluster"):
        await south.admin("home.move", stream="/s", to=north_cluster.cluster_id)
    (unknown,) = await south.admin("home.move", stream="/s", topics=["nothing"])
    assert "there is no topic" in unknown["error"]
