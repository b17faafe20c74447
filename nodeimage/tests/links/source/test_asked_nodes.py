"""Which node of a Headrace source is asked for what: it must have applied what a feed reports."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from headrace.base.ids import NodeId
from headrace.kafka_client.client import ANY
from headrace.kafka_client.errors import SourceUnreachable
from headrace.links.source.headrace_source import HeadraceSource
from headrace.links.source.source import CommittedOffsetKey

TOPIC_ID = bytes(16)
ANSWERS: Mapping[str, Any] = {
    "link.hello": {"versions": [1, 1], "cluster_id": "north", "nodes": [[7, "h", 1]], "policy": {}},
    "link.changes": {"run": "r", "serial": 1, "reset": False, "partitions": [], "topics": [TOPIC_ID], "cursors": []},
    "link.topics": {"topics": []},
    "link.cursors": {"cursors": []},
}


class Recorded:
    """A client that answers, and records which node was asked."""

    name = "north"

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.away = False
        self.answers = dict(ANSWERS)

    async def admin(
        self, node: NodeId, method: str, _params: object, result: msgspec.msgpack.Decoder[Any], **_more: object
    ) -> Any:
        self.asked.append((method, node))
        if self.away:
            raise SourceUnreachable("away")
        return result.decode(msgspec.msgpack.encode(self.answers[method]))


async def test_what_a_feed_told_is_asked_of_the_node_that_told_it() -> None:
    client = Recorded()
    source = HeadraceSource(client, "/s")  # type: ignore[arg-type]
    key = CommittedOffsetKey("g", TOPIC_ID, 0)
    await source.topics_by_id([TOPIC_ID])
    assert client.asked == [("link.hello", ANY), ("link.topics", ANY)]
    client.asked.clear()
    await source.changes(NodeId(7), None, topics=True, committed_offsets=True, wait_ms=0, limit=10)
    await source.topics_by_id([TOPIC_ID])
    await source.committed_offsets_of([key])
    await source.topics(after=None, limit=1)
    await source.committed_offsets(after=None, limit=1)
    assert {node for _, node in client.asked} == {7}
    client.asked.clear()
    client.away = True
    with pytest.raises(SourceUnreachable):
        await source.changes(NodeId(7), None, topics=True, committed_offsets=True, wait_ms=0, limit=10)
    client.away = False
    await source.committed_offsets_of([key])
    assert client.asked[-1] == ("link.cursors", ANY)


async def test_a_feed_of_partitions_alone_binds_nothing_else_to_its_node() -> None:
    client = Recorded()
    source = HeadraceSource(client, "/s")  # type: ignore[arg-type]
    await source.changes(NodeId(7), None, topics=False, committed_offsets=False, wait_ms=0, limit=10)
    await source.topics_by_id([TOPIC_ID])
    assert client.asked[-1] == ("link.topics", ANY)


async def test_a_source_that_names_no_nodes_has_not_answered() -> None:
    client = Recorded()
    source = HeadraceSource(client, "/s")  # type: ignore[arg-type]
    client.answers["link.hello"] = ANSWERS["link.hello"] | {"nodes": []}
    with pytest.raises(SourceUnreachable, match="names no nodes yet"):
        await source.hello()
    client.answers["link.hello"] |= {"problem": "there is no stream /s"}
    assert (await source.hello()).problem == "there is no stream /s"
