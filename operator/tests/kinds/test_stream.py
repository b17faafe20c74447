"""Streams, against an API server and a cluster in memory."""

import pytest

from ..fake_cluster import World
from .declared import REF, STREAM, TOPIC


async def test_how_much_is_in_a_stream_is_shown(world: World) -> None:
    key = world.declare("Stream", "plant", STREAM)
    world.cluster.figures = {"messages": None, "bytes": None, "oldest_ms": None}
    await world.run(key)
    assert not {"messages", "bytes", "oldest"} & world.api.one("Stream", "plant")["status"].keys()
    world.start_operator()
    world.cluster.figures = {"messages": 7, "bytes": 900, "oldest_ms": 1_700_000_000_123}
    await world.run(key)
    status = world.api.one("Stream", "plant")["status"]
    assert (status["messages"], status["bytes"], status["oldest"]) == (7, 900, "2023-11-14T22:13:20Z")
    world.start_operator()
    world.cluster.figures = {"messages": 0, "bytes": 0, "oldest_ms": None}
    await world.run(key)
    assert world.api.one("Stream", "plant")["status"]["oldest"] == ""


async def test_a_stream_is_made_then_changed_then_left_alone(world: World) -> None:
    key = world.declare("Stream", "plant", STREAM)
    await world.run(key)
    assert world.cluster.streams["/plant"]["ttl_ms"] == 604_800_000
    assert world.condition("Stream", "plant")[0] == "True"
    world.declare("Stream", "plant", STREAM | {"ttl": "1h", "compression": "zstd"})
    await world.run(key)
    assert world.cluster.streams["/plant"]["ttl_ms"] == 3_600_000
    assert world.cluster.streams["/plant"]["compression"] == "zstd"
    writes, calls = len(world.api.writes), len(world.cluster.calls)
    for _ in range(3):
        await world.once(key)
    assert len(world.api.writes) == writes
    assert len(world.cluster.calls) == calls


async def test_a_topic_that_came_before_its_stream_is_called_when_that_is_made(world: World) -> None:
    topic = world.declare("Topic", "pumps", TOPIC)
    world.declare("Topic", "others", TOPIC | {"stream": "/plants"})
    stream = world.declare("Stream", "plant", STREAM)
    await world.once(stream)
    assert world.woken == [topic]
    await world.once(stream)
    assert world.woken == [topic]


async def test_a_stream_is_not_usable_by_what_was_said_of_it_before_it_was_changed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = world.declare("Stream", "s", {**REF, "path": "/plant", "volume": "default"})
    await world.run(key)
    show = world.cluster.stream_show
    problem = "volume 'far' asks for 3 replicas, and there is no node in zone z9"
    monkeypatch.setattr(
        world.cluster,
        "stream_show",
        lambda path, figures=False: (
            (shown := show(path, figures)) | {"problem": problem if shown["volume"] == "far" else None}
        ),
    )
    world.declare("Stream", "s", {**REF, "path": "/plant", "volume": "far"})
    await world.once(key)
    assert world.condition("Stream", "s", "Usable") == ("False", "Impossible", problem)
