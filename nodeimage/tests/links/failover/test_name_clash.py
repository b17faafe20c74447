"""Two topics of the same name in both clusters: the link refuses to copy until the clash is resolved."""

from kit.one_node import OneNode, until
from kit.two_clusters import has, linked


async def test_a_clash_is_refused_until_the_sources_topic_is_adopted(south: OneNode, north_cluster: OneNode) -> None:
    await south.produce("t", b"ours-1", b"ours-2")
    await north_cluster.produce("t", b"theirs")
    await linked(south, north_cluster)

    async def refused() -> bool:
        return [each["topic"] for each in (await south.admin("link.show", name="l"))["refused"]] == ["t"]

    await until(refused)
    assert await has(south, "t", [b"ours-1", b"ours-2"])
    assert await south.admin("link.adopt", name="l") == [
        {"topic": "t", "records": 2, "into": "/s:t.diverged", "error": None}
    ]
    await until(lambda: has(south, "t", [b"theirs"]))
    assert await has(south, "t.diverged", [b"ours-1", b"ours-2"])
